"""Other policies that a referee asks for: c-mu beside W-SABR, other learners with the same dispatch, V without a horizon."""

from bilinq import style
from bilinq.display import number
from bilinq.experiments import LowRank, PlannedRun, Setting, Synthetic
from bilinq.lab import effects
from bilinq.lab.claims import Claim, below, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import COSTS, POSTERIOR, order
from bilinq.policies import CMu, Greedy, MaxWeight, Policy, Sabr, UgdaOl
from bilinq.style import Axes, Drawing

LOADS = (0.25, 0.75)
LONG = 6  # length of the features where the parameter has rank one
MOST = 50  # replications at most
SHARE = 0.1  # V of SABR as a share of sqrt(I T): the V that suits these horizons, see the figure on loads
SABR, WEIGHTED, CALIBRATED, LOW_RANK, GROWING, DOUBLING, ROOT = (
    "SABR, Thompson sampling", "W-SABR, Thompson sampling", "SABR, calibrated UCB", "SABR, rank one", "V growing",
    "V doubling", "V = sqrt(I T)",
)  # fmt: skip
C_MU, GENERAL, MAX_WEIGHT, GREEDY = "c-mu", "generalised c-mu", "MaxWeight, learning", "greedy"
UGDA, WEIGHTED_UGDA = "UGDA-OL", "UGDA-OL, weighted"
RANK_ONE = ("rank one, cut", "rank one, not cut")  # the same two policies where the parameter has rank one
LOOKS = {
    SABR: (style.BLUE, "o"), WEIGHTED: (style.ORANGE, "o"), CALIBRATED: (style.BLUE, "^"), LOW_RANK: (style.BLUE, "D"),
    GROWING: (style.SKY, "s"), DOUBLING: (style.SKY, "P"), ROOT: (style.SKY, "X"), C_MU: (style.PINK, "s"),
    GENERAL: (style.PINK, "o"), MAX_WEIGHT: (style.GREEN, "s"), GREEDY: (style.GREEN, "o"), UGDA: (style.AMBER, "^"),
    WEIGHTED_UGDA: (style.AMBER, "v"),
}  # fmt: skip
"""Colour and marker of each policy."""


