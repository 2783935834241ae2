"""The contests of `docs/contest.md`: `python -m bench.contest DATA OUT` runs them, resumes, and prints tables.

DATA has the folders "paretobandit" and "mmlu" with the real tables. OUT gets finished runs, results and the figure.
"""

import sys
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilinq import Contest, contest
from bilinq.lab import style
from bilinq.routing.arena import Arena, usual_contestants
from bilinq.simulation.records import interval
from bilinq.traces import RoutingTable, load_mmlu, load_paretobandit

TABLES = {"paretobandit": "ParetoBandit", "mmlu": "MMLU"}
WAITS = {0.5: 5.0, 0.8: 5.0, 0.95: 20.0}
"""The wait at each load; at 0.95 even a common queue makes jobs wait longer than 5."""
JOBS, SEEDS, TUNING_SEEDS, WORKERS = 4000, 10, 5, 2
POINTS = 100.0  # rewards of a percentage point


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
                made = contest(arena, usual_contestants(), wait, seeds=SEEDS, tuning_seeds=TUNING_SEEDS, jobs=WORKERS,
                               out=out / "runs")  # fmt: skip
                made.save(file)
                made.report(out / f"{name}-{load}.html")
                print(f"{file}: done", file=sys.stderr)
            found[name, load] = Contest.load(file)
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


def _table(name: str, data: Path) -> RoutingTable:
    load = load_paretobandit if name == "paretobandit" else load_mmlu
    return load(data / name).with_features()


def markdown(found: dict[tuple[str, float], Contest]) -> str:
    """Return a table for each data set: reward and wait by load, and the difference to bilinq in percentage points."""
    parts = []
    for name, title in TABLES.items():
        mine = {load: one for (table, load), one in found.items() if table == name}
        head = " | ".join(f"load {load:g}, wait {one.wait:g}: less bilinq | wait" for load, one in mine.items())
        lines = [f"### {title}", "", f"| | {head} |", "| --- |" + " ---: | ---: |" * len(mine)]
        for contestant in next(iter(mine.values())).standings:
            cells = " | ".join(_cells(one, contestant.name) for one in mine.values())
            lines.append(f"| {contestant.name} | {cells} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cells(one: Contest, name: str) -> str:
    standing = one[name]
    found = standing.mean("wait").mean
    wait = f"{found:,.{0 if found >= 100.0 else 1}f}" + ("" if standing.tuned else " *")
    if name == one.reference:
        return f"(earns {POINTS * standing.mean('reward').mean:.1f}) | {wait}"
    versus = one.differences["reward"][name]
    half = POINTS * (versus.difference.high - versus.difference.mean)
    sign = "" if versus.verdict == "no difference shown" else "**"
    return f"{sign}{POINTS * versus.difference.mean:+.1f}{sign} ± {half:.1f} | {wait}"


def draw(found: dict[tuple[str, float], Contest]) -> Figure:
    """Return the figure: differences to bilinq with 95 % intervals, a panel for each table and load."""
    with style.applied():
        figure, axes = style.panels(len(TABLES), len(WAITS), height=2.7)
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
    names = list(one.differences["reward"])
    for k, name in enumerate(names):
        gap = one.differences["reward"][name].difference
        colour = style.GREY if one[name].sees_rewards else style.BLUE
        half = POINTS * (gap.high - gap.mean)
        axes.errorbar([POINTS * gap.mean], [k], xerr=half, fmt="o", color=colour, ms=5, lw=1.2,
                      mfc=colour if one[name].tuned else "white")  # fmt: skip
    axes.axvline(0.0, color=style.INK, lw=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def main() -> None:
    """Run the contests, print the tables, and write the figure."""
    data, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    found = run(data, out)
    print(markdown(found))
    for name, one in by_class(data, out).items():
        gain = one["bilinq"].samples["reward"] - found[name, 0.8]["bilinq"].samples["reward"]
        print(
            f"\n{TABLES[name]}, load 0.8: bilinq without features earns {interval(POINTS * gain)} pp more than with them"
        )
    with style.applied():
        (out / "contest.png").write_bytes(style.png(draw(found)))


if __name__ == "__main__":
    main()
