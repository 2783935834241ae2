"""Eight shards on Ray to 1 % of the optimum, compared with the same nodes in one process and the convex program."""

import time
from typing import Any

import numpy as np

from bench.report import Report
from bilinq.distributed import System
from bilinq.distributed.on_ray import joined, solve
from bilinq.distributed.on_ray import run as compare
from bilinq.distributed.rounds import distance

SIZE, SHARDS, GAP = (1000, 100), 8, 0.01
RUNS = 3


class Echo:
    """An actor that only answers."""

    def answer(self) -> None:
        """Answer."""


def run() -> list[Report]:
    """Measure shards, and the cost of a message."""
    began = time.perf_counter()
    with joined() as ray:
        started = time.perf_counter() - began
        return [shards(), messages(ray, started)]


def shards() -> Report:
    """Measure runs to a certified gap of 1 %."""
    columns = ("engine", "seconds", "seconds to start", "iterations", "messages", "kB", "gap at most")
    report = Report(f"{SIZE[0]} x {SIZE[1]} classes to 1 % of the optimum", columns)
    system = System.synthetic(*SIZE, delay=(0, 0))
    runs = [solve(system, shards=SHARDS, tolerance=GAP) for _ in range(RUNS)]
    efforts = [compare.in_process(system, GAP), compare.solved(system), *map(compare.on_ray, runs)]
    for e in efforts:
        report.row(
            e.engine, e.seconds, e.start_seconds, round(e.iterations), e.messages, round(e.bytes / 1e3), float(e.gap)
        )
    best = system.objective(system.fixed_point())
    for found in runs:
        gap = float((best - system.objective(found.expected)) / system.demand.sum())
        report.at_most("gap of 8 shards on Ray against the convex program", gap, GAP)
        report.at_most("largest error of a sum", float(distance(system, found.expected)), 0.2)
    return report


def messages(ray: Any, started: float) -> Report:
    """Measure the cost of Ray without any computation."""
    report = Report("cost of Ray itself", ("what", "milliseconds"))
    report.row("to start it", 1e3 * started)
    began = time.perf_counter()
    actors = [ray.remote(num_cpus=0)(Echo).remote() for _ in range(SHARDS)]
    ray.get([actor.answer.remote() for actor in actors])
    report.row(f"to start {SHARDS} actors", 1e3 * (time.perf_counter() - began))
    report.row("a call of an actor", _median(lambda: ray.get(actors[0].answer.remote())))
    report.row(f"a barrier over {SHARDS} actors", _median(lambda: ray.get([a.answer.remote() for a in actors])))
    return report


def _median(call: Any) -> float:
    """Return the median of a hundred calls in milliseconds."""
    times = []
    for _ in range(100):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))
