"""Rounds of the nodes compared with passes of NumPy, and rounds to 1 % compared with a tuned central gradient method."""

import warnings
from collections.abc import Callable

import numpy as np

from bench.report import Report, side_by_side
from bilinq.arrays import Array
from bilinq.distributed import Network, Power, System, iterate, start_rates
from bilinq.distributed.system import Nodes, Rule

SIZE = (1000, 100)
ROUNDS = 3000


def passes(shape: tuple[int, int]) -> dict[str, Callable[[], object]]:
    """Return plain passes of NumPy over an array of this shape."""
    y, step = np.random.default_rng(1).random((2, *shape))
    return {"NumPy, y.sum(axis=1)": lambda: y.sum(axis=1), "NumPy, y + step": lambda: y + step}


def network(delay: tuple[int, int], nodes: Nodes, rule: Rule) -> Network:
    """Return nodes at SIZE, after a check that rounds raise the objective."""
    system = System.synthetic(*SIZE, delay=delay, V=300.0)
    made = Network(system, 1e-5 if rule == "printed" else 0.01, nodes=nodes, rule=rule)
    before = system.objective(made.expected)
    if not system.objective(made.advance(100)) > before:
        raise AssertionError(f"rounds of the {rule} rule did not raise the objective")
    return made


def central_rounds(system: System, rounds: int) -> float:
    """Return the rounds to 1 % of projected gradient ascent with the best of 60 step sizes."""
    a, c, n = (value[0] for value in system.flat[:3])
    best = np.inf
    for step in np.geomspace(1e-3, 30.0, 60):
        y, gaps = start_rates(system), []
        limit = rounds if best == np.inf else int(best)
        for _ in range(limit + 1):
            gaps.append(y)
            y = ascend(system, y, step, a, c, n)
        best = min(best, settled(system, np.array(gaps)))
    return best


def ascend(system: System, y: Array, step: float, a: Array, c: Array, n: Array) -> Array:
    """Return y after one projected gradient step on Eq. (33)."""
    marginal = a / np.maximum(y.sum(axis=1), 1e-9)
    gradient = marginal[:, None] - system.penalty.price(np.minimum(y.sum(axis=0), 1e9), n) - c
    return np.asarray(np.clip(y + step * gradient, 0.0, 1e6))


def settled(system: System, track: Array) -> float:
    """Return the first round from which Eq. (33) stays within 1 %; infinite if it does not."""
    gap = (system.objective(system.equilibrium.expected) - system.objective(track)) / system.demand.sum()
    beyond = np.flatnonzero(~(gap <= 0.01))
    last = int(beyond[-1]) + 1 if len(beyond) else 0
    return float(last) if last < len(track) else np.inf


def run() -> list[Report]:
    """Measure the speed of a round and the rounds to settle."""
    return [speed(), settling()]


def speed() -> Report:
    """Measure a round."""
    report = Report("a round of 1000 x 100 pairs", ("what", "microseconds", "in y.sum(axis=1)", "in y + step"))
    calls = passes(SIZE)
    cases: list[tuple[str, tuple[int, int], Nodes, Rule]] = [
        ("no delay", (0, 0), "job", "scaled"), ("all delays 3", (3, 3), "job", "scaled"),
        ("delays 0 to 10", (0, 10), "job", "scaled"), ("delays 0 to 10", (0, 10), "server", "scaled"),
        ("delays 0 to 10", (0, 10), "job", "printed"), ("delays 0 to 10", (0, 10), "job", "delayed"),
    ]  # fmt: skip
    for name, delay, nodes, rule in cases:
        calls[f"{nodes} nodes, {rule} rule, {name}"] = network(delay, nodes, rule).step
    seconds = side_by_side(calls)
    one, other = (seconds[name] for name in passes(SIZE))
    for name, taken in seconds.items():
        report.row(name, taken * 1e6, taken / one, taken / other)
    for name in ("no delay", "all delays 3", "delays 0 to 10"):
        ratio = seconds[f"job nodes, scaled rule, {name}"] / one
        report.at_most(f"{name}, in passes of y.sum(axis=1)", ratio, 5.0)
    return report


def settling() -> Report:
    """Compare rounds without delay with a tuned gradient method."""
    report = Report("rounds to 1 % without delay", ("size", "nodes, 0.9 of the bound", "tuned gradient", "ratio"))
    for seed, size in enumerate(((4, 3), (10, 2), (10, 5), (30, 10), (100, 20))):
        system = System.synthetic(*size, delay=(0, 0), penalty=Power(2.0), seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            track = iterate(system, system.safe_gain(0.9, "discrete"), ROUNDS)
        ours, theirs = float(track.settled()), central_rounds(system, ROUNDS)
        report.row(f"{size[0]}x{size[1]}", ours, theirs, ours / theirs)
        report.at_most(f"{size[0]}x{size[1]}, rounds in units of a tuned gradient method", ours / theirs, 2.0)
    return report
