"""The bounds of the theorems compared with what is measured, over V and over time."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bilinq import style, theory
from bilinq.arrays import IntArray
from bilinq.display import number
from bilinq.experiments import PlannedRun, Record, Synthetic
from bilinq.lab import effects
from bilinq.lab.claims import Claim, above, below, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table, curves
from bilinq.lab.presets import COSTS, PRESETS, least_bound, order, published
from bilinq.style import Axes, Drawing, Look, log_axis

SETTING = Synthetic(holding_cost=COSTS)
SLOTS = 500
RULE = "V = sqrt(I T)"
STEPS = (1 / 4, 2.0)  # multiples of sqrt(I T) that are run in addition to the rules for V
LONG = 4000
FLAT, NEAR = 1.1, 10.0
"""Growth of the running maximum that counts as none; ratio of bound to measurement that counts as the same size."""

SABR = {"printed radius": PRESETS["paper"], "Thompson sampling": PRESETS["calibrated"]}
"""The algorithm of the theorems, and the one that learns within the experiment."""
MATCHED = "matched weights"
LOOKS = {
    "printed radius": Look(style.GREEN, marker="o"),
    "Thompson sampling": Look(style.BLUE, marker="o"),
    MATCHED: Look(style.PINK, marker="o"),
    "bound": Look(style.ORANGE, dashed=True),
    "queue": Look(style.INK, marker="o"),
    "holding cost": Look(style.INK, marker="s"),
    "regret": Look(style.INK, marker="^"),
}
TITLES = {"queue": "(a) Highest mean queue", "holding cost": "(b) Holding cost", "regret": "(c) Regret"}


class BoundsFigure(Figure):
    """Bounds and measurements over V and over time."""

    name = "bounds"
    title = "Bounds and measurements"
    where = "Theorems 3.1, 3.4 and 3.5"
    see = "Look at the gap between the dashed bounds and what is measured below them."

    def runs(self) -> dict[str, PlannedRun]:
        runs: dict[str, PlannedRun] = {}
        for name, V in self._grid().items():
            runs |= {f"{line}, {name}": self.options.run(SETTING, p.sabr(V), SLOTS) for line, p in SABR.items()}
            runs[f"{MATCHED}, {name}"] = self.options.run(SETTING, PRESETS["calibrated"].sabr(V, COSTS), SLOTS)
        V = published(SETTING.example, LONG)
        runs |= {f"{line}, long": self.options.run(SETTING, p.sabr(V), self._long()) for line, p in SABR.items()}
        return runs

    def table(self, records: Records) -> Table:
        rows: list[dict[str, object]] = []
        for measure in TITLES:
            for name, V in self._grid().items():
                rows.append({"measure": measure, "line": "bound", "V": V} | effects.exact(bound(measure, V)).row())
                for line in (*SABR, MATCHED) if measure == "holding cost" else SABR:
                    found = measured(records[f"{line}, {name}"], measure)
                    rows.append({"measure": measure, "line": line, "V": V} | found.row())
                found = tightness(records[f"Thompson sampling, {name}"], measure, V)
                rows.append({"measure": "ratio", "line": measure, "V": V} | found.row())
        paths = curves({line: records[f"{line}, long"] for line in SABR}, ("queue",))
        return Table([*rows, *({**row, "measure": "path"} for row in paths.rows)])

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.panels(2, 3, height=3.0)
        for axes, (measure, title) in zip(panels, TITLES.items(), strict=False):
            _draw_over_V(axes, table.where(measure=measure), title)
        _draw_over_time(panels[3], table)
        for spare in panels[4:]:
            spare.remove()
        _draw_ratios(figure.add_subplot(2, 3, (5, 6)), table.where(measure="ratio"))
        style.legend(figure, panels[:3], columns=5)
        return figure

    def caption(self, table: Table) -> str:
        V = published(SETTING.example, LONG)
        ratio = {x: number(table.where(measure="ratio", line=x, V=grid()[RULE]).last()) for x in TITLES}
        return (
            f"(a) to (c) T = {SLOTS}, half of the classes at cost 7/4 and half at 1/4: the highest mean queue over time, "
            "the highest running average of the holding cost, and regret where it is positive. Regret grows with V, its "
            f"bound falls. (d) The mean queue in a long run at V = {number(V)}; its bound is {number(bound('queue', V))}. "
            "(e) At V = sqrt(I T) the bound is "
            f"{ratio['queue']} times the queue, {ratio['holding cost']} times the holding cost and {ratio['regret']} times "
            "the regret that SABR with Thompson sampling has."
        )

    def claims(self, records: Records) -> list[Claim]:
        grid = self._grid()
        over_V = {line: {V: records[f"{line}, {name}"] for name, V in grid.items()} for line in SABR}
        highest = {f"{x}, {line}": worst(over_V[line], x) for x in TITLES for line in SABR}
        long = {line: records[f"{line}, long"] for line in SABR}
        growing = {line: still_growing(record) for line, record in long.items()}
        V = published(SETTING.example, LONG)
        shares = {line: worst({V: record}, "queue") for line, record in long.items()}
        return [
            Claim(
                "bounds-hold", "Theorems 3.1, 3.4 and 3.5", "Queue, holding cost and regret stay below their bounds.",
                test=f"The largest ratio of measurement to bound at {len(grid)} values of V from "
                f"{number(min(grid.values()))} to {number(max(grid.values()))}, T = {SLOTS}: of the highest mean "
                "queue, the highest running average of the holding cost, and regret.", findings=judged(highest, below(1.0)),
                note="The theorem on regret omits constants and logarithms; here they are those of its proof, Eq. (72).",
            ),
            Claim(
                "queue-uniform-in-time", "Theorem 3.4", "The bound on the mean queue is uniform in time.",
                test=f"Highest mean queue in {self._long():,} slots over the bound, which does not depend on time, V = "
                f"{number(V)}.", findings=judged(shares, below(1.0)),
            ),
            Claim(
                "queue-flat-in-time", "Theorem 3.4", "The mean queue stops growing early.",
                test=f"Highest mean queue in {self._long():,} slots over the highest in the first half of them, V = "
                f"{number(V)}; below {FLAT:g} counts as flat, our choice.", findings=judged(growing, below(FLAT)), ours=True,
                note="With the printed radius the queue still grows, as confidence bounds shrink, towards that of "
                "known rewards, which is close to that of Thompson sampling.",
            ),
            _weights_claim(records), _near_claim(records),
        ]  # fmt: skip

    def _grid(self) -> dict[str, float]:
        values = grid()
        return self.options.pick(values, quick=dict(list(values.items())[::2]))

    def _long(self) -> int:
        return self.options.pick(LONG, quick=250)


def _weights_claim(records: Records) -> Claim:
    V = grid()[RULE]
    shrunk = bound("holding cost", V, COSTS) / bound("holding cost", V)
    matched, equal = (records[f"{line}, {RULE}"].samples["holding_cost"] for line in (MATCHED, "Thompson sampling"))
    ratios = {"the bounds": effects.exact(shrunk, "times"), "measured": effects.ratio(matched, equal, "times")}
    return Claim(
        "matched-weights-remove-mismatch", "Theorem 3.5",
        "Weights equal to the costs remove the mismatch factor, here 7/4.",
        test=f"Holding cost with matched weights over that with equal weights at V = {number(V)}: of the bounds, and "
        "of time averages with Thompson sampling. The factor is removed at 4/7 or less; below 1 is a gain.",
        findings=judged({f"{text}, factor removed": ratio for text, ratio in ratios.items()}, below(4 / 7))
        + judged({f"{text}, any gain": ratio for text, ratio in ratios.items()}, below(1.0)),
        note="The factor disappears from the term with V. At this V the other term is larger, and it contains the "
        "largest ratio of weight to traffic, which matched weights raise by the same 7/4.",
    )  # fmt: skip


def _near_claim(records: Records) -> Claim:
    V = grid()[RULE]
    parts = {f"{x}, {line}": worst({V: records[f"{line}, {RULE}"]}, x) for x in TITLES for line in SABR}
    return Claim(
        "bounds-near", "Section 5", "Bounds and measurements have the same size.",
        test=f"The measured value over the bound at V = sqrt(I T), T = {SLOTS}; the same size means above 1 / {NEAR:g}, "
        "our choice.", findings=judged(parts, above(1.0 / NEAR)), ours=True,
        note="The paper does not claim that bounds are tight. Bounds describe scaling; the rule of thumb of Eq. (21) "
        "predicts the size of the queue.",
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


def _draw_ratios(axes: Axes, table: Table) -> None:
    shown = Table([row for row in table.rows if row["mean"] > 0])
    for line in TITLES:
        mine = shown.where(line=line)
        style.curve(axes, mine, LOOKS[line], x="V")
        for row in mine.rows[:1]:
            _name_curve(axes, line.split()[-1], row["V"], row["mean"], (0, 6), LOOKS[line])
    log_axis(axes, "x", table.numbers("V"))
    log_axis(axes, "y", np.append(shown.numbers("mean"), 1.0), room=2.0)
    style.label(axes, "(e) Bound over measured", x="V")


def _name_curve(axes: Axes, text: str, x: float, y: float, shift: tuple[int, int], look: Look) -> None:
    """Write a curve's name next to one of its ends, `shift` points from it."""
    side = "right" if shift[0] < 0 else "left"
    axes.annotate(text, (x, y), shift, textcoords="offset points", ha=side, fontsize=8.5, color=look.colour)


