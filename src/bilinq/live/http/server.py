"""Listening: a socket, connections from it, and an orderly end."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

from bilinq.errors import BadInput
from bilinq.live.http.asgi import App
from bilinq.live.http.connection import Connection

GRACE = 30
"""Seconds that requests may take to end after the service was told to stop."""

BACKLOG = 2048
"""Connections that may wait to be accepted."""

LOOK_EVERY = 0.02
"""Seconds between two looks whether all connections are closed."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at `host` and `port`, or say why that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise BadInput(f"host and port must be free to listen on; {host}:{port}: {reason}") from None


def address(listening: socket.socket) -> str:
    """Return the address of a listening socket as clients write it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reachable(listening: socket.socket) -> str:
    """Return the address at which other machines reach a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{socket.getfqdn()}:{port}" if host in ("0.0.0.0", "::") else address(listening)


class Server:
    """Answers at sockets by `app`; calls `ready` when it does, and ends by `stop`."""

    def __init__(self, app: App, ready: Callable[[], None]) -> None:
        self._app, self._ready = app, ready
        self._connections: set[Connection] = set()
        self._stopping, self._forced = asyncio.Event(), asyncio.Event()

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Answer until told to stop, and then for as long as requests take to end."""
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(self.connection, sock=one, backlog=BACKLOG) for one in sockets]
        self._ready()
        await self._stopping.wait()
        for server in servers:
            server.close()
        for connection in list(self._connections):
            connection.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                while self._connections and not self._forced.is_set():
                    await asyncio.sleep(LOOK_EVERY)
        tasks = [task for connection in list(self._connections) for task in connection.abort()]
        await asyncio.gather(*tasks, return_exceptions=True)

    def connection(self) -> Connection:
        """Return the protocol for a new connection."""
        return Connection(self._app, self._connections)

    def close(self) -> None:
        """Stop accepting, let requests end, and then return from `serve`."""
        self._stopping.set()

    def stop(self) -> None:
        """Do the same; said twice, wait for nothing."""
        if self._stopping.is_set():
            self._forced.set()
        self.close()
