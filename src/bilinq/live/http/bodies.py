"""Bodies of requests: how large and deep each may be, and how much memory all of them together may take."""

import asyncio
import logging
from types import TracebackType
from typing import Self

import numpy as np

from bilinq.errors import Busy
from bilinq.live.http.routing import BadJson, Gone, Receive, TooLarge
from bilinq.live.logs import Seldom

log = logging.getLogger("bilinq.live.http")

MOST_BYTES = 128 << 20  # most bytes of all bodies, or twice as many as one may have
NESTING = 100  # deepest nesting of lists and objects in a body
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_MIDDLE = np.int8((ord("[") + ord("]")) // 2)  # minus a bracket: 1 for one that opens, -1 for one that closes


class Bodies:
    """Room for the bodies of requests, of at most `largest` bytes each: those that arrive, and those that are worked on.

    When there is not enough, the body that has been arriving for longest is refused. So those that stay incomplete cannot
    keep others out, and a complete one is never refused, since its request may have been carried out.
    """

    def __init__(self, largest: int) -> None:
        self.largest, self.most, self.size = largest, max(MOST_BYTES, 2 * largest), 0
        self._arriving: dict[Room, None] = {}
        self._refusing = Seldom(log)

    def take(self, room: "Room", size: int) -> None:
        """Give a body that arrives room for so many bytes more; raise `Busy` if it has arrived for longest."""
        self.size += size
        room.size += size
        while self.size > self.most:
            oldest = next(iter(self._arriving))
            self._refusing.warning("bodies are refused: all that arrive have too many bytes", most=self.most)
            self.release(oldest)
            if oldest is room:
                raise _too_many()
            oldest.refuse()

    def begin(self, room: "Room") -> None:
        """Count a body as one that arrives."""
        self._arriving[room] = None

    def end(self, room: "Room") -> None:
        """Count it as complete."""
        self._arriving.pop(room, None)

    def release(self, room: "Room") -> None:
        """Take back the room of a body."""
        self.end(room)
        self.size -= room.size
        room.size = 0


class Room:
    """The room of the body of one request, which it has until the `with` block ends."""

    __slots__ = ("_bodies", "_refused", "_task", "size")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self.size = bodies, 0
        self._refused, self._task = False, asyncio.current_task()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bodies.release(self)

    def refuse(self) -> None:
        """Let `read`, which waits for more, raise `Busy`."""
        assert self._task is not None
        self._refused = self._task.cancel()

    async def read(self, receive: Receive, length: bytes | None) -> bytes:
        """Return the body; refuse one that is too large as soon as its size is known."""
        most = self._bodies.largest
        if length is not None and length.isdigit() and int(length[:20]) > most:
            raise TooLarge(f"body must have at most {most} bytes; got {int(length[:20])}")
        self._bodies.begin(self)
        try:
            return await self._read(receive)
        except asyncio.CancelledError:
            if self._refused and self._task is not None and not self._task.uncancel():
                raise _too_many() from None
            raise
        finally:
            self._bodies.end(self)

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        most, size, more = self._bodies.largest, 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise TooLarge(f"body must have at most {most} bytes; got more")
            self._bodies.take(self, len(part))
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)


def _too_many() -> Busy:
    return Busy("bodies of requests that arrive have too many bytes; try again", retry_after=1.0)


def check_nesting(body: bytes, most: int = NESTING) -> None:
    """Raise if lists and objects in the JSON text `body` are nested more than `most` deep.

    A value that the parser can just read may be too deep to be encoded again by a later call. A body comes from anybody, so
    each step reads it once, whatever is in it: no search starts again at every quote.
    """
    if body.count(b"[") + body.count(b"{") <= most:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    outside = b"".join(unescaped.split(b'"')[::2])  # what is between two texts, or after the last one
    brackets = np.frombuffer(outside.translate(_ONE_KIND, _NOT_BRACKETS), np.int8)
    if np.cumsum(_MIDDLE - brackets, dtype=np.int32).max(initial=0) > most:
        raise BadJson(f"body must not nest lists and objects more than {most} deep")
