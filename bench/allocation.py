"""Allocation by the public function compared with CVXPY with Clarabel, the faster of parametrised and rebuilt."""

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bench.report import Report, best_seconds, side_by_side
from bilinq import Allocation, allocate
from bilinq.arrays import Array

Case = tuple[Array, Array, Array, float]
GAMMA = 1.2
CROWDED_V, SEEDS = 34.0, 5


def case(rows: int, columns: int, V: float = 30.0, seed: int = 0) -> Case:
    """Return queue, reward, capacity and V of a random program.

    With V = 30 most server classes are saturated; with V = 1000 none is, as in every slot of the paper's synthetic
    experiment.
    """
    rng = np.random.default_rng(seed)
    queue = rng.integers(1, 20, rows).astype(float)
    return queue, rng.uniform(0, 1, (rows, columns)), np.full(columns, max(1.0, 0.5 * rows / columns)), V


def crowded(rows: int, columns: int, load: float, bilinear: bool, seed: int = 0) -> Case:
    """Return a program of `load` = sum_i a_i over all servers, with bilinear or independent rewards of the same range.

    With bilinear rewards all job classes prefer the same servers, so the cheapest pairs of each class are the wrong ones.
    """
    rng = np.random.default_rng(seed)
    u, v = rng.uniform(size=(rows, 3)), rng.uniform(size=(columns, 3))
    u[:, 0] = v[:, 0] = 1.0
    reward = u @ rng.normal(0, 0.3, (3, 3)) @ v.T if bilinear else rng.uniform(-1, 1, (rows, columns))
    capacity = np.full(columns, 10.0)
    queue = (rng.poisson(load * capacity.sum() * CROWDED_V / rows, rows) + 1).astype(np.float64)
    return queue, np.clip(reward, -1, 1), capacity, CROWDED_V


def measure_crowded(report: Report) -> None:
    """Add the time with bilinear rewards relative to independent ones, from light load to far beyond capacity."""
    tall: dict[float, float] = {}
    for rows, columns in ((50, 20), (200, 100), (100, 200), (500, 50)):
        for load in (0.3, 1.0, 10.0, 100.0):
            seconds = {True: 0.0, False: 0.0}
            for seed in range(SEEDS):
                given = {kind: crowded(rows, columns, load, kind, seed) for kind in (True, False)}
                answers = {kind: allocate(*given[kind]) for kind in (True, False)}
                if max(float(answer.residual) for answer in answers.values()) > 1e-9:
                    raise AssertionError(f"not solved at {rows}x{columns}, load {load:g}")
                calls = {str(kind): partial(allocate, *given[kind]) for kind in (True, False)}
                best = side_by_side(calls, repeats=3, budget=0.01)
                for kind in (True, False):
                    seconds[kind] += best[str(kind)]
            ratio = seconds[True] / seconds[False]
            name = f"{rows}x{columns}, bilinear, load {load:g}"
            report.row(
                name, CROWDED_V, seconds[True] / SEEDS * 1e3, "", "", answers[True].residual, answers[True].steps
            )
            report.at_most(f"{name}, in units of independent rewards", ratio, 5.0)
            if (rows, columns) == (200, 100):
                tall[load] = seconds[True]
            if (rows, columns) == (100, 200):
                report.at_most(f"{name}, in units of 200x100", seconds[True] / tall[load], 1.5)


def objective(given: Case, y: Array) -> float:
    """Return the value of the program, Eq. (6)."""
    queue, reward, _, V = given
    return float(queue / V @ np.log(y.sum(axis=1)) - ((GAMMA - reward) * y).sum())


def clarabel(given: Case, parametrised: bool) -> Callable[[], Array]:
    """Return a call that solves the program with CVXPY and Clarabel: rebuilt each time, or with new parameters."""
    cp: Any = importlib.import_module("cvxpy")
    queue, reward, capacity, V = given
    rows, columns = reward.shape

    def build(a: Any, c: Any) -> tuple[Any, Any]:
        y = cp.Variable((rows, columns), nonneg=True)
        value = a @ cp.log(cp.sum(y, axis=1)) - cp.sum(cp.multiply(c, y))
        return cp.Problem(cp.Maximize(value), [cp.sum(y, axis=0) <= capacity]), y

    if not parametrised:

        def rebuilt() -> Array:
            problem, y = build(queue / V, GAMMA - reward)
            problem.solve(solver=cp.CLARABEL)
            return np.asarray(y.value)

        return rebuilt
    a, c = cp.Parameter(rows, nonneg=True), cp.Parameter((rows, columns), nonneg=True)
    problem, y = build(a, c)

    def again() -> Array:
        a.value, c.value = queue / V, GAMMA - reward
        problem.solve(solver=cp.CLARABEL)
        return np.asarray(y.value)

    return again


