"""The process that submits jobs: a Poisson stream, the same to every service that it is told of."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import numpy as np

from bilinq.client import AsyncClient, NewJob
from bilinq.demo import children as lifeline
from bilinq.demo.children import Load
from bilinq.demo.fleets import Fleet, make_fleet
from bilinq.errors import BilinqError
from bilinq.live.logs import log_to

log = logging.getLogger("bilinq.demo")

BEHIND = 2.0
"""Seconds behind its time after which the stream goes on from now, as after a computer slept."""
MOST = 100
"""Jobs of one call."""


class Arrival(NamedTuple):
    """A job, and the second at which it comes."""

    at: float
    job: NewJob


def arrivals(fleet: Fleet, rng: np.random.Generator) -> Iterator[Arrival]:
    """Yield jobs for ever; how long each takes and its luck stand in its payload, so that they depend on no server."""
    rate, names, now, number = fleet.rate, fleet.problem.job_names, 0.0, 0
    total = float(rate.sum())
    while True:
        now += float(rng.exponential(1.0 / total))
        number += 1
        job_class = names[int(rng.choice(rate.size, p=rate / total))]
        seconds, luck = float(rng.uniform(fleet.shortest, fleet.longest)), float(rng.standard_normal())
        yield Arrival(now, NewJob(job_class, {"number": number, "seconds": round(seconds, 3), "luck": round(luck, 3)}))


async def submit(stream: Iterator[Arrival], clients: Sequence[AsyncClient]) -> None:
    """Submit each job at its time to all services."""
    clock = asyncio.get_running_loop().time
    start, due = clock(), list[NewJob]()
    for at, job in stream:
        if due and (start + at > clock() or len(due) == MOST):
            await _send(due, clients)
            due = []
        start = max(start, clock() - at - BEHIND)
        await asyncio.sleep(max(start + at - clock(), 0.0))
        due.append(job)


async def _send(jobs: Sequence[NewJob], clients: Sequence[AsyncClient]) -> None:
    """Submit jobs to all services; one that is away misses them."""
    for outcome in await asyncio.gather(*(one.submit_all(jobs) for one in clients), return_exceptions=True):
        if isinstance(outcome, BilinqError):
            log.warning("%d jobs were lost: %s", len(jobs), outcome)
        elif isinstance(outcome, BaseException):
            raise outcome


async def _run(task: Load) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(to.url, to.key)) for to in task.targets]
        await submit(arrivals(make_fleet(task.fleet), np.random.default_rng(task.seed)), clients)


def main() -> None:
    """Read the task and submit until the demo is over."""
    task = lifeline.read_task(Load)
    log_to()
    lifeline.at_end(lifeline.terminate)
    asyncio.run(_run(task))


if __name__ == "__main__":
    main()
