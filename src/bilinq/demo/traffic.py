"""Jobs and workers of the demo, as processes: `python -m bilinq.demo.traffic load`, or `workers`."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import numpy as np

from bilinq.client import AsyncClient, Done, HeldJob, NewJob, Worker
from bilinq.demo.fleets import Fleet, make_fleet
from bilinq.demo.processes import LoadTask, WorkTask, at_end, read_task, terminate
from bilinq.errors import BilinqError
from bilinq.live.logs import log_to

log = logging.getLogger("bilinq.demo")

BEHIND = 2.0  # seconds of delay, for example after the computer slept, after which arrivals are not made up for
BATCH = 100  # maximum number of jobs of one request
LEAVE = 1.0  # seconds for a worker to send its last results


class Arrival(NamedTuple):
    """A job, and the second at which it arrives."""

    at: float
    job: NewJob


def arrivals(fleet: Fleet, rng: np.random.Generator) -> Iterator[Arrival]:
    """Yield jobs of a Poisson process, forever; duration and luck of a job are in its payload, the same on every server."""
    rate, names, now, number = fleet.rate, fleet.problem.job_names, 0.0, 0
    total = float(rate.sum())
    while True:
        now += float(rng.exponential(1.0 / total))
        number += 1
        job_class = names[int(rng.choice(rate.size, p=rate / total))]
        seconds, luck = float(rng.uniform(fleet.shortest, fleet.longest)), float(rng.standard_normal())
        yield Arrival(now, NewJob(job_class, {"number": number, "seconds": round(seconds, 3), "luck": round(luck, 3)}))


async def submit(stream: Iterator[Arrival], clients: Sequence[AsyncClient]) -> None:
    """Submit each job to all services when it arrives."""
    clock = asyncio.get_running_loop().time
    start, due = clock(), list[NewJob]()
    for at, job in stream:
        if due and (start + at > clock() or len(due) == BATCH):
            await _send(due, clients)
            due = []
        start = max(start, clock() - at - BEHIND)
        await asyncio.sleep(max(start + at - clock(), 0.0))
        due.append(job)


async def _send(jobs: Sequence[NewJob], clients: Sequence[AsyncClient]) -> None:
    """Submit jobs to all services; one that is unavailable does not get them."""
    for outcome in await asyncio.gather(*(one.submit_all(jobs) for one in clients), return_exceptions=True):
        if isinstance(outcome, BilinqError):
            log.warning("%d jobs were lost: %s", len(jobs), outcome)
        elif isinstance(outcome, BaseException):
            raise outcome


async def _run_load(task: LoadTask) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(to.url, to.key)) for to in task.targets]
        await submit(arrivals(make_fleet(task.fleet), np.random.default_rng(task.seed)), clients)


def make_workers(task: WorkTask) -> list[Worker]:
    """Return a worker for each server class, with the same names at every start."""
    fleet, client = make_fleet(task.fleet), AsyncClient(task.url, task.key)
    return [
        Worker(client, name, _serves(fleet, name), name, servers=fleet.servers[name], leave=LEAVE)
        for name in task.server_classes
    ]


def _serves(fleet: Fleet, server_class: str) -> Callable[[HeldJob], Coroutine[Any, Any, Done]]:
    async def serve(job: HeldJob) -> Done:
        await asyncio.sleep(job.payload["seconds"])
        return Done(fleet.reward(job.job_class, server_class, job.payload["luck"]))

    return serve


async def _run_workers(workers: Sequence[Worker]) -> None:
    await asyncio.gather(*(worker.serve() for worker in workers))


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stop()


def main() -> None:
    """Read the task and submit or serve jobs until the demo ends."""
    if sys.argv[1] == "load":
        load = read_task(LoadTask)
        log_to()
        at_end(terminate)
        asyncio.run(_run_load(load))
    else:
        work = read_task(WorkTask)
        log_to()
        workers = make_workers(work)
        at_end(lambda: _stop(workers))
        asyncio.run(_run_workers(workers))


if __name__ == "__main__":
    main()
