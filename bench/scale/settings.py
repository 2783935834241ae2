"""What else matters for the rounds of a fleet: one thing varied at a time, at a size where all can be run."""

from __future__ import annotations

from typing import Any

from bench.report import Report
from bench.scale.regions import USUAL, Size, fleet, name
from bench.scale.settling import COARSE, FINE, ROUNDS, Optimum, Settling, settle, shown, solve
from bilinq.arrays import Array
from bilinq.distributed import Power, System
from bilinq.distributed.system import Nodes, allowance

SIZE = (300, 30)
COLUMNS = ("rounds to 1 %", "rounds to 0.01 %", "after 10 %: rounds to 0.01 %", "soft prices lose, %")
CASES: dict[str, dict[str, Any]] = {
    "as above": {}, "half of the largest gain": {"gains": "half"}, "gains by the fixed point": {"gains": "known"},
    "gains by the price heard": {"gains": "heard"}, "server nodes": {"nodes": "server"}, "half the load": {"load": 0.6},
    "twice the load": {"load": 2.4}, "no loss outside the region": {"remote": 0.0}, "bilinear rewards": {"bilinear": True},
    "power 8 in place of 2": {"penalty": Power(8.0)},
    "power 8, half the load": {"penalty": Power(8.0), "load": 0.6},
}  # fmt: skip


def settings(size: Size = SIZE) -> Report:
    """Vary one thing at a time."""
    report = Report(f"what else matters, {name(size)}, delay {USUAL}", ("what", *COLUMNS))
    for what, options in CASES.items():
        report.row(what, *_varied(size, **options))
    return report


def elsewhere(sizes: tuple[Size, ...]) -> Report:
    """Count rounds where a job does as well in any region, so that most of them are served far away."""
    columns = ("size", "nothing lost elsewhere: rounds to 1 %", *COLUMNS[1:])
    report = Report(f"jobs that do as well elsewhere, delay {USUAL}", columns)
    for size in sizes:
        report.row(name(size), *_varied(size, remote=0.0))
    return report


def _varied(size: Size, gains: str = "", nodes: Nodes = "job", **options: Any) -> list[Any]:
    """Return rounds to both levels from a cold start, after 10 %, and what soft prices lose."""
    system, after = (fleet(*size, USUAL, change=change, **options) for change in ("", "10 %"))
    rested = system.fixed_point()
    first, then = _settled(system, None, gains, nodes), _settled(after, rested, gains, nodes)
    exact = Optimum.of(system, solve(system).expected, soft=False)
    rounds = first.within(COARSE), first.within(FINE), then.within(FINE)
    return [*map(shown, rounds), 100 * exact.gap(system, rested)]


def _settled(system: System, start: Array | None, gains: str, nodes: Nodes) -> Settling:
    """Return how the nodes settle with these gains."""
    gain = {
        "": lambda: system.special_gain(0.9, "discrete"), "half": lambda: system.special_gain(0.5, "discrete"),
        "known": lambda: system.safe_gain(0.9, "discrete"), "heard": lambda: 0.9 * allowance(system.round_trip, "discrete"),
    }[gains]()  # fmt: skip
    best = Optimum.of(system, system.equilibrium.expected, soft=True)
    return settle(
        system, best, level=FINE, rounds=ROUNDS, gain=gain, tuned=gains == "heard", start=start, nodes=nodes
    )  # fmt: skip
