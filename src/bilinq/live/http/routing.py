"""Routing: what one method of one path accepts and returns, how a path finds its endpoint, and the ASGI calls around it."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from bilinq.errors import Refused
from bilinq.live.keys import Identity
from bilinq.live.wire.queries import NoQuery

if TYPE_CHECKING:
    from bilinq.live.service import Service
    from bilinq.live.watch import Watcher


Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")


class NoSuchPath(Refused):
    """Nothing is served at this path."""


class WrongMethod(Refused):
    """The path does not support this method; `allowed` lists those that it supports."""

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"method must be {allowed} here; got {method}")
        self.allowed = allowed


class BadJson(Refused):
    """The body is not JSON."""


class TooLarge(Refused):
    """The body is larger than the service accepts."""


class WrongType(Refused):
    """The body is not declared as JSON."""


class Gone(Exception):
    """The client has disconnected; there is nobody to respond to."""


async def respond(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes | None = None) -> None:
    """Send a whole response; a body of None is a response without body and length."""
    if body is not None:
        headers = (*headers, (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await send({"type": "http.response.body", "body": body or b""})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; if the client disconnects first, cancel `work` and raise `Gone`."""
    task, working, left = asyncio.current_task(), True, False
    assert task is not None

    def leave(done: asyncio.Future[None]) -> None:
        nonlocal left
        if working and not done.cancelled():  # what follows `work` in this task must not be cancelled
            left = task.cancel()

    gone = asyncio.ensure_future(_disconnected(receive))
    gone.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if left and not task.uncancel():
            raise Gone from None
        raise
    finally:
        working = False
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


JSON, EVENTS = "application/json", "text/event-stream"

OPEN = None  # scopes of a route that needs no key
ANY: tuple[str, ...] = ()  # scopes of a route that accepts every valid key
B = TypeVar("B")
Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class Request(Generic[B, Q]):
    """A request as its handler gets it: the caller, the body as a `B`, the query as a `Q`, and the names in the path."""

    service: "Service"
    watch: "Watcher"
    scope: Scope
    who: Identity
    path: dict[str, str]
    query: Q
    body: B
    receive: Receive

    def header(self, name: bytes) -> bytes | None:
        """Return a header, or None; `name` is in lower case."""
        return next((value for key, value in self.scope["headers"] if key == name), None)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; if the client disconnects first, `work` is cancelled."""
        return await while_connected(self.receive, work)


_NAME = re.compile(r"{(\w+)(:path)?}")


@dataclass(frozen=True)
class Route:
    """What one method of one path accepts and returns.

    Names in braces in `path` are parameters; `{name:path}` may contain slashes. `operation`, `summary` and `tag` are for the
    OpenAPI document. `handler` gets a `Request` and returns the body of the response, None for an empty response, or a
    `Stream`. The key needs one of `scopes`; `ANY` accepts every key, `OPEN` needs none.

    `response`, `status` and `content_type` describe success: a type of None is an empty response, 204; for a stream of
    events it is the type of each event; a content type that is neither JSON nor a stream is text. `may_be_empty` means that
    204 is also possible, and `also` lists statuses of refusals that do not follow from the other fields. `body` and `query`
    are what is decoded from the request; a body of None is not read. If the route is `local`, every process responds itself,
    also a follower. If it is `deprecated`, it is an old path that the next version no longer has.
    """

    method: str
    path: str
    operation: str
    handler: Callable[[Request[Any, Any]], Awaitable[Any]]
    summary: str
    tag: str
    scopes: tuple[str, ...] | None
    response: Any = None
    status: int = 200
    body: Any = None
    query: Any = NoQuery
    may_be_empty: bool = False
    also: tuple[int, ...] = ()
    local: bool = False
    content_type: str = JSON
    deprecated: bool = False

    @cached_property
    def parameters(self) -> list[str]:
        """Names in the path."""
        return [name for name, _ in _NAME.findall(self.path)]

    @cached_property
    def refusals(self) -> list[int]:
        """Every status with which the route may refuse a request."""
        statuses = {422, 500, *self.also}
        if self.scopes is not None:
            statuses |= {401, 429, 503}
        if self.scopes:
            statuses |= {403}
        if self.body is not None:
            statuses |= {400, 413, 415}
        if self.parameters:
            statuses |= {404}
        return sorted(statuses)


def route(
    method: str, path: str, operation: str, handler: Callable[[Request[B, Q]], Awaitable[Any]], summary: str, tag: str,
    scopes: tuple[str, ...] | None, *, body: type[B] | None = None, query: type[Q] | None = None, **others: Any,
) -> Route:  # fmt: skip
    """Return a route whose handler is checked, before anything runs, to accept this type of body and query."""
    return Route(method, path, operation, handler, summary, tag, scopes, body=body, query=query or NoQuery, **others)


class Paths:
    """Finds the application of a path: in a table, or, for paths with names, by trying their patterns in order.

    `{name}` matches anything without a slash and `{name:path}` anything at all. `scope["path_params"]` gets the values
    and `scope["route"]` the path as it is written in the table.
    """

    def __init__(self, apps: Mapping[str, App]) -> None:
        self.fixed = {path: app for path, app in apps.items() if "{" not in path}
        self.named = [(pattern(path), app, path) for path, app in apps.items() if "{" in path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, scope["path_params"], scope["route"] = self.find(scope["path"])
        await app(scope, receive, send)

    def find(self, path: str) -> tuple[App, dict[str, str], str]:
        """Return the application of a path, the names in it, and the path as it is written in the table."""
        if path in self.fixed:
            return self.fixed[path], {}, path
        for named, app, form in self.named:
            match = named.fullmatch(path)
            if match:
                return app, match.groupdict(), form
        raise NoSuchPath(f"nothing is served at {path[:200]!r}; /openapi.json lists all paths")


def pattern(path: str) -> re.Pattern[str]:
    """Return an expression that matches whole paths of this form."""
    form = _NAME.sub(lambda name: f"(?P<{name[1]}>{'.*' if name[2] else '[^/]+'})", path)
    return re.compile(form, re.DOTALL)
