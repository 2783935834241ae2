"""The figure and the HTML page of a contest, in the style of all figures."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from bilinq.extras import optional_imports
from bilinq.routing.comparisons import Comparison
from bilinq.routing.contest_result import MEASURES, Contest, Standing, html_table

MARKS = "osD^vP*X"
LABELS = {
    "wait": ("wait", "mean wait"),
    "p95": ("wait_p95", "wait, 95 %"),
    "sojourn": ("sojourn", "mean time in system"),
}
ROW = 0.26  # inches of the figure for each contestant in the legend
SPREAD = 20.0  # ratio of the longest to the shortest wait from which on the axis is logarithmic

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Contest of routers</title><style>{style}
body {{ max-width: 84rem }} .wide {{ overflow-x: auto; margin-bottom: 1rem }}
.wide td {{ white-space: nowrap; font-variant-numeric: tabular-nums;
border-top: 1px solid var(--line) }} caption {{ text-align: left; color: var(--soft) }} dd {{ overflow-wrap: anywhere }}
@media (max-width: 44rem) {{ .wide table {{ display: table }} .wide thead {{ display: table-header-group }}
.wide tbody {{ display: table-row-group }} .wide tr {{ display: table-row }} .wide td {{ display: table-cell }} }}
</style></head>
<body><header><p class=kicker>bilinq</p><h1>Contest of routers</h1><p class=lead>{lead}</p></header>
<main>{sections}</main></body></html>
"""


def style_module() -> Any:
    """Return the style of all figures, which needs Matplotlib."""
    with optional_imports():
        from bilinq import style
    return style


def draw(contest: Contest, ax: Any = None) -> Any:
    """Draw reward against waiting, and return the Matplotlib axes."""
    style = style_module()
    with style.applied():
        if ax is None:
            ax = style.panels(1, 1, height=max(4.4, ROW * len(contest.standings)))[1][0]
        colours = (style.BLUE, style.ORANGE, style.GREEN, style.AMBER, style.PINK, style.SKY, style.INK, style.GREY)
        name, label = LABELS[contest.measure]
        for k, one in enumerate(contest.standings):
            _mark(ax, one, name, colours[k % len(colours)], MARKS[(k + k // len(colours)) % len(MARKS)])
        ax.axvline(contest.wait, color=style.GREY, lw=1.0, ls=style.DASHED, zorder=1)
        _scale(style, ax, contest, name)
        ax.set(xlabel=label, ylabel="reward per job")
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def _mark(ax: Any, one: Standing, name: str, colour: str, mark: str) -> None:
    """Draw a contestant: a point with intervals, hollow where its wait is not the wanted one, and its curve."""
    x, y = one.mean(name), one.mean("reward")
    ax.errorbar(
        [x.mean], [y.mean], xerr=[[x.mean - x.low], [x.high - x.mean]], yerr=[[y.mean - y.low], [y.high - y.mean]],
        fmt=mark, color=colour, ms=6.5, mfc=colour if one.tuned else "white", lw=1.0, label=one.name, zorder=3,
    )  # fmt: skip
    if one.curve:
        points = sorted((point[name], point["reward"]) for point in one.curve)
        ax.plot(*zip(*points, strict=True), color=colour, lw=1.2, marker=".", ms=4, zorder=2)


def _scale(style: Any, ax: Any, contest: Contest, name: str) -> None:
    """Make waits logarithmic where they differ much; those below a fiftieth of the goal would only widen the axis."""
    waits = np.array([one.mean(name).mean for one in contest.standings] + [
        point[name] for one in contest.standings for point in one.curve
    ])  # fmt: skip
    shown = waits[np.isfinite(waits) & (waits > contest.wait / 50.0)]
    if shown.size and shown.max() > SPREAD * shown.min():
        style.log_axis(ax, "x", shown, 1.3)


def picture(contest: Contest) -> tuple[bytes, str]:
    """Return the figure as PNG and as SVG."""
    style = style_module()
    figure = draw(contest).figure
    with style.applied():
        style.settle(figure)
        return style.png(figure), style.svg(figure, "contest")


def page(contest: Contest) -> str:
    """Return the report: figure, table, differences and what was run."""
    style = style_module()
    drawing = style.inline(picture(contest)[1], "contest", "Reward per job against waiting")
    css = files("bilinq.lab").joinpath("report.css").read_text("utf-8")
    notes = "".join(f"<p>{escape(note)}</p>" for note in contest.notes)
    caption = (
        "Points are means over seeds with 95 % intervals. Hollow points do not have the wanted wait (dashed line)."
    )
    sections = [
        f'<section><h2>Reward against waiting</h2><figure><div class="picture">{drawing}</div>'
        f"<figcaption>{caption}</figcaption></figure></section>",
        f'<section><h2>Results</h2><div class="wide">{html_table(contest)}</div>{notes}</section>',
        f'<section><h2>Less {escape(contest.reference)}</h2><div class="wide">{_differences(contest)}</div></section>',
        _what_was_run(contest),
    ]
    return PAGE.format(style=css, lead=escape(contest.title), sections="\n".join(sections))


def _differences(contest: Contest) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in ("", *MEASURES.values()))
    rows = [
        f"<tr><td>{escape(name)}</td>{''.join(_gap(contest.differences[measure][name]) for measure in MEASURES)}</tr>"
        for name in contest.differences["reward"]
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _gap(one: Comparison) -> str:
    return f"<td>{escape(str(one.difference))}<br><small>{one.verdict}</small></td>"


def _what_was_run(contest: Contest) -> str:
    facts = {str(name): _fact(value) for name, value in contest.about.items()}
    facts |= {"test seeds": _seeds(contest.seeds), "tuning seeds": _seeds(contest.tuning_seeds)}
    facts |= {one.name: one.router for one in contest.standings}
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return f"<section><h2>What was run</h2><dl>{rows}</dl></section>"


def _fact(value: object) -> str:
    return ", ".join(f"{n} {name}" for name, n in value.items()) if isinstance(value, Mapping) else str(value)


def _seeds(seeds: tuple[int, ...]) -> str:
    return f"{seeds[0]} to {seeds[-1]}"
