"""The table of all routes; dispatch, scopes and the OpenAPI document are made from it."""

from functools import cache

import msgspec

from bilinq.errors import Unavailable
from bilinq.live.http import admin, jobs, openapi, work
from bilinq.live.http import watching as watch
from bilinq.live.http.call import Call
from bilinq.live.http.endpoint import OPEN
from bilinq.live.http.routing import Route
from bilinq.live.metrics.page import CONTENT_TYPE
from bilinq.live.wire.queries import HealthStatus


async def get_health(call: Call[None, None]) -> HealthStatus:
    """Tell that the process is alive and its parts work."""
    if not call.service.healthy:
        raise Unavailable("the service is not healthy; its log says why")
    return HealthStatus("ok")


async def get_ready(call: Call[None, None]) -> HealthStatus:
    """Tell that requests are taken."""
    if not call.service.ready:
        raise Unavailable("the service is starting, stopping, or without its database")
    return HealthStatus("ready")


async def get_metrics(call: Call[None, None]) -> str:
    """Return the numbers of this process as Prometheus reads them."""
    return await call.service.metrics()


async def get_openapi(call: Call[None, None]) -> msgspec.Raw:
    """Return the description of this API."""
    return msgspec.Raw(document())


METRICS = "/metrics"
ROUTES: tuple[Route, ...] = (
    *work.ROUTES,
    *jobs.ROUTES,
    *admin.ROUTES,
    *watch.ROUTES,
    Route("GET", "/healthz", get_health, "Tell whether the process works", "open", OPEN, answer=HealthStatus, also=(503,),
          local=True),
    Route("GET", "/readyz", get_ready, "Tell whether requests are taken", "open", OPEN, answer=HealthStatus, also=(503,)),
    Route("GET", METRICS, get_metrics, "Show the numbers of this process, for Prometheus", "state", ("read",), answer=str,
          local=True, content_type=CONTENT_TYPE),
    Route("GET", "/openapi.json", get_openapi, "Describe this API", "open", OPEN, answer=dict, local=True),
)  # fmt: skip
"""Those that are asked most often come first, since they are tried in this order."""


@cache
def document() -> bytes:
    """Return the OpenAPI document as JSON."""
    return msgspec.json.encode(openapi.describe_api(ROUTES))
