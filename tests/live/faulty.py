"""The API on a plain service, behind a real socket in a thread, that loses, delays and refuses requests on demand."""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import msgspec
from fake_service import FakeWatch
from plain_service import PlainService
from server_thread import ServerThread

from bilinq.errors import Starting
from bilinq.live.http.app import make_app
from bilinq.live.http.middleware import describe, headers_of
from bilinq.live.settings import ServiceSettings


@dataclass
class Fault:
    """A fault of the next `times` requests whose path contains `path`.

    lose: they are handled, but the connection breaks before the response. cut: it breaks before anything is done.
    slow: nothing is done for `seconds`. refuse: the response is `status`, with the header `retry_after` unless None.
    starting: the response is that of a service that has not done anything yet.
    """

    kind: str
    path: str
    times: int = 1
    status: int = 503
    retry_after: str | None = None
    seconds: float = 0.0


class Faulty:
    """Serves inside a `with` block; `restart` breaks all connections, and the same address serves again after a pause."""

    def __init__(self, service: PlainService | None = None, **settings: Any) -> None:
        self.service = service or PlainService()
        self.key = self.service.add_key("fleet")
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self._app = make_app(cast(Any, self.service), cast(Any, FakeWatch()), ServiceSettings(**settings))
        self._listening = _listen(0)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def fault(self, kind: str, path: str, **values: Any) -> None:
        self.faults.append(Fault(kind, path, **values))

    def asked(self, path: str) -> int:
        """Return the number of requests with `path` in their path."""
        return sum(path in one for _, one in self.requests)

    def __enter__(self) -> Self:
        self._serving = ServerThread(self, self._listening)
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.close()
        while self._serving.is_alive():
            self.service.drain()
            self._serving.join(0.01)
        self._listening.close()

    def restart(self, pause: float = 0.0) -> None:
        port = self._listening.getsockname()[1]
        self.__exit__()
        time.sleep(pause)
        self._listening = _listen(port)
        self.__enter__()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests.append((scope["method"], scope["path"]))
        fault = next((one for one in self.faults if one.times and one.path in scope["path"]), None)
        if fault is None:
            await self._app(scope, receive, send)
            return
        fault.times -= 1
        await self._fail(fault, scope, receive, send)

    async def _fail(self, fault: Fault, scope: Any, receive: Any, send: Any) -> None:
        if fault.kind == "refuse":
            header = [] if fault.retry_after is None else [(b"retry-after", fault.retry_after.encode())]
            await send({"type": "http.response.start", "status": fault.status, "headers": header})
            await send({"type": "http.response.body", "body": b""})
            return
        if fault.kind == "starting":
            error = Starting("the service is starting: step 2 of 3")
            await send({"type": "http.response.start", "status": 503, "headers": headers_of(error)})
            await send({"type": "http.response.body", "body": msgspec.json.encode(describe(error))})
            return
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        if fault.kind == "lose":
            await self._app(scope, receive, _nowhere)
        send.__self__.transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass


async def _nowhere(message: Any) -> None:
    """Send nothing."""


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    return listening


def until(found: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
