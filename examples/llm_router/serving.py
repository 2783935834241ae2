"""Applications that listen."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator

from bilinq.live.http import App, Server, address, listen


@contextlib.asynccontextmanager
async def serving(app: App, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str]:
    """Serve an application while the block runs, and yield its address; port 0 is any that is free."""
    with listen(host, port) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or headers and body come 40 ms apart
        ready = asyncio.Event()
        server = Server(app, ready.set)
        task = asyncio.create_task(server.serve([listening]))
        await ready.wait()
        try:
            yield address(listening)
        finally:
            server.stop()
            await task
