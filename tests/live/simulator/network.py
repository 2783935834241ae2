"""A network between processes: requests reach ASGI applications late, twice or never, and connections break."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from simulator.history import Call, current
from simulator.world import Process, World

FAST = 2e-3  # most seconds that a message takes without a fault


@dataclass(frozen=True)
class Weather:
    """A fault of the network while it lasts: what may happen to a message, how likely, and to whose; "" is everybody."""

    kind: str
    probability: float
    seconds: float = 0.0
    target: str = ""


@dataclass(frozen=True)
class Message:
    """A request as it travels."""

    method: str
    host: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    repeatable: bool = True


@dataclass(frozen=True)
class Answer:
    """A response as it travels back."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Network:
    """Which application is reached at which host, the connections that are open, and the weather."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random("network")
        self.listening: list[tuple[str, Process, Any]] = []
        self.open: dict[Exchange, None] = {}
        self.weather: list[Weather] = []
        self._clients: dict[Process, httpx.AsyncClient] = {}
        self.faults: Counter[str] = Counter()

    def listen(self, process: Process, hosts: Iterable[str], app: Any) -> None:
        """Let an application of a process serve some hosts until the process ends; several may serve the same host."""
        self.listening += [(host, process, app) for host in hosts]
        process.on_kill.append(lambda: self.hang_up(process))

    def unlisten(self, process: Process) -> None:
        """Refuse new connections to a process."""
        self.listening = [one for one in self.listening if one[1] is not process]

    async def ask(self, process: Process, message: Message, connect: float, read: float) -> Answer:
        """Return the response to a request of a process, or raise an error of httpx; `connect` and `read` limit the time."""
        exchange = Exchange(self, process, message)
        try:
            if self.meets("partition", exchange):
                await asyncio.sleep(connect)
                raise httpx.ConnectTimeout("timed out")
            exchange.begin()
            async with asyncio.timeout(read):
                return await exchange.answer
        except TimeoutError:
            raise httpx.ReadTimeout("timed out") from None
        finally:
            exchange.close()

    def client(self) -> httpx.AsyncClient:
        """Return a client of httpx for the process that runs now."""
        process = self.world.process
        if process not in self._clients:
            self._clients[process] = httpx.AsyncClient(transport=Transport(self, process), timeout=90.0)
        return self._clients[process]

    def hang_up(self, process: Process) -> None:
        """Close the connections of a process that has ended, as its operating system does."""
        self.unlisten(process)
        for exchange in list(self.open):
            if process in (exchange.client, exchange.server):
                exchange.close()

    def meets(self, kind: str, exchange: Exchange) -> Weather | None:
        """Return the weather of a kind that a message meets, and count it; None if it is lucky."""
        for one in self.weather:
            fits = one.kind == kind and one.target in ("", exchange.client.name)
            if fits and self.random.random() < one.probability:
                self.faults[kind] += 1
                return one
        return None

    def send(self, exchange: Exchange, arrive: Callable[[], None]) -> None:
        """Deliver a message of a connection, late, or never; what comes after a lost one is lost as well."""
        if exchange.silent or self.meets("partition", exchange) or self.meets("loss", exchange):
            exchange.silent = True
            return
        if self.meets("reset", exchange):
            exchange.reset()
            return
        late = self.meets("delay", exchange)
        seconds = self.random.uniform(0.0, FAST) + (self.random.expovariate(1.0 / late.seconds) if late else 0.0)
        self.world.at(self.world.now + seconds, arrive)


class Transport(httpx.AsyncBaseTransport):
    """Lets the real httpx use the network, for requests that a follower forwards to the leader."""

    def __init__(self, network: Network, process: Process) -> None:
        self.network, self.process = network, process

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url, times = request.url, request.extensions["timeout"]
        path, _, query = request.extensions.get("target", url.raw_path).partition(b"?")
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        message = Message(request.method, url.host, path.decode(), query, headers, await request.aread(), False)
        answer = await self.network.ask(self.process, message, times["connect"], times["read"])
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body)


class Exchange:
    """A request on a connection of its own, and its response. From a fault on it may be `silent`: nothing arrives."""

    def __init__(self, network: Network, client: Process, message: Message) -> None:
        self.network, self.client, self.message = network, client, message
        self.server: Process | None = None
        self.silent = False
        self.call: Call | None = current.get()
        self.answer: asyncio.Future[Answer] = client.loop.create_future()
        self._gone: list[asyncio.Event] = []

    def begin(self) -> None:
        """Send the request, twice in bad weather: a proxy that heard nothing has sent it again."""
        self.network.open[self] = None
        self.network.send(self, self._arrive)
        if self.message.repeatable and self.network.meets("duplicate", self):
            self.network.send(self, self._arrive)

    def close(self) -> None:
        """End the connection; in bad weather the other end never learns of it."""
        if self in self.network.open:
            del self.network.open[self]
            if not self.network.meets("half-open", self):
                self.network.send(self, self.reset)

    def reset(self) -> None:
        """End the connection at both ends."""
        self.silent = True
        for gone in self._gone:
            gone.set()
        self._fail(httpx.ReadError("connection reset"))

    def _fail(self, error: httpx.RequestError) -> None:
        if not self.answer.done() and self.client.alive:
            self.answer.set_exception(error)

    def _arrive(self) -> None:
        found = [one for one in self.network.listening if one[0] == self.message.host]
        if not found:
            error = httpx.ConnectError("connection refused")
            self.network.send(self, lambda: self._fail(error))
        else:
            _, self.server, app = self.network.random.choice(found)
            self.server.spawn(self._serve(app))

    async def _serve(self, app: Any) -> None:
        one = self.message
        scope = {
            "type": "http", "method": one.method, "path": one.path, "raw_path": one.path.encode(),
            "query_string": one.query, "headers": one.headers, "root_path": "", "scheme": "http",
        }  # fmt: skip
        parts, sent, gone = [one.body], list[Any](), asyncio.Event()
        self._gone.append(gone)

        async def receive() -> Any:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        current.set(self.call)  # also for what a follower forwards
        try:
            await app(scope, receive, send)
        finally:
            if self.call is not None:
                self.call.last = self.network.world.now
        if sent:
            body = b"".join(part["body"] for part in sent[1:])
            answer = Answer(sent[0]["status"], sent[0]["headers"], body)
            self.network.send(self, lambda: self._return(answer))

    def _return(self, answer: Answer) -> None:
        if not self.answer.done() and self.client.alive:
            self.answer.set_result(answer)
