"""How the nodes' way scales: messages, rounds and seconds of a fleet in ten regions, against one exact solve.

`python -m bench --only scale` prints the tables of `docs/scale.md` and compares them with that page, from which
`python -m bench.scale.figure docs/scale.png` draws its picture.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import NamedTuple

from bench.report import Report
from bench.scale import page as pages
from bench.scale.exchanges import settle_by_exchanges
from bench.scale.messages import bandwidth, traffic
from bench.scale.regions import APART, EXCHANGE, ROUND, SURGE, USUAL, Size, fleet, name
from bench.scale.settings import elsewhere, settings
from bench.scale.settling import COARSE, FINE, ROUNDS, Optimum, alone, round_seconds, settle, shown, solved
from bilinq.arrays import Array
from bilinq.distributed import System, start_rates

SIZES: tuple[Size, ...] = ((10, 3), (100, 10), (1000, 100))
FLEET: Size = (10_000, 1000)
"""A million servers. Not all that is run at the other sizes is run here: that would take an hour."""
DELAYS = (0, 1, 5, 20)
"""Rounds between regions."""
EXCHANGES = 1000
CHECKED = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds after a change at which losses are noted."""
LOCAL, FEW = 100, 20
"""Iterations of a region between exchanges; few at the largest size."""
SPREAD = 0.01
"""What is kept of every pair, where that is tried."""


def seconds(rounds: int | None, each: float) -> float | str:
    """Return how long so many rounds take, if it is known."""
    return "" if rounds is None or not each else rounds * each


def rest(size: Size, change: str = "", load: float = 1.2) -> Array:
    """Return where the nodes of a fleet rest, (I, J)."""
    return _rest(size, change, load)


@cache
def _rest(size: Size, change: str, load: float) -> Array:
    """Return the same, solved once."""
    return fleet(*size, change=change, load=load).fixed_point()


@cache
def soft(size: Size, change: str = "", load: float = 1.2) -> Optimum:
    """Return the optimum of its nodes."""
    return Optimum.of(fleet(*size, change=change, load=load), rest(size, change, load), soft=True)


def run() -> Iterator[Report]:
    """Measure all on two cores, and compare with the page."""
    both, page = (*SIZES, FLEET), pages.read()
    calls: list[tuple[Callable[..., Report], tuple[object, ...]]] = [
        (traffic, (both,)), (bandwidth, (FLEET,)), (cold, (SIZES, FLEET)), (changes, (SIZES, FLEET)), (lost, (both[-2:],)),
        (exchanges, (SIZES, FLEET)), (solves, (both,)), (elsewhere, (SIZES,)), (settings, ()),
    ]  # fmt: skip
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for report in [pool.submit(table, *given) for table, given in calls]:
            yield pages.compared(report.result(), page)


def _all(sizes: tuple[Size, ...], largest: Size | None) -> tuple[Size, ...]:
    """Return all sizes."""
    return (*sizes, largest) if largest else sizes


def cold(sizes: tuple[Size, ...], largest: Size | None = None) -> Report:
    """Count rounds from a start that knows nothing but the sums of queues and of servers."""
    columns = ("size", "delay", "rounds to 1 %", "rounds to 0.01 %", "seconds to 1 %", "seconds to 0.01 %")
    report = Report("rounds from a cold start", columns)
    for size in _all(sizes, largest):
        for delay in DELAYS:
            brief = size == largest and delay > 0
            level, spacing = COARSE if brief else FINE, 0.05 if size == largest else 0.02
            seen = settle(fleet(*size, delay), soft(size), level=level, rounds=ROUNDS, spacing=spacing)
            rounds = seen.within(COARSE), None if brief else seen.within(FINE)
            each = APART / delay if delay else 0.0
            report.row(name(size), delay, *map(shown, rounds), *(seconds(number, each) for number in rounds))
    return report


class Case(NamedTuple):
    """What happens to queues, the load before, and the part of the cold start in the rates to start from."""

    change: str
    load: float = 1.2
    mixed: float = 0.0

    def start(self, size: Size) -> Array:
        """Return these rates, (I, J)."""
        old = rest(size, "", self.load)
        if not self.mixed:
            return old
        new = fleet(*size, change=self.change, load=self.load)
        return (1.0 - self.mixed) * old + self.mixed * start_rates(new)


CHANGE = "10 %"
CASES = {
    CHANGE: Case(CHANGE), SURGE: Case(SURGE), f"{SURGE}, 1 % spread": Case(SURGE, mixed=SPREAD),
    f"{SURGE}, cold": Case(SURGE, mixed=1.0),
}  # fmt: skip
FOLLOWED = {CHANGE: Case(CHANGE), SURGE: Case(SURGE), f"{CHANGE}, twice the load": Case(CHANGE, load=2.4)}


