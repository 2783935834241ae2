"""The contests of `docs/contest.md`: `python -m bench.contest DATA OUT` runs them, resumes, and prints tables.

Contestants are the usual ones and the bandits of other libraries (`bilinq[peers]`), with a queue price and without.
DATA has the folders "paretobandit" and "mmlu" with the real tables. OUT gets finished runs, results and the figure.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench import learners
from bilinq import Contest, SchedulerRouter, contest, style
from bilinq.routing.arena import Arena, peer_contestants, usual_contestants
from bilinq.routing.router import Router
from bilinq.simulation.records import interval
from bilinq.traces import RoutingTable, load_mmlu, load_paretobandit

TABLES = {"paretobandit": "ParetoBandit", "mmlu": "MMLU"}
WAITS = {0.5: 5.0, 0.8: 5.0, 0.95: 20.0}
"""The wait at each load; at 0.95 even a common queue makes jobs wait longer than 5."""
JOBS, SEEDS, TUNING_SEEDS, WORKERS = 4000, 10, 5, 2
ALL_QUESTIONS, MORE_SEEDS = 14_042, 20  # jobs of a run with each question of MMLU once, and how many such runs
POINTS = 100.0  # rewards of a percentage point
UNPRICED = "no price, "  # how the names of contestants without a queue price begin


LEFT_OUT = ("linear Thompson", "LinUCB", "Beta by class", "nearest", "Vowpal Wabbit")
"""Ends of names: copies of what the libraries themselves do here, and what takes long and is not asked for."""


def contestants() -> dict[str, Router]:
    """Return all contestants of the page by name."""
    every = usual_contestants() | peer_contestants() | peer_contestants(priced=False)
    peers = {name: one for name, one in every.items() if "MABWiser Lin" in name or not name.endswith(LEFT_OUT)}
    return peers | {"bilinq, known classes": SchedulerRouter(known_classes=True)}


def run(data: Path, out: Path) -> dict[tuple[str, float], Contest]:
    """Run all contests, or read those that are finished."""
    tables: dict[str, RoutingTable] = {}
    found = {}
    for name in TABLES:
        for load, wait in WAITS.items():
            file = out / f"{name}-{load}.json"
            if not file.exists():
                table = tables.setdefault(name, _table(name, data))
                arena = Arena(table, load, JOBS)
                made = contest(arena, contestants(), wait, seeds=SEEDS, tuning_seeds=TUNING_SEEDS, jobs=WORKERS,
                               out=out / "runs")  # fmt: skip
                made.save(file)
                made.report(out / f"{name}-{load}.html")
                print(f"{file}: done", file=sys.stderr)
            found[name, load] = Contest.load(file)
    return found


def every_question(data: Path, out: Path) -> dict[tuple[str, float], Contest]:
    """Run bilinq and the bandits with a queue price on all of MMLU at the high loads, or read what is finished."""
    found = {}
    for load in (0.8, 0.95):
        file = out / f"mmlu-{load}-all.json"
        if not file.exists():
            arena = Arena(_table("mmlu", data), load, ALL_QUESTIONS)
            routers = {
                name: one for name, one in contestants().items() if name.startswith(("bilinq", "queue", "least"))
            }
            contest(arena, routers, WAITS[load], seeds=MORE_SEEDS, tuning_seeds=TUNING_SEEDS, jobs=WORKERS,
                    out=out / "runs").save(file)  # fmt: skip
        found["mmlu", load] = Contest.load(file)
    return found


def by_class(data: Path, out: Path) -> dict[str, Contest]:
    """Run bilinq at load 0.8 on tables without features, where it learns by class, or read what is finished."""
    found = {}
    for name in TABLES:
        file = out / f"{name}-by-class.json"
        if not file.exists():
            arena = Arena(replace(_table(name, data), vectors=None), 0.8, JOBS)
            routers = {key: one for key, one in usual_contestants().items() if key in ("bilinq", "least busy")}
            contest(arena, routers, WAITS[0.8], seeds=SEEDS, tuning_seeds=TUNING_SEEDS, jobs=WORKERS,
                    out=out / "runs").save(file)  # fmt: skip
        found[name] = Contest.load(file)
    return found


def made(out: Path, names: Sequence[str] = tuple(learners.MADE)) -> dict[str, Contest]:
    """Run bilinq, least busy and the bandits with a queue price at load 0.8 on made tables, or read what is finished."""
    found = {}
    for name in names:
        file = out / f"{name.replace(' ', '-')}.json"
        if not file.exists():
            arena = Arena(learners.table(name, "")[0], 0.8, JOBS)
            contest(arena, _equal_only(), WAITS[0.8], seeds=SEEDS, tuning_seeds=TUNING_SEEDS, jobs=WORKERS,
                    out=out / "runs").save(file)  # fmt: skip
        found[name] = Contest.load(file)
    return found


def _equal_only() -> dict[str, Router]:
    """Return bilinq, least busy and the bandits with a queue price."""
    return {name: one for name, one in contestants().items() if name == "bilinq" or name.startswith(("queue", "least"))}


def _table(name: str, data: Path) -> RoutingTable:
    load = load_paretobandit if name == "paretobandit" else load_mmlu
    return load(data / name).with_features()


Cells = Callable[[Contest, str], tuple[str, ...]]  # the cells of a contestant in a contest


def markdown(found: dict[tuple[str, float], Contest]) -> str:
    """Return a table for each data set: reward and wait by load, and the difference to bilinq in percentage points."""
    return _tables(found, "load {load:g}, wait {wait:g}: less bilinq | wait", _equal_waits, unpriced=False)


def without_price(found: dict[tuple[str, float], Contest]) -> str:
    """Return a table for each data set of contestants without a queue price: reward, wait and growth of the queue."""
    return _tables(found, "load {load:g}: less bilinq | wait | growth", _growing, unpriced=True)


def made_tables(found: dict[str, Contest]) -> str:
    """Return the table of contests on made tables: differences to bilinq in percentage points, with the wait."""
    first = next(iter(found.values()))
    lines = [
        f"| made table | {' | '.join(one.name for one in first.standings)} |",
        "| --- |" + " ---: |" * len(first.standings),
    ]
    for name, one in found.items():
        cells = [f"{_reward(one, each.name)}, {_wait(one, each.name)}" for each in first.standings]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def other_measures(found: dict[tuple[str, float], Contest], load: float = 0.8) -> str:
    """Return a table of other measures at a load, each for both data sets: long waits, fairness, time per decision."""
    mine = [found[name, load] for name in TABLES]
    lines = ["| | wait, 95 % | wait, 99 % | fairness | milliseconds per decision |", "| --- |" + " ---: |" * 4]
    for contestant in mine[0].standings:
        rows = [_others(one, contestant.name) for one in mine]
        lines.append(f"| {contestant.name} | " + " | ".join(map(" / ".join, zip(*rows, strict=True))) + " |")
    return "\n".join(lines)


def _tables(found: dict[tuple[str, float], Contest], columns: str, cells: Cells, unpriced: bool) -> str:
    parts = []
    for name in dict.fromkeys(table for table, _ in found):
        title, mine = TABLES[name], {load: one for (table, load), one in found.items() if table == name}
        head = " | ".join(columns.format(load=load, wait=one.wait) for load, one in mine.items())
        lines = [f"### {title}", "", f"| | {head} |", "| --- |" + " ---: |" * (head.count(" | ") + 1)]
        for contestant in next(iter(mine.values())).standings:
            if contestant.name.startswith(UNPRICED) == unpriced:
                row = [cell for one in mine.values() for cell in cells(one, contestant.name)]
                lines.append(f"| {contestant.name} | {' | '.join(row)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _equal_waits(one: Contest, name: str) -> tuple[str, ...]:
    return _reward(one, name), _wait(one, name) + ("" if one[name].tuned else " *")


def _growing(one: Contest, name: str) -> tuple[str, ...]:
    return _reward(one, name), _wait(one, name), f"{one[name].mean('growth').mean:.2f}"


def _others(one: Contest, name: str) -> tuple[str, ...]:
    long, longest, fairness, seconds = (
        one[name].mean(measure).mean for measure in ("wait_p95", "wait_p99", "fairness", "seconds_per_decision")
    )
    return f"{long:,.0f}", f"{longest:,.0f}", f"{fairness:.2f}", f"{1e3 * seconds:.2f}"


def _wait(one: Contest, name: str) -> str:
    found = one[name].mean("wait").mean
    return f"{found:,.{0 if found >= 100.0 else 1}f}"


def _reward(one: Contest, name: str) -> str:
    if name == one.reference:
        return f"(earns {POINTS * one[name].mean('reward').mean:.1f})"
    versus = one.differences["reward"][name]
    half = POINTS * (versus.difference.high - versus.difference.mean)
    sign = "" if versus.verdict == "no difference shown" else "**"
    return f"{sign}{POINTS * versus.difference.mean:+.1f}{sign} ± {half:.1f}"


def draw(found: dict[tuple[str, float], Contest]) -> Figure:
    """Return the figure: differences to bilinq with 95 % intervals, a panel for each table and load; with a price only."""
    with style.applied():
        figure, axes = style.panels(len(TABLES), len(WAITS), height=3.6)
        for panel, ((name, load), one) in zip(axes, found.items(), strict=True):
            _panel(panel, one)
            panel.set_title(f"{TABLES[name]}, load {load:g}")
            if load != min(WAITS):
                panel.set_yticklabels([])
        for panel in axes[-len(WAITS) :]:
            panel.set_xlabel("reward less bilinq, pp")
        style.settle(figure)
    return figure


def _panel(axes: Axes, one: Contest) -> None:
    names = [name for name in one.differences["reward"] if not name.startswith(UNPRICED)]
    for k, name in enumerate(names):
        gap = one.differences["reward"][name].difference
        colour = style.GREY if one[name].sees_rewards else style.BLUE
        half = POINTS * (gap.high - gap.mean)
        axes.errorbar([POINTS * gap.mean], [k], xerr=half, fmt="o", color=colour, ms=5, lw=1.2,
                      mfc=colour if one[name].tuned else "white")  # fmt: skip
    axes.axvline(0.0, color=style.INK, lw=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def missed(found: dict[tuple[str, float], Contest]) -> list[str]:
    """Return the contests in which a bandit with a queue price, at equal waits, is shown to earn more than bilinq."""
    return [
        f"{name} earns more at load {load:g} on {TABLES.get(table, table)}"
        for (table, load), one in found.items()
        for name, versus in one.differences["reward"].items()
        if name.startswith("queue price") and versus.verdict == "more"
    ]


def main() -> None:
    """Run the contests, print the tables, and write the figure; fail if a bandit with a queue price is ahead."""
    data, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    found = run(data, out)
    every = every_question(data, out)
    tables = made(out)
    for part in (markdown(found), without_price(found), other_measures(found), markdown(every), made_tables(tables)):
        print(part, end="\n\n")
    for name, one in by_class(data, out).items():
        gain = one["bilinq"].samples["reward"] - found[name, 0.8]["bilinq"].samples["reward"]
        print(
            f"\n{TABLES[name]}, load 0.8: bilinq without features earns {interval(POINTS * gain)} pp more than with them"
        )
    with style.applied():
        (out / "contest.png").write_bytes(style.png(draw(found)))
    if behind := missed(found) + missed(every) + missed({(name, 0.8): one for name, one in tables.items()}):
        sys.exit("; ".join(behind))


if __name__ == "__main__":
    main()
