"""What the paper remarks and does not show: unequal service rates, running past T, and other laws of work."""

from collections.abc import Mapping

import numpy as np

from bilinq import style, theory
from bilinq.display import number
from bilinq.experiments import Backlogged, PlannedRun, Record, Setting, SizedJobs, Synthetic
from bilinq.lab import effects
from bilinq.lab.claims import Claim, Finding, below, between, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table, curves
from bilinq.lab.figures.load import drift
from bilinq.lab.presets import COSTS, PRESETS, order, published, serve_once, ugda
from bilinq.policies import Policy, Sabr
from bilinq.style import Axes, Drawing, Look

RATES = (1.0,) * 5 + (0.25,) * 5  # service rates of the classes: half of the jobs take four slots on average
UNEQUAL = Synthetic(service_rate=RATES, holding_cost=COSTS)
HEAVY = Synthetic(service_rate=RATES, traffic=3.8, law="poisson")  # load 0.95
WAITING = 60  # jobs of each class at the start of the runs from a backlog
TIMES = 8  # the runs past T last this many times T
MOST = 50
SAME = 1.25  # queues and regrets within this factor count as the same
LONG = Synthetic(service_rate=0.25)
LAWS: dict[str, Setting] = {
    "geometric": SizedJobs(LONG),
    "equal lengths": SizedJobs(LONG, "fixed"),
    "heavy-tailed lengths": SizedJobs(LONG, "heavy-tailed"),
    "bursts of arrivals": SizedJobs(Synthetic(service_rate=0.25, law="markov-modulated")),
}
"""Laws of work with the same mean: jobs of four units, one arrival in four slots."""
LOOKS = {"SABR": Look(style.BLUE), "W-SABR": Look(style.ORANGE), "UGDA-OL": Look(style.AMBER, thin=True)}


