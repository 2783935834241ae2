"""Middleware around all routes: headers and counts of responses, request log, traces."""

import logging
import re
import secrets
import time
from collections import Counter
from itertools import count

from bilinq.live import tracing
from bilinq.live.http.asgi import App, Message, Receive, Scope, Send
from bilinq.live.logs import REQUEST

SECURITY = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
"""Added where an answer does not set them itself."""

_NAMES = frozenset(name for name, _ in SECURITY)

REQUEST_ID = b"x-request-id"

OTHER = "other"
"""The path under which answers are counted where nothing is served."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})

_GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Headers:
    """The application with these headers on every answer; `scope["request"]` is the request's id.

    A client may choose the id (X-Request-Id, up to 64 letters, digits, dots, dashes and underscores). Answers are counted by
    method, path and status.
    """

    def __init__(self, app: App, answers: Counter[tuple[str, str, int]]) -> None:
        self.app, self.answers = app, answers
        self.start = secrets.token_hex(4)
        self.numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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
                self.answers[_method(scope), scope.get("route", OTHER), message["status"]] += 1
            await send(message)

        await self.app(scope, receive, send_with)

    def _request_id(self, scope: Scope) -> bytes:
        for name, value in scope["headers"]:
            if name == REQUEST_ID and _GIVEN.fullmatch(value):
                return bytes(value)
        return f"{self.start}-{next(self.numbers):x}".encode()


def _method(scope: Scope) -> str:
    """Return the method, or one word for all that nobody uses: there must not be a count for each."""
    return scope["method"] if scope["method"] in METHODS else OTHER


log = logging.getLogger("bilinq.live.http")


class RequestLog:
    """The application with a line for each request: who asked what, the status, and how long it took."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; status 0 is a client that went away."""
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
            log.info("request", extra=about | {"status": status, "seconds": f"{time.perf_counter() - start:.4f}"})


class Traced:
    """The application with a span for each request, named after its method and the path as the table has it."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method = scope["method"]
        with tracing.request_span(method, scope["request"], scope["headers"]) as span:

            async def send_noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    tracing.describe(span, method, scope.get("route", OTHER), message["status"])
                await send(message)

            await self.app(scope, receive, send_noting)