def slots(given: Case, number: int, drift: float = 1e-5, seed: int = 1) -> Iterator[Case]:
    """Yield the programs of consecutive slots: a job arrives, a job leaves, every index changes slightly."""
    queue, reward, capacity, V = given[0].copy(), given[1].copy(), given[2], given[3]
    rng = np.random.default_rng(seed)
    for _ in range(number):
        queue[rng.integers(queue.size)] += 1
        queue[rng.choice(np.flatnonzero(queue > 1))] -= 1
        reward = np.clip(reward + rng.normal(0, drift, reward.shape), -1, 1)
        yield queue.copy(), reward, capacity, V


def warm_ratio(given: Case, number: int = 40) -> tuple[float, float]:
    """Return mean seconds of a cold and of a warm-started solve over the same slots."""
    last: Allocation = allocate(*given)
    cold = warm = 0.0
    for now in slots(given, number):
        begun: Allocation = last
        cold += best_seconds(partial(allocate, *now), budget=0.02)
        warm += best_seconds(partial(allocate, *now, start=begun), budget=0.02)
        last = allocate(*now, start=begun)
        if np.abs(last.expected.sum(axis=1) - allocate(*now).expected.sum(axis=1)).max() > 1e-7:
            raise AssertionError("warm and cold start disagree")
    return cold / number, warm / number


def jobs(rows: int, columns: int, load: float, bilinear: bool, features: int = 8) -> dict[str, Any]:
    """Return a program with one job a row: bilinear rewards of some features, or independent ones."""
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(rows, features)), rng.normal(size=(columns, features))
    x, v = x / np.linalg.norm(x, axis=1, keepdims=True), v / np.linalg.norm(v, axis=1, keepdims=True)
    reward = x @ v.T if bilinear else rng.uniform(-1, 1, (rows, columns))
    capacity = np.full(columns, 10.0)
    return {"queue": np.ones(rows), "reward": reward, "capacity": capacity, "V": rows / (load * capacity.sum())}


def product_seconds(rows: int, columns: int) -> float:
    """Return the unit of tall programs: twenty NumPy products of the table with a square matrix."""
    table, square = np.ones((rows, columns)), np.ones((columns, columns))
    return best_seconds(lambda: [table @ square for _ in range(20)], budget=0.5)


def run_tall() -> Report:
    """Measure programs with one job a row, at three loads, and a warm slot."""
    report = Report("one job a row", ("size", "rewards", "load", "seconds", "units", "residual", "steps"))
    for rows in (10**4, 10**5, 10**6):
        unit = product_seconds(10**4, 100) * rows / 1e4
        for load in (0.3, 1.0, 5.0):
            for bilinear in (True, False):
                case = jobs(rows, 100, load, bilinear)
                began = time.perf_counter()
                answer = allocate(**case)
                seconds = time.perf_counter() - began
                if rows < 10**6:
                    seconds = best_seconds(partial(allocate, **case), budget=0.5)
                else:
                    report.at_most(f"{rows}x100, load {load:g}, seconds", seconds, 60.0)
                name = f"{rows}x100, {'bilinear' if bilinear else 'independent'}, load {load:g}"
                report.row(
                    f"{rows}x100", name.split(", ")[1], load, seconds, seconds / unit, answer.residual, answer.steps
                )
                report.at_most(f"{name}, residual", float(answer.residual), 1e-9)
                if bilinear:
                    report.at_most(f"{name}, in units of twenty products", seconds / unit, 10.0)
    report.at_most("1000000x100, peak memory in GB, table and answer included", peak_memory(PEAK), 8.0)
    report.at_most("1000000x100 by features, peak memory in GB", peak_memory(PEAK_BY_FEATURES), 1.0)
    case, rng = jobs(10**5, 20, 1.0, True), np.random.default_rng(1)
    last, changed = allocate(**case), rng.choice(10**5, 1000, replace=False)
    case["reward"] = case["reward"].copy()
    case["reward"][changed] = case["reward"][rng.permutation(changed)] + rng.normal(0.0, 0.01, (1000, 20))
    times = side_by_side(
        {"cold": partial(allocate, **case), "warm": partial(allocate, **case, start=last)}, repeats=5, budget=0.2
    )
    report.row("100000x20 warm", "bilinear", 1.0, times["warm"], "", allocate(**case, start=last).residual, "")
    report.at_most(
        "100000x20, one row in a hundred changed, in units of a cold solve", times["warm"] / times["cold"], 0.1
    )
    return report


