"""A service whose connections are objects of this process: bytes go to its real protocol code without any socket."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bilinq.live.http.app import make_app
from bilinq.live.http.connection import Connection
from bilinq.live.http.routing import App
from bilinq.live.http.server import Server
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.watch import Watcher
from bilinq.live.wire.access import NewKey
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo

STREAMING = 0.1  # seconds after which a stream of events need not end by itself


class Answer(NamedTuple):
    """A response as it was sent: status, headers by name in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes


class Wrong(Exception):
    """What the service did is not allowed."""


class Pipe(asyncio.Transport):
    """The server's side of a connection; keeps what is written. The client reads all at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.paused, self.closing = bytearray(), False, False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closing:
            self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Keep everything."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        raise Wrong("the protocol of a connection was replaced")


class MemoryClient:
    """One connection to a server: `send` bytes in pieces, `settle` until only the client can go on, then `leave`.

    If it is `endless`, it does not wait for the end of a stream of events. `streams` is whether there was such a stream.
    """

    def __init__(self, server: Server, *, endless: bool = False) -> None:
        self._before = set(server.server_state.tasks)
        self.pipe, self._state = Pipe(), server.server_state
        self.endless, self.streams = endless, False
        self.protocol = Connection(server.config, server.server_state, {})
        self.protocol.connection_made(self.pipe)

    async def send(self, pieces: Sequence[bytes], limit: float) -> None:
        """Send pieces; as with a socket, none arrives while the server does not read or after it has closed."""
        for piece in pieces:
            await self._until(lambda: not self.pipe.paused or self.pipe.closing, limit, "is not read")
            if self.pipe.closing or self.streams:
                return
            self.protocol.data_received(piece)
            await asyncio.sleep(0)

    async def settle(self, limit: float) -> None:
        """Wait until the server waits for the client, has closed, or has streamed events for some time."""
        await self._until(lambda: self.pipe.closing or not self._serving(), limit, "is not answered")

    def _serving(self) -> bool:
        """Whether there is a complete request without a complete response."""
        now = self.protocol.cycle
        waiting = now is not None and not now.response_complete and not now.more_body
        return bool(waiting or self.protocol.pipeline or self.protocol._rest)

    def _streaming(self) -> bool:
        """Whether the last response is a stream of events that has begun and has not ended."""
        last = bytes(self.pipe.written[self.pipe.written.rfind(b"HTTP/1.1 200 OK\r\n") :])
        return b"\r\ncontent-type: text/event-stream" in last.partition(b"\r\n\r\n")[0] and self._serving()

    async def leave(self, limit: float) -> None:
        """Disconnect; all requests of this connection must end."""
        self.endless = False
        self.protocol.connection_lost(None)
        await self._until(lambda: self._state.tasks <= self._before, limit, "goes on after its client has gone")

    async def _until(self, done: Any, limit: float, complaint: str) -> None:
        clock = asyncio.get_running_loop().time
        began, pause = clock(), 0.0
        while not done():
            if self.endless and clock() > began + STREAMING and self._streaming():
                self.streams = True
                return
            if clock() > began + limit:
                raise Wrong(f"a request {complaint} for {limit:g} s")
            await asyncio.sleep(pause)
            pause = min(pause + 0.0002, 0.005)

    def answers(self) -> list[Answer]:
        """Return all responses; raise `Wrong` if what was written is not a sequence of them."""
        found, rest = [], bytes(self.pipe.written)
        while rest:
            answer, rest = self._answer(rest)
            found += [answer] if answer.status != 100 else []
        return found

    def _answer(self, data: bytes) -> tuple[Answer, bytes]:
        head, end, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not end or version != "HTTP/1.1" or not status[:3].isdigit():
            raise Wrong(f"not a response: {data[:80]!r}")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        code = int(status[:3])
        framed = "content-length" in headers or "transfer-encoding" in headers
        if code in (100, 204) or (not framed and (not rest or rest.startswith(b"HTTP/1.1 "))):  # the latter to HEAD
            return Answer(code, headers, b""), rest
        if "transfer-encoding" in headers:
            body, rest = self._chunks(rest)
        elif "content-length" in headers:
            size = int(headers["content-length"])
            if rest.startswith(b"HTTP/1.1 ") or not rest:
                return Answer(code, headers, b""), rest  # the response to HEAD
            body, rest = rest[:size], rest[size:]
            if len(body) < size:
                raise Wrong(f"a response of {size} bytes ends after {len(body)}")
        else:
            body, rest = rest, b""  # to HTTP/1.0: until the end of the connection
        return Answer(code, headers, body), rest

    def _chunks(self, data: bytes) -> tuple[bytes, bytes]:
        body = b""
        while data and not data.startswith(b"HTTP/1.1 "):
            size, _, data = data.partition(b"\r\n")
            length = int(size, 16)
            body, end, data = body + data[:length], data[length : length + 2], data[length + 2 :]
            if end != b"\r\n":
                raise Wrong(f"a chunk does not end: {data[:40]!r}")
            if not length:
                break
        return body, data


class Complaints(logging.Handler):
    """Collects what a service logs that it should not: errors, and anything with a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.found.append(logging.Formatter().format(record))


CLASSES: dict[str, Any] = {
    "job_class": (JobClassInfo("short", [1.0, 0.2]), JobClassInfo("long", [0.5, 1.0])),
    "server_class": (ServerClassInfo("gpu", [0.3, 1.0]), ServerClassInfo("cpu", [1.0, 0.1])),
}


class MemoryService(NamedTuple):
    """A running service without sockets: its server, a key with all scopes, and what it complained of."""

    server: Server
    app: App
    key: str
    complaints: list[str]

    def connect(self, *, endless: bool = False) -> MemoryClient:
        """Return a new connection; if `endless`, its client does not wait for the end of a stream of events."""
        return MemoryClient(self.server, endless=endless)


@asynccontextmanager
async def memory_service(folder: Path) -> AsyncIterator[MemoryService]:
    """A service with two job classes, two server classes and a database in `folder`."""
    chosen = ServiceSettings(rate=0.0, slot=0.005, database=f"sqlite:///{folder}/fuzz.db", **CLASSES)
    service = Service(chosen, open_store(chosen.database))
    watch, complaints, loggers = Watcher(service.replica), Complaints(), ("bilinq", "uvicorn", "asyncio")
    for name in loggers:
        logging.getLogger(name).addHandler(complaints)
    await service.start()
    watch.start()
    app = make_app(service, watch, chosen)
    key = (await service.create_key(LOCAL, NewKey(["fleet", "admin", "submit", "work", "read"]))).key
    server = Server(app, lambda: None)
    server.config.load()
    try:
        yield MemoryService(server, app, key, complaints.found)
    finally:
        service.drain()
        await watch.stop()
        await service.stop()
        for name in loggers:
            logging.getLogger(name).removeHandler(complaints)
