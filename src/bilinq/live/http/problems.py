"""How errors are answered: one table from exceptions to statuses, and answers in application/problem+json."""

import logging
import math
import re
from typing import Any

from msgspec import json

from bilinq.errors import BadInput, Busy, Conflict, NoKey, NotAllowed, NotFound, Refused, Stale, Unavailable
from bilinq.live.http.asgi import App, Receive, Scope, Send
from bilinq.live.wire.messages import ProblemDetails

log = logging.getLogger("bilinq.live.http")


class NoSuchPath(Refused):
    """Nothing is served at this path."""


class WrongMethod(Refused):
    """The path does not take this method; `allowed` says which."""

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"method must be {allowed} here; got {method}")
        self.allowed = allowed


class BadJson(Refused):
    """The body is no JSON text."""


class TooLarge(Refused):
    """The body is larger than the service takes."""


class WrongType(Refused):
    """The body is not declared as JSON."""


class Gone(Exception):
    """The client went away; there is nobody to answer."""


TABLE: dict[type[Exception], tuple[int, str, str]] = {
    BadJson: (400, "bad-json", "The body is not JSON"),
    NoKey: (401, "no-key", "A valid key is needed"),
    NotAllowed: (403, "not-allowed", "The key does not allow this"),
    NoSuchPath: (404, "no-such-path", "There is nothing here"),
    NotFound: (404, "not-known", "There is no such thing"),
    WrongMethod: (405, "wrong-method", "The path does not take this method"),
    Stale: (409, "stale", "The lease has ended"),
    Conflict: (409, "clash", "This contradicts what is stored"),
    TooLarge: (413, "too-large", "The body is too large"),
    WrongType: (415, "wrong-type", "The body must be JSON"),
    BadInput: (422, "bad-input", "The request breaks a rule"),
    Busy: (429, "busy", "Too much at once"),
    Unavailable: (503, "away", "The service cannot answer now"),
}
"""Status, kind and title of each error; of several that fit the most special one counts. Anything else is a 500."""

FAILED = (500, "failed", "The service failed")
CONTENT_TYPE = b"application/problem+json"

_FIELD = re.compile(r"^([A-Za-z_][\w.\[\]]*)(?: must |: )")
_LONGEST = 1000
_encode = json.Encoder().encode


def describe(error: Exception, request: str | None = None) -> ProblemDetails:
    """Return what is told about `error`: never a stack trace, and nothing at all about what was not foreseen."""
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
    if isinstance(error, WrongMethod):
        return [(b"allow", error.allowed.encode())]
    if isinstance(error, Busy | Unavailable):
        return [(b"retry-after", str(max(1, math.ceil(error.retry_after))).encode())]
    if isinstance(error, TooLarge):
        return [(b"connection", b"close")]  # what is left of the body is not read
    return []


class Problems:
    """The application with every error turned into an answer; what was not foreseen is logged."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await self.app(scope, receive, send)
        except Gone:
            log.debug("client gone", extra={"request": scope.get("request"), "path": scope["path"]})
        except Exception as error:
            await _answer(error, scope, send)


async def _answer(error: Exception, scope: Scope, send: Send) -> None:
    problem = describe(error, scope.get("request"))
    if problem.status == FAILED[0]:
        about = {"request": problem.request, "method": scope["method"], "path": scope["path"]}
        log.error("request failed", exc_info=error, extra=about)
    body = _encode(problem)
    headers = [(b"content-type", CONTENT_TYPE), (b"content-length", str(len(body)).encode()), *headers_of(error)]
    start: dict[str, Any] = {"type": "http.response.start", "status": problem.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _field(error: BadInput) -> str | None:
    """Return the field that the error has or that its text begins with."""
    named = getattr(error, "field", None)
    if named is not None:
        return str(named)[:_LONGEST] or None
    match = _FIELD.match(str(error))
    return match[1] if match else None
