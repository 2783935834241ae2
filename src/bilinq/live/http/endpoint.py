"""From a request to its handler and back: key, limits, query, body, response."""

import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from bilinq.errors import BadInput, Busy, NoKey
from bilinq.live.http.asgi import Receive, Scope, Send
from bilinq.live.http.call import Call
from bilinq.live.http.problems import BadJson, Gone, TooLarge, WrongMethod, WrongType
from bilinq.live.http.routing import JSON, Route
from bilinq.live.http.stream import Stream
from bilinq.live.keys import Identity
from bilinq.live.wire.queries import BadField, bad_field, convert

if TYPE_CHECKING:
    from bilinq.live.service import Service
    from bilinq.live.watch import Watcher


OPEN = None
"""Scopes of a route that needs no key."""

ANY: tuple[str, ...] = ()
"""Scopes of a route for which every valid key will do."""


def identify(service: "Service", authorization: bytes | None, scopes: tuple[str, ...]) -> Identity:
    """Return whose key the Authorization header holds, if it is good for one of `scopes`."""
    return _good(service.identify(_key(authorization)), scopes)


async def identify_here(service: "Service", authorization: bytes | None, scopes: tuple[str, ...]) -> Identity:
    """Do the same where this process may not lead."""
    return _good(await service.identify_here(_key(authorization)), scopes)


def _key(authorization: bytes | None) -> str:
    if authorization is None:
        raise NoKey("a key is needed: Authorization: Bearer bq_...")
    kind, _, key = authorization.decode("latin-1").partition(" ")
    if kind.lower() != "bearer":
        raise NoKey("the key must come as Authorization: Bearer bq_...; got another kind of authorization")
    return key.strip()


def _good(who: Identity, scopes: tuple[str, ...]) -> Identity:
    if scopes:
        who.require(*scopes)
    return who


NESTING = 100
"""Deepest nesting of lists and objects in a body."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


async def read_body(receive: Receive, length: bytes | None, most: int) -> bytes:
    """Return the body of at most `most` bytes; one that is too large is refused as soon as that is seen."""
    if length is not None and length.isdigit() and int(length[:20]) > most:
        raise TooLarge(f"body must have at most {most} bytes; got {int(length[:20])}")
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise TooLarge(f"body must have at most {most} bytes; got more")
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def check_nesting(body: bytes, most: int = NESTING) -> None:
    """Raise if lists and objects in the JSON text `body` are nested more than `most` deep.

    What the parser can just take in might be too deep for a later call to write out again.
    """
    if body.count(b"[") + body.count(b"{") <= most:
        return
    brackets = _TEXT.sub(b"", body).translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(most):
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise BadJson(f"body must not nest lists and objects more than {most} deep, and must close each of them")


class Rate:
    """A bucket of tokens for each key: `per_second` flow in, up to a second's worth; 0 is no limit."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self.most = max(per_second, 1.0)
        self.clock = clock
        self.buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> None:
        """Take a token for a request of `key`, or raise `Busy` with the time until there is one."""
        if not self.per_second:
            return
        now = self.clock()
        tokens, then = self.buckets.get(key, (self.most, now))
        tokens = min(self.most, tokens + (now - then) * self.per_second)
        if tokens < 1.0:
            raise Busy(
                f"the key {key} may ask {self.per_second:g} times a second; it asked more often",
                retry_after=(1.0 - tokens) / self.per_second,
            )
        self.buckets[key] = (tokens - 1.0, now)


NOBODY = Identity("", "", frozenset())
"""Who asks where no key is needed."""

_encode = msgspec.json.Encoder().encode


class Wanted(NamedTuple):
    """The headers of a request that are looked at."""

    authorization: bytes | None
    content_type: bytes | None
    content_length: bytes | None


class Endpoint:
    """All methods of one path."""

    def __init__(
        self, routes: Iterable[Route], service: "Service", watch: "Watcher", rate: Rate, max_body: int
    ) -> None:
        self.service, self.watch, self.rate, self.max_body = service, watch, rate, max_body
        self.methods = {route.method: (route, decoder(route.body)) for route in routes}
        if "GET" in self.methods:
            self.methods["HEAD"] = self.methods["GET"]
        self.allowed = ", ".join(sorted(self.methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] not in self.methods:
            raise WrongMethod(scope["method"], self.allowed)
        route, decode = self.methods[scope["method"]]
        headers = pick(scope["headers"])
        who = NOBODY
        if route.scopes is not None:
            if route.local:
                who = await identify_here(self.service, headers.authorization, route.scopes)
            else:
                who = identify(self.service, headers.authorization, route.scopes)
            scope["key"] = who.prefix
            self.rate.take(who.prefix)
        query = parse_query(scope["query_string"], route.query)
        body = None if decode is None else decode(await self._body(headers, receive))
        call = Call(self.service, self.watch, scope, who, scope["path_params"], query, body, receive)
        answer = await route.handler(call)
        if isinstance(answer, Stream):
            await answer.answer(route.status, receive, send, body=scope["method"] != "HEAD")
        else:
            await _answer(send, route, answer)

    async def _body(self, headers: Wanted, receive: Receive) -> bytes:
        kind = headers.content_type
        if kind is None or (kind != b"application/json" and kind.split(b";")[0].strip().lower() != b"application/json"):
            raise WrongType("body must come with Content-Type: application/json")
        return await read_body(receive, headers.content_length, self.max_body)


def decoder(kind: Any) -> Callable[[bytes], Any] | None:
    """Return a function from bytes to a `kind` that says what is wrong, or None if there is no body."""
    if kind is None:
        return None
    decode_as = msgspec.json.Decoder(kind).decode

    def decode(body: bytes) -> Any:
        check_nesting(body)
        try:
            return decode_as(body)
        except (ValueError, RecursionError) as error:
            raise _wrong(body, error) from None

    return decode


def _wrong(body: bytes, error: ValueError | RecursionError) -> BadInput | BadJson:
    """Return what is wrong with a body: first of all that it is no JSON, and otherwise which field breaks a rule."""
    wrong = bad_field(error) if isinstance(error, msgspec.ValidationError) else None
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError) as fault:
        if not isinstance(fault, msgspec.ValidationError):
            return BadJson(f"body must be JSON; {fault}")
    return wrong or BadJson(f"body must be JSON; {error}")


def parse_query(text: bytes, kind: Any) -> Any:
    """Return the query as a `kind`; what is unknown, given twice or not UTF-8 is refused."""
    if not text:
        return kind()
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError as error:
        raise BadInput(f"query must be names and values in UTF-8, at most 20; {error}") from None
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadField(twice, "must be given once")
    return convert(values, kind, strict=False)


def pick(headers: Iterable[tuple[bytes, bytes]]) -> Wanted:
    """Return the headers that are looked at."""
    authorization = content_type = content_length = None
    for name, value in headers:
        if name == b"authorization":
            authorization = value
        elif name == b"content-type":
            content_type = value
        elif name == b"content-length":
            content_length = value
    return Wanted(authorization, content_type, content_length)


async def _answer(send: Send, route: Route, answer: Any) -> None:
    if answer is None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    body = _encode(answer) if route.content_type == JSON else answer.encode()
    headers = [(b"content-type", route.content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": route.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
