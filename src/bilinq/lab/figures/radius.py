"""The confidence radius: why the printed one learns nothing in 500 slots, and what other radii cost."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from bilinq import style
from bilinq.arrays import Array
from bilinq.display import number
from bilinq.experiments import PlannedRun, Record, Setting, Synthetic
from bilinq.experiments.settings import SEED_STEP
from bilinq.lab import effects
from bilinq.lab.claims import Claim, Finding, above, below, judged
from bilinq.lab.effects import Effect, learnt, price, price_gap
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import known, published, sabr, ugda
from bilinq.learning import BilinearState, Outcome
from bilinq.policies import Policy, Sabr
from bilinq.policies.fair import FairState
from bilinq.problem.instances import Instances
from bilinq.simulation import simulate
from bilinq.style import Axes, Drawing, Look

SETTING = Synthetic()
QUEUE = 15.0  # time-average queue at which policies are compared; that of the public code's radius at its V
STEPS = (0.5, 0.7, 1.0, 1.4)  # multiples of V; the range contains the V at which each policy has that queue
LEAST = 0.1  # share of the gap between no learning and known rewards that a policy must close to count as learning
LONG = 5000  # slots of the longer runs
LONG_STEPS = {"no learning": (1.0,), "printed radius": (1.0,), "rewards known": (0.3, 0.5, 1.0)}
FEW = 20  # replications of the longer runs, at most
WATCHED = 10  # times as many instances whose indices and estimates are recorded: a set that fails once in T needs many

POLICIES: dict[str, Callable[[float], Policy]] = {
    # one-unit jobs leave before their index is used again: every index is 1
    "no learning": lambda V: ugda(V, "job"),
    "printed radius": lambda V: sabr(V, radius="paper"),
    "public code radius": lambda V: sabr(V, radius="published"),
    "calibrated radius": lambda V: sabr(V, radius="calibrated"),
    "Thompson sampling": sabr,
    "no exploration": lambda V: sabr(V, exploration="none"),
    "rewards known": known,
}
COLOURS = {
    "printed radius": style.GREEN, "public code radius": style.SKY, "calibrated radius": style.PINK,
    "Thompson sampling": style.BLUE,
}  # fmt: skip
"""The policies that explore; others are grey."""
RADII = tuple(COLOURS)[:3]
FACTORS = tuple((k + 1) / 20 for k in range(20))  # by which radii are shortened, to see how much too long they are


class RadiusFigure(Figure):
    """Radius and clipped indices over time, and regret of seven ways to learn at equal V and at an equal queue."""

    name = "radius"
    title = "The confidence radius"
    where = "Algorithm 1, Section 5"
    see = "Look at the share of indices that are still one: a policy whose indices are all one has learnt nothing."
    horizon = 500, 62

    def runs(self) -> dict[str, PlannedRun]:
        V, slots = published(SETTING.example, self.slots), self._long()
        runs = {
            f"{name} x{step}": self.options.run(SETTING, make(step * V), self.slots)
            for name, make in POLICIES.items()
            for step in STEPS
        }
        for name, steps in LONG_STEPS.items():
            for step in steps:
                runs[f"long {name} x{step}"] = self.options.run(SETTING, POLICIES[name](step * V), slots, most=FEW)
        return runs

    def table(self, records: Records) -> Table:
        rows = [row for name in RADII for row in self._recorded(name)]
        known = _at_all_V(records, "rewards known")
        for name in POLICIES:
            regret = effects.mean(records[f"{name} x1.0"].samples["regret"])
            rows.append({"policy": name, "measure": "regret", **regret.row()})
            if name != "rewards known":
                paid = price(_at_all_V(records, name), known, QUEUE)
                rows.append({"policy": name, "measure": "price", **paid.row()})
        for name in RADII:
            furthest = np.max(self._watched(name).distance, axis=0)
            for factor in FACTORS:
                row = effects.share(furthest <= factor).row()
                rows.append({"policy": name, "measure": "covered", "factor": factor, **row})
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, (radius, clipped, distance, covered, regret, paid) = style.panels(3, 2, height=2.7)
        for name in RADII:
            mine, look = table.where(policy=name), Look(COLOURS[name])
            style.curve(radius, mine.where(measure="radius"), look, name)
            style.curve(clipped, mine.where(measure="clipped"), look)
            style.curve(distance, mine.where(measure="distance"), look)
            style.curve(covered, mine.where(measure="covered"), look, x="factor")
        style.label(radius, "(a) Confidence radius")
        radius.set_yscale("log")
        radius.set_yticks([0.2, 0.5, 1.0, 2.0, 5.0, 10.0], ["0.2", "0.5", "1", "2", "5", "10"])
        radius.minorticks_off()
        style.label(clipped, "(b) Share of indices that are 1")
        style.label(distance, "(c) Error over the radius")
        distance.axhline(1.0, color=style.GREY, lw=1.2, ls=style.DASHED)
        style.label(covered, "(d) Sets that contain the truth", x="factor by which the radius is shortened")
        for axes in (clipped, distance, covered):
            axes.set_ylim(0.0, 1.05)
        _draw_dots(regret, table.where(measure="regret"), "(e) Regret at equal V")
        _draw_dots(paid, table.where(measure="price"), f"(f) Price of learning at queue {QUEUE:g}")
        style.legend(figure, radius)
        return figure

    def caption(self, table: Table) -> str:
        clipped = {name: table.where(policy=name, measure="clipped").last() for name in RADII}
        paid = {str(p): table.where(policy=p, measure="price").last() for p in POLICIES if p != "rewards known"}
        inside = ", ".join(f"{table.where(policy=name, measure='covered').last():.1%}" for name in RADII)
        return (
            f"With the printed radius {clipped['printed radius']:.0%} of all indices are still clipped at 1 after "
            f"{self.slots} slots, with the public code's {clipped['public code radius']:.0%}, with one that uses the noise "
            f"scale {clipped['calibrated radius']:.0%}. (c) The set contains the truth up to the dashed line. (d) Share of "
            f"{self._count():,} instances whose set contains it in all slots: {inside} with the whole radius. In (e) all "
            f"run at V = {number(published(SETTING.example, self.slots))}; higher indices serve faster, so queues differ. "
            f"(f) compares at an equal queue: relative to known rewards the printed radius costs "
            f"{number(paid['printed radius'])}, no learning {number(paid['no learning'])}, Thompson sampling "
            f"{number(paid['Thompson sampling'])}."
        )

    def claims(self, records: Records) -> list[Claim]:
        known, blind = _at_all_V(records, "rewards known"), _at_all_V(records, "no learning")
        guess, learners = _at_all_V(records, "no exploration"), {x: _at_all_V(records, x) for x in COLOURS}
        shares = {f"{x}, T = {self.slots}": learnt(mine, blind, known, QUEUE) for x, mine in learners.items()}
        nothing, printed, ideal = ([records[f"long {x} x{step}"] for step in LONG_STEPS[x]] for x in LONG_STEPS)
        shares[f"printed radius, T = {self._long():,}"] = learnt(printed, nothing, ideal)
        gaps = {f"{x}, T = {self.slots}": price_gap(mine, guess, known, QUEUE) for x, mine in learners.items()}
        levels = dict.fromkeys(RADII, 1.0 - 1.0 / self.slots)
        levels["calibrated radius"] = 1.0 - Sabr().confidence
        covered = tuple(
            Finding(f"{name}, T = {self.slots}", self._covered(name), above(levels[name])) for name in RADII
        )
        return [
            Claim(
                "confidence-set-covers", "Appendix, lemma on the confidence set",
                "The true parameter is in the confidence set in all slots, with probability at least 1 - 1 / T.",
                test=f"Share of {self._count():,} instances in which the set contains the truth in all slots: 1 - 1 / T "
                "or more, and for the calibrated radius, which is not the paper's, the level that it is made for.",
                findings=covered,
                note="A set that never fails may be far too large: the estimate stays within a third of the printed radius, "
                "which is made for more noise.",
            ),
            Claim(
                "sabr-learns", "Section 5.2", "SABR learns the rewards within the experiment's 500 slots.",
                test="Share of the gap in regret between no learning (every index 1) and known rewards that SABR "
                f"closes, at queue {QUEUE:g}; for T = {self._long():,}, at the queue that each has at the same V. "
                f"Learning means at least {LEAST:.0%}, our choice.", findings=judged(shares, above(LEAST)),
                note="The printed radius is made for noise of scale 1 and sums to about nine; the experiment's noise "
                "is 0.1 and its rewards lie in [0, 1].",
            ),
            Claim(
                "exploration-pays", "Section 3.1",
                "Upper confidence indices balance exploration and exploitation well.",
                test="Price of learning of SABR less that of the same policy with plain estimates as indices (no "
                f"exploration), at queue {QUEUE:g}.", findings=judged(gaps, below(0.0)),
            ),
        ]  # fmt: skip

    def _long(self) -> int:
        return self.options.pick(LONG, quick=125)

    def _count(self) -> int:
        return WATCHED * self.options.count

    def _watched(self, name: str) -> "RecordedSabr":
        policy = POLICIES[name](published(SETTING.example, self.slots))
        return watched(SETTING, policy, self.slots, self._count(), self.options.seed)

    def _covered(self, name: str) -> Effect:
        return covered(self._watched(name).distance)

    def _recorded(self, name: str) -> list[dict[str, object]]:
        """Return radius, share of clipped indices and distance from the truth over time."""
        recorded = self._watched(name)
        return [
            {"policy": name, "measure": measure, "slot": t + 1, **effects.mean(values[t]).row()}
            for measure, values in (
                ("radius", recorded.radius),
                ("clipped", recorded.clipped),
                ("distance", recorded.distance),
            )
            for t in range(0, self.slots, 5)
        ]


def covered(distance: Sequence[Array]) -> Effect:
    """Return the share of instances whose distances (T, R) from the truth, in parts of the radius, are never above one."""
    return effects.share(np.max(distance, axis=0) <= 1.0, "of instances")


@cache
def watched(setting: Setting, policy: Policy, slots: int, count: int, seed: int) -> "RecordedSabr":
    """Return a policy that has recorded its learner in the first replications of a run."""
    assert isinstance(policy, Sabr)
    problems = setting.problems(seed, range(count))
    recorded = RecordedSabr(policy, np.array([problem.theta for problem in problems]))
    simulate(problems, recorded, slots=slots, seed=seed * SEED_STEP, rewards=setting.reward_law(), record_jobs=False)
    return recorded


class RecordedSabr(Policy):
    """SABR that records in each slot the radius, the share of indices at 1, and the distance of its estimate.

    `theta` (R, d1, d2) is the truth. The distance from it, in the norm of Lambda, is in parts of the radius: the truth is
    in the confidence set as long as it is at most one.
    """

    def __init__(self, policy: Sabr, theta: Array) -> None:
        self.policy, self.assignment, self.theta = policy, policy.assignment, theta
        self.distance: list[Array] = []
        self.radius: list[Array] = []
        self.clipped: list[Array] = []

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> FairState:
        return self.policy.start(instances, horizon, rngs)

    def decide(self, state: FairState, queue: Array, capacity: Array) -> Array:
        index = self.policy.learner().index(state.learnt)
        self.radius.append(state.learnt.radius.copy())
        self.distance.append(self._distance(state.learnt))
        self.clipped.append(np.asarray((index >= 1.0).mean(axis=(1, 2))))
        return self.policy.decide(state, queue, capacity)

    def learn(self, state: FairState, outcome: Outcome) -> FairState:
        return self.policy.learn(state, outcome)

    def _distance(self, learnt: BilinearState) -> Array:
        scaled = self.theta * learnt.job_scale[:, :, None] * learnt.server_scale[:, None, :]
        off = learnt.estimate - scaled.reshape(learnt.estimate.shape)
        return np.asarray(np.sqrt(np.einsum("rp,rpq,rq->r", off, learnt.gram, off)) / learnt.radius)


def _draw_dots(axes: Axes, table: Table, title: str) -> None:
    """Draw a point with its interval for each policy, the first on top."""
    for place, row in enumerate(reversed(table.rows)):
        colour = COLOURS.get(row["policy"], style.GREY)
        axes.plot([row["low"], row["high"]], [place, place], color=colour, lw=2.0, alpha=0.6)
        axes.plot(row["mean"], place, "o", color=colour, ms=6)
    axes.set_yticks(range(len(table.rows)), [row["policy"] for row in reversed(table.rows)])
    axes.set_ylim(-0.6, len(table.rows) - 0.4)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    style.label(axes, title, x="regret")


def _at_all_V(records: Records, name: str) -> list[Record]:
    return [records[f"{name} x{step}"] for step in STEPS]