def grid() -> dict[str, float]:
    """Return the values of V by name, ascending."""
    example = SETTING.example
    steps = {f"x{step:g}": step * order(example, SLOTS) for step in STEPS}
    rules = {RULE: order(example, SLOTS), "published": published(example, SLOTS), "least": least_bound(example, SLOTS)}
    return dict(sorted((steps | rules).items(), key=lambda entry: entry[1]))


def _top(path: NDArray[np.float32], keep: IntArray) -> float:
    return float(path[keep].mean(axis=0, dtype=np.float64).max())


def _top_average(path: NDArray[np.float32], keep: IntArray) -> float:
    """Return the highest time average, from the start to any slot, of the mean over some replications."""
    mean = path[keep].mean(axis=0, dtype=np.float64)
    return float((np.cumsum(mean) / np.arange(1, mean.size + 1)).max())


STATISTICS: dict[str, Callable[[Record, IntArray], float]] = {
    "queue": lambda record, keep: _top(record.paths["queue"], keep),
    "holding cost": lambda record, keep: _top_average(record.paths["holding_cost"], keep),
    "regret": lambda record, keep: float(record.samples["regret"][keep].mean()),
}
"""What each bound is about, as a function of a record and the replications to use."""


def bound(measure: str, V: float, weight: tuple[float, ...] | None = None) -> float:
    """Return the paper's bound on a measure in `SETTING`."""
    problem = SETTING.example
    if measure == "queue":
        return theory.queue_bound(problem, V, weight=weight)
    if measure == "holding cost":
        return theory.holding_cost_bound(problem, V, weight=weight)
    return theory.explicit_regret_bound(problem, V, SLOTS, weight=weight).total


def measured(record: Record, measure: str) -> Effect:
    """Return a measure with its interval."""
    return effects.estimate(lambda keep: STATISTICS[measure](record, keep), record.replications)


def tightness(record: Record, measure: str, V: float) -> Effect:
    """Return how many times the measured value the bound is, with the interval of the measurement."""
    found, limit = measured(record, measure), bound(measure, V)
    low = limit / found.high if found.high > 0 else np.nan
    return Effect(limit / found.value, low, limit / found.low if found.low > 0 else np.inf, "times")


def worst(records: dict[float, Record], measure: str) -> Effect:
    """Return the largest ratio of measurement to bound over the records of several V."""
    limits = {V: bound(measure, V) for V in records}

    def statistic(keep: IntArray) -> float:
        return max(STATISTICS[measure](record, keep) / limits[V] for V, record in records.items())

    return effects.estimate(statistic, next(iter(records.values())).replications, "of the bound")


def still_growing(record: Record) -> Effect:
    """Return the highest mean queue of the whole run over that of its first half."""
    path = record.paths["queue"]
    early = path[:, record.slot <= record.slot[-1] // 2]
    return effects.estimate(lambda keep: _top(path, keep) / _top(early, keep), record.replications, "times")
