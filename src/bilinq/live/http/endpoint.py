"""From a request to its handler and back: key, rate limit, query, body, response or stream."""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from bilinq.errors import BadInput, Busy, NoKey
from bilinq.live.http import routing as asgi
from bilinq.live.http.bodies import Bodies, Room, check_nesting
from bilinq.live.http.gate import Gate
from bilinq.live.http.routing import EVENTS, JSON, BadJson, Receive, Request, Route, Scope, Send
from bilinq.live.keys import Identity
from bilinq.live.wire.queries import BadField, bad_field, convert

if TYPE_CHECKING:
    from bilinq.live.service import Service
    from bilinq.live.watch import Watcher

log = logging.getLogger("bilinq.live.http")

NOBODY = Identity("", "", frozenset())  # the caller where no key is needed


def key_of(authorization: bytes | None) -> str:
    """Return the key in an Authorization header, or raise."""
    if authorization is None:
        raise NoKey("a key is needed; send it as Authorization: Bearer bq_...")
    kind, _, key = authorization.decode("latin-1").partition(" ")
    if kind.lower() != "bearer":
        raise NoKey("the key must be sent as Authorization: Bearer bq_...; got another kind of authorization")
    return key.strip()


class RateLimit:
    """Token buckets: as many tokens per second flow in as requests are allowed, up to one second's worth; 0 is no limit.

    Each key has two: one for the calls of workers, which are so never refused because of other calls, and one for the
    others. A namespace with a limit has one for the other calls of all its keys.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self.clock = clock
        self.buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, *, work: bool = False) -> None:
        """Take a token for a request of `key`, or raise `Busy` with the time until there is one."""
        if self.per_second:
            self._take(f"work {key}" if work else key, self.per_second, f"the key {key}")

    def take_of(self, namespace: str, per_second: float | None) -> None:
        """Do the same for a request of a namespace."""
        if per_second is not None:
            self._take(f"of {namespace}", per_second, f"namespace {namespace!r}")

    def _take(self, bucket: str, per_second: float, who: str) -> None:
        now, most = self.clock(), max(per_second, 1.0)
        tokens, last = self.buckets.get(bucket, (most, now))
        tokens = min(most, tokens + (now - last) * per_second)
        if tokens < 1.0:
            wait = (1.0 - tokens) / per_second
            raise Busy(f"{who} may send {per_second:g} requests per second; it sent more", wait)
        self.buckets[bucket] = (tokens - 1.0, now)


def decoder(kind: Any) -> Callable[[bytes], Any] | None:
    """Return a function that decodes bytes to a `kind` or raises an error with the reason; None if there is no body."""
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
    """Return what is wrong with a body: that it is not JSON, or else which field breaks a rule."""
    wrong = bad_field(error) if isinstance(error, msgspec.ValidationError) else None
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError) as fault:
        if not isinstance(fault, msgspec.ValidationError):
            return BadJson(f"body must be JSON; {fault}")
    return wrong or BadJson(f"body must be JSON; {error}")


def parse_query(text: bytes, kind: Any) -> Any:
    """Return the query as a `kind`; refuse names that are unknown or repeated, and text that is not UTF-8."""
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


@dataclass(frozen=True)
class Stream:
    """A response in parts, which a handler returns instead of a body."""

    parts: AsyncGenerator[bytes, None]
    content_type: bytes = EVENTS.encode()

    async def respond(self, status: int, receive: Receive, send: Send, *, body: bool = True) -> None:
        """Send the parts until they end or the client disconnects, or is cut off because it does not read.

        An error before the first part is handled like any other; after it, the response just ends.
        """
        async with aclosing(self.parts):
            first = await anext(self.parts, b"")
            headers = [(b"content-type", self.content_type), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            if body:
                await asgi.while_connected(receive, self._send(first, send))
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, part: bytes, send: Send) -> None:
        try:
            while part:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await anext(self.parts, b"")
        except Exception:
            log.exception("a stream failed")


_encode = msgspec.json.Encoder().encode


class Gates:
    """Bounds on the requests that are worked on at a time: one for changes and one for what is read.

    Workers, operators and checks of health pass without waiting: finishes and heartbeats make room, and operators help.
    """

    def __init__(self) -> None:
        self.changes, self.reads = Gate(), Gate()

    def of(self, route: Route) -> Gate | None:
        """Return the gate of a route, if it has one."""
        if route.local or route.tag not in ("jobs", "state"):
            return None
        return self.reads if route.method == "GET" else self.changes


def _stays() -> bool:
    """Tell whether a client has gone of which nothing is known."""
    return False


class Endpoint:
    """All methods of one path."""

    def __init__(
        self,
        routes: Iterable[Route],
        service: "Service",
        watch: "Watcher",
        rate: RateLimit,
        bodies: Bodies,
        gates: Gates,
    ) -> None:
        self.service, self.watch, self.rate, self.bodies, self.gates = service, watch, rate, bodies, gates
        self.methods = {route.method: (route, decoder(route.body)) for route in routes}
        if "GET" in self.methods:
            self.methods["HEAD"] = self.methods["GET"]
        self.allowed = ", ".join(sorted(self.methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in self.methods:
            raise asgi.WrongMethod(scope["method"], self.allowed)
        route, decode = self.methods[scope["method"]]
        headers = dict(scope["headers"])
        who = NOBODY if route.scopes is None else await self._identify(route, headers.get(b"authorization"), scope)
        query = parse_query(scope["query_string"], route.query)
        gate = self.gates.of(route)
        with Room(self.bodies) as room:
            body = b"" if decode is None else await self._body(headers, receive, room)
            entered = None if gate is None else await gate.enter(len(body), scope.get("gone", _stays))
            try:
                request = Request(
                    service=self.service, watch=self.watch, scope=scope, who=who, path=scope["path_params"], query=query,
                    body=None if decode is None else decode(body), receive=receive,
                )  # fmt: skip
                result = await route.handler(request)
            finally:
                if gate is not None and entered is not None:
                    gate.leave(entered)
        if isinstance(result, Stream):
            await result.respond(route.status, receive, send, body=scope["method"] != "HEAD")
        elif result is None:
            await asgi.respond(send, 204, ())
        else:
            encoded = _encode(result) if route.content_type == JSON else result.encode()
            await asgi.respond(send, route.status, [(b"content-type", route.content_type.encode())], encoded)

    async def _identify(self, route: Route, authorization: bytes | None, scope: Scope) -> Identity:
        """Return the caller, which counts against the rate limits of its key and its namespace."""
        key = key_of(authorization)
        who = await self.service.identify_here(key) if route.local else self.service.identify(key)
        scope["key"] = who.prefix
        if route.scopes:
            who.require(*route.scopes)
        work = route.tag == "work"
        self.rate.take(who.prefix, work=work)
        if not (work or route.local or who.may("fleet")):  # who sets the limits must be able to correct them
            self.rate.take_of(who.namespace, self.service.rate_of(who.namespace))
        return who

    async def _body(self, headers: dict[bytes, bytes], receive: Receive, room: Room) -> bytes:
        kind = headers.get(b"content-type")
        if kind is None or (kind != b"application/json" and kind.split(b";")[0].strip().lower() != b"application/json"):
            raise asgi.WrongType("body must be sent with Content-Type: application/json")
        return await room.read(receive, headers.get(b"content-length"))
