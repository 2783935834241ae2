"""The simulator compared with the published method (SLSQP in every slot) and a bare SimPy loop; servers, growth, memory."""

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.report import Report, best_seconds
from bilinq import Policy, Problem, Random, Runs, Sabr, simulate
from bilinq.arrays import Array

REPLICATIONS = 10


def per_slot(problem: Problem, policy: Policy, slots: int, replications: int = REPLICATIONS) -> float:
    """Return seconds per replication and slot, best of three, after a check that jobs were served."""

    def once() -> Runs:
        return simulate(problem, policy, slots=slots, replications=replications, seed=1)

    once()
    best = min((once() for _ in range(3)), key=lambda runs: runs.seconds)
    assert best.jobs is not None
    if best.jobs.left.size < 0.5 * problem.arrival_rate.sum() * slots * replications:
        raise AssertionError("fewer than half of the jobs were finished")
    return best.seconds / (slots * replications)


def slsqp_slot(problem: Problem) -> Callable[[], object]:
    """Return a call that computes one allocation of the paper's size with SciPy's SLSQP, as the published code does."""
    minimize: Any = importlib.import_module("scipy.optimize").minimize
    queue = np.random.default_rng(3).integers(1, 4, problem.job_classes).astype(float)
    cost = 1.2 - problem.mean_reward
    shape = cost.shape

    def loss(y: Array) -> float:
        rows = y.reshape(shape)
        return float((cost * rows).sum() - queue / 58.0 @ np.log(rows.sum(axis=1) + 1e-12))

    limits = {"type": "ineq", "fun": lambda y: problem.servers - y.reshape(shape).sum(axis=0)}
    return lambda: minimize(loss, np.full(cost.size, 0.05), method="SLSQP", bounds=[(0, None)] * cost.size,
                            constraints=[limits])  # fmt: skip


def simpy_slots(slots: int) -> Callable[[], object]:
    """Return a call that runs a bare slot loop with random choices in SimPy: no learning, no program."""
    simpy: Any = importlib.import_module("simpy")

    def loop(environment: Any, queue: list[int], draw: Iterator[float]) -> Iterator[Any]:
        for _ in range(slots):
            queue[int(next(draw) * len(queue))] += 1
            for _ in range(4):
                i = int(next(draw) * len(queue))
                if queue[i] and next(draw) < 0.3:
                    queue[i] -= 1
            yield environment.timeout(1)

    def run() -> None:
        environment = simpy.Environment()
        draw = iter(np.random.default_rng(1).random(16 * slots).tolist())
        environment.process(loop(environment, [0] * 10, draw))
        environment.run()

    return run


def growth(report: Report) -> None:
    """Add the growth of the cost of a slot with I, J, d, n and T: measured and expected exponent."""
    base: dict[str, Any] = {"job_classes": 40, "server_classes": 8, "dimension": 3, "servers": 16}
    sweeps: dict[str, tuple[str, tuple[int, ...], str]] = {
        "I": ("job_classes", (40, 80, 160, 320), "1"),
        "J": ("server_classes", (8, 16, 32, 64), "1, saturated 2 to 3"),
        "d": ("dimension", (3, 6, 9, 12), "4 (J d^4)"),
        "n": ("servers", (16, 160, 1600, 16000), "0"),
    }
    for name, (key, values, expected) in sweeps.items():
        seconds = []
        for value in values:
            settings = base | {key: value}
            settings["servers"] = max(settings["servers"] // settings["server_classes"], 1) * settings["server_classes"]
            seconds.append(per_slot(Problem.synthetic(**settings, seed=1), Sabr(V=100.0), slots=300, replications=5))
        report.row(name, ", ".join(map(str, values)), ", ".join(f"{s * 1e6:.1f}" for s in seconds),
                   _slope(values, seconds), expected)  # fmt: skip
    times = (500, 2000, 8000, 32000)
    problem = Problem.synthetic(seed=1)
    seconds = [per_slot(problem, Sabr(V=58.0), slots=T) * T for T in times]
    report.row("T", ", ".join(map(str, times)), ", ".join(f"{s * 1e3:.1f} ms" for s in seconds),
               _slope(times, seconds), "1")  # fmt: skip


def _slope(values: tuple[int, ...], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(values), np.log(seconds), 1)[0])


def memory_gib(slots: int = 1_000_000) -> float:
    """Return the peak memory of ten replications of `slots` slots with queues recorded, in a separate process."""
    code = (
        "from pathlib import Path; from bilinq import Problem, Random, simulate; "
        f"runs = simulate(Problem.synthetic(seed=1), Random(), slots={slots}, replications=10); "
        f"assert runs.queue.shape == (10, {slots}, 10); "
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )  # not getrusage: its peak is inherited from the process that starts this one
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return int(printed) / 2**20


def run() -> tuple[Report, Report]:
    """Measure speed, then growth."""
    problem = Problem.synthetic(seed=7)
    ours = per_slot(problem, Sabr(V=58.0), slots=3000)
    many = per_slot(Problem.synthetic(servers=10_000, seed=7), Sabr(V=58.0), slots=3000)
    bare = per_slot(problem, Random(), slots=3000)
    hundred = per_slot(problem, Sabr(V=58.0), slots=1000, replications=200)
    slsqp = best_seconds(slsqp_slot(problem), budget=2.0)
    simpy = best_seconds(simpy_slots(2000), budget=1.0) / 2000
    report = Report("simulation", ("what", "microseconds per replication and slot", "in units of SABR"))
    for what, seconds in (
        ("SABR (learning, exact program), 10 replications", ours),
        ("the same, 200 replications at once", hundred),
        ("random policy, 10 replications", bare),
        ("SABR with 10,000 servers", many),
        ("bare SimPy loop with random choices", simpy),
        ("one SLSQP allocation, nothing else", slsqp),
    ):
        report.row(what, seconds * 1e6, seconds / ours)
    report.at_most("microseconds per replication and slot", ours * 1e6, 25.0)
    report.at_least("times faster than a slot with SLSQP", slsqp / ours, 1000.0)
    report.at_most("a slot with 10,000 servers in units of one with 4", many / ours, 3.0)
    began = time.perf_counter()
    peak = memory_gib()
    report.row("10 x 10^6 slots, peak memory in GiB", peak, time.perf_counter() - began)
    report.at_most("peak memory of 10 x 10^6 slots in GiB", peak, 2.0)
    table = Report(
        "growth", ("grows", "values", "microseconds per replication and slot", "fitted exponent", "expected")
    )
    growth(table)
    return report, table
