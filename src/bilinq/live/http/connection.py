"""HTTP/1.1 over one connection: requests come in, one at a time is answered, and nobody takes too much or too long.

Parsing is httptools' business, which is the parser of Node.js; the application is called by ASGI.
"""

import asyncio
import time
from collections import deque
from typing import Any
from urllib.parse import unquote

import httptools

from bilinq.live.http.asgi import App, Scope
from bilinq.live.http.exchange import Exchange, status_line

MAX_HEADERS = 64 << 10
"""Most bytes of a request's first line and headers."""

REQUEST_SECONDS = 90.0
"""Longest time for a request to come in, headers and body, and for a new connection to begin with one."""

IDLE_SECONDS = 75.0
"""Time after an answer in which the next request may begin."""

ASGI = {"version": "3.0", "spec_version": "2.3"}


class Connection(asyncio.Protocol):
    """A client's connection to `app`; `connections` are all that are open.

    `room` is there while the client takes less than it is sent, and tells when that ends. `began` is when the request
    began that is still coming in, or None. One timer looks at it now and then, since one for each request would cost a
    tenth of the speed.
    """

    def __init__(self, app: App, connections: "set[Connection]") -> None:
        self.app, self.connections = app, connections
        self.tasks: set[asyncio.Task[None]] = set()
        self.began: float | None = None
        self.room: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._now: Exchange | None = None
        self._coming: Exchange | None = None
        self._next: deque[Exchange] = deque()
        self._headers: list[tuple[bytes, bytes]] = []
        self._url, self._size = b"", 0
        self._in_headers, self._last, self._reads = True, False, True
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self._transport = transport
        self.connections.add(self)
        self._client, self._server = (transport.get_extra_info(name) for name in ("peername", "sockname"))
        self.began = self._idle_since = self._loop.time()
        self._timer = self._loop.call_later(REQUEST_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let everybody know that the client is gone."""
        self._timer.cancel()
        self.connections.discard(self)
        self.resume_writing()
        for exchange in (self._now, self._coming, *self._next):
            if exchange is not None:
                exchange.gone = True
                exchange.wake()
        self._next.clear()

    def data_received(self, data: bytes) -> None:
        """Take in what came; behind the last request nothing counts."""
        if self._last:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._last = True  # there is nothing else to talk; the request is answered as if it had not asked
        except httptools.HttpParserError:
            if not self._last:
                self._refuse("The request is not HTTP.")
            return
        if self._in_headers and self.began is not None:
            self._size += len(data)
            if self._size > MAX_HEADERS:
                self._refuse(f"The headers of a request must have at most {MAX_HEADERS} bytes.")

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.began = self._loop.time()
        self._headers, self._url, self._size, self._in_headers = [], b"", 0, True

    def on_url(self, url: bytes) -> None:
        """Take in a part of what is asked for."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header; those behind a body are left alone."""
        if self._in_headers:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand the request on; its body may still come."""
        self._in_headers = False
        parser, url = self._parser, httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        version = parser.get_http_version()
        scope: Scope = {
            "type": "http", "asgi": ASGI, "http_version": version, "server": self._server, "client": self._client,
            "scheme": "http", "root_path": "", "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path, "raw_path": url.path, "query_string": url.query or b"",
            "headers": self._headers,
        }  # fmt: skip
        keep = version == "1.1" and parser.should_keep_alive() and not parser.should_upgrade()
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        self._coming = Exchange(self, scope, keep=keep, expects=expects)
        if self._now is None:
            self._start(self._coming)
        else:
            self._next.append(self._coming)
            self.read_on(False)

    def on_body(self, body: bytes) -> None:
        """Take in a part of a body."""
        if self._coming is not None:
            self._coming.take(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self.began = None
        coming, self._coming = self._coming, None
        if coming is not None:
            self._last = not coming.keep
            coming.whole = True
            coming.wake()

    def _start(self, exchange: Exchange) -> None:
        self._now = exchange
        task = self._loop.create_task(exchange.run(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def answered(self) -> None:
        """Go on to the next request, or close after the last."""
        now, self._now = self._now, None
        self._idle_since = self._loop.time()
        if now is None or not now.keep:
            self.close()
        elif self._next:
            self._start(self._next.popleft())
        else:
            self.read_on(True)

    def end(self) -> None:
        """Answer what is being answered, and nothing else."""
        if self._now is None:
            self.close()
        else:
            self._now.keep = False
            self._next.clear()

    def abort(self) -> list[asyncio.Task[None]]:
        """Close at once; return the tasks that end because of that."""
        self._transport.abort()
        for task in self.tasks:
            task.cancel()
        return list(self.tasks)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close when all is sent."""
        self._last = True
        self._transport.close()

    def read_on(self, going: bool) -> None:
        """Read on, unless requests wait, or stop reading."""
        going = going and not self._next
        if going != self._reads and not self._transport.is_closing():
            self._reads = going
            (self._transport.resume_reading if going else self._transport.pause_reading)()

    def pause_writing(self) -> None:
        """Note that the client takes less than it is sent."""
        self.room = self._loop.create_future()

    def resume_writing(self) -> None:
        """Note that there is room again."""
        room, self.room = self.room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _look(self) -> None:
        """End the connection if a request is too slow, or none comes; otherwise look again when that might be."""
        now = self._loop.time()
        if self.began is not None:
            end = self.began + REQUEST_SECONDS
        else:
            end = self._idle_since + IDLE_SECONDS if self._now is None else now + REQUEST_SECONDS
        if now < end:
            self._timer = self._loop.call_later(end - now, self._look)
        elif self.began is not None and self._in_headers:
            self._refuse(f"A request must come within {REQUEST_SECONDS:g} seconds.")
        else:
            self.close()

    def _refuse(self, why: str) -> None:
        """Say what is wrong with a request that cannot be handed on, if nothing else is being said, and close."""
        if self._now is None or (self._now is self._coming and not self._now.started):
            text = why.encode()
            head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(text)
            self.write(status_line(400, int(time.time())) + head + text)
        self.close()
