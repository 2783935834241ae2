"""Resources of the live service: memory, disk and restart time for each waiting job, backups, scrapes, slots."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from bench.report import Report
from bilinq import Sabr, Scheduler
from bilinq.live.keys import LOCAL
from bilinq.live.metrics.page import resident
from bilinq.live.service import Service
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.wire import messages
from bilinq.scheduler import classes

JOBS, BATCH, PAYLOAD = 50_000, 1000, "x" * 100
SIZES = ((2, 2), (10, 5), (50, 20), (200, 100))
SCRAPES = 50


def run() -> list[Report]:
    """Measure the numbers for capacity planning."""
    with tempfile.TemporaryDirectory() as folder:
        return [asyncio.run(waiting_jobs(Path(folder))), asyncio.run(scrapes(Path(folder))), slots()]


async def waiting_jobs(folder: Path) -> Report:
    """Measure waiting jobs with payloads of 100 bytes on SQLite."""
    report = Report(f"{JOBS} waiting jobs on SQLite, payloads of {len(PAYLOAD)} bytes", ("what", "value"))
    file = folder / "live.db"
    service = await _started(file, 1, 1)
    before = resident()
    alone = await _seconds(lambda: _submit(service, JOBS))
    after = resident()
    assert before is not None and after is not None
    report.row("memory for each, in bytes", (after - before) / JOBS)
    await service.stop()
    report.row("disk for each, in bytes", file.stat().st_size / JOBS)
    restart = await _seconds(lambda: _restarted(file))
    empty = await _seconds(lambda: _restarted(folder / "empty.db"))
    report.row("a restart for each 1,000, in milliseconds", 1e6 * (restart - empty) / JOBS)
    store = open_store(f"sqlite:///{file}", lead=False)
    backup = await _seconds(lambda: store.backup(folder / "backup.db"))
    await store.stop()
    report.row("a backup with its check, fraction of the time to submit them", backup / alone)
    meanwhile = await _submitting_during_backup(file, folder)
    report.row("submitting during a backup, fraction of the speed without", meanwhile * alone / JOBS)
    report.at_most("bytes of memory for each waiting job", (after - before) / JOBS, 2000.0)
    return report


async def scrapes(folder: Path) -> Report:
    """Measure the CPU time of the metrics page and of the API's state."""
    report = Report(
        "GET /metrics and GET /v1/state", ("classes", "metrics ms", "state ms", "fraction of a core, every 10 s")
    )
    for jobs, servers in SIZES[:3]:
        service = await _started(folder / f"{jobs}.db", jobs, servers)
        for k in range(jobs):
            service.meters.wait(f"job {k}", 0.1 * k)
        page, state = await _on_processor(service.metrics), await _on_processor(service.state)
        await service.stop()
        report.row(f"{jobs}x{servers}", 1e3 * page, 1e3 * state, page / 10.0)
        report.at_most(f"milliseconds of a scrape at {jobs}x{servers}", 1e3 * page, 5.0)
    return report


def slots() -> Report:
    """Measure one slot of the scheduler with all servers idle and a hundred waiting jobs of each class."""
    report = Report("a slot of the scheduler", ("classes", "servers", "ms", "in slots of 50 ms"))
    for jobs, servers in SIZES:
        scheduler = Scheduler(
            [classes.JobClass(f"job {k}", _features(k, jobs)) for k in range(jobs)],
            [classes.ServerClass(f"server {k}", _features(k, servers)) for k in range(servers)],
            policy=Sabr.for_scheduler(target_wait=40.0, work_conserving=True),
        )  # fmt: skip
        for k in range(100 * jobs):
            scheduler.submit(f"job {k % jobs}")
        taken = [_slot(scheduler, servers) for _ in range(20)]
        median = float(np.median(taken))
        report.row(f"{jobs}x{servers}", 10 * servers, 1e3 * median, median / 0.05)
    return report


def _slot(scheduler: Scheduler, servers: int) -> float:
    began = time.process_time()
    tasks = scheduler.assign({f"server {k}": 10 for k in range(servers)})
    seconds = time.process_time() - began
    assert len(tasks) == 10 * servers
    for task in tasks:
        scheduler.report(task.job, reward=0.5)
        scheduler.submit(task.job_class)
    return seconds


def _features(k: int, many: int) -> list[float]:
    return [1.0, k / many, (k * 7 % many) / many]


async def _started(file: Path, jobs: int, servers: int) -> Service:
    settings = ServiceSettings(
        job_class=tuple(messages.JobClassInfo(f"job {k}", _features(k, jobs)) for k in range(jobs)),
        server_class=tuple(messages.ServerClassInfo(f"server {k}", _features(k, servers)) for k in range(servers)),
        backlog=10 * JOBS,
    )
    service = Service(settings, open_store(f"sqlite:///{file}"))
    await service.start()
    return service


async def _restarted(file: Path) -> None:
    await (await _started(file, 1, 1)).stop()


async def _submit(service: Service, many: int) -> None:
    for _ in range(many // BATCH):
        await service.submit(LOCAL, [messages.NewJob("job 0", PAYLOAD)] * BATCH)


async def _submitting_during_backup(file: Path, folder: Path) -> float:
    """Return jobs per second during continuous backups."""
    service, done, over = await _started(file, 1, 1), 0, False
    store = open_store(f"sqlite:///{file}", lead=False)

    async def copy() -> None:
        number = 0
        while not over:
            number += 1
            await store.backup(folder / f"again{number}.db")

    copying = asyncio.ensure_future(copy())
    began = time.perf_counter()
    for _ in range(10):
        await _submit(service, BATCH)
        done += BATCH
    speed, over = done / (time.perf_counter() - began), True
    await copying
    await store.stop()
    await service.stop()
    return speed


async def _seconds(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def _on_processor(call: Callable[[], Awaitable[object]]) -> float:
    """Return the smallest CPU seconds of a call, which depend little on other load of the machine."""
    taken = []
    for _ in range(SCRAPES):
        began = time.process_time()
        await call()
        taken.append(time.process_time() - began)
    return min(taken)
