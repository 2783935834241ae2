"""HTTP by uvicorn: where it listens, and its orderly end."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable

import uvicorn

from bilinq.errors import BadInput
from bilinq.live.http.connection import IDLE_SECONDS, Connection
from bilinq.live.http.crowd import BACKLOG, Crowd, Limits
from bilinq.live.http.routing import App
from bilinq.live.logs import Seldom

log = logging.getLogger("bilinq.live.http")

GRACE = 30  # seconds that requests may take to finish after the service was asked to stop
TICKS = 10  # of uvicorn, of a tenth of a second each, until descriptors are looked at again
SEND_BUFFER = 256 << 10  # bytes of responses that the system keeps for a client that does not read


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at `host` and `port`, or say why that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        text = f"host and port must be free to listen on; {host}:{port}: {reason}"
        raise BadInput(f"{text}; use another --port, or 0 for any") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    return listening


def address(listening: socket.socket) -> str:
    """Return the address of a listening socket as clients write it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reachable(listening: socket.socket) -> str:
    """Return the address at which other machines reach a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{socket.getfqdn()}:{port}" if host in ("0.0.0.0", "::") else address(listening)


class Server(uvicorn.Server):
    """Serves `app` at sockets; calls `ready` as soon as it does, and ends by `stop`."""

    def __init__(self, app: App, ready: Callable[[], None], limits: Limits | None = None) -> None:
        config = uvicorn.Config(
            app, interface="asgi3", http=Connection, ws="none", lifespan="off", proxy_headers=False, server_header=False,
            log_config=None, log_level="error", access_log=False, backlog=BACKLOG, timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=GRACE,
        )  # fmt: skip
        super().__init__(config)
        self.server_state = Crowd(limits or Limits())
        self._ready = ready
        self._exhausted = Seldom(log)

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to the caller."""
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Log that descriptors are exhausted, which uvloop does not say: it closes new connections without a word."""
        if counter % TICKS == 0:
            try:
                os.close(os.open(os.devnull, os.O_RDONLY))
            except OSError as error:
                self._exhausted.warning(
                    "no file can be opened and no connection accepted: raise the limit of open files (ulimit -n)",
                    reason=error.strerror,
                )
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish; cancel those that take longer than `GRACE`, or all after a second `stop`."""
        await super().shutdown(sockets)
        self._abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Stop accepting, let requests finish, and then return from `serve`."""
        self.should_exit = True

    def stop(self) -> None:
        """Do the same; the second call waits for nothing."""
        if self.should_exit:
            self.force_exit = True
            self._abort()
        self.close()

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
