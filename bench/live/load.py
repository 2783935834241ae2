"""Load on a service, from a separate process: it reads its plan from an argument and writes its results to a JSON file.

Times are measured by the clock of the load, from sending a request to receiving the answer.
"""

import asyncio
import gc
import random
import secrets
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Self

import msgspec
import uvloop

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
CLASSES = [f"job{k}" for k in range(4)]


class Plan(msgspec.Struct, frozen=True):
    """A load of `jobs` jobs, submitted in batches over several connections, served by agents with several servers each.

    With `rate`, batches arrive at random times, at this many jobs each second, even if the service is slow.
    """

    host: str
    port: int
    key: str
    jobs: int
    batch: int = 1
    submitters: int = 1
    agents: int = 0
    servers: int = 0
    rate: float = 0.0
    keyed: bool = False
    """Whether each job has an idempotency key, as with the clients of the package."""
    features: int = 0
    """Numbers that describe each job of its own."""
    ahead: int = 5000
    """Maximum number of waiting jobs when the next batch is submitted."""


class Measured(msgspec.Struct):
    """Results of a load: seconds from the first request to the last answer, and from submit to lease of each job."""

    submitted: int = 0
    done: int = 0
    seconds: float = 0.0
    service: float = 0.0
    """CPU seconds of the service, which depend less on other load of the machine than time does."""
    stolen: float = 0.0
    """Fraction of the machine's time that other virtual machines on the same host took."""
    waits: list[float] = []


class Connection(asyncio.Protocol):
    """A minimal HTTP connection for JSON, one request at a time; an answer without success is an error."""

    def __init__(self, key: str) -> None:
        self._head = f"Host: bench\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: "
        self._got = bytearray()
        self._missing = -1
        self._start = 0
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def to(cls, host: str, port: int, key: str) -> Self:
        """Return an open connection."""
        _, connection = await asyncio.get_running_loop().create_connection(lambda: cls(key), host, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending request."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the service closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Receive a part of an answer."""
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
        if self._answer is None or self._answer.done():  # the caller was cancelled
            return
        if status < 300:
            self._answer.set_result(body)
        else:
            self._answer.set_exception(RuntimeError(f"{status}: {body.decode()}"))

    async def request(self, method: str, path: str, body: Any) -> Any:
        """Send a request and return the answer, or None if it is empty."""
        text = _encode(body)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(f"{method} {path} HTTP/1.1\r\n{self._head}{len(text)}\r\n\r\n".encode() + text)
        answer = await self._answer
        return _decode(answer) if answer else None

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used: the service closes connections that are idle for long."""
        return bool(self._transport.is_closing())

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


class Load:
    """A running load."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.measured = plan, Measured()
        self.left, self.leased = plan.jobs, 0
        self.room = asyncio.Event()

    async def connection(self) -> Connection:
        """Return a new connection to the service."""
        return await Connection.to(self.plan.host, self.plan.port, self.plan.key)

    async def run(self) -> Measured:
        """Run the plan and return the results."""
        plan = self.plan
        connections = [await self.connection() for _ in range(plan.submitters)]
        agents = [await self._agent(k) for k in range(plan.agents)]
        await asyncio.sleep(0.2)  # agents wait for work before there is any
        began = time.perf_counter()
        submits: Awaitable[Any] = (
            self._at_random(connections) if plan.rate else asyncio.gather(*map(self._submit_all, connections))
        )
        await submits
        if agents:
            await asyncio.gather(*agents)
        self.measured.seconds = time.perf_counter() - began
        return self.measured

    async def _submit_all(self, connection: Connection) -> None:
        """Submit batches until there are enough jobs."""
        while self.left:
            if self.plan.agents and self.measured.submitted - self.leased > self.plan.ahead:
                self.room.clear()
                await self.room.wait()
                continue
            number = min(self.plan.batch, self.left)
            self.left -= number
            await self._submit(connection, number, time.perf_counter())

    async def _submit(self, connection: Connection, number: int, at: float) -> None:
        jobs = [{"class": random.choice(CLASSES), "payload": {"at": at}, **self._own()} for _ in range(number)]
        answer = await connection.request("POST", "/v1/jobs", {"jobs": jobs})
        assert len(answer["jobs"]) == number
        self.measured.submitted += number

    def _own(self) -> dict[str, Any]:
        own: dict[str, Any] = {"key": secrets.token_urlsafe(12)} if self.plan.keyed else {}
        if self.plan.features:
            own["features"] = [round(random.gauss(0.0, 1.0), 3) for _ in range(self.plan.features)]
        return own

    async def _at_random(self, connections: list[Connection]) -> None:
        """Submit batches at random times, each on a free connection; a job's wait begins when it is due."""
        loop, draw = asyncio.get_running_loop(), random.Random(1)
        free, tasks = asyncio.Queue[Connection](), set[asyncio.Task[None]]()
        for connection in connections:
            free.put_nowait(connection)

        async def one(due: float, number: int) -> None:
            connection = await free.get()
            await self._submit(connection, number, due)
            free.put_nowait(connection)

        due = loop.time()
        while self.left:
            number = min(self.plan.batch, self.left)
            self.left -= number
            due += draw.expovariate(self.plan.rate / self.plan.batch)
            await asyncio.sleep(max(due - loop.time(), 0.0))
            tasks.add(asyncio.create_task(one(time.perf_counter() + due - loop.time(), number)))
        await asyncio.gather(*tasks)

    async def _agent(self, number: int) -> "asyncio.Task[None]":
        """Register servers and start to work for them."""
        connection = await self.connection()
        names = [(f"server{(number + k) % 2}", f"{number}-{k}") for k in range(self.plan.servers)]
        ids = [
            (await connection.request("POST", "/v1/servers", {"class": one, "name": name}))["id"] for one, name in names
        ]
        return asyncio.create_task(self._work(connection, ids))

    async def _work(self, connection: Connection, ids: list[str]) -> None:
        """Finish the leases and request more, until all jobs are done."""
        finish: list[dict[str, Any]] = []
        while self.measured.done < self.plan.jobs:
            answer = await connection.request("POST", "/v1/work", {"finish": finish, "lease": ids, "wait": 0.25})
            now = time.perf_counter()
            assert all(outcome["state"] == "done" for outcome in answer["finished"]), answer["finished"]
            self.measured.done += len(finish)
            leases = answer["leases"]
            self.leased += len(leases)
            self.room.set()
            self.measured.waits += [now - lease["job"]["payload"]["at"] for lease in leases]
            finish = [{"lease": one["lease"], "fence": one["fence"], "reward": 0.5} for one in leases]
        connection.close()


def main() -> None:
    """Run the plan of the first argument and write the results to the file of the second."""
    gc.freeze()  # a collection of all that was imported stops the load for 60 ms, which would count as waits
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(uvloop.run(_run(plan))))


async def _run(plan: Plan) -> Measured:
    return await Load(plan).run()
