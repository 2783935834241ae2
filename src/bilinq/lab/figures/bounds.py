"""Measured queue, holding cost and regret beside the paper's bounds: do they hold, and how near are they?"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from bilinq import theory
from bilinq.lab import effects, style
from bilinq.lab.claims import Claim, Finding, below
from bilinq.lab.effects import number
from bilinq.lab.figure import Figure, Records
from bilinq.lab.figures import bounds_measures as m
from bilinq.lab.figures.bounds_measures import COSTS, RULE, SETTING, SLOTS
from bilinq.lab.presets import PRESETS, published
from bilinq.lab.runs import Run
from bilinq.lab.style import Look
from bilinq.lab.table import Table, curves
from bilinq.lab.ticks import log_axis

LONG = 4000
SLACKS = (1.0, 0.5, 0.25, 0.125)
FLAT, NEAR = 1.1, 10.0
"""Growth of the running maximum that counts as none; ratio of bound to measurement that counts as one size."""

SABR = {"printed radius": PRESETS["paper"], "Thompson sampling": PRESETS["calibrated"]}
"""The algorithm that the theorems are about, and the one that learns."""
MATCHED = "matched weights"
LOOKS = {
    "printed radius": Look(style.GREEN, marker="o"),
    "Thompson sampling": Look(style.BLUE, marker="o"),
    MATCHED: Look(style.PINK, marker="o"),
    "bound": Look(style.ORANGE, dashed=True),
}
TITLES = {"queue": "(a) Highest mean queue", "holding cost": "(b) Holding cost", "regret": "(c) Regret"}
OTHERS = {
    "large V": Look(style.BLUE, marker="o"),
    "small V": Look(style.SKY, marker="o"),
    "queue": Look(style.INK, marker="o"),
    "holding cost": Look(style.INK, marker="s"),
    "regret": Look(style.INK, marker="^"),
}


class Bounds(Figure):
    """Bounds and measurements over V, over time, and over the spare capacity."""

    name = "bounds"
    title = "The bounds beside what is measured"
    where = "Theorems 3.1, 3.4 and 3.5"

    def runs(self) -> dict[str, Run]:
        """Return SABR at every V, with weights that match costs too, long runs, and runs at several slacks."""
        runs: dict[str, Run] = {}
        for name, V in self._grid().items():
            runs |= {f"{line}, {name}": self.options.run(SETTING, p.sabr(V), SLOTS) for line, p in SABR.items()}
            runs[f"{MATCHED}, {name}"] = self.options.run(SETTING, PRESETS["calibrated"].sabr(V, COSTS), SLOTS)
        V = published(SETTING.example, LONG)
        runs |= {f"{line}, long": self.options.run(SETTING, p.sabr(V), self._long()) for line, p in SABR.items()}
        for name, V in m.slack_grid().items():
            policy = PRESETS["calibrated"].sabr(V)
            runs |= {
                f"{name}, slack {slack}": self.options.run(m.narrow(slack), policy, SLOTS) for slack in self._slacks()
            }
        return runs

    def table(self, records: Records) -> Table:
        """Return bounds, measurements and their ratio over V, both over the slack, and the queue over time."""
        rows: list[dict[str, object]] = []
        for measure in TITLES:
            for name, V in self._grid().items():
                rows.append({"measure": measure, "line": "bound", "V": V} | m.exact(m.bound(measure, V)).row())
                for line in (*SABR, MATCHED) if measure == "holding cost" else SABR:
                    found = m.measured(records[f"{line}, {name}"], measure)
                    rows.append({"measure": measure, "line": line, "V": V} | found.row())
                found = m.tightness(records[f"Thompson sampling, {name}"], measure, V)
                rows.append({"measure": "ratio", "line": measure, "V": V} | found.row())
        for name, V in m.slack_grid().items():
            for slack in self._slacks():
                found = m.measured(records[f"{name}, slack {slack}"], "queue")
                bound = theory.queue_bound(m.narrow(slack).example, V)
                rows.append({"measure": "slack", "line": name, "V": V, "inverse": 1 / slack} | found.row())
                rows.append({"measure": "slack bound", "line": name, "inverse": 1 / slack} | m.exact(bound).row())
        paths = curves({line: records[f"{line}, long"] for line in SABR}, ("queue",))
        return Table([*rows, *({**row, "measure": "path"} for row in paths.rows)])

    def draw(self, table: Table) -> Drawing:
        """Draw three measures over V above; the queue over time and over the slack, and the ratios below."""
        figure, panels = style.panels(2, 3, height=3.0)
        for axes, (measure, title) in zip(panels, TITLES.items(), strict=False):
            _draw_over_V(axes, table.where(measure=measure), title)
        _draw_over_time(panels[3], table)
        _draw_over_slack(panels[4], table)
        _draw_ratios(panels[5], table.where(measure="ratio"))
        style.legend(figure, [*panels[:3], *panels[4:]], columns=5)
        return figure

    def caption(self, table: Table) -> str:
        """Say how far apart bound and measurement are."""
        V = published(SETTING.example, LONG)
        ratio = {x: number(table.where(measure="ratio", line=x, V=m.grid()[RULE]).last()) for x in TITLES}
        return (
            f"(a) to (c) T = {SLOTS}, half of the classes at cost 7/4 and half at 1/4: the highest mean queue over time, "
            "the highest running average of the holding cost, and regret where it is positive. It grows with V where its "
            f"bound falls. (d) The mean queue in a long run at V = {number(V)}; its bound is {number(m.bound('queue', V))}. "
            "(e) The highest mean queue of two servers with jobs of two units, at two V. (f) At V = sqrt(I T) the bound is "
            f"{ratio['queue']} times the queue, {ratio['holding cost']} times the holding cost and {ratio['regret']} times "
            "the regret that SABR with Thompson sampling has."
        )

    def claims(self, records: Records) -> list[Claim]:
        """Judge whether bounds hold, are uniform in time, have the right order in the slack, and are near."""
        return [*self._claims_on_bounds(records), _slack_claim(records), _weights_claim(records), _near_claim(records)]

    def _claims_on_bounds(self, records: Records) -> list[Claim]:
        grid = self._grid()
        over_V = {line: {V: records[f"{line}, {name}"] for name, V in grid.items()} for line in SABR}
        return [
            Claim(
                "bounds-hold", "Theorems 3.1, 3.4 and 3.5", "Queue, holding cost and regret stay below their bounds.",
                f"The largest ratio of measurement to bound at {len(grid)} values of V from {number(min(grid.values()))} to "
                f"{number(max(grid.values()))}, T = {SLOTS}: of the highest mean queue, the highest running average of the "
                "holding cost, and regret.",
                tuple(Finding(f"{x}, {line}", m.worst(over_V[line], x), below(1.0)) for x in TITLES for line in SABR),
                "The theorem on regret leaves out constants and logarithms; here they are taken as one.",
            ),
            Claim(
                "queue-uniform-in-time", "Theorem 3.4", "The bound on the mean queue is uniform in time.",
                f"Highest mean queue in {self._long():,} slots over the highest in the first half of them, "
                f"V = {number(published(SETTING.example, LONG))}; below {FLAT:g} counts as flat, our choice.",
                tuple(Finding(line, m.still_growing(records[f"{line}, long"]), below(FLAT)) for line in SABR),
                "With the printed radius the queue still grows as optimism wears off, towards that of known rewards, which "
                "is about that of Thompson sampling.",
            ),
        ]  # fmt: skip

    def _grid(self) -> dict[str, float]:
        grid = m.grid()
        return self.options.pick(grid, quick=dict(list(grid.items())[::2]))

    def _slacks(self) -> tuple[float, ...]:
        return self.options.pick(SLACKS, quick=SLACKS[::3])

    def _long(self) -> int:
        return self.options.pick(LONG, quick=250)


def _slack_claim(records: Records) -> Claim:
    found = {
        V: m.slack_slope({slack: records[key] for slack in SLACKS if (key := f"{name}, slack {slack}") in records})
        for name, V in m.slack_grid().items()
    }
    return Claim(
        "queue-inverse-in-slack", "Theorem 3.4", "The queue grows at most like the inverse of the spare capacity.",
        f"Slope of log highest mean queue over log 1 / slack, slack from {SLACKS[0]:g} down to {SLACKS[-1]:g}, two servers, "
        f"jobs of two units, T = {SLOTS}, Thompson sampling.",
        tuple(Finding(f"V = {number(V)}", slope, below(1.0)) for V, slope in found.items()),
        "Near capacity an empty system takes long to fill, so that longer runs would give a higher slope at small V.",
    )  # fmt: skip


def _weights_claim(records: Records) -> Claim:
    V = m.grid()[RULE]
    bound = m.bound("holding cost", V, COSTS) / m.bound("holding cost", V)
    matched, equal = (records[f"{line}, {RULE}"].samples["holding_cost"] for line in (MATCHED, "Thompson sampling"))
    return Claim(
        "matched-weights-remove-mismatch", "Theorem 3.5", "Weights equal to the costs remove the mismatch factor, here 7/4.",
        f"Holding cost with matched weights over that with equal weights at V = {number(V)}: of the bounds, and of "
        "time averages with Thompson sampling. To remove the factor means at most 4/7; below 1 is a gain.",
        (Finding("the bounds, factor removed", m.exact(bound, "times"), below(4 / 7)),
         Finding("measured, factor removed", effects.ratio(matched, equal, "times"), below(4 / 7)),
         Finding("the bounds, any gain", m.exact(bound, "times"), below(1.0)),
         Finding("measured, any gain", effects.ratio(matched, equal, "times"), below(1.0))),
        "The factor leaves the term with V. At this V the other term is larger, and contains the largest weight over "
        "traffic, which matched weights raise by the same 7/4.",
    )  # fmt: skip


def _near_claim(records: Records) -> Claim:
    V = m.grid()[RULE]
    findings = [
        Finding(f"{x}, {line}", m.tightness(records[f"{line}, {RULE}"], x, V), below(NEAR))
        for x in TITLES
        for line in SABR
    ]
    return Claim(
        "bounds-near", "Section 5", "The experiments validate the theory: bounds and measurements are of one size.",
        f"The bound over the measured value at V = sqrt(I T), T = {SLOTS}; one size means below {NEAR:g}, our choice.",
        tuple(findings),
        "Our reading of the word validate: the paper claims no tightness. Bounds say how things scale; the rule of thumb of "
        "Eq. (21) predicts the size of the queue.",
    )  # fmt: skip


def _draw_over_V(axes: Axes, table: Table, title: str) -> None:
    shown = Table([row for row in table.rows if row["mean"] > 0])
    for line in shown.distinct("line"):
        style.curve(axes, shown.where(line=line), LOOKS[str(line)], str(line), x="V")
    log_axis(axes, "x", table.numbers("V"))
    log_axis(axes, "y", shown.numbers("mean"), room=1.5)
    style.label(axes, title, x="V")


def _draw_over_time(axes: Axes, table: Table) -> None:
    for line in SABR:
        style.curve(axes, table.where(measure="path", policy=line), Look(LOOKS[line].colour))
    axes.set_ylim(bottom=0.0)
    style.label(axes, "(d) Mean queue over time")


def _draw_over_slack(axes: Axes, table: Table) -> None:
    measured, bound = table.where(measure="slack"), table.where(measure="slack bound")
    for name, V in m.slack_grid().items():
        style.curve(axes, measured.where(line=name), OTHERS[name], x="inverse")
        style.curve(axes, bound.where(line=name), LOOKS["bound"], x="inverse")
        _name_curve(
            axes, f"V = {number(V)}", SLACKS[-1] ** -1, measured.where(line=name).last(), (-1, -15), OTHERS[name]
        )
    log_axis(axes, "x", measured.numbers("inverse"))
    log_axis(axes, "y", np.concatenate([measured.numbers("mean"), bound.numbers("mean")]), room=1.5)
    style.label(axes, "(e) Queue over 1 / slack", x="1 / slack")


def _draw_ratios(axes: Axes, table: Table) -> None:
    shown = Table([row for row in table.rows if row["mean"] > 0])
    for line in TITLES:
        mine = shown.where(line=line)
        style.curve(axes, mine, OTHERS[line], x="V")
        for row in mine.rows[:1]:
            _name_curve(axes, line.split()[-1], row["V"], row["mean"], (0, 6), OTHERS[line])
    log_axis(axes, "x", table.numbers("V"))
    log_axis(axes, "y", np.append(shown.numbers("mean"), 1.0), room=2.0)
    style.label(axes, "(f) Bound over measured", x="V")


def _name_curve(axes: Axes, text: str, x: float, y: float, shift: tuple[int, int], look: Look) -> None:
    """Write a curve's name beside one of its ends, `shift` points away."""
    side = "right" if shift[0] < 0 else "left"
    axes.annotate(text, (x, y), shift, textcoords="offset points", ha=side, fontsize=8.5, color=look.colour)
