"""Connections to a back end: HTTP/1.1 by httptools on the event loop, kept open between requests.

A general client does more than this and takes several times as long, and here each event of a stream counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import cast
from urllib.parse import urlsplit

from bilinq.extras import optional_imports

with optional_imports():
    from httptools import HttpParserError, HttpResponseParser

Headers = Sequence[tuple[bytes, bytes]]
HIGH, LOW = 256 << 10, 64 << 10  # bytes that are read ahead, and when reading goes on
CONNECT = 10.0  # seconds to connect
MOST_HEADERS = 64 << 10  # bytes of the headers of a response


class BrokenConnection(OSError):
    """A connection that cannot be used, or a response that is no HTTP."""


class Connection(asyncio.Protocol):
    """One connection; it serves one request at a time. What comes is kept until it is read."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.used = self.loop.time()
        self.transport: asyncio.Transport | None = None
        self._error: BrokenConnection | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self.parser = HttpResponseParser(self)
        self.status, self.headers, self._parts = 0, list[tuple[bytes, bytes]](), deque[bytes]()
        self.ahead = self._header_bytes = 0
        self.complete = self._keep_alive = self._until_close = self._paused = False

    def send(self, head: bytes, content: bytes) -> None:
        """Send a request; the response of the one before must be complete."""
        assert self.transport is not None
        self._begin()
        self.transport.write(head + content)

    async def response(self) -> None:
        """Wait until status and headers are there."""
        while not self.status:
            await self._wait()

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yield the body as it comes."""
        while True:
            if self._parts:
                part = b"".join(self._parts)
                self._parts.clear()
                self._resume(len(part))
                yield part
            elif self.complete:
                return
            else:
                await self._wait()

    def close(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        return self.complete and self._keep_alive and not self.closed and not self._parts

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self.transport is None or self.transport.is_closing() or self._error is not None

    async def _wait(self) -> None:
        """Wait until something comes."""
        if self._error is not None:
            raise self._error
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self, read: int) -> None:
        self.ahead -= read
        if self._paused and self.ahead < LOW and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()

    def _fail(self, reason: str) -> None:
        if self._error is None:
            self._error = BrokenConnection(reason)
        self._wake()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserError as error:
            self._fail(f"its response is not HTTP: {error}")
            self.close()
        self._wake()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self.status and self._until_close:
            self.complete = True
        self._fail(str(error) if error else "it closed the connection")

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MOST_HEADERS:
            self._fail(f"the headers of a response must have at most {MOST_HEADERS} bytes")
            self.close()
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Note the status, unless the response is only provisional."""
        status = self.parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        names = dict(self.headers)
        self._until_close = b"content-length" not in names and b"transfer-encoding" not in names
        self._keep_alive, self.status = self.parser.should_keep_alive(), status

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body; a reader who is slow stops the back end."""
        self._parts.append(body)
        self.ahead += len(body)
        if self.ahead > HIGH and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        """Note the end of the response."""
        self.complete = bool(self.status)


class Connections:
    """Connections to the host of a URL; at most `kept` of them stay open without a request, for `seconds` at most."""

    def __init__(self, url: str, kept: int, seconds: float = 30.0) -> None:
        parts = urlsplit(url)
        self._secure = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._secure else 80)
        self._idle, self._kept, self._seconds = deque[Connection](), kept, seconds
        self._address = parts.netloc.rpartition("@")[2].encode()

    @contextlib.asynccontextmanager
    async def post(self, path: str, headers: Headers, content: bytes) -> AsyncIterator[Connection]:
        """Send a request and yield the connection, whose status and headers are known and whose body can be read.

        Raises
        ------
        OSError
            If the host cannot be reached, or the connection or the response is broken.
        """
        head = [b"POST " + path.encode() + b" HTTP/1.1", b"host: " + self._address]
        head += [name + b": " + value for name, value in headers]
        head += [b"content-length: %d" % len(content), b"\r\n"]
        connection = await self._connection()
        try:
            connection.send(b"\r\n".join(head), content)
            await connection.response()
            yield connection
        finally:
            self._keep(connection)

    async def _connection(self) -> Connection:
        """Return an open connection: the one that was used last, or a new one."""
        oldest = asyncio.get_running_loop().time() - self._seconds
        while self._idle:
            found = self._idle.pop()
            if not found.closed and found.used > oldest:
                return found
            found.close()
        async with asyncio.timeout(CONNECT):
            _, made = await asyncio.get_running_loop().create_connection(
                Connection, self._host, self._port, ssl=self._secure
            )
        return made

    def _keep(self, connection: Connection) -> None:
        if connection.reusable and len(self._idle) < self._kept:
            connection.used = connection.loop.time()
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()
