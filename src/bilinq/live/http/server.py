"""HTTP by uvicorn, with bounds on slow, large and unread messages that uvicorn lacks, and an orderly end."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sized

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from bilinq.errors import BadInput
from bilinq.live.http.routing import App, Message, Send

GRACE = 30  # seconds that requests may take to finish after the service was asked to stop
BACKLOG = 2048  # connections that may wait to be accepted
MAX_HEADERS = 64 << 10  # most bytes of a request's first line and headers, and of the headers after a body
REQUEST_SECONDS = 90.0
"""Longest time for a request to arrive, for a new connection to begin with one, and for a client to read nothing."""
IDLE_SECONDS = 75  # time after a response in which the next request may begin


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


class Flow(FlowControl):
    """Uvicorn's flow control, which would also read on while `waiting` requests of the same client are unanswered."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on unless requests are waiting, so that a client cannot fill the memory with them."""
        if not self._waiting:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """A client's connection. Uvicorn parses and answers; this class ends what takes too much or too long.

    `_deadline` is when the request that is arriving must be complete, or the next one must have begun; None while a
    response is awaited. `_head` counts bytes that arrived without completing headers or adding to a body. One timer for
    each connection checks both, because a timer for each request would slow down every request.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self.pipeline)
        self._answering: RequestResponseCycle | None = None
        self._head = 0
        self._unread: tuple[float, int] | None = None
        self._deadline: float | None = self.loop.time() + REQUEST_SECONDS
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the disconnect also to a request that others follow; uvicorn reports it to the last one only."""
        self._timer.cancel()
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._head > MAX_HEADERS:
            self.send_400_response(f"The headers of a request must have at most {MAX_HEADERS} bytes.")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._deadline = self.loop.time() + REQUEST_SECONDS

    def on_headers_complete(self) -> None:
        """Hand the request to the application; its body may still be arriving."""
        self._head = 0
        super().on_headers_complete()
        self.headers = []  # headers after the body are not the request's
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the request is answered as HTTP/1.1, and nothing can follow it
        if self.scope["http_version"] == "1.0":
            self.cycle.send = _without_chunks(self.cycle)  # type: ignore[method-assign, assignment]
        if not self.pipeline:
            self._answering = self.cycle

    def on_body(self, body: bytes) -> None:
        """Add to the body."""
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._head = 0
        super().on_message_complete()
        self._deadline = self.loop.time() + IDLE_SECONDS if self.cycle.response_complete else None

    def on_response_complete(self) -> None:
        """Continue with the next request, or wait for one."""
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        elif self._deadline is None:
            self._deadline = self.loop.time() + IDLE_SECONDS
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._unread = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is arriving, and close; another request's response is never mixed with the reason."""
        if self.transport.is_closing():
            return
        now = self._answering
        if now is None or now.response_complete or (now is self.cycle and now.more_body and not now.response_started):
            super().send_400_response(msg)
        self.transport.close()

    def _check(self) -> None:
        """End the connection if a request, or the client that should read a response, is too slow; check again later."""
        now, wait = self.loop.time(), REQUEST_SECONDS
        if self._stalled(now):
            self.transport.abort()
            return
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._expire()
        elif self._deadline is not None:
            wait = min(wait, self._deadline - now)
        self._timer = self.loop.call_later(wait, self._check)

    def _stalled(self, now: float) -> bool:
        """Return whether the client has read nothing for too long of a response that waits to be sent."""
        if not (self.flow.write_paused or self.transport.is_closing()):
            return False
        size = self.transport.get_write_buffer_size()
        if self._unread is None or size < self._unread[1]:
            self._unread = now, size
        return now - self._unread[0] >= REQUEST_SECONDS

    def _expire(self) -> None:
        """Close; give the reason if only a part of a request's headers arrived, or nothing ever."""
        if self.cycle is None or (self.cycle.response_complete and self._head):
            self.send_400_response(f"A request must arrive within {REQUEST_SECONDS:g} seconds.")
        self.transport.close()


def _without_chunks(cycle: RequestResponseCycle) -> Send:
    """Return a `send` for HTTP/1.0, which has no chunks: a body of unknown length ends with the connection."""
    send: Send = cycle.send  # type: ignore[assignment]
    cycle.chunked_encoding = False

    async def send_plain(message: Message) -> None:
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_plain


class Server(uvicorn.Server):
    """Serves `app` at sockets; calls `ready` as soon as it does, and ends by `stop`."""

    def __init__(self, app: App, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app, interface="asgi3", http=Connection, ws="none", lifespan="off", proxy_headers=False, server_header=False,
            log_config=None, log_level="error", access_log=False, backlog=BACKLOG, timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=GRACE,
        )  # fmt: skip
        super().__init__(config)
        self._ready = ready

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to the caller."""
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        await super().startup(sockets)
        self._ready()

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
