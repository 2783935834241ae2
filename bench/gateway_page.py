"""Tables and the figure of docs/gateway-comparison.md, from the files of `bench.gateway_comparison`.

`python -m bench.gateway_page OUT` prints the tables and writes OUT/gateway-comparison.png, of ParetoBandit.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t

from bench.gateway_comparison import BASELINES, USUAL, Point
from bilinq.arrays import Array

MEASURES = ("quality", "cost", "mean", "p50", "p99", "goodput")
COLOURS = dict(zip(BASELINES, ("#7f7f7f", "#1f77b4", "#9467bd", "#8c564b", "#d95f02"), strict=True))


class Standing(NamedTuple):
    """A router at a load of a table: its name, the baselines that it was matched to, and measures by seed (S,)."""

    table: str
    load: float
    name: str
    matched: tuple[str, ...]
    samples: dict[str, Array]


def read(folder: Path) -> list[Standing]:
    """Return everything that was measured, by load."""
    found = [
        _standing(file.stem.split("-")[1], one)
        for file in folder.glob("gateway-*-*.json")
        for one in json.loads(file.read_text(encoding="utf-8"))
    ]
    return sorted(found, key=lambda one: (one.table, one.load))


def _standing(table: str, record: dict[str, Any]) -> Standing:
    samples = {name: np.array([one[name] for one in record["runs"]]) for name in MEASURES}
    return Standing(table, record["load"], label(record["who"]), tuple(record["matched"]), samples)


def label(who: str | dict[str, float]) -> str:
    """Return the name of a router in tables."""
    if isinstance(who, str):
        return who
    point = Point(**who)
    if point.target:
        return f"bilinq, target {point.target:g} s"
    return f"bilinq, {point.dollar:g} / {point.wait:g}"


def half(values: Array) -> float:
    """Return half of the 95 % interval of the mean."""
    return float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def shown(values: Array, scale: float = 1.0, digits: int = 1) -> str:
    """Return a mean with half of its interval."""
    return f"{scale * values.mean():.{digits}f} ± {scale * half(values):.{digits}f}"


def measures(standings: list[Standing], load: float) -> str:
    """Return the table of all measures at a load."""
    lines = ["| router | quality, % | $ per 1,000 | p50, s | p99, s | within 20 s, % |", "| --- |" + " ---: |" * 5]
    for one in standings:
        if one.load == load and (one.name in BASELINES or one.name == label(USUAL._asdict())):
            s = one.samples
            cells = (
                shown(s["quality"], 100.0), shown(s["cost"], 1.0, 2), shown(s["p50"]), shown(s["p99"]),
                shown(s["goodput"], 100.0),
            )  # fmt: skip
            lines.append(f"| {one.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(standings: list[Standing]) -> str:
    """Return bilinq less each baseline, with settings that cost and take no more on the tuning seeds; paired by seed."""
    lines = [
        "| load | baseline | settings | quality, points | cost | mean latency | p99 |",
        "| --- | --- | --- |" + " ---: |" * 4,
    ]
    for load in sorted({one.load for one in standings}):
        here = [one for one in standings if one.load == load]
        for base in (one for one in here if one.name in BASELINES):
            name = base.name
            ours = next((one for one in here if name in one.matched), None)
            if ours is None:
                lines.append(f"| {load} | {name} | none is as cheap and as fast | | | | |")
                continue
            gain = shown(ours.samples["quality"] - base.samples["quality"], 100.0)
            parts = [
                f"{100 * (ours.samples[m].mean() / base.samples[m].mean() - 1):+.0f} %" for m in ("cost", "mean", "p99")
            ]
            lines.append(f"| {load} | {name} | {ours.name.removeprefix('bilinq, ')} | {gain} | {' | '.join(parts)} |")
    return "\n".join(lines)


def draw(standings: list[Standing], file: Path) -> None:
    """Draw quality against mean latency and against cost, a column for each load."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    loads = sorted({one.load for one in standings})
    figure, axes = pyplot.subplots(2, len(loads), figsize=(4.2 * len(loads), 6.6), sharey=True, squeeze=False)
    for row, (measure, title) in enumerate((("mean", "mean latency, s"), ("cost", "dollars per 1,000 requests"))):
        for column, load in enumerate(loads):
            _panel(axes[row, column], [one for one in standings if one.load == load], measure)
            axes[row, column].set_xlabel(title)
            axes[0, column].set_title(f"load {load}")
        axes[row, 0].set_ylabel("quality, %")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=4 if len(loads) > 2 else 2, frameon=False)
    figure.tight_layout(rect=(0.0, 0.09, 1.0, 1.0))
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _panel(axes: Any, here: list[Standing], measure: str) -> None:
    """Draw a baseline as a square, the settings matched to it as a circle of its colour, and the defaults as a star."""
    by_name = {one.name: one for one in here}
    for name, colour in COLOURS.items():
        base, ours = by_name[name], next((one for one in here if name in one.matched), None)
        ends = [(one.samples[measure].mean(), 100.0 * one.samples["quality"].mean()) for one in (base, ours) if one]
        axes.plot(*zip(*ends, strict=True), color=colour, lw=0.8)
        _point(axes, base, measure, fmt="s", color=colour, label=name)
        if ours is not None:
            text = "bilinq, matched to the baseline of the colour" if name == "random" else None
            _point(axes, ours, measure, fmt="o", color=colour, mfc="white", label=text)
    _point(axes, by_name[label(USUAL._asdict())], measure, fmt="*", color="black", ms=10, label="bilinq, defaults")
    axes.set_xscale("log")
    axes.grid(alpha=0.25)


def _point(axes: Any, one: Standing, measure: str, **style: Any) -> None:
    x, y = one.samples[measure], 100.0 * one.samples["quality"]
    axes.errorbar(x.mean(), y.mean(), xerr=half(x), yerr=half(y), capsize=2, **({"ms": 6} | style))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    everything = read(out)
    for name in sorted({one.table for one in everything}):
        mine = [one for one in everything if one.table == name]
        for value in sorted({one.load for one in mine}):
            print(f"\n{name}, load {value}\n\n{measures(mine, value)}")
        print(f"\n{differences(mine)}")
    draw([one for one in everything if one.table == "paretobandit"], out / "gateway-comparison.png")
