"""How nodes scale: messages, rounds and seconds of a fleet in ten regions, compared with one exact solve.

`python -m bench --only scale` prints the tables of `docs/scale.md` and compares them with that page.
`python -m bench.scale.figure docs/scale.png` draws the figure from the page.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import NamedTuple

from bench.report import Report
from bench.scale import page as pages
from bench.scale.central import alone, round_seconds, solved
from bench.scale.exchanges import settle_by_exchanges
from bench.scale.messages import bandwidth, traffic
from bench.scale.regions import APART, EXCHANGE, ROUND, SURGE, USUAL, Size, fleet, name
from bench.scale.settling import COARSE, FINE, ROUNDS, Optimum, elsewhere, settings, settle, shown
from bilinq.arrays import Array
from bilinq.distributed import System, start_rates

SIZES: tuple[Size, ...] = ((10, 3), (100, 10), (1000, 100))
FLEET: Size = (10_000, 1000)
"""A million servers. Some runs of the other sizes are omitted here: they would take an hour."""
DELAYS = (0, 1, 5, 20)
"""Rounds between regions."""
EXCHANGES = 1000
LOOKS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds after a change at which losses are recorded."""
LOCAL, FEW = 100, 20
"""Iterations of a region between exchanges; few at the largest size."""
SPREAD = 0.01
"""The fraction of the rates that is spread over all pairs, in one of the cases."""


def seconds(rounds: int | None, each: float) -> float | str:
    """Return the seconds of a number of rounds, empty if it is not known."""
    return "" if rounds is None or not each else rounds * each


def rest(size: Size, change: str = "", load: float = 1.2) -> Array:
    """Return the fixed point of the nodes of a fleet, (I, J)."""
    return _rest(size, change, load)


@cache
def _rest(size: Size, change: str, load: float) -> Array:
    """Return the same, cached."""
    return fleet(*size, change=change, load=load).fixed_point()


@cache
def soft(size: Size, change: str = "", load: float = 1.2) -> Optimum:
    """Return the optimum of the nodes of a fleet."""
    return Optimum.of(fleet(*size, change=change, load=load), rest(size, change, load), soft=True)


def run() -> Iterator[Report]:
    """Compute all tables on two cores and compare them with the page."""
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
    """Count rounds from a start that knows only the sums of queues and of servers."""
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
    """A change of queues, the load before it, and the fraction of the cold start in the starting rates."""

    change: str
    load: float = 1.2
    mixed: float = 0.0

    def start(self, size: Size) -> Array:
        """Return the starting rates, (I, J)."""
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
    """Count rounds after a change of queues, from the old fixed point or from a cold start."""
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
    """Record the loss against the exact allocation after a change, of nodes and of the old exact allocation."""
    titles = (f"after {second:g} s" for second in LOOKS)
    report = Report("lost against the exact allocation, %", ("size", "change", "who", *titles))
    for size in sizes:
        for text, case in cases.items():
            system = fleet(*size, USUAL, change=case.change, load=case.load)
            best = solved(size, case.change, case.load).optimum(system)
            stale = best.gap(system, solved(size, "", case.load).allocation.expected)
            report.row(name(size), text, "old exact", *([100 * stale] * len(LOOKS)))
            runs = {"nodes": _by_rounds, "exchanges": _by_exchanges}
            for who, run in runs.items():
                losses = run(system, best, case.start(size))
                report.row(name(size), text, who, *(100 * loss for loss in losses))
    return report


def _by_rounds(system: System, best: Optimum, start: Array) -> list[float]:
    """Return the losses of the nodes at the times of LOOKS."""
    looks = [round(second / ROUND) for second in LOOKS]
    seen = settle(system, None, level=FINE, rounds=max(looks), exact=best, looks=looks, start=start)
    return [seen.losses[look] for look in looks]


def _by_exchanges(system: System, best: Optimum, start: Array) -> list[float]:
    """Return the losses of regions that exchange."""
    looks = [int(second / EXCHANGE + 1e-9) for second in LOOKS]
    seen = settle_by_exchanges(system, best, iterations=FEW, level=-1.0, exchanges=max(looks), start=start)
    return [seen.gaps[look] for look in looks]


def exchanges(
    sizes: tuple[Size, ...], largest: Size | None = None, iterations: tuple[int, ...] = (FEW, LOCAL)
) -> Report:
    """Count exchanges of regions that iterate locally in between."""
    columns = ("size", "change", "iterations", "exchanges to 1 %", "to 0.01 %", "seconds to 1 %", "seconds to 0.01 %")
    report = Report("regions that iterate locally", columns)
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
    """Compare the CPU seconds of an exact solve and of a region's round, and the losses of shortcuts."""
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