class PoliciesFigure(Figure):
    """Regret over holding cost of thirteen policies at two loads; no job is served twice."""

    name = "policies"
    title = "What a referee asks for: other policies"
    where = "beyond the paper"
    see = "Lower left is better: compare regrets of policies that wait at a similar cost."
    horizon = 500, 62

    def runs(self) -> dict[str, PlannedRun]:
        runs = {}
        for load in LOADS:
            settings: dict[str, Setting] = dict.fromkeys(LOOKS, _setting(load))
            settings |= dict.fromkeys(RANK_ONE, LowRank(_setting(load, LONG), 1))
            for name, policy in self._policies().items():
                runs[f"{name} {load}"] = self.options.run(settings[name], policy, self.slots, most=MOST)
        return runs

    def table(self, records: Records) -> Table:
        rows = []
        for load in LOADS:
            for name in LOOKS:
                samples = records[f"{name} {load}"].samples
                cost = float(samples["holding_cost"].mean())
                rows.append({"load": load, "policy": name, "cost": cost, **effects.mean(samples["regret"]).row()})
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.panels(height=4.0)
        for axes, load in zip(panels, LOADS, strict=True):
            _draw_load(axes, table.where(load=load), f"Load {load:g}")
        panels[0].set_ylabel("regret")
        style.legend(figure, panels, columns=4)
        return figure

    def caption(self, table: Table) -> str:
        def at(policy: str, load: float, column: str = "mean") -> str:
            return number(table.where(policy=policy, load=load).last(column))

        high = LOADS[-1]
        return (
            "The c-mu rules know costs and rates, never wait, and use learnt rewards only between classes of equal cost. "
            f"At load {high:g} the holding cost is {at(C_MU, high, 'cost')} for c-mu, "
            f"{at(WEIGHTED, high, 'cost')} for W-SABR and {at(SABR, high, 'cost')} for SABR, both at a tenth of sqrt(I T); "
            f"regret is {at(C_MU, high)}, {at(WEIGHTED, high)} and {at(SABR, high)}. "
            f"UGDA-OL with the same weights and V has cost {at(WEIGHTED_UGDA, high, 'cost')} and regret "
            f"{at(WEIGHTED_UGDA, high)}. V that grows without a horizon has regret {at(GROWING, high)}, "
            f"V = sqrt(I T) {at(ROOT, high)}. Half of the classes cost 7/4 per job and slot, "
            f"half 1/4; T = {self.slots}; no job is served twice; {min(self.options.count, MOST)} instances."
        )

    def claims(self, records: Records) -> list[Claim]:
        cost, reward, rank, anytime = {}, {}, {}, {}
        baseline: dict[str, Effect] = {}
        for load in LOADS:
            for rule in (C_MU, GENERAL):
                cost[f"against {rule}, load {load:g}"] = _compared(records, WEIGHTED, rule, load, "holding_cost")
                reward[f"against {rule}, load {load:g}"] = _compared(records, WEIGHTED, rule, load, "regret")
            held = _compared(records, WEIGHTED_UGDA, WEIGHTED, load, "holding_cost")
            lost = _compared(records, WEIGHTED, WEIGHTED_UGDA, load, "regret")
            baseline |= {f"UGDA-OL costs less, load {load:g}": held, f"W-SABR has less regret, load {load:g}": lost}
            rank[f"d = 2, full rank, load {load:g}"] = _compared(records, LOW_RANK, SABR, load, "regret")
            rank[f"d = {LONG}, rank one, load {load:g}"] = _compared(records, *RANK_ONE, load, "regret")
            for name in (GROWING, DOUBLING):
                anytime[f"{name}, load {load:g}"] = _compared(records, name, ROOT, load, "regret")
        test = f"after {self.slots} slots on the same instances and arrivals"
        return [
            Claim(
                "weights-cheaper-than-c-mu", "Theorem 3.5", "W-SABR has a lower holding cost than the c-mu rules.",
                test=f"Holding cost of W-SABR at a tenth of sqrt(I T) less that of the rule, {test}.",
                findings=judged(cost, below(0.0)), ours=True,
                note="The c-mu rules know costs and rates and never let a server idle while a job waits; W-SABR waits.",
            ),
            Claim(
                "weights-earn-more-than-c-mu", "Theorem 3.5", "W-SABR earns more than the c-mu rules.",
                test=f"Regret of W-SABR at a tenth of sqrt(I T) less that of the rule, {test}.",
                findings=judged(reward, below(0.0)), ours=True,
            ),
            Claim(
                "weighted-baseline-waits-less", "Section 5",
                "UGDA-OL with the same weights and V costs less to hold, and W-SABR earns more.",
                test=f"Holding cost of UGDA-OL by class less that of W-SABR, and regret the other way round, {test}.",
                findings=judged(baseline, below(0.0)), ours=True,
                note="Weights are not part of UGDA-OL as published.",
            ),
            Claim(
                "low-rank-helps", "Section 1.2", "A low-rank bilinear bandit loses less than the full one.",
                test=f"Regret of SABR with samples cut to rank one less that without, {test}.",
                findings=judged(rank, below(0.0)), ours=True,
                note="The paper's Theta has 2 x 2 random entries between 0 and 1: close to rank one, but not of rank one. "
                f"The other conditions have the best case for such a policy, {LONG} x {LONG} entries of rank one.",
            ),
            Claim(
                "anytime-V-is-as-good", "Remark 3.7", "V that grows without a horizon has less regret than V = sqrt(I T).",
                test=f"Regret with V = sqrt(I t), or doubling, less that with V = sqrt(I T), {test}.",
                findings=judged(anytime, below(0.0)), ours=True,
            ),
        ]  # fmt: skip

    def _policies(self) -> dict[str, Policy]:
        V = order(Synthetic().example, self.slots)
        return {
            SABR: Sabr(V=SHARE * V, scale=POSTERIOR), WEIGHTED: Sabr(V=SHARE * V, scale=POSTERIOR, weight=COSTS),
            CALIBRATED: Sabr(V=SHARE * V, radius="calibrated"), LOW_RANK: Sabr(V=SHARE * V, scale=POSTERIOR, rank=1),
            GROWING: Sabr(anytime="growing", scale=POSTERIOR), DOUBLING: Sabr(anytime="doubling", scale=POSTERIOR),
            ROOT: Sabr(V=V, scale=POSTERIOR), C_MU: CMu(), GENERAL: CMu(generalised=True), MAX_WEIGHT: MaxWeight(),
            GREEDY: Greedy(), UGDA: UgdaOl(V=SHARE * V, learning="class"),
            WEIGHTED_UGDA: UgdaOl(V=SHARE * V, learning="class", weight=COSTS),
            RANK_ONE[0]: Sabr(V=SHARE * V, scale=POSTERIOR, rank=1), RANK_ONE[1]: Sabr(V=SHARE * V, scale=POSTERIOR),
        }  # fmt: skip


def _setting(load: float, dimension: int = 2) -> Synthetic:
    return Synthetic(traffic=4.0 * load, law="poisson", holding_cost=COSTS, dimension=dimension)


def _compared(records: Records, one: str, other: str, load: float, measure: str) -> Effect:
    a, b = (records[f"{name} {load}"].samples[measure] for name in (one, other))
    return effects.difference(a, b, measure.replace("_", " "))


def _draw_load(axes: Axes, table: Table, title: str) -> None:
    for name, (colour, marker) in LOOKS.items():
        (row,) = table.where(policy=name).rows
        axes.plot([row["cost"]] * 2, [row["low"], row["high"]], color=colour, lw=1.6, alpha=0.6)
        axes.plot(row["cost"], row["mean"], ls="", marker=marker, color=colour, ms=7, label=name)
    style.log_axis(axes, "x", table.numbers("cost"))
    style.label(axes, title, x="holding cost per slot")
