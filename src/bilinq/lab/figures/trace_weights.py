"""SABR against W-SABR on the cluster trace: holding cost and cumulative reward, a figure of the paper's appendix."""

from dataclasses import replace

import numpy as np

from bilinq import style
from bilinq.display import number
from bilinq.experiments import PlannedRun, Record
from bilinq.lab import effects
from bilinq.lab.claims import Claim, above, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table, curves
from bilinq.lab.presets import PRESETS, known
from bilinq.lab.trace import Trace
from bilinq.policies import Policy
from bilinq.style import Drawing, Look

TRACE = Trace()
COSTS = tuple(TRACE.example.holding_cost.tolist())  # the paper's: 7/4 for two classes, 1/4 for two, 1 for one
MOST = 50  # replications at most; all share the problem and the arrivals
CONTROL = "W-SABR at SABR's V"
LOOKS = {"SABR": Look(style.BLUE), "W-SABR": Look(style.ORANGE), CONTROL: Look(style.GREY, dashed=True)}


class TraceWeightsFigure(Figure):
    """Holding cost and cumulative reward of SABR and W-SABR, with W-SABR at SABR's V as a control."""

    name = "trace_weights"
    title = "Weights on the cluster trace"
    where = "Appendix, experiments using real-world data"
    see = "Compare the dashed line with the blue one: that part of the gap is due to the weights."
    horizon = TRACE.slots, TRACE.slots // 4

    def runs(self) -> dict[str, PlannedRun]:
        own, equal = TRACE.V(COSTS), TRACE.V()
        policies: dict[str, Policy] = {}
        for name, preset in PRESETS.items():
            policies |= {f"{name} SABR": preset.sabr(equal), f"{name} W-SABR": preset.sabr(own, COSTS)}
            policies[f"{name} {CONTROL}"] = preset.sabr(equal, COSTS)
        policies |= {"known SABR": known(equal), f"known {CONTROL}": known(equal, COSTS)}
        return {name: self.options.run(TRACE, policy, self.slots, most=MOST) for name, policy in policies.items()}

    def table(self, records: Records) -> Table:
        mine = {label: records[f"{self.options.preset} {label}"] for label in LOOKS}
        return curves(mine, ("holding_cost", "reward"))

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.lines(table, LOOKS, {"holding_cost": "Holding cost", "reward": "Cumulative reward"})
        for axes in panels:
            axes.set_ylim(bottom=0.0)
        return figure

    def caption(self, table: Table) -> str:
        cost = {label: number(table.where(policy=label, measure="holding_cost").average()) for label in LOOKS}
        reward = {label: number(table.where(policy=label, measure="reward").last()) for label in LOOKS}
        return (
            f"Averaged over time the holding cost is {cost['SABR']} for SABR (V = {number(TRACE.V())}) and {cost['W-SABR']} "
            f"for W-SABR (V = {number(TRACE.V(COSTS))}), each at the V of the public code's rule; the cumulative reward is "
            f"{reward['SABR']} and {reward['W-SABR']}. The dashed line is the control, W-SABR with SABR's V: cost "
            f"{cost[CONTROL]}, reward {reward[CONTROL]}. The part of the gap that remains there is due to the weights, the "
            f"rest to the smaller V, which serves more. {min(self.options.count, MOST)} replications of the same arrivals."
        )

    def claims(self, records: Records) -> list[Claim]:
        pairs = _pairs(records)
        cost = {text: _share(weighted, sabr, "holding_cost") for text, (weighted, sabr) in pairs.items()}
        reward = {text: _share(sabr, weighted, "reward") for text, (weighted, sabr) in pairs.items()}
        test = "Share of slots since the first arrival in which the mean of W-SABR is better; most means over half."
        return [
            Claim(
                "trace-weights-cost", "Appendix, real-world data",
                "W-SABR has a lower mean holding cost than SABR in most time steps.",
                test=test, findings=judged(cost, above(0.5)),
            ),
            Claim(
                "trace-weights-reward", "Appendix, real-world data",
                "W-SABR has a higher cumulative reward than SABR in most time steps.",
                test=test, findings=judged(reward, above(0.5)),
                note="The public code's rule gives W-SABR a smaller V. A smaller V serves more units in the same "
                "time, and the largest collections have more units than any policy here serves.",
            ),
        ]  # fmt: skip


def _pairs(records: Records) -> dict[str, tuple[Record, Record]]:
    both = f"V = {number(TRACE.V(COSTS))} and {number(TRACE.V())}"
    pairs = {}
    for name, preset in PRESETS.items():
        sabr = records[f"{name} SABR"]
        pairs[f"{preset.text}, {both}"] = records[f"{name} W-SABR"], sabr
        pairs[f"{preset.text}, both at V = {number(TRACE.V())}"] = records[f"{name} {CONTROL}"], sabr
    pairs[f"rewards known, both at V = {number(TRACE.V())}"] = records[f"known {CONTROL}"], records["known SABR"]
    return pairs


def _share(lower: Record, higher: Record, measure: str) -> Effect:
    """Return the share of the slots in which one mean is below the other."""
    first = TRACE.digest.arrivals(slot=TRACE.slot).jobs[:, 0].min() + 1
    gap = (higher.paths[measure] - lower.paths[measure])[:, lower.slot >= first].astype(np.float64)
    share = effects.estimate(lambda keep: float((gap[keep].mean(axis=0) > 0.0).mean()), len(gap), "of the slots")
    return replace(share, low=max(share.low, 0.0), high=min(share.high, 1.0))
