"""Independent and distinct assignment compared: what it costs if servers may pick the same job."""

from dataclasses import replace
from typing import Literal

from matplotlib.ticker import NullLocator

from bilinq import style
from bilinq.display import number
from bilinq.experiments import PlannedRun, Record, Synthetic
from bilinq.lab import effects
from bilinq.lab.claims import Claim, above, between, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import published
from bilinq.style import Drawing, Look

SETTING = Synthetic()
STEPS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # multiples of the public code's V
MARGIN = 0.02
"""Observed rewards within this share of the expected ones count as consistent: what 100 replications can resolve."""

PAPER, CAPPED, SCALED, BEST = (
    "independent, no cap (the paper)", "independent, at most the queue", "distinct, no cap", "distinct, at most the queue",
)  # fmt: skip
KINDS: dict[str, tuple[str, Literal["none", "queue"], Look]] = {
    PAPER: ("independent", "none", Look(style.BLUE, marker="o")),
    CAPPED: ("independent", "queue", Look(style.SKY, thin=True, marker="o")),
    SCALED: ("distinct", "none", Look(style.AMBER, thin=True, marker="s")),
    BEST: ("distinct", "queue", Look(style.GREEN, marker="s")),
}
"""Ways to assign: `assignment` and `limit` of a policy, and the look of its curve."""
MEASURES = {
    "regret": "(a) Regret",
    "paid": "(b) Reward paid for a job",
    "queue": "(c) Jobs in the system",
    "wait": "(d) Slots until first service",
}


class AssignmentFigure(Figure):
    """Regret, pay, queue and wait over V when servers draw jobs independently, and when no job is drawn twice."""

    name = "assignment"
    title = "Two servers, one job"
    where = "Section 3.1"
    see = "Look at the left end: where servers may draw the same job, regret is negative and the queue is no shorter."
    horizon = 500, 125

    def runs(self) -> dict[str, PlannedRun]:
        runs = {}
        for kind, (assignment, limit, _) in KINDS.items():
            for step, V in self._values().items():
                policy = replace(self.options.shown.sabr(V), assignment=assignment, limit=limit)
                runs[f"{kind} x{step}"] = self.options.run(SETTING, policy, self.slots)
        return runs

    def table(self, records: Records) -> Table:
        rows = [
            {"assignment": kind, "measure": measure, "V": V, **_measured(records[f"{kind} x{step}"], measure).row()}
            for kind in KINDS
            for measure in MEASURES
            for step, V in self._values().items()
        ]
        paper = records[f"{PAPER} x1.0"]
        oracle = effects.mean((paper.samples["regret"] + paper.samples["reward"]) / _jobs(paper))
        return Table([*rows, {"assignment": "oracle", "measure": "paid", **oracle.row()}])

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.panels(2, 2, height=2.7)
        for axes, (measure, title) in zip(panels, MEASURES.items(), strict=True):
            for kind, (_, _, look) in KINDS.items():
                style.curve(axes, table.where(assignment=kind, measure=measure), look, kind, x="V")
            axes.set_xscale("log")
            axes.set_xticks(list(self._values().values()), [number(round(V, 1)) for V in self._values().values()])
            axes.xaxis.set_minor_locator(NullLocator())
            style.label(axes, title, x="V")
        panels[0].axhline(0.0, color=style.GREY, lw=1.2, ls=style.DASHED)
        oracle = table.where(assignment="oracle").last()
        panels[1].axhline(oracle, color=style.GREY, lw=1.2, ls=style.DASHED, label="oracle")
        for axes in panels[1:]:
            axes.set_ylim(bottom=0.0)
        style.legend(figure, panels, columns=3)
        return figure

    def caption(self, table: Table) -> str:
        def end(kind: str, measure: str, place: int) -> str:
            return number(table.where(assignment=kind, measure=measure).rows[place]["mean"])

        low, *_, high = map(number, self._values().values())
        return (
            f"At V = {low} the paper's assignment has regret {end(PAPER, 'regret', 0)} and pays {end(PAPER, 'paid', 0)} "
            f"for a job, where the oracle earns {number(table.where(assignment='oracle').last())}: several servers draw "
            "the same one-unit job, all but one service is wasted, and each is paid. With distinct draws and a cap at the "
            f"queue, the same policy has regret {end(BEST, 'regret', 0)}. Double pay does not disappear at the public "
            f"code's V = {high}: regret is {end(PAPER, 'regret', -1)} there, and {end(BEST, 'regret', -1)} if no job is "
            "served twice. A cap alone is not enough, since independent servers may still pick the same job. Without the "
            "cap distinct draws cannot meet the allocation, so (a) counts rewards that are not in (b)."
        )

    def claims(self, records: Records) -> list[Claim]:
        ends = list(self._values().items())[:: len(self._values()) - 1]
        met, regret = self._met(records), {}
        for kind in (PAPER, BEST):
            for step, V in ends:
                lost = effects.mean(records[f"{kind} x{step}"].samples["regret"], "regret")
                regret[f"{kind}; V = {number(V)}"] = lost
        test = (
            f"Observed reward over the expected reward of the allocation, {self.slots} slots; consistent means within "
        )
        test += f"{MARGIN:.0%}, our choice."
        within = between(1.0 - MARGIN, 1.0 + MARGIN)
        return [
            Claim(
                "assignment-keeps-allocation", "Section 3.1",
                "Jobs are assigned at random so that the allocation is met in expectation.",
                test=test, findings=judged(met[PAPER], within),
                note="The paper's draws meet it by paying several servers for one job.",
            ),
            Claim(
                "distinct-draws-keep-allocation", "Section 3.1",
                "The allocation is also met if no job is served twice in a slot.",
                test=test, findings=judged(met[SCALED] | met[BEST], within), ours=True,
                note="If a row of the allocation has more services than the class has jobs, distinct draws cannot meet "
                "it, so they need the cap at the queue.",
            ),
            Claim(
                "oracle-is-best", "Section 2.2",
                "The oracle's split of the load is optimal, so regret is what a policy loses.",
                test=f"Regret after {self.slots} slots of one-unit jobs; positive if the oracle earns more.",
                findings=judged(regret, above(0.0)),
                note="The oracle serves every job once. A policy that serves a job twice earns more, but its queue is not "
                "shorter.",
            ),
        ]  # fmt: skip

    def _met(self, records: Records) -> dict[str, dict[str, Effect]]:
        """Return observed over expected reward of each kind, by condition."""
        found: dict[str, dict[str, Effect]] = {kind: {} for kind in KINDS}
        for kind, mine in found.items():
            for step, V in self._values().items():
                samples = records[f"{kind} x{step}"].samples
                ratio = effects.ratio(samples["observed"], samples["reward"], "times the expected")
                mine[f"{kind}; V = {number(V)}"] = ratio
        return found

    def _values(self) -> dict[float, float]:
        V = published(SETTING.example, self.slots)
        return {step: step * V for step in self.options.pick(STEPS, quick=STEPS[::5])}


def _jobs(record: Record) -> float:
    return float(SETTING.example.arrival_rate.sum() * record.slot[-1])


def _measured(record: Record, measure: str) -> effects.Effect:
    return effects.mean(record.samples["observed"] / _jobs(record) if measure == "paid" else record.samples[measure])
