"""The baseline: procrastinate, a job queue on PostgreSQL, with its fastest settings.

It has its own connection pool, defers jobs in batches, and its workers listen for notifications and run many jobs at once.
"""

import asyncio
import gc
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import procrastinate
import psycopg

from bench.live.load import Measured

POOL = 8
"""Connections of each process; more did not help on two cores."""
WORKER = "import asyncio; from bench.live.baseline import work; asyncio.run(work())"


def app_on(url: str) -> tuple[procrastinate.App, "procrastinate.tasks.Task"]:  # type: ignore[type-arg]
    """Return an app and its only task, which does nothing."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=POOL, max_size=POOL))

    @app.task(name="job", queue="bench")
    async def job(at: float) -> None:
        pass

    return app, job


def run_jobs(url: str, jobs: int, *, batch: int, workers: int, concurrency: int, rate: float = 0.0) -> Measured:
    """Defer and run `jobs` jobs and return how long this takes; with `rate`, batches arrive at random times."""
    asyncio.run(_prepare(url))
    with ExitStack() as stack, psycopg.connect(url, autocommit=True) as watch:
        for _ in range(workers):
            stack.enter_context(_worker(url, concurrency))
        _until(watch, "SELECT count(*) FROM procrastinate_workers", workers)
        began = time.perf_counter()
        asyncio.run(_defer(url, jobs, batch, rate))
        _until(watch, "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'", jobs)
        return Measured(jobs, jobs, time.perf_counter() - began, waits=_waits(watch))


async def _prepare(url: str) -> None:
    app, _ = app_on(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@contextmanager
def _worker(url: str, concurrency: int) -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-c", WORKER, url, str(concurrency)])
    try:
        yield
    finally:
        child.terminate()
        child.wait(20.0)


async def _defer(url: str, jobs: int, batch: int, rate: float) -> None:
    app, job = app_on(url)
    draw, loop = random.Random(1), asyncio.get_running_loop()
    async with app.open_async():
        due = loop.time()
        for start in range(0, jobs, batch):
            if rate:
                due += draw.expovariate(rate / batch)
                await asyncio.sleep(max(due - loop.time(), 0.0))
            number = min(batch, jobs - start)
            given: list[dict[str, Any]] = [{"at": time.time()}] * number
            await job.batch_defer_async(*given)


def _until(watch: "psycopg.Connection[tuple[int]]", sql: str, number: int, seconds: float = 120.0) -> None:
    """Wait until a query returns `number`."""
    end = time.monotonic() + seconds
    while watch.execute(sql.encode()).fetchone() != (number,):
        if time.monotonic() > end:
            raise AssertionError(f"{number} were expected within {seconds:g} s: {sql}")
        time.sleep(0.02)


def _waits(watch: "psycopg.Connection[tuple[int]]") -> list[float]:
    """Return the seconds from each job's entry into the table to its start, by the database's own clock."""
    sql = b"""SELECT extract(epoch FROM started.at - deferred.at)::float8 FROM procrastinate_events AS started
        JOIN procrastinate_events AS deferred USING (job_id) WHERE started.type = 'started' AND deferred.type = 'deferred'"""
    return [float(row[0]) for row in watch.execute(sql).fetchall()]


async def work() -> None:
    """Run a worker with the URL and the concurrency of the command line until a signal arrives."""
    gc.freeze()  # as in the load of bilinq
    app, _ = app_on(sys.argv[1])
    async with app.open_async():
        await app.run_worker_async(queues=["bench"], concurrency=int(sys.argv[2]), listen_notify=True)
