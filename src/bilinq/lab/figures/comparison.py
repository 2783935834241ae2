"""SABR against UGDA-OL: regret and queue over time, the paper's Figure 3."""

import numpy as np

from bilinq import style
from bilinq.display import number
from bilinq.experiments import PlannedRun, Record, Synthetic
from bilinq.lab import effects
from bilinq.lab.claims import Claim, below, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table, curves
from bilinq.lab.presets import PRESETS, known, order
from bilinq.policies import Policy
from bilinq.style import Drawing

SETTING = Synthetic()
STEPS = (0.4, 0.7, 1.4)  # multiples of V at which SABR is run too, to compare at an equal queue


class ComparisonFigure(Figure):
    """Regret and total queue of SABR, UGDA-OL and known rewards, all at the same V."""

    name = "comparison"
    title = "SABR against UGDA-OL"
    where = "Figure 3"
    see = "Look at the ends of the blue and the orange line: lower regret is better, but only at a similar queue."

    def runs(self) -> dict[str, PlannedRun]:
        shown, V = self.options.shown, self._V(self.options.preset)
        policies: dict[str, Policy] = {f"{shown.name} known": known(V)}
        policies |= {"thompson": PRESETS["calibrated"].sabr(V), "per class": PRESETS["calibrated"].ugda(V)}
        middle = order(SETTING.example, self.slots)
        policies |= {"order SABR": PRESETS["paper"].sabr(middle), "order UGDA-OL": PRESETS["paper"].ugda(middle)}
        for name, preset in PRESETS.items():
            V = self._V(name)
            policies |= {f"{name} SABR": preset.sabr(V), f"{name} UGDA-OL": preset.ugda(V)}
            policies |= {f"{name} SABR x{step}": preset.sabr(step * V) for step in STEPS}
        return {name: self.options.run(SETTING, policy, self.slots) for name, policy in policies.items()}

    def table(self, records: Records) -> Table:
        shown = self.options.preset
        lines = {"UGDA-OL": f"{shown} UGDA-OL", "SABR": f"{shown} SABR"}
        if shown != "calibrated":
            lines |= {"UGDA-OL, per class pair": "per class", "SABR, Thompson sampling": "thompson"}
        lines["rewards known"] = f"{shown} known"
        return curves({label: records[name] for label, name in lines.items()}, ("regret", "queue"))

    def draw(self, table: Table) -> Drawing:
        figure, (_, queue) = style.lines(table, style.POLICY_LOOKS, {"regret": "Regret", "queue": "Jobs in the system"})
        queue.set_ylim(bottom=0.0)
        return figure

    def caption(self, table: Table) -> str:
        ends = {str(p): number(table.where(policy=p, measure="regret").last()) for p in table.distinct("policy")}
        text = (
            f"All lines at V = {number(self._V(self.options.preset))}. After {self.slots} slots regret is {ends['SABR']} "
            f"for SABR, {ends['UGDA-OL']} for UGDA-OL and {ends['rewards known']} with rewards known."
        )
        if "SABR, Thompson sampling" in ends:
            text += (
                f" At the same V, SABR with Thompson sampling ends at {ends['SABR, Thompson sampling']} and UGDA-OL with "
                f"an index per class pair at {ends['UGDA-OL, per class pair']}. A policy that learns faster waits for "
                "better servers, so its queue is longer: compare both panels."
            )
        return text

    def claims(self, records: Records) -> list[Claim]:
        pairs = self._pairs(records)
        final = {
            name: effects.difference(one.samples["regret"], other.samples["regret"], "regret")
            for name, (one, other) in pairs.items()
        }
        for name, preset in PRESETS.items():
            sabr = [record for key, record in records.items() if key.startswith(f"{name} SABR")]
            equal = effects.gap_at_equal_queue(sabr, records[f"{name} UGDA-OL"], "regret")
            final[f"{preset.text}, at an equal queue"] = equal
        worst = {name: _worst(*pair) for name, pair in pairs.items()}
        return [
            Claim(
                "regret-below-ugda", "Section 5.2, Figure 3", "SABR ends with a lower regret than UGDA-OL.",
                test=f"SABR's regret less UGDA-OL's after {self.slots} slots on the same instances and arrivals, at "
                "the same V, and at the V at which SABR's time-average queue equals UGDA-OL's.",
                findings=judged(final, below(0.0)),
                note="With jobs of one unit UGDA-OL per job never learns: every job leaves with its first reward.",
            ),
            Claim(
                "regret-below-ugda-always", "Section 5.2, Figure 3",
                "SABR's regret is lower throughout, not only at the end.",
                test="The largest difference of mean regrets, SABR's less UGDA-OL's, over the slots of the second "
                "half.", findings=judged(worst, below(0.0)),
            ),
        ]  # fmt: skip

    def _V(self, preset: str) -> float:
        return PRESETS[preset].V(SETTING.example, self.slots, None)

    def _pairs(self, records: Records) -> dict[str, tuple[Record, Record]]:
        """Return SABR and UGDA-OL at the same V under each condition."""
        pairs = {
            f"{preset.text}, V = {number(self._V(name))}": (records[f"{name} SABR"], records[f"{name} UGDA-OL"])
            for name, preset in PRESETS.items()
        }
        middle = number(order(SETTING.example, self.slots))
        pairs[f"the paper's radius, V = {middle}"] = (records["order SABR"], records["order UGDA-OL"])
        return pairs


def _worst(one: Record, other: Record) -> Effect:
    """Return the largest mean difference of regrets over the second half of the slots."""
    gap = (one.paths["regret"] - other.paths["regret"])[:, one.slot > one.slot[-1] // 2].astype(np.float64)
    return effects.estimate(lambda keep: float(gap[keep].mean(axis=0).max()), len(gap), "regret")
