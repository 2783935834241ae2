"""Answers that come in parts, for as long as the client listens."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from bilinq.live.http.asgi import Receive, Send
from bilinq.live.http.call import while_connected

log = logging.getLogger("bilinq.live.http")

STALLED = 30.0
"""Seconds that a client may take nothing."""


@dataclass(frozen=True)
class Stream:
    """What a handler returns in place of a body."""

    parts: AsyncGenerator[bytes, None]
    content_type: bytes = b"text/event-stream"

    async def answer(self, status: int, receive: Receive, send: Send, *, body: bool = True) -> None:
        """Send the parts until they end, the client goes away, or it takes nothing for a while.

        What goes wrong before the first part is an error like any other; after it, the answer just ends.
        """
        async with aclosing(self.parts):
            first = await anext(self.parts, b"")
            headers = [(b"content-type", self.content_type), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            if body:
                await while_connected(receive, self._send(first, send))
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, part: bytes, send: Send) -> None:
        try:
            while part:
                async with asyncio.timeout(STALLED):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await anext(self.parts, b"")
        except TimeoutError:
            log.warning("a client takes nothing from its stream")
        except Exception:
            log.exception("a stream failed")
