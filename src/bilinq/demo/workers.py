"""A process that is the servers of some classes: each job takes its time and earns what its mean and its luck say."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bilinq.client import AsyncClient, Done, HeldJob, Worker
from bilinq.demo import children as lifeline
from bilinq.demo.children import Work
from bilinq.demo.fleets import Fleet, make_fleet
from bilinq.live.logs import log_to

LEAVE = 1.0
"""Seconds to get the last results across."""


def serves(fleet: Fleet, server_class: str) -> Callable[[HeldJob], Coroutine[Any, Any, Done]]:
    """Return the function that serves jobs on servers of that class."""

    async def serve(job: HeldJob) -> Done:
        await asyncio.sleep(job.payload["seconds"])
        return Done(fleet.reward(job.job_class, server_class, job.payload["luck"]))

    return serve


def make_workers(task: Work) -> list[Worker]:
    """Return a worker for each class, with the same names at every start."""
    fleet, client = make_fleet(task.fleet), AsyncClient(task.url, task.key)
    return [
        Worker(client, name, serves(fleet, name), name, servers=fleet.servers[name], leave=LEAVE)
        for name in task.server_classes
    ]


async def _run(workers: list[Worker]) -> None:
    await asyncio.gather(*(worker.serve() for worker in workers))


def _stop(workers: list[Worker]) -> None:
    for worker in workers:
        worker.stop()


def main() -> None:
    """Read the task and serve until the demo is over."""
    task = lifeline.read_task(Work)
    log_to()
    workers = make_workers(task)
    lifeline.at_end(lambda: _stop(workers))
    asyncio.run(_run(workers))


if __name__ == "__main__":
    main()
