"""The trade-off that V controls: regret against the queue while V varies, and where the rules for V put it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bilinq import style
from bilinq.arrays import Array, IntArray
from bilinq.display import number
from bilinq.experiments import PlannedRun, Record, Synthetic
from bilinq.lab import effects
from bilinq.lab.claims import Claim, below, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import PRESETS, known, least_bound, order, published, serve_once
from bilinq.policies import KnownRewards, Policy
from bilinq.style import Axes, Drawing, Look, log_axis

TINY, SMALL = 1 / 32, 1 / 8
STEPS = (TINY, SMALL, 1 / 4, 2.0)  # multiples of sqrt(I T) that are run in addition to the rules for V
RULES = {"V = sqrt(I T)": order, "V of the public code": published, "V at the least bound": least_bound}
MARKS = {"V = sqrt(I T)": "o", "V of the public code": "s", "V at the least bound": "D"}
MARGIN = 0.1  # how far above one the measured slope of a queue that grows linearly may be

Maker = Callable[[float], Policy]
DRAWN: dict[str, Maker] = {
    "Thompson sampling": PRESETS["calibrated"].sabr,
    "public code radius": PRESETS["published"].sabr,
    "printed radius": PRESETS["paper"].sabr,
    "rewards known": known,
}
SINGLE: dict[str, Maker] = {
    "Thompson sampling": lambda V: serve_once(PRESETS["calibrated"].sabr(V)),
    "rewards known": lambda V: KnownRewards(V=V),
}
LOOKS = {
    "Thompson sampling": Look(style.BLUE),
    "public code radius": Look(style.SKY),
    "printed radius": Look(style.GREEN),
    "rewards known": Look(style.GREY, dashed=True),
}


@dataclass(frozen=True)
class Scene:
    """Where V is varied: its name in texts, a setting, and the policies by the name of their line."""

    text: str
    setting: Synthetic
    policies: dict[str, Maker]


SCENES = {
    "a": Scene("load 0.25, the paper's draws", Synthetic(), DRAWN),
    "b": Scene("load 0.25, no job served twice", Synthetic(), SINGLE),
    "c": Scene("load 0.5, no job served twice", Synthetic(traffic=2.0, law="poisson"), SINGLE),
}
"""By the letter of the panel."""
LINES = [(key, policy, f"{scene.text}, {policy}") for key, scene in SCENES.items() for policy in scene.policies]
"""Scene, policy, and how findings name them."""


class TradeoffFigure(Figure):
    """Regret over the time-average queue along V, under the paper's draws and without double pay."""

    name = "tradeoff"
    title = "What V trades"
    where = "Remark 3.6, Theorem 3.4"
    see = "Follow a line from left to right: V grows, and regret should fall until the mark of a rule for V."
    horizon = 500, 62

    def runs(self) -> dict[str, PlannedRun]:
        return {
            _name(key, policy, step): self.options.run(scene.setting, make(V), self.slots)
            for key, scene in SCENES.items()
            for step, V in self._grid(key).items()
            for policy, make in scene.policies.items()
        }

    def table(self, records: Records) -> Table:
        rows = []
        for key, policy, _ in LINES:
            for step, V in self._grid(key).items():
                record = records[_name(key, policy, step)]
                queues = {"queue": float(record.samples["queue"].mean()), "late_queue": float(_late(record).mean())}
                cells = {"scene": key, "policy": policy, "V": V, "rule": step if step in RULES else ""}
                rows.append(cells | queues | effects.mean(record.samples["regret"]).row())
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.panels(2, 2, height=3.2)
        for axes, (key, scene) in zip(panels, SCENES.items(), strict=False):
            _draw_scene(axes, table.where(scene=key), f"({key}) {scene.text.capitalize()}")
        _draw_queue(panels[3], table.where(scene="a"))
        for rule, mark in MARKS.items():
            panels[0].plot([], [], mark, color=style.INK, ms=5.5, label=rule)
        style.legend(figure, panels[0], columns=4)
        return figure

    def caption(self, table: Table) -> str:
        def least(key: str) -> str:
            mine = table.where(scene=key, policy="Thompson sampling")
            best = mine.rows[int(mine.numbers("mean").argmin())]
            return f"V = {number(best['V'])} (regret {number(best['mean'])})"

        def at(key: str, rule: str) -> str:
            return number(table.where(scene=key, policy="Thompson sampling", rule=rule).last())

        return (
            f"T = {self.slots}; along each line V grows from left to right, marks show the rules for V. (a) Small V puts "
            "several servers on one job, all are paid, and regret becomes negative. In (b) and (c) no job has two servers: "
            f"with Thompson sampling the best V tried is {least('b')} at load 0.25 and {least('c')} at load 0.5, "
            f"where sqrt(I T) gives {at('b', 'V = sqrt(I T)')} and {at('c', 'V = sqrt(I T)')}, and the V at the "
            f"least bound {at('b', 'V at the least bound')} and {at('c', 'V at the least bound')}. (d) The queue of "
            "the last quarter under the paper's draws; dotted: proportional to V."
        )

    def claims(self, records: Records) -> list[Claim]:
        return [self._queue_claim(records), self._regret_claim(records), self._rule_claim(records)]

    def _queue_claim(self, records: Records) -> Claim:
        growth = {text: self._growth(records, key, policy) for key, policy, text in LINES if key != "b"}
        return Claim(
            "queue-linear-in-V", "Theorem 3.4", "The queue grows with V, at most linearly.",
            test=f"Slope of log mean queue, last quarter of {self.slots} slots, over log V from an eighth to twice "
            f"sqrt(I T); at most 1 and {MARGIN:g} more for noise, our choice.", findings=judged(growth, below(1.0 + MARGIN)),
            note="Slopes are close to 1: the queue is proportional to V, as the rule of thumb of Eq. (21) predicts.",
        )  # fmt: skip

    def _regret_claim(self, records: Records) -> Claim:
        ranges = {
            "1/32 to 1/8 of sqrt(I T)": (f"{TINY:g}", f"{SMALL:g}"),
            "1/8 of sqrt(I T) to all of it": (f"{SMALL:g}", "V = sqrt(I T)"),
        }
        changes = {
            f"{text}, V from {span}": _change(records, key, policy, *ends)
            for key, policy, text in LINES
            for span, ends in ranges.items()
        }
        return Claim(
            "V-lowers-regret", "Remark 3.6, Corollary 3.2",
            "V trades regret for queue: up to the order sqrt(I T) a larger V lowers regret.",
            test=f"Change of regret after {self.slots} slots as V grows, the same instances and arrivals.",
            findings=judged(changes, below(0.0)),
            note="Regret has three parts: jobs left in the queue (grows with V); jobs sent to a worse server too "
            "early (falls with V, if good servers are scarce); and, under the paper's draws, pay for serving one job "
            "twice (negative, large for small V). The term I T / V of the bound covers the second.",
        )  # fmt: skip

    def _rule_claim(self, records: Records) -> Claim:
        ends = "V = sqrt(I T)", "V at the least bound"
        changes = {text: _change(records, key, policy, *ends) for key, policy, text in LINES}
        least, usual = (number(rule(Synthetic().example, self.slots)) for rule in (least_bound, order))
        return Claim(
            "least-bound-V-is-good", "Section 5.1",
            "Regret at the V that minimises the bound is below that at V = sqrt(I T).",
            test=f"Regret at the V that minimises the bound less regret at V = sqrt(I T), after {self.slots} slots; V "
            f"is {least} and {usual} at load 0.25.", findings=judged(changes, below(0.0)), ours=True,
            note="The paper says that V was chosen in this way, without a value, and does not say that it is the best. At "
            "this V the queue still grows at the end.",
        )  # fmt: skip

    def _grid(self, key: str) -> dict[str, float]:
        """Return the values of V of a scene by their names, ascending."""
        example = SCENES[key].setting.example
        steps = self.options.pick(STEPS, quick=(TINY, SMALL, 2.0))
        grid = {f"{step:g}": step * order(example, self.slots) for step in steps}
        grid |= {name: rule(example, self.slots) for name, rule in RULES.items()}
        return dict(sorted(grid.items(), key=lambda entry: entry[1]))

    def _growth(self, records: Records, key: str, policy: str) -> Effect:
        """Return the slope of the queue over V, for the V at which the queue has had time to fill."""
        scale = order(SCENES[key].setting.example, self.slots)
        grid = {name: V for name, V in self._grid(key).items() if SMALL * scale <= V <= 2.0 * scale}
        queues = [_late(records[_name(key, policy, name)]) for name in grid]

        def statistic(keep: IntArray) -> float:
            return effects.slope(np.array(list(grid.values())), np.array([queue[keep].mean() for queue in queues]))

        return effects.estimate(statistic, self.options.count, "slope")


