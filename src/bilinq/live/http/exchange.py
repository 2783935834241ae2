"""One request and its answer, as an ASGI application sees them: what it is told, and what it says to be sent."""

import asyncio
import logging
import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from bilinq.live.http.asgi import App, Message, Scope

log = logging.getLogger("bilinq.live.http")

ENOUGH = 64 << 10
"""Bytes of a body that wait to be asked for; then no more is read."""

GONE: Message = {"type": "http.disconnect"}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODILESS = frozenset({204, 304})
"""Statuses of answers that have no body."""
_ERROR = b"The service failed."


class Line(Protocol):
    """What an exchange needs of its connection."""

    room: asyncio.Future[None] | None
    """While the client has not taken what was sent: something to wait for until it has."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def read_on(self, going: bool) -> None:
        """Go on reading, or stop."""

    def close(self) -> None:
        """Send what is to be sent, and close."""

    def answered(self) -> None:
        """Go on to the next request."""


class Exchange:
    """A request whose body may still be coming in, and its answer.

    `keep` tells that the connection stays open, `whole` that all of the request is there, `gone` that the client is not,
    and `over` that all of the answer was sent.
    """

    __slots__ = (
        "_body", "_head", "_left", "_line", "_scope", "_size", "_told", "_waiter", "chunked", "expects", "gone", "keep",
        "over", "started", "whole",
    )  # fmt: skip

    def __init__(self, line: Line, scope: Scope, *, keep: bool, expects: bool) -> None:
        self._line, self._scope = line, scope
        self.keep, self.expects = keep, expects
        self.whole = self.gone = self.over = self.started = self.chunked = self._told = False
        self._body: list[bytes] = []
        self._size = 0
        self._left: int | None = None
        self._head = b""
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, app: App) -> None:
        """Let the application answer; what it should have caught, or forgot to say, is the service's fault."""
        try:
            await app(self._scope, self.receive, self.send)
            if not self.over and not self.gone:
                raise RuntimeError("the application has not answered")
        except Exception:
            log.exception("request failed")
            await self._fail()

    async def receive(self) -> Message:
        """Return the next part of the body, or that there is nobody to answer any more."""
        if self.expects:
            self.expects = False
            self._line.write(CONTINUE)
        while not (self.gone or self.over):
            if self._body or (self.whole and not self._told):
                body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
                self._body, self._size, self._told = [], 0, self.whole
                return {"type": "http.request", "body": body, "more_body": not self.whole}
            self._line.read_on(True)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return GONE

    def take(self, part: bytes) -> None:
        """Take in a part of the body."""
        if self.over:
            return
        self._body.append(part)
        self._size += len(part)
        if self._size > ENOUGH:
            self._line.read_on(False)
        self.wake()

    def wake(self) -> None:
        """Let `receive` look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def send(self, message: Message) -> None:
        """Send a part of the answer; the head goes out with the first part of a body whose length is known."""
        if self._line.room is not None:
            await asyncio.shield(self._line.room)
        if self.gone:
            return
        if self.over:
            raise RuntimeError(f"nothing can follow the end of an answer; got {message['type']}")
        if message["type"] == "http.response.start":
            self._begin(message)
        elif not self.started:
            raise RuntimeError(f"an answer must begin with its status; got {message['type']}")
        else:
            self._go_on(message.get("body", b""), message.get("more_body", False))

    def _begin(self, message: Message) -> None:
        """Make the head."""
        if self.started:
            raise RuntimeError("an answer has one status")
        self.started = True
        status, lines = message["status"], [status_line(message["status"], int(time.time()))]
        for name, value in message["headers"]:
            if name == b"connection":
                self.keep = self.keep and value != b"close"
                continue
            if name == b"content-length":
                self._left = int(value)
            lines += (name, b": ", value, b"\r\n")
        if status in BODILESS or self._scope["method"] == "HEAD":
            self._left = 0
        if self._left is None and self._scope["http_version"] == "1.1":
            self.chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        elif self._left is None:
            self.keep = False  # the end of the connection is that of the body
        lines.append(b"\r\n" if self.keep else b"connection: close\r\n\r\n")
        self._head = b"".join(lines)
        if self._left is None:
            self._line.write(self._head)
            self._head = b""

    def _go_on(self, body: bytes, more: bool) -> None:
        """Send a part of the body, and end the answer with the last one."""
        if self._scope["method"] == "HEAD":
            body = b""
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body must be as long as its content-length says")
        elif self.chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        if self._head or body:
            self._line.write(self._head + body)
            self._head = b""
        if not more:
            self.over = True
            self.wake()
            self._line.answered()

    async def _fail(self) -> None:
        """Say that the service failed, if that can still be said, and close."""
        if not self.started and not self.gone:
            head = [
                (b"content-type", b"text/plain"),
                (b"content-length", b"%d" % len(_ERROR)),
                (b"connection", b"close"),
            ]
            await self.send({"type": "http.response.start", "status": 500, "headers": head})
            await self.send({"type": "http.response.body", "body": _ERROR})
        else:
            self._line.close()


@lru_cache(64)
def status_line(status: int, now: int) -> bytes:
    """Return the first line of an answer, and the one that tells the time in seconds."""
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ndate: {formatdate(now, usegmt=True)}\r\n".encode()
