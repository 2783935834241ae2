"""Where the answer to one HTTP request goes."""

from __future__ import annotations

from typing import Any

from msgspec import json

from bilinq.live.http import Send

from .errors import ApiError
from .events import error_event, event_of

Header = tuple[bytes, bytes]


class Outlet:
    """Sends a whole answer or a stream of events; until the first part nothing is sent, so that a retry is possible."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = self.streams = False

    async def send(self, data: bytes, backend: str) -> None:
        """Send a whole answer, or an event of a stream."""
        came_from = (b"x-router-backend", backend.encode())
        if not self.streams:
            return await self.whole(200, data, [came_from])
        if not self.begun:
            await self._start(
                200, [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), came_from]
            )
        await self._body(event_of(data), more=True)
        return None

    async def end(self) -> None:
        """End a stream."""
        if self.streams:
            await self._body(b"", more=False)

    async def fail(self, error: ApiError) -> None:
        """Tell of an error: as the answer, or as the last event of a stream that has begun."""
        if not self.begun:
            await self.whole(error.status, error.body, error.headers)
        elif self.streams:
            await self._body(error_event(error.error), more=False)

    async def whole(self, status: int, data: bytes, headers: list[Header]) -> None:
        """Send a whole answer in JSON."""
        size = (b"content-length", str(len(data)).encode())
        await self._start(status, [(b"content-type", b"application/json"), size, *headers])
        await self._body(data, more=False)

    async def _start(self, status: int, headers: list[Header]) -> None:
        self.begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


async def reply(out: Outlet, content: Any) -> None:
    """Send a whole answer of the router's own."""
    await out.whole(200, json.encode(content), [])
