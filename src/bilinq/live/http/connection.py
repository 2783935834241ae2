"""A client's connection: uvicorn parses and answers; this file ends what takes too much or too long."""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from bilinq.live.http.crowd import Crowd
from bilinq.live.http.routing import Message, Receive, Send

PIECE = 512  # bytes that are parsed at once
MAX_HEADERS = 64 << 10  # most bytes of a request's first line and headers, and of what is neither header nor body
MOST_HEADERS = 100  # headers of a request, and after its body; one of few bytes takes fifty times as many in memory
REQUEST_SECONDS = 90.0  # longest time for a request to arrive, and for a new connection to begin with one
IDLE_SECONDS = 75  # time after a response in which the next request may begin
READ_SECONDS, READ_BYTES = 30.0, 64 << 10  # time in which a client must read so much, or all, of what is sent to it
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Flow(FlowControl):
    """Uvicorn's flow control, which would also read on while requests of the same client are unanswered."""

    def __init__(self, transport: asyncio.Transport, behind: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._behind = behind

    def resume_reading(self) -> None:
        """Read on unless there is enough to do, so that a client cannot fill the memory with requests."""
        if not self._behind():
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """A client's connection. Uvicorn parses and answers; this class ends what takes too much or too long.

    `_deadline` is when the request that is arriving must be complete, or the next one must have begun; None while a
    response is awaited. `_surplus` counts bytes of the present request that are neither complete headers nor body nor the
    usual frame of a chunk: headers so far, headers after the body, and extensions of chunks. One timer for each connection
    checks the time, because a timer for each request would slow down every request.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        assert isinstance(self.server_state, Crowd)
        self._crowd = self.server_state
        self.flow = Flow(transport, lambda: bool(self.pipeline or self._rest))
        self._rest, self._wrong, self._half_closed = b"", "", False
        self._answering: RequestResponseCycle | None = None
        self._surplus = 0
        self._unread: tuple[float, int] | None = None
        self._deadline: float | None = self.loop.time() + REQUEST_SECONDS
        self._timer = self.loop.call_later(min(REQUEST_SECONDS, READ_SECONDS), self._check)
        if not self._crowd.admit(self, self.client[0] if self.client else ""):
            transport.write(BUSY)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the disconnect also to a request that others follow; uvicorn reports it to the last one only."""
        self._timer.cancel()
        self._crowd.remove(self)
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the responses to complete requests; who only waits for something hears of a disconnect.

        A client that closes its connection and one that just sends no more look the same until something is sent to it.
        """
        self._half_closed = True
        if self._answering is not None:
            self._answering.message_event.set()
        return not self._nothing_due()

    def _nothing_due(self) -> bool:
        """Return whether no request is complete and unanswered."""
        if self._rest or self.pipeline:
            return False
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _receiving(self, cycle: RequestResponseCycle) -> Receive:
        """Return a `receive` that reports a disconnect after the whole body once the client sends no more."""
        receive: Receive = cycle.receive  # type: ignore[assignment]
        complete = False

        async def receive_all() -> Message:
            nonlocal complete
            message: Message = {} if complete and self._half_closed else await receive()
            if complete and self._half_closed:
                return {"type": "http.disconnect"}
            complete = not message.get("more_body", False)
            return message

        return receive_all

    def _drop(self, cycle: RequestResponseCycle) -> None:
        """Close without a response to a request that was not carried out."""
        cycle.disconnected = True
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; stop where a request would have to wait for the response to another, and stop reading.

        Only requests within a piece wait in memory, which takes a hundred times the bytes that a small request has.
        """
        self._rest = b""
        for start in range(0, len(data), PIECE):
            if self.pipeline:
                self.flow.pause_reading()
                self._rest = data[start:]
                return
            self._parse(data[start : start + PIECE])
            if self.transport.is_closing():
                return

    def _parse(self, data: bytes) -> None:
        self._surplus += len(data)
        super().data_received(data)
        self._surplus = max(self._surplus, 0)
        if self._surplus > MAX_HEADERS:
            self.send_400_response(f"Headers and chunk extensions of a request must have at most {MAX_HEADERS} bytes.")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._deadline = self.loop.time() + REQUEST_SECONDS

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; spaces after a value are not part of it, and the parser removes only those before it."""
        if len(self.headers) >= MOST_HEADERS:
            self._refuse(f"A request must have at most {MOST_HEADERS} headers.")
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Hand the request to the application; its body may still be arriving."""
        self._surplus = 0
        self._check_host()
        super().on_headers_complete()
        cycle = self.cycle
        self.scope["gone"] = lambda: cycle.disconnected or self._half_closed  # type: ignore[typeddict-unknown-key]
        self.scope["trust"] = lambda: self._crowd.trust(self)  # type: ignore[typeddict-unknown-key]
        self.scope["drop"] = lambda: self._drop(cycle)  # type: ignore[typeddict-unknown-key]
        cycle.receive = self._receiving(cycle)  # type: ignore[method-assign, assignment]
        self.headers = []  # headers after the body are not the request's
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the request is answered as HTTP/1.1, and nothing can follow it
        if self.scope["http_version"] == "1.0":
            self.cycle.send = _without_chunks(self.cycle)  # type: ignore[method-assign, assignment]
        if not self.pipeline:
            self._answering = self.cycle

    def _refuse(self, reason: str) -> None:
        """Raise, which the parser passes on; the client gets the reason."""
        self._wrong = reason
        raise ValueError(reason)

    def _check_host(self) -> None:
        """Refuse a request unless there is one Host header; HTTP/1.0 may have none (RFC 9112, 3.2)."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            self._refuse(f"A request must have one Host header; got {hosts}.")

    def on_body(self, body: bytes) -> None:
        """Add to the body, perhaps a chunk, whose frame is its length in hexadecimal digits and two line ends."""
        self._surplus -= len(body) + (len(body).bit_length() + 3) // 4 + 4
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._surplus = 0
        super().on_message_complete()
        self._deadline = self.loop.time() + IDLE_SECONDS if self.cycle.response_complete else None

    def on_response_complete(self) -> None:
        """Continue with the next request, or wait for one."""
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        elif self._deadline is None:
            self._deadline = self.loop.time() + IDLE_SECONDS
        super().on_response_complete()
        if self._rest and not self.pipeline:
            self.loop.call_soon(self._go_on)
        elif self._half_closed and self._nothing_due():
            self.transport.close()

    def _go_on(self) -> None:
        """Parse what was left, now that all requests before it have been answered or are being answered."""
        if not self.transport.is_closing():
            self.data_received(self._rest)
            self.flow.resume_reading()
            if self._half_closed and self._nothing_due():
                self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.time(), self.transport.get_write_buffer_size()
        self._crowd.pause(self)

    def resume_writing(self) -> None:
        self._unread = None
        self._crowd.resume(self)
        super().resume_writing()

    def waits_since(self) -> float | None:
        """Return since when, about, only the client can go on; None if this side can."""
        if self._unread is not None:
            return self._unread[0]
        return None if self._deadline is None else self._deadline - REQUEST_SECONDS

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is arriving, and close; another request's response is never mixed with the reason."""
        if self.transport.is_closing():
            return
        now = self._answering
        if now is None or now.response_complete or (now is self.cycle and now.more_body and not now.response_started):
            super().send_400_response(self._wrong or msg)
        self.transport.close()

    def _check(self) -> None:
        """End the connection if a request, or the client that should read a response, is too slow; check again later."""
        now, wait = self.loop.time(), READ_SECONDS / 2
        if self._stalled(now):
            self._crowd.cut(self)
            return
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._expire()
        elif self._deadline is not None:
            wait = min(wait, self._deadline - now)
        self._timer = self.loop.call_later(wait, self._check)

    def _stalled(self, now: float) -> bool:
        """Return whether the client has read too little for too long of what waits to be sent and cannot grow."""
        if not (self.flow.write_paused or self.transport.is_closing()):
            return False
        size = self.transport.get_write_buffer_size()
        since, before = self._unread = self._unread or (now, size)
        if now - since < READ_SECONDS:
            return False
        self._unread = now, size
        return size > before - READ_BYTES

    def _expire(self) -> None:
        """Close; give the reason if only a part of a request's headers arrived, or nothing ever."""
        if self.cycle is None or (self.cycle.response_complete and self._surplus):
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
