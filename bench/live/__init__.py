"""The live service over HTTP, on SQLite and compared with procrastinate on the same PostgreSQL.

The service is one process, the load another. All writes are durable: SQLite with synchronous=FULL, PostgreSQL with
synchronous_commit=on. A job end to end is a submit, a lease and a finish. Agents drive many servers each, in batches.
"""

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from bench.live import commits
from bench.live.baseline import run_jobs
from bench.live.load import Measured
from bench.live.serving import Serving, postgres, serving
from bench.live.slots import Size, slot_seconds
from bench.live.slow_disk import slow_disk
from bench.report import Report

MIX: dict[str, Any] = {"batch": 20, "submitters": 4, "agents": 16, "servers": 16, "ahead": 500}
"""Jobs arrive in batches of 20; sixteen agents drive 16 servers each."""
SINGLE = MIX | {"batch": 1, "submitters": 32}
"""The same with each job submitted alone, over 32 connections."""
KEYED = SINGLE | {"keyed": True}
"""The same with idempotency keys, as the clients of the package send them."""
FEATURES = MIX | {"features": 16}
"""Jobs in batches, each with 16 features of its own."""
BASELINE: dict[str, Any] = {"batch": 100, "workers": 2, "concurrency": 10}
"""The best settings found for procrastinate on two cores; one worker does a third less."""
ROUNDS = 3
JOBS, TIMES = 1500, 4
"""Required jobs each second on SQLite, and required ratio to procrastinate on the same PostgreSQL."""
DISKS: dict[str, tuple[Any, float]] = {
    "this disk": (nullcontext, 1.5),
    "1 ms for each sync, 0.1 ms for each page": (partial(slow_disk, queued=False), 1.5),
    "the same, one sync at a time with its pages": (partial(slow_disk, queued=True), 2.5),
}
"""Disks, and how many times as long the 99th percentile of operations may be with checkpoints."""
SIZES: dict[str, tuple[Size, float, float]] = {
    "100 x 20 classes, 100,000 jobs": (Size(100, 20, 100_000, 200), 10, 100),
    "20 x 20 classes, 10,000 jobs with 16 features of their own": (Size(20, 20, 10_000, 20, own=16), 20, 100),
    "1,000 x 20 classes, 10,000 jobs": (Size(1000, 20, 10_000, 20), 100, 100),
    "100 x 80 classes with 64 features each, 10,000 jobs": (Size(100, 80, 10_000, 80, features=64), 100, 100),
}
"""Sizes of services, and how many milliseconds slots may take: the median by the wall clock, the longest of CPU time."""
RECORD = 300
"""Bytes of the record of a decision at most."""
WINDOW, WINDOWS = 3.0, 5
"""Seconds of a window in which waits are measured, and the number of windows for a bound."""
COLUMNS = ("what", "jobs/s", "p50 ms", "p99 ms", "service CPU us/job", "stolen %")
"""Stolen is the time in which the host runs other virtual machines; nothing answers then."""


def run() -> list[Report]:
    """Run all measurements except the long one."""
    with postgres() as fresh:
        return [
            on_sqlite(),
            checkpoints(),
            against_baseline(fresh),
            slots(),
            memory(fresh(), 100_000),
        ]


def run_long() -> list[Report]:
    """Measure memory over a million jobs."""
    with tempfile.TemporaryDirectory() as folder:
        return [memory(f"sqlite:///{folder}/live.db", 1_000_000)]


