"""Services at real sockets of this process whose clock a test moves: hours of a fleet take seconds."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

from bench.live.load import Connection

from bilinq.live.http.app import make_app
from bilinq.live.http.server import Server, listen
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.slots import Slots
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.watch import Watcher
from bilinq.live.wire.access import NewKey


class Clock:
    """Stands in for the module `time`; its clocks stand still until `seconds` changes."""

    thread_time = staticmethod(time.thread_time)

    def __init__(self) -> None:
        self.seconds, self._began = 0.0, time.time()

    def monotonic(self) -> float:
        """Return the seconds so far."""
        return self.seconds

    def time(self) -> float:
        """Return the time of day."""
        return self._began + self.seconds


async def _no_timer(slots: Slots) -> None:
    """Run no slots by the real clock, so that a run repeats."""
    while await slots._replica.slot_due.wait():
        slots._replica.slot_due.clear()


@contextmanager
def virtual_time() -> Iterator[Clock]:
    """The clock by which all services live that start inside; HTTP, event loop and database go by the real one.

    Slots run only when servers ask for work, without waiting for it.
    """
    clock = Clock()
    with ExitStack() as stack:
        stack.enter_context(patch.object(Slots, "run", _no_timer))
        for name, module in list(sys.modules.items()):
            if name.startswith("bilinq.live.service.") and getattr(module, "time", None) is time:
                stack.enter_context(patch.object(module, "time", clock))
        yield clock


class Served:
    """A running service, and connections to it."""

    def __init__(self, service: Service, host: str, port: int, key: str) -> None:
        self.service, self.url, self.key = service, f"http://{host}:{port}", key
        self._address = host, port
        self._free: list[Connection] = []

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to a request, on a connection that no other request uses."""
        self._free = [one for one in self._free if not one.closed]
        connection = self._free.pop() if self._free else await Connection.to(*self._address, self.key)
        answer = await connection.request(method, path, body)
        self._free.append(connection)
        return answer

    def close(self) -> None:
        """Close all connections."""
        for connection in self._free:
            connection.close()


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    """A service with a database of its own that listens at a free port."""
    chosen = ServiceSettings(rate=0.0, **settings)
    service = Service(chosen, open_store(chosen.database))
    await service.start()
    key = (await service.create_key(LOCAL, NewKey(["fleet"]))).key
    with listen("127.0.0.1", 0) as listening:
        answers = asyncio.Event()
        server = Server(make_app(service, Watcher(service.replica), chosen), answers.set)
        task = asyncio.ensure_future(server.serve([listening]))
        await answers.wait()
        host, port = listening.getsockname()[:2]
        served = Served(service, host, port, key)
        try:
            yield served
        finally:
            served.close()
            server.stop()
            await task
            await service.stop()