def _name(key: str, policy: str, step: str) -> str:
    return f"{key}, {policy}, {step}"


def _late(record: Record) -> Array:
    """Return the mean queue in the last quarter (R,)."""
    path = record.paths["queue"][:, record.slot > 0.75 * record.slot[-1]].astype(np.float64)
    return np.asarray(path.mean(axis=1))


def _change(records: Records, key: str, policy: str, start: str, end: str) -> Effect:
    before, after = (records[_name(key, policy, step)].samples["regret"] for step in (start, end))
    return effects.difference(after, before, "regret")


def _draw_scene(axes: Axes, table: Table, title: str) -> None:
    """Draw regret over the queue up to V = sqrt(I T), with a text for the V at the least bound, which is outside."""
    for policy in table.distinct("policy"):
        mine = table.where(policy=policy)
        style.curve(axes, mine, LOOKS[str(policy)], str(policy), x="queue")
        _draw_marks(axes, mine, LOOKS[str(policy)], x="queue", y="mean")
    shown = Table([row for row in table.rows if row["V"] <= table.where(rule="V = sqrt(I T)").last("V")])
    top = 1.4 * max(shown.numbers("mean").max(), 1.0)
    axes.set_ylim(max(shown.numbers("low").min() - 0.1 * top, -1.2 * top), top)
    log_axis(axes, "x", shown.numbers("queue"))
    axes.axhline(0.0, color=style.GREY, lw=0.8, zorder=1)
    beyond = table.where(policy="Thompson sampling", rule="V at the least bound").rows[0]
    text = f"least bound, V = {number(beyond['V'])}:\nqueue {number(beyond['queue'])}, regret {number(beyond['mean'])}"
    axes.text(0.03, 0.97, text, transform=axes.transAxes, va="top", color=style.BLUE, fontsize=8.5)
    style.label(axes, title, x="time-average queue", y="regret")


def _draw_queue(axes: Axes, table: Table) -> None:
    for policy in table.distinct("policy"):
        mine, look = table.where(policy=policy), LOOKS[str(policy)]
        points = [{"V": row["V"]} | effects.exact(row["late_queue"]).row() for row in mine.rows]
        style.curve(axes, Table(points), look, x="V")
        _draw_marks(axes, mine, look, x="V", y="late_queue")
    V, queue = np.sort(table.numbers("V")), table.numbers("late_queue")
    axes.plot(V, 0.7 * V, color=style.GREY, lw=1.0, ls=":")
    log_axis(axes, "x", V)
    log_axis(axes, "y", queue)
    style.label(axes, "(d) Queue at the end, load 0.25", x="V", y="jobs")


def _draw_marks(axes: Axes, table: Table, look: Look, x: str, y: str) -> None:
    for rule, mark in MARKS.items():
        mine = table.where(rule=rule)
        axes.plot(mine.numbers(x), mine.numbers(y), mark, color=look.colour, ms=5.5, zorder=2.5 if look.dashed else 4)
