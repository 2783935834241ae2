"""The ASGI application of the service."""

from dataclasses import replace
from typing import TYPE_CHECKING

from bilinq.live import tracing
from bilinq.live.http.asgi import App
from bilinq.live.http.endpoint import OPEN, Endpoint, Rate
from bilinq.live.http.forward import Forward
from bilinq.live.http.middleware import Headers, RequestLog, Traced
from bilinq.live.http.pages import Pages
from bilinq.live.http.problems import Problems
from bilinq.live.http.routes import METRICS, ROUTES
from bilinq.live.http.routing import Paths, Route
from bilinq.live.settings import ServiceSettings

if TYPE_CHECKING:
    from bilinq.live.service import Service
    from bilinq.live.watch import Watch


def make_app(service: "Service", watch: "Watch", settings: ServiceSettings) -> App:
    """Return the application that answers for `service` and shows what `watch` sees of it.

    From the outside in: headers for every answer, errors as problems, the dashboard's files, requests of a
    follower handed to the leader, paths, and an `Endpoint` for each path.
    """
    rate, routes = Rate(settings.rate), [_opened(route, settings) for route in ROUTES]
    endpoints = {
        path: Endpoint([route for route in routes if route.path == path], service, watch, rate, settings.max_body)
        for path in dict.fromkeys(route.path for route in routes)
    }
    local = frozenset(route.path for route in routes if route.local)
    app: App = Problems(Pages(Forward(Paths(endpoints), service, watch, settings.max_body, local)))
    app = RequestLog(app) if settings.log_requests else app
    return Headers(Traced(app) if tracing.on() else app, service.meters.answers)


def _opened(route: Route, settings: ServiceSettings) -> Route:
    """Return the route, without need of a key if it is that of the metrics and the settings say so."""
    return replace(route, scopes=OPEN) if route.path == METRICS and settings.metrics == "open" else route
