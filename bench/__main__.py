"""Run the benchmarks (`python -m bench`), print tables, write numbers, and fail if a bound is missed."""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from bench import (
    allocation,
    distributed,
    gateway,
    lab,
    learning,
    live,
    on_ray,
    operations,
    routing,
    simulation,
    watching,
)
from bench.report import Report
from bench.scale import tables


def learning_reports() -> list[Report]:
    """Return the time in blocks, and the price of learning in both set-ups with the bounds of two policies."""
    reports = [learning.blocks()]
    for setting in (learning.PAPER, learning.LARGE):
        report = Report(
            f"price of learning, {setting.name}, queue {setting.queue:g}", ("policy", "price", "standard error")
        )
        prices = learning.measure(setting)
        for name, (mean, error) in prices.items():
            report.row(name, mean, error)
        paper = prices["paper's radius"][0]
        report.at_most("calibrated UCB, part of the paper's price", prices["calibrated UCB"][0] / paper, 0.15)
        report.at_most(
            "Thompson sampling, part of the paper's price", prices["Thompson sampling (default)"][0] / paper, 0.05
        )
        reports.append(report)
    return reports


SUITES: dict[str, Callable[[], Iterable[Report]]] = {
    "allocation": lambda: [allocation.run(), allocation.run_tall(), allocation.run_growth()],
    "simulation": lambda: list(simulation.run()),
    "routing": routing.run,
    "distributed": distributed.run,
    "ray": on_ray.run,
    "scale": tables.run,
    "operations": operations.run,
    "learning": learning_reports,
    "lab": lambda: [lab.run()],
    "live": live.run,
    "watching": watching.run,
    "gateway": gateway.run,
}
LONG: dict[str, Callable[[], list[Report]]] = {"live": live.run_long}
"""Additional measurements with --long."""


def main() -> None:
    """Run the chosen suites."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(SUITES), action="append", help="run this suite only; repeatable")
    parser.add_argument("--long", action="store_true", help="also run measurements that take a quarter of an hour")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    chosen = parser.parse_args()
    reports: list[Report] = []
    for name in chosen.only or SUITES:
        began = time.perf_counter()
        for report in chain(SUITES[name](), LONG[name]() if chosen.long and name in LONG else ()):
            reports.append(report)
            print(f"\n## {report.name}\n\n{report.markdown()}\n")
            for bound in report.bounds:
                print(bound, flush=True)
        print(f"({name}: {time.perf_counter() - began:.0f} s)", flush=True)
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        numbers = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "reports": [r.plain() for r in reports],
        }
        chosen.out.write_text(json.dumps(numbers, indent=1))
    missed = [bound for report in reports for bound in report.bounds if not bound.met]
    if missed:
        sys.exit("missed: " + "; ".join(map(str, missed)))


if __name__ == "__main__":
    main()
