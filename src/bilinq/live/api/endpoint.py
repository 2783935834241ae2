"""What answers at one path: the key is checked first, then the query, then the body, and then the handler is called."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from bilinq.errors import BadInput
from bilinq.live.api.asgi import Receive, Scope, Send
from bilinq.live.api.auth import identify, identify_here
from bilinq.live.api.call import Call
from bilinq.live.api.limits import Rate, check_nesting, read_body
from bilinq.live.api.problems import BadJson, WrongMethod, WrongType
from bilinq.live.api.route import JSON, Route
from bilinq.live.api.stream import Stream
from bilinq.live.fields import BadField, bad_field, convert
from bilinq.live.keys import Identity

if TYPE_CHECKING:
    from bilinq.live.service import Service
    from bilinq.live.watch import Watch

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

    def __init__(self, routes: Iterable[Route], service: "Service", watch: "Watch", rate: Rate, max_body: int) -> None:
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
