"""The ASGI application of the service: the table of all routes, the dashboard's files, forwarding to the leader."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cache, cached_property
from hmac import compare_digest
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import httpx
import msgspec

from bilinq.errors import Unavailable
from bilinq.live import tracing
from bilinq.live.http import routing as asgi
from bilinq.live.http.admin_handlers import ADMIN_ROUTES, METRICS, WATCH_ROUTES
from bilinq.live.http.bodies import Bodies, Room
from bilinq.live.http.endpoint import Endpoint, Gates, RateLimit
from bilinq.live.http.job_handlers import JOB_ROUTES, WORK_ROUTES
from bilinq.live.http.middleware import FORWARDED, Headers, Problems, RequestLog, Traced
from bilinq.live.http.openapi import describe_api
from bilinq.live.http.routing import (
    EVENTS,
    OPEN,
    App,
    Paths,
    Receive,
    Request,
    Route,
    Scope,
    Send,
    respond,
    route,
    while_connected,
)
from bilinq.live.settings import ServiceSettings
from bilinq.live.wire.queries import NoQuery

if TYPE_CHECKING:
    from bilinq.live.service import Service
    from bilinq.live.watch import Watcher


async def get_openapi(request: Request[None, NoQuery]) -> msgspec.Raw:
    """Return the description of this API."""
    return msgspec.Raw(document())


ROUTES: tuple[Route, ...] = (
    *WORK_ROUTES,
    *JOB_ROUTES,
    *ADMIN_ROUTES,
    *WATCH_ROUTES,
    route(
        "GET", "/openapi.json", "get_openapi", get_openapi, "Describe this API", "open", OPEN, response=dict, local=True
    ),
)
"""All routes, from which dispatch, scopes and the OpenAPI document are made. The most frequent come first, since paths
with names are tried in this order."""


@cache
def document() -> bytes:
    """Return the OpenAPI document as JSON."""
    return msgspec.json.encode(describe_api(ROUTES))


def make_app(service: "Service", watch: "Watcher", settings: ServiceSettings) -> App:
    """Return the application that serves `service` and what `watch` records of it.

    From the outside in: headers for every response, errors as problem documents, the dashboard's files, requests to a
    follower forwarded to the leader, paths, and an `Endpoint` for each path.
    """
    rate, gates, bodies = RateLimit(settings.rate), Gates(), Bodies(settings.max_body)
    routes = [_opened(one, settings) for one in ROUTES]
    endpoints = {
        path: Endpoint([route for route in routes if route.path == path], service, watch, rate, bodies, gates)
        for path in dict.fromkeys(route.path for route in routes)
    }
    local = frozenset(route.path for route in routes if route.local)
    app: App = Problems(Pages(Forward(Paths(endpoints), service, watch, bodies, local)))
    app = RequestLog(app) if settings.log_requests else app
    return Headers(Traced(app) if tracing.on() else app, service.meters.answers)


def _opened(route: Route, settings: ServiceSettings) -> Route:
    """Return the route; the metrics' route needs no key if the settings say so."""
    return replace(route, scopes=OPEN) if route.path == METRICS and settings.metrics == "open" else route


