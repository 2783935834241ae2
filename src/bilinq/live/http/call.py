"""One request as its handler sees it."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bilinq.live.http.asgi import Receive, Scope
from bilinq.live.http.problems import Gone
from bilinq.live.keys import Identity

if TYPE_CHECKING:
    from bilinq.live.service import Service
    from bilinq.live.watch import Watcher

B = TypeVar("B")
Q = TypeVar("Q")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[B, Q]):
    """Who asks what: the body as a `B`, the query as a `Q`, and the names in the path."""

    service: "Service"
    watch: "Watcher"
    scope: Scope
    who: Identity
    path: dict[str, str]
    query: Q
    body: B
    receive: Receive

    def header(self, name: bytes) -> bytes | None:
        """Return a header of the request, or None; the name in small letters."""
        return next((value for key, value in self.scope["headers"] if key == name), None)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; if the client goes away first, `work` is cancelled."""
        return await while_connected(self.receive, work)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; if the client goes away first, `work` is cancelled and `Gone` raised."""
    task, working, left = asyncio.current_task(), True, False
    assert task is not None

    def leave(done: asyncio.Future[None]) -> None:
        nonlocal left
        if working and not done.cancelled():  # what comes after `work` is not to be cancelled
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
