"""Simulates the live service under faults, one seed after the other; idle time is skipped.

    python tests/live/simulate.py --hours 100            # seeds from 1 on, until so many hours were simulated
    python tests/live/simulate.py --seed 7               # one seed; prints what happened if something is wrong
    python tests/live/simulate.py --seed 7 --faults 3,5  # the same with some of its faults only
    python tests/live/simulate.py --hours 100 --gap 1    # with a fault each second on average

A seed that fails is shrunk to the faults that it needs, and printed with the command that repeats it.
"""

import argparse
import itertools
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from simulator.run import DURATION, Outcome, simulate

LINES = 40  # lines of a history that are printed
TRIES = 80  # simulations to shrink one, at most
ABOUT = re.compile(r"\b[jlsp]\d+\b")
"""Jobs, leases, servers and payloads in a text."""


class Failure(NamedTuple):
    """A simulation that found something, with the fewest faults that are known to suffice: their places in the plan."""

    outcome: Outcome
    faults: list[int]
    until: float
    gap: float | None

    def __str__(self) -> str:
        one = self.outcome
        some = ",".join(map(str, self.faults)) or "none"
        often = "" if self.gap is None else f" --gap {self.gap:g}"
        repeat = f"python tests/live/simulate.py --seed {one.seed} --until {self.until:g}{often} --faults {some}"
        parts = (one.violations[:10], ["faults:", *map(str, one.plan)], ["history:", *short(one)], ["repeat:", repeat])
        return "\n".join([f"seed {one.seed} fails:", *itertools.chain.from_iterable(parts)])


def short(outcome: Outcome) -> list[str]:
    """Return the last lines of a history that concern the first violations."""
    wanted = {name for text in outcome.violations[:3] for name in ABOUT.findall(text)}
    lines = [
        line
        for line in outcome.history.lines
        if not wanted.isdisjoint(ABOUT.findall(line)) or line.split()[1] in ("fault", "service")
    ]
    return [line[:200] for line in lines[-LINES:]]


def search(seeds: Iterable[int], until: float = DURATION, gap: float | None = None) -> Failure | None:
    """Return the first seed that fails, shrunk; None if none does."""
    failed = (one for one in (simulate(seed, until=until, gap=gap) for seed in seeds) if one.violations)
    found = next(failed, None)
    return None if found is None else shrink(found, until, gap)


def shrink(outcome: Outcome, until: float, gap: float | None) -> Failure:
    """Return the same failure in a shorter time and with fewer faults: without halves of them, quarters, and so on."""
    best, tries = Failure(outcome, list(range(len(outcome.plan))), until, gap), TRIES
    for shorter in (until / 16, until / 8, until / 4, until / 2):
        tried = simulate(outcome.seed, until=shorter, gap=gap)
        if tried.violations:
            best = Failure(tried, list(range(len(tried.plan))), shorter, gap)
            break
    size = len(best.faults)
    while size and tries:
        start = 0
        while start < len(best.faults) and tries:
            some = best.faults[:start] + best.faults[start + size :]
            tried, tries = simulate(outcome.seed, some, best.until, gap), tries - 1
            if tried.violations:
                best = Failure(tried, some, best.until, gap)
            else:
                start += size
        size //= 2
    return best


class Summary(NamedTuple):
    """What is left of a simulation in the report; `failure` is empty if nothing was wrong."""

    hours: float
    seconds: float
    calls: int
    faults: Counter[str]
    failure: str = ""


def summarise(seed: int, gap: float | None) -> Summary:
    """Run one seed; shrink it if it fails."""
    one = simulate(seed, gap=gap)
    failure = str(shrink(one, DURATION, gap)) if one.violations else ""
    return Summary(one.hours, one.seconds, len(one.history.calls), one.faults, failure)


def run_many(hours: float, first: int, jobs: int, gap: float | None) -> int:
    """Simulate so many hours, print a report, and return the number of seeds that failed."""
    began, done = time.monotonic(), list[Summary]()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for start in itertools.count(first, 4 * jobs):
            for one in pool.map(partial(summarise, gap=gap), range(start, start + 4 * jobs)):
                done.append(one)
                if one.failure:
                    print(one.failure, flush=True)
            if sum(one.hours for one in done) >= hours:
                break
            if sys.stderr.isatty():
                print(f"\r{sum(one.hours for one in done):.1f} of {hours:g} hours", end="", file=sys.stderr, flush=True)
    report(done, first, time.monotonic() - began)
    return sum(bool(one.failure) for one in done)


def report(done: list[Summary], first: int, seconds: float) -> None:
    """Print what was simulated."""
    hours, faults = sum(one.hours for one in done), sum((one.faults for one in done), Counter[str]())
    cpu = sum(one.seconds for one in done)
    print(f"seeds {first} to {first + len(done) - 1}: {hours:.1f} simulated hours in {seconds:.0f} s, CPU {cpu:.0f} s")
    print(f"calls: {sum(one.calls for one in done)}, faults: {sum(faults.values())}")
    print(", ".join(f"{kind}: {number}" for kind, number in faults.most_common()))
    print(f"seeds with violations: {sum(bool(one.failure) for one in done)}")


def run_one(seed: int, faults: list[int] | None, until: float, gap: float | None) -> int:
    """Run one seed and print what it found, with its whole history if it was given its faults."""
    one = simulate(seed, faults, until, gap)
    if one.violations and faults is None:
        print(shrink(one, until, gap))
    elif one.violations:
        print(*one.history.lines, *one.violations, sep="\n")
    print(f"seed {seed}: {len(one.history.calls)} calls, {one.hours:.3f} hours, history {one.history.digest()}")
    return len(one.violations)


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; return 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed of many")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--faults", help="places of the faults in the plan of the seed, or none")
    parser.add_argument(
        "--gap", type=float, metavar="SECONDS", help="mean time between two faults; default: the seed's"
    )
    parser.add_argument("--until", type=float, default=DURATION, help="seconds after which the faults end")
    options: Any = parser.parse_args(arguments)
    if options.seed is None:
        return min(run_many(options.hours, options.first, options.jobs, options.gap), 1)
    places = None if options.faults is None else [int(one) for one in options.faults.split(",") if one != "none"]
    return min(run_one(options.seed, places, options.until, options.gap), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
