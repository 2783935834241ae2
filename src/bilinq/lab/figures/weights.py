"""SABR against W-SABR with unequal holding costs: the paper's Figure 4."""

import numpy as np

from bilinq import style
from bilinq.arrays import Array
from bilinq.display import number
from bilinq.experiments import PlannedRun, Record, Synthetic
from bilinq.lab import effects
from bilinq.lab.claims import Claim, Finding, above, below, between, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table, class_curves, curves
from bilinq.lab.presets import COSTS, PRESETS, known
from bilinq.policies import Policy
from bilinq.style import Axes, Drawing, Look

EXPENSIVE, CHEAP = slice(0, 5), slice(5, 10)
SETTING = Synthetic(holding_cost=COSTS)
STEPS = (0.25, 0.45, 0.7, 1.0)  # multiples of SABR's V at which W-SABR is run too, to compare at an equal queue
MARGIN = 1.25  # regrets whose ratio is within this factor count as similar
CONTROL = "W-SABR at SABR's V"
LOOKS = {"SABR": Look(style.BLUE), "W-SABR": Look(style.ORANGE), CONTROL: Look(style.GREY, dashed=True)}


class WeightsFigure(Figure):
    """Holding cost and regret of SABR and W-SABR, and the queue of every class under each."""

    name = "weights"
    title = "Weights that match holding costs"
    where = "Figure 4"
    see = (
        "Compare orange with blue for the whole effect of weights and a smaller V, and the dashed line with "
        "blue for weights alone."
    )

    def runs(self) -> dict[str, PlannedRun]:
        runs: dict[str, PlannedRun] = {}
        for name, preset in PRESETS.items():
            V, by_class = self._V(name), name == self.options.preset
            policies: dict[str, Policy] = {f"{name} SABR": preset.sabr(V)}
            policies[f"{name} W-SABR"] = preset.sabr(self._V(name, COSTS), COSTS)
            policies |= {f"{name} W-SABR x{step}": preset.sabr(step * V, COSTS) for step in STEPS}
            runs |= {key: self.options.run(SETTING, policies[key], self.slots, by_class=by_class) for key in policies}
        V = self._V("published")
        runs["known"] = self.options.run(SETTING, known(V), self.slots)
        runs["known, weighted"] = self.options.run(SETTING, known(V, COSTS), self.slots)
        return runs

    def table(self, records: Records) -> Table:
        shown = self.options.preset
        both = {"SABR": records[f"{shown} SABR"], "W-SABR": records[f"{shown} W-SABR"]}
        lines = both if self._same_V(shown) else both | {CONTROL: records[f"{shown} W-SABR x1.0"]}
        return curves(lines, ("holding_cost", "regret", "queue")) + class_curves(both)

    def draw(self, table: Table) -> Drawing:
        figure, (cost, regret, weighted, equal) = style.panels(2, 2, height=3.1)
        for policy in table.where(measure="regret").distinct("policy"):
            mine, look = table.where(policy=policy), LOOKS[str(policy)]
            style.curve(cost, mine.where(measure="holding_cost"), look, str(policy))
            style.curve(regret, mine.where(measure="regret"), look)
        style.label(cost, "(a) Holding cost")
        style.label(regret, "(b) Regret")
        queues = table.where(measure="queue_of_class")
        _draw_classes(weighted, queues.where(policy="W-SABR"), "(c) Queue of each class, W-SABR")
        _draw_classes(equal, queues.where(policy="SABR"), "(d) Queue of each class, SABR")
        top = max(weighted.get_ylim()[1], equal.get_ylim()[1])
        for axes in (weighted, equal):
            axes.set_ylim(0.0, top)
        cost.set_ylim(bottom=0.0)
        style.legend(figure, [cost, weighted])
        return figure

    def caption(self, table: Table) -> str:
        shown = self.options.preset
        cost = {str(p): table.where(policy=p, measure="holding_cost").average() for p in table.distinct("policy")}
        text = (
            f"Half of the classes cost 7/4 per job and slot, half 1/4. Averaged over time the holding cost is "
            f"{number(cost['SABR'])} for SABR (V = {number(self._V(shown))}) and {number(cost['W-SABR'])} for W-SABR "
            f"(V = {number(self._V(shown, COSTS))})."
        )
        if CONTROL in cost:
            middle = (cost["SABR"] + cost["W-SABR"]) / 2
            share = "most" if cost[CONTROL] > middle else "little"
            text += (
                f" The dashed line is the control: W-SABR with SABR's V costs {number(cost[CONTROL])}, so {share} of the "
                "gain in (a) comes from the smaller V that the rule gives to W-SABR."
            )
        return text + " In (c) and (d) thin lines are single classes and thick ones the mean of a cost group."

    def claims(self, records: Records) -> list[Claim]:
        return [claim(records) for claim in (self._cost_claim, self._regret_claim, self._order_claim, self._even_claim)]

    def _cost_claim(self, records: Records) -> Claim:
        found: dict[str, Effect] = {}
        for name, preset in PRESETS.items():
            found |= self._against_sabr(records, name, "holding_cost")
            weighted = [records[f"{name} W-SABR x{step}"] for step in STEPS]
            equal = effects.ratio_at_equal_queue(weighted, records[f"{name} SABR"], "holding_cost", "times SABR's")
            found[f"{preset.text}, at an equal total queue"] = equal
        known = _ratio(records["known, weighted"], records["known"], "holding_cost")
        found[f"rewards known, both at V = {number(self._V('published'))}"] = known
        return Claim(
            "weights-lower-cost", "Section 5.2, Figure 4 (a)", "W-SABR has a lower overall holding cost than SABR.",
            test="Time-average holding cost of W-SABR over that of SABR, same instances and arrivals: each at the V "
            "of its rule, both at SABR's V, and at the V at which W-SABR has SABR's total queue.",
            findings=judged(found, below(1.0)),
            note="By Eq. (21), if costs average one, weights that match the costs do not change the stationary "
            "holding cost, and they make the queue longer: judge the gain at an equal V.",
        )  # fmt: skip

    def _regret_claim(self, records: Records) -> Claim:
        found: dict[str, Effect] = {}
        for name in PRESETS:
            found |= self._against_sabr(records, name, "regret")
        return Claim(
            "weights-similar-regret", "Section 5.2, Figure 4 (b)", "W-SABR and SABR have similar regret.",
            test=f"Regret of W-SABR over that of SABR after {self.slots} slots; similar means within a factor of "
            f"{MARGIN:g}, our choice.", findings=judged(found, between(1 / MARGIN, MARGIN)),
            note="Jobs that still wait at the end count as regret, and W-SABR has more of them at the same V.",
        )  # fmt: skip

    def _order_claim(self, records: Records) -> Claim:
        found = {}
        for name, preset in PRESETS.items():
            sabr, weighted = records[f"{name} SABR"], records[f"{name} W-SABR"]
            expensive, cheap, same = _group(weighted, EXPENSIVE), _group(weighted, CHEAP), _group(sabr, EXPENSIVE)
            theirs = {"low-cost classes": cheap, "the same classes under SABR": same}
            for text, queue in theirs.items():
                found[f"{preset.text}, against {text}"] = effects.ratio(expensive, queue, "times theirs")
        return Claim(
            "weights-shorter-queues", "Section 5.2, Figure 4 (c)",
            "W-SABR keeps the queues of high-cost classes short.",
            test="Time-average queue of the high-cost classes under W-SABR over that of the low-cost classes under "
            "W-SABR, and over that of the same classes under SABR.", findings=judged(found, below(1.0)),
        )  # fmt: skip

    def _even_claim(self, records: Records) -> Claim:
        findings = []
        for name, preset in PRESETS.items():
            sabr, weighted = records[f"{name} SABR"], records[f"{name} W-SABR"]
            ratio = effects.ratio(_group(sabr, EXPENSIVE), _group(sabr, CHEAP), "high over low")
            spread = effects.difference(_spread(weighted), _spread(sabr), "difference")
            findings += [
                Finding(f"{preset.text}, high-cost against low-cost classes", ratio, between(0.9, 1.1)),
                Finding(f"{preset.text}, spread over classes, W-SABR less SABR", spread, above(0.0)),
            ]
        return Claim(
            "equal-weights-even-queues", "Section 5.2, Figure 4 (d)", "SABR balances queues over classes more evenly.",
            test="Under SABR the ratio of the queues of both cost groups, even meaning within 10 %; and the spread of "
            "queues over classes, W-SABR's coefficient of variation less SABR's.", findings=tuple(findings),
        )  # fmt: skip

    def _against_sabr(self, records: Records, name: str, measure: str) -> dict[str, Effect]:
        """Return a measure of W-SABR over SABR's: each at the V of its rule, and both at SABR's V if that differs."""
        sabr, text = records[f"{name} SABR"], PRESETS[name].text
        found = {f"{text}, {self._both_V(name)}": _ratio(records[f"{name} W-SABR"], sabr, measure)}
        if not self._same_V(name):
            equal = _ratio(records[f"{name} W-SABR x1.0"], sabr, measure)
            found[f"{text}, both at V = {number(self._V(name))}"] = equal
        return found

    def _V(self, preset: str, weight: tuple[float, ...] | None = None) -> float:
        return PRESETS[preset].V(SETTING.example, self.slots, weight)

    def _same_V(self, preset: str) -> bool:
        return self._V(preset) == self._V(preset, COSTS)

    def _both_V(self, preset: str) -> str:
        if self._same_V(preset):
            return f"both at V = {number(self._V(preset))}"
        return f"V = {number(self._V(preset, COSTS))} and {number(self._V(preset))}"


def _draw_classes(axes: Axes, table: Table, title: str) -> None:
    groups = {"cost 7/4": (style.PINK, range(1, 6)), "cost 1/4": (style.GREEN, range(6, 11))}
    for text, (colour, classes) in groups.items():
        parts = [table.where(job_class=i) for i in classes]
        for part in parts:
            axes.plot(part.numbers("slot"), part.numbers("mean"), color=colour, lw=0.8, alpha=0.55)
        group = np.mean([part.numbers("mean") for part in parts], axis=0)
        axes.plot(parts[0].numbers("slot"), group, color=colour, lw=2.2, label=text)
    style.label(axes, title)


def _group(record: Record, classes: slice) -> Array:
    """Return the time-average queue of some classes together (R,)."""
    return np.asarray(record.samples["queue_of_class"][:, classes].sum(axis=1))


def _spread(record: Record) -> Array:
    """Return the coefficient of variation of time-average queues over classes (R,)."""
    queues = record.samples["queue_of_class"]
    return np.asarray(queues.std(axis=1) / queues.mean(axis=1))


def _ratio(one: Record, other: Record, measure: str) -> Effect:
    return effects.ratio(one.samples[measure], other.samples[measure], "times SABR's")