class GeneralFigure(Figure):
    """Regret, queue and holding cost with unequal service rates, queue past T, and other laws of work."""

    name = "general"
    title = "Remarks of the paper that nobody has shown"
    where = "Section 2.3, Remark 3.7"
    see = "Look whether the queue stays short where the paper's assumptions end."
    horizon = 500, 62

    def runs(self) -> dict[str, PlannedRun]:
        make = PRESETS["calibrated"].sabr
        V = order(UNEQUAL.example, self.slots)
        runs = {
            "SABR": self._run(UNEQUAL, make(V)), "W-SABR": self._run(UNEQUAL, make(V, COSTS)),
            "UGDA-OL": self._run(UNEQUAL, ugda(V, "class")),
            "backlog": self._run(Backlogged(HEAVY, WAITING), make(V)),
            "past T": self.options.run(Synthetic(), self._printed(), TIMES * self.slots, most=MOST),
        }  # fmt: skip
        return runs | {name: self._run(setting, serve_once(make(V))) for name, setting in LAWS.items()}

    def table(self, records: Records) -> Table:
        rows: list[Mapping[str, object]] = []
        rows += curves({name: records[name] for name in LOOKS}, ("regret", "queue", "holding_cost")).rows
        rows += curves({"past T": records["past T"]}, ("queue",)).rows
        rows += curves({"backlog": records["backlog"]}, ("queue",)).rows
        for name in LAWS:
            for measure in ("queue", "regret"):
                found = effects.mean(records[name].samples[measure])
                rows.append({"policy": name, "measure": f"{measure} by law", **found.row()})
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, (regret, queue, cost, backlog, past, laws) = style.panels(2, 3, height=2.9)
        for axes, measure in ((regret, "regret"), (queue, "queue"), (cost, "holding_cost")):
            for policy, look in LOOKS.items():
                style.curve(axes, table.where(policy=policy, measure=measure), look, policy)
        titles = "(a) Regret, unequal rates", "(b) Queue, unequal rates", "(c) Holding cost"
        for axes, title in zip((regret, queue, cost), titles, strict=True):
            style.label(axes, title)
        style.curve(backlog, table.where(policy="backlog"), LOOKS["SABR"])
        backlog.set_ylim(bottom=0.0)
        style.label(backlog, "(d) Queue, load 0.95, backlog")
        style.curve(past, table.where(policy="past T"), Look(style.GREEN), "printed radius")
        past.axvline(self.slots, color=style.GREY, lw=1.2, ls=style.DASHED)
        past.set_ylim(bottom=0.0)
        style.label(past, f"(e) Queue past T = {self.slots}")
        _draw_laws(laws, table)
        style.legend(figure, [regret, past, laws], columns=6)
        return figure

    def caption(self, table: Table) -> str:
        end = {name: number(table.where(policy=name, measure="regret").last()) for name in LOOKS}
        queue = {name: number(table.where(policy=name, measure="queue by law").last()) for name in LAWS}
        past = table.where(policy="past T").last()
        return (
            "(a) to (d) Half of the classes are served at rate 1, "
            f"half at 1/4: after {self.slots} slots regret is {end['SABR']} for SABR, {end['W-SABR']} for W-SABR and "
            f"{end['UGDA-OL']} for UGDA-OL per class pair. (c) Half of the classes cost 7/4 per job and slot, half 1/4. (d) "
            f"{10 * WAITING} jobs wait at the start. (e) The printed policy, tuned for T = {self.slots} and run "
            f"{TIMES} times as long, has a queue of {number(past)} at the end. (f) Jobs of four units: the queue is "
            f"{queue['geometric']} with geometric lengths, {queue['equal lengths']} with equal ones, "
            f"{queue['heavy-tailed lengths']} with heavy tails and "
            f"{queue['bursts of arrivals']} with bursts. {min(self.options.count, MOST)} instances."
        )

    def claims(self, records: Records) -> list[Claim]:
        bound = theory.queue_bound(Synthetic().example, published(Synthetic().example, self.slots))
        weighted, sabr, other = (records[name].samples for name in ("W-SABR", "SABR", "UGDA-OL"))
        cost = effects.ratio(weighted["holding_cost"], sabr["holding_cost"], "times SABR's")
        gap = effects.difference(sabr["regret"], other["regret"], "regret")
        base = records["geometric"]
        others = {
            f"{measure}, {name}": effects.ratio(
                records[name].samples[measure], base.samples[measure], "times geometric"
            )
            for measure in ("queue", "regret")
            for name in LAWS
            if name != "geometric"
        }
        return [
            Claim(
                "unequal-rates-stable", "Section 2.3", "With unequal service rates the queue stays bounded.",
                test=f"Change of the queue per slot over {self.slots} slots at load 0.95, from {10 * WAITING} waiting jobs.",
                findings=judged({"rates 1 and 1/4": drift(records["backlog"])}, below(0.0)),
            ),
            Claim(
                "unequal-rates-results", "Section 2.3", "The results extend to unequal service rates.",
                test="Holding cost of W-SABR over that of SABR at the same V, and regret of SABR less that of UGDA-OL with "
                "an index per class pair.",
                findings=(Finding("holding cost", cost, below(1.0)), Finding("regret", gap, below(0.0))),
            ),
            Claim(
                "stable-past-T", "Remark 3.7", "The fixed policy can be run beyond its target horizon T: the bound stays.",
                test=f"Highest mean queue in {TIMES * self.slots:,} slots over the bound, policy as printed for T = "
                f"{self.slots}.",
                findings=judged({"printed radius": _highest(records["past T"], bound)}, below(1.0)),
            ),
            Claim(
                "other-laws-do-not-matter", "Section 2.3", "Queue and regret do not depend on the assumed laws of work.",
                test="Queue and regret over those with geometric lengths and Bernoulli arrivals; the same means within a "
                f"factor of {SAME:g}, our choice.", findings=judged(others, between(1.0 / SAME, SAME)), ours=True,
            ),
        ]  # fmt: skip

    def _printed(self) -> Policy:
        return Sabr.as_printed(horizon=self.slots, V=published(Synthetic().example, self.slots))

    def _run(self, setting: Setting, policy: Policy) -> PlannedRun:
        return self.options.run(setting, policy, self.slots, most=MOST)


def _highest(record: Record, bound: float) -> Effect:
    path = record.paths["queue"].astype(np.float64)
    return effects.estimate(
        lambda keep: float(path[keep].mean(axis=0).max()) / bound, record.replications, "of the bound"
    )


def _draw_laws(axes: Axes, table: Table) -> None:
    for shift, (measure, colour) in zip((-0.12, 0.12), (("queue", style.BLUE), ("regret", style.PINK)), strict=True):
        for place, name in enumerate(LAWS):
            (row,) = table.where(policy=name, measure=f"{measure} by law").rows
            axes.plot([row["low"], row["high"]], [place + shift] * 2, color=colour, lw=2.0, alpha=0.6)
            axes.plot(row["mean"], place + shift, "o", color=colour, ms=6, label=measure)
    axes.set_yticks(range(len(LAWS)), [name.replace(" ", "\n", 1) for name in LAWS])
    axes.set_xlim(left=0.0)
    style.label(axes, "(f) Other laws of work", x="queue, regret")