def on_sqlite() -> Report:
    """Measure submits, jobs end to end and waits on SQLite."""
    report = Report("live service on SQLite, synchronous=FULL", COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        with serving(f"sqlite:///{folder}/submits.db") as service:
            single = _row(report, "single submits, 32 at once", service.load(jobs=6000, submitters=32))
            batched = _row(report, "submits in batches of 500", service.load(jobs=50_000, batch=500, submitters=4))
        with serving(f"sqlite:///{folder}/jobs.db") as service:
            rate = _jobs_and_waits(report, service)
    report.at_least("durable single submits each second, SQLite", single, 1000)
    report.at_least("durable batched submits each second, SQLite", batched, 10_000)
    report.at_least("jobs end to end each second, SQLite", rate, JOBS)
    return report


def checkpoints() -> Report:
    """Measure how much longer operations on SQLite take because the write-ahead log is copied to the file meanwhile."""
    columns = ("disk", "checkpoints", "p50 ms", "p99 ms", "longest ms")
    report = Report("operations on SQLite at 500 jobs each second, keyed", columns)
    for disk, (slow, limit) in DISKS.items():
        spent = [1e3 * np.array(some) for some in commits.seconds(500.0, 3.0, rounds=8, disk=slow)]
        for name, some in zip(("with", "without"), spent, strict=True):
            report.row(disk, name, *np.percentile(some, (50, 99, 100)).tolist())
        ratio = np.percentile(spent[0], 99) / np.percentile(spent[1], 99)
        report.at_most(f"99th percentile of operations with checkpoints, times that without, {disk}", ratio, limit)
    return report


def against_baseline(fresh: Callable[[], str]) -> Report:
    """Measure jobs end to end, in turns with other policies and features, and with procrastinate in new schemas."""
    report = Report("live service and procrastinate on the same PostgreSQL", COLUMNS)
    own: dict[str, list[Measured]] = {"end to end": [], "policy sabr": [], "16 features of each job": []}
    other = []
    with serving(fresh()) as plain:
        with serving(fresh(), "--policy", "sabr") as sabr, serving(fresh()) as wide:
            for _ in range(ROUNDS):
                for name, service, mix in zip(own, (plain, sabr, wide), (MIX, MIX, FEATURES), strict=True):
                    own[name].append(service.load(jobs=5000, **mix))
                other.append(run_jobs(fresh(), 600, **BASELINE))
        rates = {name: _row(report, f"bilinq, {name}", *some) for name, some in own.items()}
        baseline = _row(report, "procrastinate, end to end", *other)
        rate = rates["end to end"]
        _bounded_wait(report, "end to end at half of that rate", plain, rate / 2, MIX)
        half = TIMES * baseline / 2
        _bounded_wait(report, f"end to end at {half:.0f}/s, half of the required rate", plain, half, MIX)
    calm = run_jobs(fresh(), 200, **(BASELINE | {"batch": 1}), rate=min(50.0, baseline / 4))
    _row(report, "procrastinate at light load", calm)
    report.at_least("jobs end to end each second, times those of procrastinate", rate / baseline, TIMES)
    cpu = {name: sum(one.service for one in some) for name, some in own.items()}
    report.at_most("CPU time for each job, times that of policy sabr", cpu["end to end"] / cpu["policy sabr"], 1.25)
    wide_rate = rates["16 features of each job"]
    report.at_least("jobs end to end with 16 features each second, times those without", wide_rate / rate, 0.5)
    return report


def slots(times: int = 50) -> Report:
    """Measure slots of large services, and the records of their decisions."""
    columns = ("service", "p50 ms", "longest ms", "longest CPU ms", "bytes of a record")
    report = Report("slots of large services", columns)
    for name, (size, median, longest) in SIZES.items():
        spent = slot_seconds(size, times)
        wall, cpu = 1e3 * spent.wall, 1e3 * spent.cpu
        report.row(name, float(np.median(wall)), float(wall.max()), float(cpu.max()), spent.record)
        report.at_most(f"milliseconds of a slot, median, {name}", float(np.median(wall)), median)
        report.at_most(f"CPU milliseconds of the longest slot, {name}", float(cpu.max()), longest)
        report.at_most(f"bytes of the record of a decision, {name}", spent.record, RECORD)
    return report


def memory(url: str, jobs: int, steps: int = 20) -> Report:
    """Measure the memory of a service while it serves `jobs` jobs; it must not grow with finished jobs."""
    report = Report(f"memory of the service over {jobs:,} jobs, {url.partition(':')[0]}", ("jobs done", "MB"))
    with serving(url) as service:
        for step in range(1, steps + 1):
            service.load(jobs=jobs // steps, **MIX)
            report.row(step * jobs // steps, service.resident())
    done, size = (np.array(column, dtype=float)[steps // 2 :] for column in zip(*report.rows, strict=True))
    slope = float(np.polyfit(done, size, 1)[0])
    report.at_most("bytes of memory for each job done, second half", 1e6 * slope, 20)
    return report


def _jobs_and_waits(report: Report, service: Serving) -> float:
    """Measure jobs end to end in batches and alone, and waits; return the jobs in batches each second."""
    rates = {}
    for name, mix in (("batches", MIX), ("single submits", SINGLE), ("single submits with keys", KEYED)):
        rates[name] = _row(report, f"end to end, {name}", service.load(jobs=5000, **mix))
        _bounded_wait(report, f"end to end at half of that rate, {name}", service, rates[name] / 2, mix)
    _bounded_wait(report, f"end to end at {JOBS / 2:.0f}/s, half of the required rate", service, JOBS / 2, MIX)
    return rates["batches"]


def _bounded_wait(report: Report, name: str, service: Serving, rate: float, mix: dict[str, Any]) -> None:
    """Measure and bound the wait from submit to lease for jobs that arrive at random times at this rate.

    There are several windows, because a single pause of the machine changes the percentile of a window.
    """
    percentiles = []
    for _ in range(WINDOWS):
        measured = service.load(jobs=int(WINDOW * rate), rate=rate, **(mix | {"submitters": 32}))
        _row(report, name, measured)
        percentiles.append(1e3 * np.percentile(measured.waits, 99))
    p99 = float(np.median(percentiles))
    report.at_most(f"milliseconds from submit to lease, p99, median of {WINDOWS} windows, {name}", p99, 25)


def _row(report: Report, name: str, *loads: Measured) -> float:
    """Add a row for several loads together; return jobs each second."""
    rate = sum(one.submitted for one in loads) / sum(one.seconds for one in loads)
    waits = [wait for one in loads for wait in one.waits]
    p50, p99 = (1e3 * np.percentile(waits, (50, 99))).tolist() if waits else ("", "")
    cpu = 1e6 * sum(one.service for one in loads) / sum(one.submitted for one in loads)
    report.row(name, rate, p50, p99, cpu or "", 100 * max(one.stolen for one in loads) if cpu else "")
    return rate
