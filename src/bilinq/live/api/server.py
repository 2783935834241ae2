"""Listening: a socket, uvicorn on it, and an orderly end."""

import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn

from bilinq.errors import BadInput
from bilinq.live.api.asgi import App
from bilinq.live.api.connection import Connection

GRACE = 30
"""Seconds that requests may take to end after the service was told to stop."""

BACKLOG = 2048
"""Connections that may wait to be accepted."""


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


class Server(uvicorn.Server):
    """Uvicorn that calls `ready` when it answers, and ends by `stop` instead of signals."""

    def __init__(self, app: App, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app, http=Connection, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False,
                server_header=False, timeout_graceful_shutdown=GRACE, timeout_keep_alive=75,
            )
        )  # fmt: skip
        self.ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs the server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self.ready()

    def stop(self) -> None:
        """Stop accepting, let requests end, and then return from `serve`; said twice, wait for nothing."""
        self.force_exit = self.should_exit
        self.should_exit = True
