"""ASGI: types of an application, refusals of HTTP itself, reading a body, sending a response, clients that disconnect."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any, TypeAlias, TypeVar

from bilinq.errors import Refused

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


async def read_body(receive: Receive, length: bytes | None, most: int) -> bytes:
    """Return the body of at most `most` bytes; refuse a larger one as soon as its size is known."""
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
