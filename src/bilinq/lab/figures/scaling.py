"""How regret grows with the horizon, the numbers of job and server classes, and the length of the features."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from bilinq import style
from bilinq.arrays import IntArray
from bilinq.display import MINUS, number
from bilinq.experiments import PlannedRun, Synthetic
from bilinq.lab import effects
from bilinq.lab.claims import Claim, ClaimedRange, Finding, above, below, between, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import PRESETS, order, published, serve_once, ugda
from bilinq.policies import Policy
from bilinq.style import Axes, Drawing, Look, log_axis

LINES: dict[str, tuple[Callable[[float], Policy], Look]] = {
    "Thompson sampling": (PRESETS["calibrated"].sabr, Look(style.BLUE, marker="o")),
    "public code radius": (PRESETS["published"].sabr, Look(style.SKY, marker="o")),
    "printed radius": (PRESETS["paper"].sabr, Look(style.GREEN, marker="o")),
    "no job served twice": (lambda V: serve_once(PRESETS["calibrated"].sabr(V)), Look(style.PINK, marker="s")),
    "UGDA-OL": (lambda V: ugda(V, "job"), Look(style.ORANGE, marker="^")),
    "UGDA-OL, per class pair": (lambda V: ugda(V, "class"), Look(style.AMBER, marker="^")),
}
"""A policy for each V and its look, by the name of its line; the first four are SABR."""
SABR = tuple(LINES)[:4]
UGDA = tuple(LINES)[4:]
FIXED = ("Thompson sampling", "no job served twice")  # lines that are also run at a V that does not depend on T


@dataclass(frozen=True)
class ScalingSweep:
    """One number that is varied at a load of 0.25, and the growth of regret that theory allows.

    `name` is its symbol and `setting` returns the setting for a value. Regret may grow with `exponent`, up to logarithms.
    The number of slots is `horizon`, if T is not the number that is varied.
    """

    name: str
    title: str
    values: tuple[int, ...]
    exponent: float
    lines: tuple[str, ...]
    setting: Callable[[int], Synthetic]
    horizon: int = 500

    def slots(self, value: int) -> int:
        """Return the number of slots for a value."""
        return value if self.name == "T" else self.horizon

    def V(self, value: int) -> float:
        """Return sqrt(I T), the order that Corollary 3.2 asks for."""
        return order(self.setting(value).example, self.slots(value))

    def shorter(self) -> Self:
        """Return the sweep for a quick report: its first two values, and half the slots."""
        values = tuple(self.slots(value) // 2 if self.name == "T" else value for value in self.values[:2])
        return replace(self, values=values, horizon=self.horizon // 2)


def _many_servers(J: int) -> Synthetic:
    """Return 12 servers, which 2, 3 or 6 classes share equally, at load 0.25 and still one job per slot."""
    return Synthetic(server_classes=J, servers=12, traffic=3.0, service_rate=1 / 3)


SWEEPS: dict[str, ScalingSweep] = {
    sweep.name: sweep
    for sweep in (
        ScalingSweep("T", "(a) Over T: theory 1/2", (250, 500, 1000, 2000), 0.5,
              ("Thompson sampling", "public code radius", "printed radius", *UGDA), lambda T: Synthetic()),
        ScalingSweep("I", "(b) Over I: theory at most 1/2", (5, 10, 20, 40), 0.5,
              ("Thompson sampling", "public code radius", "no job served twice"), lambda I: Synthetic(job_classes=I)),
        ScalingSweep("d", "(c) Over d: theory at most 2", (2, 3, 6), 2.0,
              ("Thompson sampling", "public code radius"), lambda d: Synthetic(dimension=d)),
        ScalingSweep("J", "(d) Over J: theory 0", (2, 3, 6), 0.0,
              ("Thompson sampling", "public code radius", *UGDA), _many_servers, 250),
    )
}  # fmt: skip
"""By symbol, in the order of the panels."""
QUICK = {name: sweep.shorter() for name, sweep in SWEEPS.items()}  # the same for a quick report

MARGIN = 0.1  # how far a fitted slope may be from an exponent, because of logarithms and small systems
GUIDE = "slope of the theory"
STEP = 0.09  # least distance between two slopes in a panel, as a share of its height
LOOKS = {line: look for line, (_, look) in LINES.items()} | {GUIDE: Look(style.GREY, dashed=True)}


class ScalingFigure(Figure):
    """Regret over the horizon, the numbers of job and server classes and the length of the features."""

    name = "scaling"
    title = "How regret grows with T, I, d and J"
    where = "Theorem 3.1, Corollary 3.2"
    see = "Compare the slope of each line with the dashed one, which is the growth that theory allows."

    def runs(self) -> dict[str, PlannedRun]:
        runs: dict[str, PlannedRun] = {}
        for sweep in self._sweeps.values():
            for value in sweep.values:
                setting, V, slots = sweep.setting(value), sweep.V(value), sweep.slots(value)
                runs |= {_name(sweep, x, value): self.options.run(setting, LINES[x][0](V), slots) for x in sweep.lines}
        setting = Synthetic()
        V, slots = published(setting.example, 0), self._sweeps["T"].values[-1]
        return runs | {f"fixed {line}": self.options.run(setting, LINES[line][0](V), slots) for line in FIXED}

    def table(self, records: Records) -> Table:
        rows: list[dict[str, object]] = []
        for name, sweep in self._sweeps.items():
            values, highest = sweep.values, 0.0
            for line in sweep.lines:
                found = {value: effects.mean(records[_name(sweep, line, value)].samples["regret"]) for value in values}
                highest = max(highest, found[values[0]].value)
                rows += [{"sweep": name, "policy": line, "x": value, **mean.row()} for value, mean in found.items()]
                rows.append({"sweep": name, "policy": line, "slope_of": name, **self._slope(records, name, line).row()})
            for value in values:
                y = 1.3 * highest * (value / values[0]) ** sweep.exponent
                rows.append({"sweep": name, "policy": GUIDE, "x": value, "mean": y, "low": y, "high": y})
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.panels(2, 2, height=3.2)
        for axes, sweep in zip(panels, self._sweeps.values(), strict=True):
            _draw_sweep(axes, table.where(sweep=sweep.name), sweep)
        style.legend(figure, panels, columns=4)
        return figure

    def caption(self, table: Table) -> str:
        slope = {line: _plus_minus(table.where(slope_of="T", policy=line)) for line in self._sweeps["T"].lines}
        return (
            "Mean regret at V = sqrt(I T), with fitted log-log slopes and their 95 % intervals at the right. In T they are "
            f"{slope['Thompson sampling']} for SABR with Thompson sampling, {slope['public code radius']} with the public "
            f"code's radius, {slope['printed radius']} with the printed one and {slope['UGDA-OL']} for UGDA-OL. The load "
            "is 0.25 throughout, with one job per slot: in (a) to (c) the paper's 4 servers, in (d) 12 servers and jobs of "
            f"3 units on average; T = {self._sweeps['I'].horizon} in (b) and (c), {self._sweeps['J'].horizon} in (d)."
        )

    def claims(self, records: Records) -> list[Claim]:
        return [*self._claims_in_T(records), *self._claims_in_size(records), *self._claims_on_ugda(records)]

    def _claims_in_T(self, records: Records) -> list[Claim]:
        slots, V = self._sweeps["T"].values[-1], number(published(Synthetic().example, 0))
        drift = {
            text: effects.mean(effects.late_growth(records[f"fixed {line}"]), "per slot")
            for text, line in zip(("the paper's independent draws", "no job served twice"), FIXED, strict=True)
        }
        return [
            Claim(
                "regret-sublinear-in-T", "Corollary 3.2", "With V of order sqrt(I T) regret is sublinear in T.",
                test=f"Slope of log mean regret over log T, {self._span('T')}, V = sqrt(I T).",
                findings=self._judged(records, "T", SABR, below(1.0)),
            ),
            Claim(
                "regret-root-T", "Corollary 3.2",
                "With V of order sqrt(I T) regret grows like the root of T, up to logarithms.",
                test=f"The same slopes; at most 1/2 and {MARGIN:g} more for logarithms, our choice.",
                findings=self._judged(records, "T", SABR, below(0.5 + MARGIN)),
                note="The printed radius has hardly begun to learn by then, and missing knowledge costs the same in "
                "every slot.",
            ),
            Claim(
                "regret-linear-at-fixed-V", "Remark 3.6",
                "With a V that does not depend on T, regret grows linearly in T as its bound does.",
                test=f"Growth of regret per slot in the second half of {slots:,} slots at V = {V}, the public code's, "
                "with Thompson sampling; above zero if regret grows linearly.", findings=judged(drift, above(0.0)),
                ours=True,
                note="The paper says so about the bound only. Under the paper's draws regret falls steadily, since two "
                "servers that draw the same job are both paid; otherwise it stays constant once the queue has filled.",
            ),
        ]  # fmt: skip

    def _claims_in_size(self, records: Records) -> list[Claim]:
        return [
            Claim(
                "regret-in-I", "Corollary 3.2", "Regret grows at most like the root of the number of job classes.",
                test=f"Slope of log mean regret over log I, {self._span('I')}, V = sqrt(I T), T = 500, a traffic of 1 "
                f"split equally; at most 1/2 and {MARGIN:g} more for small systems, our choice.",
                findings=self._judged(records, "I", SABR, below(0.5 + MARGIN)),
                note="With few classes two servers often draw the same job and both are paid, which lowers regret at "
                "the left end; the line without double pay follows the root.",
            ),
            Claim(
                "regret-in-d", "Corollary 3.2", "Regret grows at most like the square of the length of the features.",
                test=f"Slope of log mean regret over log d, {self._span('d')}, V = sqrt(I T), T = 500.",
                findings=self._judged(records, "d", SABR, below(2.0)),
                note="Most of this regret is the queue left at the end, which does not depend on d; and the longer "
                "normalised features with positive entries are, the more similar they are.",
            ),
            Claim(
                "regret-without-J", "Corollary 3.2",
                "The regret of SABR does not depend on the number of server classes.",
                test=f"Slope of log mean regret over log J, {self._span('J')}, 12 servers in all, load 0.25, T = "
                f"{self._sweeps['J'].horizon}; no dependence means within {MARGIN:g} of zero, our choice.",
                findings=self._judged(records, "J", SABR, between(-MARGIN, MARGIN)),
            ),
        ]  # fmt: skip

    def _claims_on_ugda(self, records: Records) -> list[Claim]:
        def gaps(name: str) -> tuple[Finding, ...]:
            text = "slope less that of SABR with Thompson sampling"
            return judged({f"{x}: {text}": self._slope(records, name, x, less=SABR[0]) for x in UGDA}, above(0.0))

        linear = self._judged(records, "T", UGDA, above(1.0 - MARGIN))
        return [
            Claim(
                "ugda-linear-in-T", "Section 5.2",
                "The regret of UGDA-OL grows linearly in T, that of SABR more slowly.",
                test=f"Slope of log mean regret over log T, {self._span('T')}, V = sqrt(I T), where linear means at "
                f"least {1 - MARGIN:g}, our choice; and the difference of slopes.",
                findings=linear + gaps("T"),
                note="The paper argues from the bounds. With an index per job UGDA-OL cannot learn from jobs of one "
                "unit; with an index per class pair it learns, but late: its bonus is made for noise of scale one.",
            ),
            Claim(
                "ugda-grows-with-J", "Section 3.2", "The regret of UGDA-OL grows with the number of server classes.",
                test=f"Slope of log mean regret over log J, {self._span('J')}, and its difference from that of SABR.",
                findings=self._judged(records, "J", UGDA, above(0.0)) + gaps("J"),
            ),
        ]  # fmt: skip

    def _judged(
        self, records: Records, name: str, lines: tuple[str, ...], claimed: ClaimedRange
    ) -> tuple[Finding, ...]:
        """Return a finding on the slope of each of the lines that the sweep has."""
        chosen = [line for line in lines if line in self._sweeps[name].lines]
        return judged({_full(line): self._slope(records, name, line) for line in chosen}, claimed)

    def _slope(self, records: Records, name: str, line: str, less: str | None = None) -> Effect:
        """Return the slope of a line, less that of another line if `less` names one."""
        sweep = self._sweeps[name]
        values = sweep.values

        def one(line: str, keep: IntArray) -> float:
            regret = [records[_name(sweep, line, value)].samples["regret"][keep].mean() for value in values]
            return effects.slope(np.array(values, float), np.array(regret))

        def statistic(keep: IntArray) -> float:
            return one(line, keep) - (one(less, keep) if less else 0.0)

        return effects.estimate(statistic, self.options.count, "slope")

    @property
    def _sweeps(self) -> dict[str, ScalingSweep]:
        return self.options.pick(SWEEPS, quick=QUICK)

    def _span(self, name: str) -> str:
        values = self._sweeps[name].values
        return f"{name} from {values[0]:,} to {values[-1]:,}"


def _name(sweep: ScalingSweep, line: str, value: int) -> str:
    return f"{sweep.name} = {value}, {line}"


def _full(line: str) -> str:
    return f"SABR, {line}" if line in SABR else line


def _draw_sweep(axes: Axes, table: Table, sweep: ScalingSweep) -> None:
    points = Table([row for row in table.rows if "x" in row])
    for policy in points.distinct("policy"):
        style.curve(axes, points.where(policy=policy), LOOKS[str(policy)], _full(str(policy)), x="x")
    axes.set_xscale("log")
    axes.set_xticks(sweep.values, [f"{value:,}" for value in sweep.values])
    axes.minorticks_off()
    log_axis(axes, "y", np.concatenate([points.numbers(end) for end in ("low", "mean", "high")]), room=1.1)
    style.label(axes, sweep.title, x=sweep.name, y="regret")
    _write_slopes(axes, table, points)


def _write_slopes(axes: Axes, table: Table, points: Table) -> None:
    """Write each slope next to the end of its line; slopes of close lines are moved apart."""
    low, high = np.log(axes.get_ylim())
    ends = {str(p): points.where(policy=p).last() for p in points.distinct("policy") if p != GUIDE}
    places = {p: max(0.0, float(np.log(max(end, 1e-9)) - low) / (high - low)) for p, end in ends.items()}
    height = 1.0 + STEP
    for policy in sorted(places, key=lambda p: -places[p]):
        height = min(height - STEP, places[policy] + STEP / 2)
        text = _plus_minus(table.where(policy=policy, slope_of=points.rows[0]["sweep"]))
        axes.text(1.02, height, text, transform=axes.transAxes, va="center", color=LOOKS[policy].colour, fontsize=8.5)


def _plus_minus(slope: Table) -> str:
    row = slope.rows[0]
    half = (row["high"] - row["low"]) / 2
    return f"{row['mean']:.2f} ± {half:.2f}".replace("-", MINUS) if half >= 0.0 else "?"