GROWTH: dict[str, tuple[float, ...]] = {
    "rows": (20_000, 60_000, 180_000, 540_000), "columns": (10, 20, 40, 80), "features": (2, 4, 8, 16),
    "load": (0.3, 1.0, 3.0, 10.0),
}  # fmt: skip


def run_growth() -> Report:
    """Measure how the time of a tall program grows with each of its numbers, from 60,000 x 20, 8 features, load 1."""
    report = Report("growth of tall programs", ("number", *(f"value {k}" for k in range(1, 5)), "exponent"))
    for number, values in GROWTH.items():
        seconds = []
        for value in values:
            given: dict[str, Any] = {"rows": 60_000, "columns": 20, "features": 8, "load": 1.0, number: value}
            case = jobs(given["rows"], given["columns"], given["load"], True, given["features"])
            if allocate(**case).residual > 1e-9:
                raise AssertionError(f"not solved at {number} = {value:g}")
            seconds.append(best_seconds(partial(allocate, **case), budget=0.5))
        exponent = float(np.polyfit(np.log(values), np.log(seconds), 1)[0])
        report.row(number, *(f"{value:g}: {took:.3g} s" for value, took in zip(values, seconds, strict=True)), exponent)
        if number == "rows":
            report.at_most("exponent of the time in the number of rows", exponent, 1.1)
    return report


PEAK = """
from bench.allocation import jobs
from bilinq import allocate
assert allocate(**jobs(10**6, 100, 1.0, True)).residual <= 1e-9
"""
PEAK_BY_FEATURES = """
import numpy as np
from bilinq import allocate
rng = np.random.default_rng(0)
x, v = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (rng.normal(size=(k, 8)) for k in (10**6, 100)))
answer = allocate(np.ones(10**6), None, np.full(100, 10.0), 1e3, job_features=x, server_features=v, theta=np.eye(8))
assert answer.residual <= 1e-9
"""
PRINT_PEAK = """
from pathlib import Path
[line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(int(line.split()[1]) / 2**20)
"""


def peak_memory(program: str) -> float:
    """Return the peak memory in GB of a process that runs a program; `ru_maxrss` would count that of this process, too."""
    code = program + PRINT_PEAK
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def run() -> Report:
    """Measure all sizes."""
    report = Report("allocation", ("size", "V", "bilinq ms", "Clarabel ms", "times faster", "residual", "steps"))
    sizes = (
        (10, 2, 1000.0, 200.0), (5, 12, 1000.0, 200.0), (10, 2, 30.0, 200.0), (10, 2, 70.0, 200.0), (5, 12, 30.0, 200.0),
        (5, 12, 70.0, 200.0), (50, 20, 30.0, 100.0), (50, 20, 100.0, 100.0), (200, 100, 30.0, 100.0),
        (200, 100, 100.0, 100.0),
    )  # fmt: skip
    slowest = 0.0
    for rows, columns, V, bound in sizes:
        given = case(rows, columns, V)
        answer = allocate(*given)
        ours = best_seconds(partial(allocate, *given))
        calls = [clarabel(given, parametrised) for parametrised in (True, False)]
        theirs = min(best_seconds(call, budget=1.0) for call in calls)
        if objective(given, answer.expected) < objective(given, np.maximum(calls[0](), 1e-12)) - 1e-6:
            raise AssertionError(f"Clarabel reaches a higher objective at {rows}x{columns}")
        report.row(
            f"{rows}x{columns}", given[3], ours * 1e3, theirs * 1e3, theirs / ours, answer.residual, answer.steps
        )
        report.at_least(f"{rows}x{columns} at V = {V:g}, times faster than Clarabel", theirs / ours, bound)
        report.at_most(f"{rows}x{columns} at V = {V:g}, residual", float(answer.residual), 1e-9)
        slowest = theirs
    for V in (30.0, 1000.0):
        given = case(1000, 1000, V)
        answer = allocate(*given)
        ours = best_seconds(partial(allocate, *given))
        report.row("1000x1000", V, ours * 1e3, "not run", "", answer.residual, answer.steps)
        report.at_most(f"1000x1000 at V = {V:g}, in units of Clarabel at 200x100", ours / slowest, 3.0)
        report.at_most(f"1000x1000 at V = {V:g}, residual", float(answer.residual), 1e-9)
    measure_crowded(report)
    cold, warm = warm_ratio(case(200, 100))
    report.row("200x100 warm", 30.0, warm * 1e3, "", "", "", "")
    report.at_most("200x100, warm-started slot in units of a cold solve", warm / cold, 1 / 3)
    return report
