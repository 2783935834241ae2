"""A connection that speaks just enough HTTP to load a server: one request at a time, bodies with a length."""

import asyncio
from typing import Any, Self

import msgspec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Line(asyncio.Protocol):
    """A connection on which JSON goes out and comes back; an answer that is no success is an error."""

    def __init__(self, key: str) -> None:
        self._head = f"Host: bench\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: "
        self._got = bytearray()
        self._missing = -1
        self._start = 0
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def to(cls, host: str, port: int, key: str) -> Self:
        """Return a connection that is open."""
        _, line = await asyncio.get_running_loop().create_connection(lambda: cls(key), host, port)
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note where to write."""
        self._transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Let whoever waits know."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the service closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        self._got += data
        if self._missing < 0:
            self._read_head()
        if self._missing >= 0 and len(self._got) >= self._missing:
            self._end()

    def _read_head(self) -> None:
        end = self._got.find(b"\r\n\r\n")
        if end >= 0:
            head = bytes(self._got[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._start, self._missing = end + 4, end + 4 + length

    def _end(self) -> None:
        status, body = int(self._got[9:12]), bytes(self._got[self._start : self._missing])
        self._got, self._missing = bytearray(), -1
        if self._answer is None or self._answer.done():  # who asked was cancelled
            return
        if status < 300:
            self._answer.set_result(body)
        else:
            self._answer.set_exception(RuntimeError(f"{status}: {body.decode()}"))

    async def ask(self, method: str, path: str, body: Any) -> Any:
        """Return the answer, or None if it is empty."""
        text = _encode(body)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(f"{method} {path} HTTP/1.1\r\n{self._head}{len(text)}\r\n\r\n".encode() + text)
        answer = await self._answer
        return _decode(answer) if answer else None

    def close(self) -> None:
        """Hang up."""
        self._transport.close()