def changes(sizes: tuple[Size, ...], largest: Size | None = None) -> Report:
    """Count rounds after queues have changed, from where nodes rested before or from a cold start."""
    columns = ("size", "change", "gap at once, %", "rounds to 1 %", "rounds to 0.01 %", "seconds to 0.01 %")
    report = Report(f"rounds after a change, delay {USUAL}", columns)
    for size in _all(sizes, largest):
        for text, case in CASES.items():
            if size == largest and text != CHANGE:
                continue
            system, best = fleet(*size, USUAL, change=case.change), soft(size, case.change)
            seen = settle(system, best, level=FINE, rounds=ROUNDS, start=case.start(size))
            rounds = seen.within(COARSE), seen.within(FINE)
            report.row(name(size), text, 100 * seen.gaps[0], *map(shown, rounds), seconds(rounds[1], ROUND))
    return report


def lost(sizes: tuple[Size, ...], cases: dict[str, Case] = FOLLOWED) -> Report:
    """Follow what nodes lose against the exact allocation after a change, and what the old exact allocation loses."""
    titles = (f"after {second:g} s" for second in CHECKED)
    report = Report("lost against the exact allocation, %", ("size", "change", "who", *titles))
    for size in sizes:
        for text, case in cases.items():
            system = fleet(*size, USUAL, change=case.change, load=case.load)
            best = solved(size, case.change, case.load).optimum(system)
            stale = best.gap(system, solved(size, "", case.load).allocation.expected)
            report.row(name(size), text, "exact, of before", *([100 * stale] * len(CHECKED)))
            runs = {"nodes": _by_rounds, "exchanges": _by_exchanges}
            for who, run in runs.items():
                losses = run(system, best, case.start(size))
                report.row(name(size), text, who, *(100 * loss for loss in losses))
    return report


def _by_rounds(system: System, best: Optimum, start: Array) -> list[float]:
    """Return the losses of the nodes at all checked times."""
    checks = [round(second / ROUND) for second in CHECKED]
    seen = settle(system, None, level=FINE, rounds=max(checks), exact=best, checks=checks, start=start)
    return [seen.losses[check] for check in checks]


def _by_exchanges(system: System, best: Optimum, start: Array) -> list[float]:
    """Return those of regions that exchange."""
    checks = [int(second / EXCHANGE + 1e-9) for second in CHECKED]
    seen = settle_by_exchanges(system, best, iterations=FEW, level=-1.0, exchanges=max(checks), start=start)
    return [seen.gaps[check] for check in checks]


def exchanges(
    sizes: tuple[Size, ...], largest: Size | None = None, iterations: tuple[int, ...] = (FEW, LOCAL)
) -> Report:
    """Count exchanges of regions that iterate so often on their own in between."""
    columns = ("size", "change", "iterations", "exchanges to 1 %", "to 0.01 %", "seconds to 1 %", "seconds to 0.01 %")
    report = Report("regions that iterate on their own", columns)
    cases = [(size, change, number) for size in sizes for change in ("", SURGE) for number in iterations]
    for size, change, number in [*cases, *((size, "", FEW) for size in _all((), largest))]:
        level = COARSE if size == largest else FINE
        seen = settle_by_exchanges(
            fleet(*size, change=change), soft(size, change), iterations=number, level=level, exchanges=EXCHANGES,
            start=rest(size) if change else None,
        )  # fmt: skip
        found = seen.within(COARSE), None if size == largest else seen.within(FINE)
        times = (seconds(count, EXCHANGE) for count in found)
        report.row(name(size), change or "cold", number, *map(shown, found), *times)
    return report


def solves(sizes: tuple[Size, ...]) -> Report:
    """Compare an exact solve with a region's part of a round in seconds of a core, and what shortcuts lose."""
    columns = ("size", "solve, s", "warm after 10 %, s", "a region's round, s", "rounds a solve takes",
               "soft prices lose, %", "regions alone lose, %", "alone after a surge, %")  # fmt: skip
    report = Report("an exact solve instead", columns)
    for size in sizes:
        took, warm = solved(size).seconds, solved(size, CHANGE).seconds
        each = round_seconds(fleet(*size, USUAL))
        losses: list[float | str] = [100 * solved(size).optimum(fleet(*size)).gap(fleet(*size), rest(size))]
        for change in ("", SURGE):
            system = fleet(*size, change=change)
            loss = 100 * solved(size, change).optimum(system).gap(system, alone(system))
            losses.append(loss if loss < 100 else "no servers")
        report.row(name(size), took, warm, each, took / each, *losses)
    return report
