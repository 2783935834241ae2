"""An application at a socket, answered for by a thread."""

import asyncio
import socket
import threading

from bilinq.live.http.routing import App
from bilinq.live.http.server import Server


class ServerThread(threading.Thread):
    """A thread that serves from the end of `start` until it is told to close."""

    def __init__(self, app: App, listening: socket.socket) -> None:
        super().__init__()
        self._app, self._listening = app, listening
        self._ready = threading.Event()

    def start(self) -> None:
        super().start()
        assert self._ready.wait(10.0)

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._server = asyncio.get_running_loop(), Server(self._app, self._ready.set)
        await self._server.serve([self._listening])

    def close(self) -> None:
        """Let requests end, those that take longer than a second by force, and the thread with them."""
        self._loop.call_soon_threadsafe(self._end_requests)

    def _end_requests(self) -> None:
        self._server.stop()
        self._loop.call_later(1.0, self._server.stop)