KINDS = {
    "html": b"text/html; charset=utf-8", "css": b"text/css; charset=utf-8", "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}  # fmt: skip
"""Content types by file name extension; files of other kinds are not served."""

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only files of this service are loaded, the page contains no script or style, and no text becomes markup."""

FOLDER = "/dashboard/"
METHODS = ("GET", "HEAD")


class File(NamedTuple):
    """A file of the dashboard with its headers."""

    body: bytes
    tag: bytes
    headers: list[tuple[bytes, bytes]]


class Pages:
    """The application with the dashboard at / and its files under /dashboard/.

    Every process serves them itself, without a key; the data that they show need one.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self.files = load()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path != "/" and not path.startswith(FOLDER):
            await self.app(scope, receive, send)
            return
        if path not in self.files:
            raise asgi.NoSuchPath(f"the dashboard has no file {path[:200]!r}")
        if scope["method"] not in METHODS:
            raise asgi.WrongMethod(scope["method"], ", ".join(METHODS))
        scope["route"] = path  # under which responses are counted
        file = self.files[path]
        if is_known(file.tag, scope["headers"]):
            await respond(send, 304, file.headers)
        else:
            await respond(send, 200, file.headers, file.body)


def load() -> dict[str, File]:
    """Return the dashboard's files by their paths."""
    files = {}
    for item in resources.files("bilinq.live").joinpath("dashboard").iterdir():
        kind = KINDS.get(item.name.rpartition(".")[2])
        if kind is not None:
            files["/" if item.name == "index.html" else FOLDER + item.name] = make_file(item.read_bytes(), kind)
    return files


def make_file(body: bytes, kind: bytes) -> File:
    """Return a file that browsers keep, but check for changes each time."""
    tag = b'"' + hashlib.sha256(body).hexdigest()[:32].encode() + b'"'
    headers = [
        (b"content-type", kind),
        (b"etag", tag),
        (b"cache-control", b"no-cache"),
        (b"content-security-policy", POLICY),
    ]
    return File(body, tag, headers)


def is_known(tag: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the client already has the file with this tag."""
    given = [value for name, value in headers if name == b"if-none-match"]
    return any(tag in (part.strip().removeprefix(b"W/") for part in value.split(b",")) for value in given)


MARK = b"x-bilinq-forwarded"
"""A header of forwarded requests; they are not forwarded again, so that none goes in circles. Its value is a secret of the
processes of the service: connections of other processes do not count against the limit of their address."""
_TIMES = httpx.Timeout(90.0, connect=2.0)
_OF_A_CONNECTION = {b"connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", b"x-request-id"}
_NOT_SENT = _OF_A_CONNECTION | {b"content-length", b"expect", b"host"}
_NOT_RETURNED = _OF_A_CONNECTION | {b"date"}


class Forward:
    """The application if this process leads or the path is in `local`; otherwise the response of the leader."""

    def __init__(self, app: App, service: "Service", watch: "Watcher", bodies: Bodies, local: Collection[str]) -> None:
        self.app, self.service, self.watch, self.bodies, self.local = app, service, watch, bodies, local

    @cached_property
    def client(self) -> httpx.AsyncClient:
        """Connections to the leader."""
        return httpx.AsyncClient(timeout=_TIMES, limits=httpx.Limits(max_connections=None), trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        mark = next((value for name, value in scope["headers"] if name == MARK), None)
        if not self.service.following or scope["path"] in self.local:
            if mark is not None and self.service.secret and compare_digest(mark, self.service.secret.encode()):
                scope.get("trust", _nothing)()
            await self.app(scope, receive, send)
            return
        scope["route"] = FORWARDED
        leader = self.service.leader
        if leader is None or mark is not None:
            raise Unavailable("no process leads at the moment; another takes over within seconds")
        with Room(self.bodies) as room:
            body = await room.read(receive, dict(scope["headers"]).get(b"content-length"))
            response = await while_connected(receive, self._ask(leader, scope, body))
        headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in _NOT_RETURNED]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        if response.is_closed:
            await send({"type": "http.response.body", "body": response.content})
        else:
            await while_connected(receive, self.watch.until_drained(_pass_on(response, send)))
            await send({"type": "http.response.body", "body": b""})

    async def _ask(self, leader: str, scope: Scope, body: bytes) -> httpx.Response:
        headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_SENT]
        mark = (MARK, (self.service.secret or "1").encode())
        headers = [*tracing.handed_on(headers), mark, (b"x-request-id", scope["request"].encode())]
        query = scope["query_string"]
        target = bytes(scope["raw_path"] + (b"?" + query if query else b""))
        request = self.client.build_request(
            scope["method"],
            httpx.URL(leader).copy_with(raw_path=target),
            headers=headers,
            content=body or None,
            extensions={"target": target},  # which is sent as it is; a URL loses .. and encodes some characters
        )
        try:
            response = await self.client.send(request, stream=True)
            if response.headers.get("content-type") != EVENTS:
                await response.aread()
            return response
        except httpx.HTTPError as error:
            raise Unavailable(f"the leader does not respond: {type(error).__name__}") from None


def _nothing() -> None:
    """Do nothing: who has sent the request is not known."""


async def _pass_on(response: httpx.Response, send: Send) -> None:
    """Send the parts of a stream as they arrive, until the leader ends it or fails."""
    try:
        async for part in response.aiter_raw():
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except httpx.HTTPError:
        pass  # the client sees the end and connects again
    finally:
        await response.aclose()
