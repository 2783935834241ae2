"""Goodput under overload: batches that are answered while their clients still wait, at three times what the service can do.

Run `python -m bench.live.overload`. First a few clients submit as fast as they are answered: the best goodput. Then batches
arrive at three times that rate, whether or not others are answered, and then at half of it. A client that waits too long
closes its connection. Meanwhile a worker extends its lease four times a second.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

from bench.live.load import Connection
from bench.live.serving import Serving, serving
from bench.report import Report

BATCH = 500  # jobs of a batch
PATIENCE = 2.0  # seconds that a client waits
COLUMNS = (
    "phase",
    "offered/s",
    "goodput/s",
    "refused/s",
    "given up/s",
    "p50 ms",
    "p99 ms",
    "heartbeat p99 ms",
    "longest ms",
)


@dataclass
class Phase:
    """What happened to the batches that arrived in a phase; times are those of arrivals, and of answers in time."""

    name: str
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    offered: int = 0
    refused: int = 0
    gone: int = 0
    failed: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    beats: list[float] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Batches answered in time, each second."""
        return len(self.answered) / self.seconds

    def cells(self) -> tuple[Any, ...]:
        """Return a row of the table."""
        p50, p99 = (1e3 * np.percentile(self.waits, (50, 99))).tolist() if self.waits else (np.nan, np.nan)
        beats = 1e3 * np.array(self.beats or [np.nan])
        rates = (self.offered, len(self.answered), self.refused, self.gone)
        return (
            self.name,
            *(one / self.seconds for one in rates),
            p50,
            p99,
            float(np.percentile(beats, 99)),
            float(beats.max()),
        )

    @property
    def recovery(self) -> float:
        """Seconds until the last batch arrived that was not answered in time."""
        return max(self.failed, default=self.began) - self.began


class Overload:
    """Clients that submit batches to a service."""

    def __init__(self, service: Serving, batch: int) -> None:
        self.service = service
        self.body = {"jobs": [{"class": f"job{k % 4}", "payload": {"number": k}} for k in range(batch)]}
        self.idle: list[Connection] = []
        self.phase = Phase("warm-up")

    async def submit(self, phase: Phase) -> None:
        """Submit a batch, on a connection that nobody uses or a new one, and note what becomes of it."""
        phase.offered += 1
        start, connection = time.monotonic(), self.idle.pop() if self.idle else None
        try:
            async with asyncio.timeout(PATIENCE):
                connection = connection or await self.connect()
                await connection.request("POST", "/v1/jobs", self.body)
        except (TimeoutError, OSError):
            phase.gone += 1
            phase.failed.append(start)
            if connection is not None:
                connection.close()
            return
        except RuntimeError:  # a status that is no success
            phase.refused += 1
            phase.failed.append(start)
        else:
            phase.answered.append(time.monotonic())
            phase.waits.append(time.monotonic() - start)
        if connection is not None:
            self.idle.append(connection)

    async def connect(self) -> Connection:
        """Return a new connection."""
        return await Connection.to(self.service.host, self.service.port, self.service.key)

    async def closed(self, name: str, clients: int, seconds: float) -> Phase:
        """Let clients submit as fast as they are answered."""
        phase = self.phase = Phase(name)

        async def repeat() -> None:
            while time.monotonic() < phase.began + seconds:
                await self.submit(phase)

        await asyncio.gather(*(repeat() for _ in range(clients)))
        phase.seconds = time.monotonic() - phase.began
        return phase

    async def open(self, name: str, rate: float, seconds: float) -> Phase:
        """Let batches arrive at a rate, whatever happens to them."""
        phase, tasks = Phase(name, seconds=seconds), list[asyncio.Task[None]]()
        self.phase = phase
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(phase.began + number / rate - time.monotonic(), 0.0))
            tasks.append(asyncio.create_task(self.submit(phase)))
        await asyncio.sleep(max(phase.began + seconds - time.monotonic(), 0.0))
        self.tasks = tasks
        return phase

    @contextlib.asynccontextmanager
    async def heartbeats(self) -> AsyncIterator[None]:
        """Extend a lease every quarter of a second, and note in the present phase how long that takes."""
        worker = await self.connect()
        server = await worker.request("POST", "/v1/servers", {"class": "server0"})
        await worker.request("POST", "/v1/jobs", {"jobs": [{"class": "job0"}]})
        lease = await worker.request("POST", f"/v1/servers/{server['id']}/lease?wait=5", None)

        async def beat() -> None:
            while True:
                start = time.monotonic()
                await worker.request("POST", f"/v1/leases/{lease['lease']}/extend", {"fence": lease["fence"]})
                self.phase.beats.append(time.monotonic() - start)
                await asyncio.sleep(0.25)

        beating = asyncio.ensure_future(beat())
        yield
        if beating.done():
            beating.result()  # raises why the lease was lost
        beating.cancel()


async def measure(service: Serving, seconds: float, batch: int = BATCH) -> list[Phase]:
    """Return the phases: best, three times as much, and half of it."""
    load = Overload(service, batch)
    async with load.heartbeats():
        await load.closed("warm-up", 4, 1.0)
        best = await load.closed("best", 8, seconds)
        much = await load.open("three times as much", 3.0 * best.goodput, 2.0 * seconds)
        waiting = load.tasks
        after = await load.open("half as much", 0.5 * best.goodput, seconds)
        await asyncio.gather(*waiting, *load.tasks)
    return [best, much, after]


def run(seconds: float = 5.0) -> Report:
    """Measure on SQLite, with room for all jobs that arrive."""
    report = Report(f"overload with batches of {BATCH} jobs, clients that wait {PATIENCE:g} s", COLUMNS)
    loose = ("--backlog", "100000000")
    with tempfile.TemporaryDirectory() as folder, serving(f"sqlite:///{folder}/live.db", *loose) as service:
        best, much, after = uvloop.run(measure(service, seconds))
    for phase in (best, much, after):
        report.row(*phase.cells())
    report.at_least("goodput at three times the capacity, part of the best", much.goodput / best.goodput, 0.8)
    report.at_most("seconds until recovery", after.recovery, 2.0)
    report.at_most("longest heartbeat, seconds", max(much.beats), 2.0)
    return report


if __name__ == "__main__":
    made = run(*map(float, sys.argv[1:]))
    print(made.markdown(), *made.bounds, sep="\n")
