"""Load on a service, from a process of its own: the plan comes as an argument, what is told goes to a file, as JSON.

Times are of the load's own clock, from the moment at which a request is sent to that at which the answer is there.
"""

import asyncio
import random
import secrets
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench.live.line import Line

CLASSES = [f"job{k}" for k in range(4)]


class Plan(msgspec.Struct, frozen=True):
    """What to do: `jobs` jobs, submitted in batches by so many lines at once, done by agents with so many servers each.

    With `rate`, batches come at random times, so many jobs each second, whatever the service does.
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
    """Whether each job has an idempotency key, as the clients of the package give it one."""
    ahead: int = 5000
    """Most jobs that wait when the next batch is submitted."""


class Told(msgspec.Struct):
    """What came of it: seconds from the first request to the last answer, and those from submit to lease of each job."""

    submitted: int = 0
    done: int = 0
    seconds: float = 0.0
    service: float = 0.0
    """Seconds of CPU that the service spent, which do not depend on who else uses the machine as much as time does."""
    stolen: float = 0.0
    """Share of the machine's time that other machines on the same host took from it meanwhile."""
    waits: list[float] = []


class Load:
    """The load while it runs."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.told = plan, Told()
        self.left, self.leased = plan.jobs, 0
        self.room = asyncio.Event()

    async def line(self) -> Line:
        """Return a new line."""
        return await Line.to(self.plan.host, self.plan.port, self.plan.key)

    async def run(self) -> Told:
        """Do as planned."""
        plan = self.plan
        lines = [await self.line() for _ in range(plan.submitters)]
        agents = [await self._agent(k) for k in range(plan.agents)]
        await asyncio.sleep(0.2)  # agents wait for work before there is any
        began = time.perf_counter()
        submits: Awaitable[Any] = self._at_random(lines) if plan.rate else asyncio.gather(*map(self._submit_all, lines))
        await submits
        if agents:
            await asyncio.gather(*agents)
        self.told.seconds = time.perf_counter() - began
        return self.told

    async def _submit_all(self, line: Line) -> None:
        """Submit batches until there are enough jobs."""
        while self.left:
            if self.plan.agents and self.told.submitted - self.leased > self.plan.ahead:
                self.room.clear()
                await self.room.wait()
                continue
            number = min(self.plan.batch, self.left)
            self.left -= number
            await self._submit(line, number, time.perf_counter())

    async def _submit(self, line: Line, number: int, at: float) -> None:
        jobs = [{"class": random.choice(CLASSES), "payload": {"at": at}, **self._key()} for _ in range(number)]
        answer = await line.ask("POST", "/v1/jobs", {"jobs": jobs})
        assert len(answer["jobs"]) == number
        self.told.submitted += number

    def _key(self) -> dict[str, str]:
        return {"key": secrets.token_urlsafe(12)} if self.plan.keyed else {}

    async def _at_random(self, lines: list[Line]) -> None:
        """Submit batches at random times, each on a line that is free; a job's wait begins when it is due."""
        loop, draw = asyncio.get_running_loop(), random.Random(1)
        free, tasks = asyncio.Queue[Line](), set[asyncio.Task[None]]()
        for line in lines:
            free.put_nowait(line)

        async def one(due: float, number: int) -> None:
            line = await free.get()
            await self._submit(line, number, due)
            free.put_nowait(line)

        due = loop.time()
        while self.left:
            number = min(self.plan.batch, self.left)
            self.left -= number
            due += draw.expovariate(self.plan.rate / self.plan.batch)
            await asyncio.sleep(max(due - loop.time(), 0.0))
            tasks.add(asyncio.create_task(one(time.perf_counter() + due - loop.time(), number)))
        await asyncio.gather(*tasks)

    async def _agent(self, number: int) -> "asyncio.Task[None]":
        """Register servers and begin to work for them."""
        line = await self.line()
        names = [(f"server{(number + k) % 2}", f"{number}-{k}") for k in range(self.plan.servers)]
        ids = [(await line.ask("POST", "/v1/servers", {"class": one, "name": name}))["id"] for one, name in names]
        return asyncio.create_task(self._work(line, ids))

    async def _work(self, line: Line, ids: list[str]) -> None:
        """Finish what is leased and ask for more, until all jobs are done."""
        finish: list[dict[str, Any]] = []
        while self.told.done < self.plan.jobs:
            answer = await line.ask("POST", "/v1/work", {"finish": finish, "lease": ids, "wait": 0.25})
            now = time.perf_counter()
            assert all(outcome["state"] == "done" for outcome in answer["finished"]), answer["finished"]
            self.told.done += len(finish)
            leases = answer["leases"]
            self.leased += len(leases)
            self.room.set()
            self.told.waits += [now - lease["job"]["payload"]["at"] for lease in leases]
            finish = [{"lease": one["lease"], "fence": one["fence"], "reward": 0.5} for one in leases]
        line.close()


def main() -> None:
    """Run the plan of the first argument, and write what came of it to the file of the second."""
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(uvloop.run(_run(plan))))


async def _run(plan: Plan) -> Told:
    return await Load(plan).run()
