"""The live service over HTTP, on SQLite and compared with procrastinate on the same PostgreSQL.

The service is one process, the load another. All writes are durable: SQLite with synchronous=FULL, PostgreSQL with
synchronous_commit=on. A job end to end is a submit, a lease and a finish. Agents drive many servers each, in batches.
"""

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.live.baseline import run_jobs
from bench.live.load import Measured
from bench.live.serving import Serving, postgres, serving
from bench.live.slots import slot_seconds
from bench.report import Report

MIX: dict[str, Any] = {"batch": 20, "submitters": 4, "agents": 16, "servers": 16, "ahead": 500}
"""Jobs arrive in batches of 20; sixteen agents drive 16 servers each."""
SINGLE = MIX | {"batch": 1, "submitters": 32}
"""The same with each job submitted alone, over 32 connections."""
KEYED = SINGLE | {"keyed": True}
"""The same with idempotency keys, as the clients of the package send them."""
BASELINE: dict[str, Any] = {"batch": 100, "workers": 2, "concurrency": 10}
"""The best settings found for procrastinate on two cores; one worker does a third less."""
ROUNDS = 3
JOBS, TIMES = 1500, 4
"""Required jobs each second on SQLite, and required ratio to procrastinate on the same PostgreSQL."""
WINDOW, WINDOWS = 3.0, 5
"""Seconds of a window in which waits are measured, and the number of windows for a bound."""
COLUMNS = ("what", "jobs/s", "p50 ms", "p99 ms", "service CPU us/job", "stolen %")
"""Stolen is the time in which the host runs other virtual machines; nothing answers then."""


def run() -> list[Report]:
    """Run all measurements except the long one."""
    with postgres() as fresh:
        return [
            on_sqlite(),
            against_baseline(fresh(), [fresh() for _ in range(ROUNDS + 1)]),
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


def against_baseline(url: str, others: Sequence[str]) -> Report:
    """Measure jobs end to end, alternating with procrastinate, which has a new schema in every round."""
    report = Report("live service and procrastinate on the same PostgreSQL", COLUMNS)
    own, other = [], []
    with serving(url) as service:
        for schema in others[1:]:
            own.append(service.load(jobs=5000, **MIX))
            other.append(run_jobs(schema, 600, **BASELINE))
        rate = _row(report, "bilinq, end to end", *own)
        baseline = _row(report, "procrastinate, end to end", *other)
        _bounded_wait(report, "end to end at half of that rate", service, rate / 2, MIX)
        half = TIMES * baseline / 2
        _bounded_wait(report, f"end to end at {half:.0f}/s, half of the required rate", service, half, MIX)
    calm = run_jobs(others[0], 200, **(BASELINE | {"batch": 1}), rate=min(50.0, baseline / 4))
    _row(report, "procrastinate at light load", calm)
    report.at_least("jobs end to end each second, times those of procrastinate", rate / baseline, TIMES)
    return report


def slots() -> Report:
    """Measure slots of a large service."""
    report = Report("a slot of 100 x 20 classes with 100,000 waiting jobs", ("clock", "p50 ms", "p99 ms"))
    spent = {clock: 1e3 * np.array(some) for clock, some in zip(("CPU", "wall"), slot_seconds(), strict=True)}
    for clock, some in spent.items():
        report.row(clock, *np.percentile(some, (50, 99)).tolist())
    report.at_most("milliseconds of a slot, median", float(np.median(spent["wall"])), 10)
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
