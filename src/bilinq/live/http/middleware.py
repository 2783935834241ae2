"""Middleware around all routes: headers and counts of responses, errors as problem documents, request log, traces."""

import logging
import math
import re
import secrets
import time
from collections import Counter
from itertools import count

from msgspec import json

from bilinq.errors import BadInput, Busy, Conflict, NoKey, NotAllowed, NotFound, Stale, Starting, Unavailable
from bilinq.live import tracing
from bilinq.live.http import routing as asgi
from bilinq.live.http.routing import App, Message, Receive, Scope, Send, respond
from bilinq.live.logs import REQUEST, Seldom
from bilinq.live.wire.messages import ProblemDetails

log = logging.getLogger("bilinq.live.http")

SECURITY = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
"""Headers added to a response that does not set them itself."""

_NAMES = frozenset(name for name, _ in SECURITY)

REQUEST_ID = b"x-request-id"
_VALID_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

OTHER = "other"  # the path under which responses are counted where nothing is served
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


class Headers:
    """The application with these headers on every response; `scope["request"]` is the request's id.

    A client may choose the id (X-Request-Id: up to 64 letters, digits, dots, dashes and underscores). Responses are
    counted by method, path and status.
    """

    def __init__(self, app: App, counts: Counter[tuple[str, str, int]]) -> None:
        self.app, self.counts = app, counts
        self.start = secrets.token_hex(4)
        self.numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = self._request_id(scope)
        scope["request"] = request.decode()
        REQUEST.set(scope["request"])  # in the request's own task, so nothing else sees it

        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                present = {name for name, _ in headers}
                more = SECURITY if _NAMES.isdisjoint(present) else [one for one in SECURITY if one[0] not in present]
                message["headers"] = [*headers, *more, (REQUEST_ID, request)]
                method = scope["method"] if scope["method"] in METHODS else OTHER  # so that clients cannot add counts
                self.counts[method, scope.get("route", OTHER), message["status"]] += 1
            await send(message)

        await self.app(scope, receive, send_with)

    def _request_id(self, scope: Scope) -> bytes:
        for name, value in scope["headers"]:
            if name == REQUEST_ID and _VALID_ID.fullmatch(value):
                return bytes(value)
        return f"{self.start}-{next(self.numbers):x}".encode()


TABLE: dict[type[Exception], tuple[int, str, str]] = {
    asgi.BadJson: (400, "bad-json", "The body is not JSON"),
    NoKey: (401, "no-key", "A valid key is needed"),
    NotAllowed: (403, "not-allowed", "The key does not allow this"),
    asgi.NoSuchPath: (404, "no-such-path", "There is nothing here"),
    NotFound: (404, "not-known", "Not found"),
    asgi.WrongMethod: (405, "wrong-method", "The path does not support this method"),
    Stale: (409, "stale", "The lease has ended"),
    Conflict: (409, "clash", "This conflicts with what is stored"),
    asgi.TooLarge: (413, "too-large", "The body is too large"),
    asgi.WrongType: (415, "wrong-type", "The body must be JSON"),
    BadInput: (422, "bad-input", "The request breaks a rule"),
    Busy: (429, "busy", "Too many requests or too many waiting jobs"),
    Starting: (503, "starting", "The service is starting"),
    Unavailable: (503, "away", "The service is unavailable"),
}
"""Status, kind and title of each error; if several classes match, the most specific counts. Anything else is a 500."""

FAILED = (500, "failed", "The service failed")
CONTENT_TYPE = b"application/problem+json"

_FIELD = re.compile(r"^([A-Za-z_][\w.\[\]]*)(?: must |: )")
_LONGEST = 1000
_encode = json.Encoder().encode


class Wrapped:
    """An application around another."""

    def __init__(self, app: App) -> None:
        self.app = app


def _nothing() -> None:
    """Drop a request of a server that does so by itself."""


class Problems(Wrapped):
    """The application with every error turned into a problem document (RFC 9457); unexpected errors are logged."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except asgi.Gone:
            log.debug("client disconnected", extra={"request": scope.get("request"), "path": scope["path"]})
            scope.get("drop", _nothing)()
        except Exception as error:
            problem = describe(error, scope.get("request"))
            if problem.status == FAILED[0]:
                about = {"request": problem.request, "method": scope["method"], "path": scope["path"]}
                log.error("request failed", exc_info=error, extra=about)
            headers = [(b"content-type", CONTENT_TYPE), *headers_of(error)]
            await respond(send, problem.status, headers, _encode(problem))


def describe(error: Exception, request: str | None = None) -> ProblemDetails:
    """Return what a client is sent about `error`: never a stack trace, and no details of an unexpected error."""
    known = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    status, kind, title = known or FAILED
    detail = str(error) if known else "the cause is in the log of the service, under this request"
    return ProblemDetails(
        type=f"urn:bilinq:{kind}",
        title=title,
        status=status,
        detail=detail if len(detail) <= _LONGEST else detail[: _LONGEST - 3] + "...",
        field=_field(error) if isinstance(error, BadInput) else None,
        request=request,
    )


def headers_of(error: Exception) -> list[tuple[bytes, bytes]]:
    """Return the headers that belong to `error`."""
    if isinstance(error, NoKey):
        return [(b"www-authenticate", b'Bearer realm="bilinq"')]
    if isinstance(error, asgi.WrongMethod):
        return [(b"allow", error.allowed.encode())]
    if isinstance(error, Busy | Unavailable):
        return [(b"retry-after", str(max(1, math.ceil(error.retry_after))).encode())]
    if isinstance(error, asgi.TooLarge):
        return [(b"connection", b"close")]  # the rest of the body is not read
    return []


def _field(error: BadInput) -> str | None:
    """Return the field that the error names, as an attribute or at the start of its text."""
    named = getattr(error, "field", None)
    if named is not None:
        return str(named)[:_LONGEST] or None
    match = _FIELD.match(str(error))
    return match[1] if match else None


FORWARDED = "forwarded"  # the path under which responses of the leader are counted
NO_KEY = frozenset({0, 401, 404, 405, 413, 503})  # with which a request may end before a leader has looked at its key


class RequestLog(Wrapped):
    """The application with a log line for each request: key, method, path, status and duration.

    Requests without a valid key, which anybody can send, have a line every ten seconds, with how many they were.
    """

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self._without_key = Seldom(log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request; status 0 is a client that disconnected."""
        status = 0
        start = time.perf_counter()

        async def send_noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        finally:
            about = {name: scope.get(name) for name in ("method", "path", "key")}
            about |= {"status": status, "seconds": f"{time.perf_counter() - start:.4f}"}
            if _has_key(scope, status):
                log.info("request", extra=about)
            else:
                self._without_key.info("requests without a valid key", **about)


def _has_key(scope: Scope, status: int) -> bool:
    """Tell whether a request had a valid key; of a forwarded one only the leader knows, and its status says."""
    return scope.get("key") is not None or (scope.get("route") == FORWARDED and status not in NO_KEY)


class Traced(Wrapped):
    """The application with a span for each request, named after its method and its path in the table of routes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        with tracing.request_span(method, scope["request"], scope["headers"]) as span:

            async def send_noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    tracing.describe(span, method, scope.get("route", OTHER), message["status"])
                await send(message)

            await self.app(scope, receive, send_noting)
