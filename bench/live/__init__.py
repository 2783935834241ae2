"""The live service over HTTP, on SQLite and beside procrastinate on the same PostgreSQL.

The service is one process, the load another. All of it is durable: SQLite with synchronous=FULL, PostgreSQL with
synchronous_commit=on. A life is a submit, a lease and a finish; agents drive many servers each and speak in batches.
"""

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.live.load import Told
from bench.live.postgres import postgres
from bench.live.rival import lives
from bench.live.serving import Serving, serving
from bench.live.slots import slot_seconds
from bench.report import Report

MIX: dict[str, Any] = {"batch": 20, "submitters": 4, "agents": 16, "servers": 16, "ahead": 500}
"""Lives: jobs come in batches of 20, sixteen agents drive 16 servers each."""
SINGLE = MIX | {"batch": 1, "submitters": 32}
"""The same with each job submitted alone, by 32 lines at once."""
KEYED = SINGLE | {"keyed": True}
"""The same with keys, as the clients of the package submit."""
RIVAL: dict[str, Any] = {"batch": 100, "workers": 2, "concurrency": 10}
"""The best that was found for procrastinate on two cores; one worker does a third less."""
ROUNDS = 3
LIVES, TIMES = 1500, 4
"""Lives each second that are asked for on SQLite, and times how many as procrastinate does on the same PostgreSQL."""
SPELL, SPELLS = 3.0, 5
"""Seconds of a spell in which waits are measured, and how many there are for a bound."""
COLUMNS = ("what", "jobs/s", "p50 ms", "p99 ms", "service CPU us/job", "stolen %")
"""Stolen is the time in which the host of a virtual machine runs others: nothing answers then."""


def run() -> list[Report]:
    """Measure all but what takes long."""
    with postgres() as fresh:
        return [
            on_sqlite(),
            beside_rival(fresh(), [fresh() for _ in range(ROUNDS + 1)]),
            slots(),
            memory(fresh(), 100_000),
        ]


def run_long() -> list[Report]:
    """Measure memory over a million jobs."""
    with tempfile.TemporaryDirectory() as folder:
        return [memory(f"sqlite:///{folder}/live.db", 1_000_000)]


def on_sqlite() -> Report:
    """Measure submits, lives and waits on SQLite."""
    report = Report("live service on SQLite, synchronous=FULL", COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        with serving(f"sqlite:///{folder}/submits.db") as service:
            single = _row(report, "single submits, 32 at once", service.load(jobs=6000, submitters=32))
            batched = _row(report, "submits in batches of 500", service.load(jobs=50_000, batch=500, submitters=4))
        with serving(f"sqlite:///{folder}/lives.db") as service:
            rate = _lives_and_waits(report, service)
    report.at_least("durable single submits each second, SQLite", single, 1000)
    report.at_least("durable batched submits each second, SQLite", batched, 10_000)
    report.at_least("whole lives each second, SQLite", rate, LIVES)
    return report


def beside_rival(url: str, others: Sequence[str]) -> Report:
    """Measure lives in turns with procrastinate, which has a fresh schema in every round."""
    report = Report("live service beside procrastinate, the same PostgreSQL", COLUMNS)
    own, other = [], []
    with serving(url) as service:
        for schema in others[1:]:
            own.append(service.load(jobs=5000, **MIX))
            other.append(lives(schema, 600, **RIVAL))
        rate = _row(report, "bilinq, lives", *own)
        rival = _row(report, "procrastinate, lives", *other)
        _bounded_wait(report, "lives at half of that", service, rate / 2, MIX)
        asked = TIMES * rival / 2
        _bounded_wait(report, f"lives at {asked:.0f}/s, half of what is asked for", service, asked, MIX)
    calm = lives(others[0], 200, **(RIVAL | {"batch": 1}), rate=min(50.0, rival / 4))
    _row(report, "procrastinate at light load", calm)
    report.at_least("whole lives each second, times those of procrastinate", rate / rival, TIMES)
    return report


def slots() -> Report:
    """Measure slots of a large service."""
    report = Report("a slot of 100 x 20 classes with 100,000 jobs that wait", ("clock", "p50 ms", "p99 ms"))
    spent = {clock: 1e3 * np.array(some) for clock, some in zip(("CPU", "wall"), slot_seconds(), strict=True)}
    for clock, some in spent.items():
        report.row(clock, *np.percentile(some, (50, 99)).tolist())
    report.at_most("milliseconds of a slot, median", float(np.median(spent["wall"])), 10)
    return report


def memory(url: str, jobs: int, steps: int = 20) -> Report:
    """Measure the memory of a service while it does `jobs` jobs; it must not grow with those that are done."""
    report = Report(f"memory of the service over {jobs:,} jobs, {url.partition(':')[0]}", ("jobs done", "MB"))
    with serving(url) as service:
        for step in range(1, steps + 1):
            service.load(jobs=jobs // steps, **MIX)
            report.row(step * jobs // steps, service.resident())
    done, size = (np.array(column, dtype=float)[steps // 2 :] for column in zip(*report.rows, strict=True))
    slope = float(np.polyfit(done, size, 1)[0])
    report.at_most("bytes of memory for each job done, second half", 1e6 * slope, 20)
    return report


def _lives_and_waits(report: Report, service: Serving) -> float:
    """Measure lives in batches and alone, and waits; return the lives in batches each second."""
    rates = {}
    for name, mix in (("batches", MIX), ("single submits", SINGLE), ("single submits with keys", KEYED)):
        rates[name] = _row(report, f"lives, {name}", service.load(jobs=5000, **mix))
        _bounded_wait(report, f"lives at half of that, {name}", service, rates[name] / 2, mix)
    _bounded_wait(report, f"lives at {LIVES / 2:.0f}/s, half of what is asked for", service, LIVES / 2, MIX)
    return rates["batches"]


def _bounded_wait(report: Report, name: str, service: Serving, rate: float, mix: dict[str, Any]) -> None:
    """Measure and bound the wait from submit to lease at a rate of jobs that come at random times.

    There are several spells, since one pause of the machine makes a percentile.
    """
    spells = []
    for _ in range(SPELLS):
        told = service.load(jobs=int(SPELL * rate), rate=rate, **(mix | {"submitters": 32}))
        _row(report, name, told)
        spells.append(1e3 * np.percentile(told.waits, 99))
    p99 = float(np.median(spells))
    report.at_most(f"milliseconds from submit to lease, p99, median of {SPELLS} spells, {name}", p99, 25)


def _row(report: Report, name: str, *told: Told) -> float:
    """Add what several loads told; return jobs each second."""
    rate = sum(one.submitted for one in told) / sum(one.seconds for one in told)
    waits = [wait for one in told for wait in one.waits]
    p50, p99 = (1e3 * np.percentile(waits, (50, 99))).tolist() if waits else ("", "")
    cpu = 1e6 * sum(one.service for one in told) / sum(one.submitted for one in told)
    report.row(name, rate, p50, p99, cpu or "", 100 * max(one.stolen for one in told) if cpu else "")
    return rate
