"""Allocation computed by nodes inside the scheduler: regret and queue over rounds and delays, Section 4."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from bilinq import style
from bilinq.arrays import Array, IntArray
from bilinq.display import number
from bilinq.distributed import Power, System, growth_rate
from bilinq.distributed.system import Rule, Time
from bilinq.experiments import PlannedRun, Synthetic
from bilinq.experiments.settings import SEED_STEP
from bilinq.lab import effects
from bilinq.lab.claims import Claim, above, below, between, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import published, serve_once
from bilinq.policies import Allocator, Exact, FixedPoint, Rounds
from bilinq.style import Axes, Drawing, Look, log_axis

LOST, LONGER, ALIKE = 10.0, 1.1, 0.05
"""Our limits: extra regret and queue ratio at which nodes still replace the exact program, and for similar queues."""

PART = 0.9  # the fraction of the theorem's gains at which stability is judged

Condition: TypeAlias = tuple[str, str, str]  # a text, the run it is about and the run to compare with

SETTING, BUSY = Synthetic(), Synthetic(traffic=3.2, law="poisson")
"""The paper's load of 0.25, and a load of 0.8 on the same servers."""
FEW, MANY, LATE = 1, 10, 5  # rounds in a slot of the curves over delay, and the delay each way of a curve over rounds
MILD = Power(2.0)  # a softer penalty than the default power 8
MOST = 50  # replications at most, since rounds are slow

EXACT, SOFT, BENT = "exact program", "endless rounds", "power 2, no delay"
REFERENCES = {EXACT: style.GREY, SOFT: style.GREEN, BENT: style.AMBER}
CAUTIOUS = "the same, gains for any load"
OVER_ROUNDS = {
    "no delay": Look(style.BLUE, marker="o"),
    f"round trip {2 * LATE}": Look(style.ORANGE, marker="s"),
    CAUTIOUS: Look(style.ORANGE, thin=True, marker="s"),
}
OVER_DELAY = {f"{MANY} rounds a slot": Look(style.SKY, marker="o"), f"{FEW} round a slot": Look(style.PINK, marker="s")}
MEASURES = {"regret": "Regret", "queue": "Jobs in the system"}


class NodesFigure(Figure):
    """Regret and queue over the rounds in a slot and over the delay of messages, with the exact program."""

    name = "nodes"
    title = "Allocation by the nodes inside the scheduler"
    where = "Section 4"
    see = "Look how far the lines are above the grey dashed one, the exact program."
    horizon = 500, 31

    def runs(self) -> dict[str, PlannedRun]:
        shown = self.options.shown.sabr(published(SETTING.example, self.slots))
        runs = {name: (SETTING, replace(shown, allocation=one)) for name, one in self._allocators().items()}
        for name, one in {EXACT: Exact(), "steep": Rounds(MANY), "mild": Rounds(MANY, MILD)}.items():
            runs[f"busy {name}"] = BUSY, replace(serve_once(shown), allocation=one)
        return {name: self.options.run(*what, self.slots, most=MOST) for name, what in runs.items()}

    def table(self, records: Records) -> Table:
        rows = []
        for curve, points in self._curves().items():
            for name, at in points.items():
                for measure in MEASURES:
                    found = effects.mean(records[name].samples[measure])
                    rows.append({"curve": curve, "measure": measure, **at, **found.row()})
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.panels(2, 2, height=2.9)
        for axes, letter, (measure, title) in zip(panels[:2], "ab", MEASURES.items(), strict=True):
            _draw(axes, table.where(measure=measure), OVER_ROUNDS, "rounds")
            log_axis(axes, "x", table.where(curve="no delay").numbers("rounds"), room=1.1)
            style.label(axes, f"({letter}) {title}", x="rounds in a slot")
        for axes, letter, (measure, title) in zip(panels[2:], "cd", MEASURES.items(), strict=True):
            _draw(axes, table.where(measure=measure), OVER_DELAY, "round_trip")
            style.label(axes, f"({letter}) {title}", x="round trip of a message, in rounds")
        for axes in (panels[1], panels[3]):
            axes.set_ylim(bottom=0.0)
        style.legend(figure, panels, columns=4)
        return figure

    def caption(self, table: Table) -> str:
        def ends(curve: str, measure: str) -> tuple[str, str]:
            rows = table.where(curve=curve, measure=measure).rows
            return number(rows[0]["mean"]), number(rows[-1]["mean"])

        exact, soft, bent = (ends(name, "queue")[0] for name in REFERENCES)
        slow, fast = ends("no delay", "queue")
        cautious, _ = ends(CAUTIOUS, "queue")
        (_, some), (_, one) = (ends(curve, "queue") for curve in OVER_DELAY)
        longest, most = number(2 * self._delays()[-1]), self._rounds()[-1]
        V = number(published(SETTING.example, self.slots))
        return (
            f"Nodes run some rounds in every slot, from the last slot's rates; {min(self.options.count, MOST)} instances "
            f"at V = {V} and half of the gain that is proved stable at the price "
            f"they receive. Dashed: the exact program with hard capacities (queue {exact}), the fixed point that endless "
            f"rounds would reach with prices of power 8 (queue {soft}), and {most} rounds with prices of power 2 (queue "
            f"{bent}). The gap between the first two is due to the penalty, the gap above the second to unfinished rounds. "
            f"Without delay one round in a slot leaves a queue of {slow}, {most} rounds one of {fast}. With a round trip "
            f"of {longest} rounds it is {some} at {MANY} rounds in a slot and {one} at {FEW}. Gains that are safe at any "
            f"load, as the paper suggests, are far too small at this load: {cautious} jobs at {FEW} round in a slot with a "
            f"round trip of {2 * LATE}."
        )

    def claims(self, records: Records) -> list[Claim]:
        most = self._rounds()[-1]
        penalties = {
            f"load 0.25, {most} rounds a slot": (_name(most), BENT, EXACT),
            f"load 0.8, {MANY} rounds a slot": ("busy steep", "busy mild", f"busy {EXACT}"),
        }
        sides = [(f"{_rounds(k)} a slot, round trip {2 * LATE}", f"server {k}", _name(k, LATE)) for k in (FEW, MANY)]
        return [
            reward(records, self._conditions(), self.slots),
            queue(records, self._conditions(), self.slots),
            steep(records, penalties),
            alike(records, sides),
            *stable(self.options.pick(20, quick=2), self.options.seed),
        ]

    def _conditions(self) -> list[Condition]:
        """Return runs with nodes against the exact program."""
        most, far = self._rounds()[-1], self._delays()[-1]
        found = [("endless rounds", SOFT, EXACT)]
        found += [(f"{_rounds(k)} a slot, no delay", _name(k), EXACT) for k in dict.fromkeys((FEW, MANY, most))]
        found += [
            (f"{_rounds(k)} a slot, round trip {2 * d}", _name(k, d), EXACT)
            for d in dict.fromkeys((LATE, far))
            for k in (MANY, FEW)
        ]
        found.append((f"{_rounds(MANY)} a slot, round trip {2 * LATE}, gains for any load", f"cautious {MANY}", EXACT))
        return [*found, (f"{_rounds(MANY)} a slot, no delay, load 0.8", "busy steep", f"busy {EXACT}")]

    def _allocators(self) -> dict[str, Allocator]:
        found: dict[str, Allocator] = {EXACT: Exact(), SOFT: FixedPoint(), BENT: Rounds(self._rounds()[-1], MILD)}
        pairs = [(k, d) for k in self._rounds() for d in (0, LATE)]
        pairs += [(k, d) for k in (FEW, MANY) for d in self._delays()]
        found |= {_name(k, d): Rounds(k, forward=d, backward=d) for k, d in pairs}
        for k in self._rounds():
            found[f"cautious {k}"] = Rounds(k, gain="special", forward=LATE, backward=LATE)
        return found | {f"server {k}": Rounds(k, forward=LATE, backward=LATE, nodes="server") for k in (FEW, MANY)}

    def _curves(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return for each curve the runs that it shows, with their place on the axis."""
        found: dict[str, dict[str, dict[str, int]]] = {name: {name: {}} for name in REFERENCES}
        at_once, late, cautious = OVER_ROUNDS
        found[at_once] = {_name(k): {"rounds": k} for k in self._rounds()}
        found[late] = {_name(k, LATE): {"rounds": k} for k in self._rounds()}
        found[cautious] = {f"cautious {k}": {"rounds": k} for k in self._rounds()}
        for curve, k in zip(OVER_DELAY, (MANY, FEW), strict=True):
            found[curve] = {_name(k, d): {"round_trip": 2 * d} for d in self._delays()}
        return found

    def _rounds(self) -> tuple[int, ...]:
        return self.options.pick((FEW, 3, MANY, 30), quick=(FEW, MANY))

    def _delays(self) -> tuple[int, ...]:
        return self.options.pick((0, LATE, 20), quick=(0, LATE))


def reward(records: Records, conditions: Sequence[Condition], slots: int) -> Claim:
    """Judge whether nodes earn what the exact program earns."""
    lost = _compared(records, conditions, effects.difference, "regret", "regret")
    return Claim(
        "nodes-keep-the-reward", "Section 4",
        "Nodes that iterate with delayed messages can compute the allocation of each time step: the reward is kept.",
        test=f"SABR's regret with nodes less that with the exact program after {slots} slots; kept means less than "
        f"{LOST:g} more, our choice.", findings=judged(lost, below(LOST)),
        note="The paper keeps jobs and indices fixed while nodes iterate, and does not run nodes inside the scheduler.",
    )  # fmt: skip


def queue(records: Records, conditions: Sequence[Condition], slots: int) -> Claim:
    """Judge whether nodes keep the queue."""
    longer = _compared(records, conditions, effects.ratio, "queue", "times the exact")
    return Claim(
        "nodes-keep-the-queue", "Section 4",
        "Nodes that iterate with delayed messages can compute the allocation of each time step: the queue "
        "stays as short.",
        test=f"SABR's time-average queue with nodes over that with the exact program, {slots} slots; as short means "
        f"at most {LONGER - 1:.0%} longer, our choice.", findings=judged(longer, below(LONGER)),
        note="The paper assumes that rounds are fast compared with arrivals; they are not if a message and its answer "
        "take several slots. A soft price also keeps jobs from free servers, more so at a higher load.",
    )  # fmt: skip


def steep(records: Records, cases: Mapping[str, tuple[str, str, str]]) -> Claim:
    """Judge the role of the penalty's power; cases name the runs with power 8, power 2 and the exact program."""
    return Claim(
        "steep-penalties-are-hard", "Section 4.3",
        "The larger the power of the penalty, the closer it is to a hard capacity.",
        test="Distance of the mean queue from the exact program's with power 2, less the distance with power 8; no "
        "delay.", findings=judged({text: _closer(records, *names) for text, names in cases.items()}, above(0.0)),
        note="A steep penalty has a price: the gain must be smaller, so rates need more rounds to settle.",
    )  # fmt: skip


def alike(records: Records, conditions: Sequence[Condition]) -> Claim:
    """Judge whether it matters which nodes compute the allocation."""
    ratios = _compared(records, conditions, effects.ratio, "queue", "times that of job nodes")
    return Claim(
        "server-nodes-do-as-well", "Section 4.2",
        "The allocation can be computed by server nodes as well as by job nodes.",
        test=f"The queue with server nodes over that with job nodes; as well means within {ALIKE:.0%}, our choice.",
        findings=judged(ratios, between(1.0 - ALIKE, 1.0 + ALIKE)),
    )  # fmt: skip


def stable(systems: int, seed: int) -> list[Claim]:
    """Judge the theorem's condition, for the printed update and for the update of its proof."""
    drawn = [System.synthetic(seed=seed * SEED_STEP + k) for k in range(systems)]
    test = f"Largest growth rate of small deviations at {PART:g} of the theorem's gains over {systems} random 4 x 3 systems"
    theorem = {
        "as printed": _fastest(drawn, "printed", "continuous"),
        "steps scaled by the rate, as in the proof": _fastest(drawn, "scaled", "continuous"),
    }
    rounds = {"steps scaled by the rate, in rounds": _fastest(drawn, "scaled", "discrete")}
    return [
        Claim(
            "stable-under-the-condition", "Theorem 4.1",
            "If every gain times its round trip is below a constant, small deviations from the fixed point die out.",
            test=f"{test} with delays of 1 to 5: a theorem has no exceptions, so one system that grows contradicts it.",
            findings=judged(theorem, below(0.0)),
            note="The proof linearises an update whose steps are scaled by the rate itself; the printed update lacks this "
            "factor.",
        ),
        Claim(
            "stable-in-rounds", "Theorem 4.1", "The theorem's condition, which is about continuous time, holds in rounds.",
            test=f"{test}, if nodes exchange messages in rounds.", findings=judged(rounds, below(0.0)), ours=True,
            note="Rounds need smaller gains, Eq. (40), which the nodes above use.",
        ),
    ]  # fmt: skip


def _fastest(systems: Sequence[System], rule: Rule, time: Time) -> Effect:
    growth = (float(growth_rate(system, system.safe_gain(PART), rule=rule, time=time)) for system in systems)
    return effects.exact(max(growth), "growth a unit of time")


def _compared(
    records: Records,
    conditions: Sequence[Condition],
    how: Callable[[Array, Array, str], Effect],
    measure: str,
    unit: str,
) -> dict[str, Effect]:
    samples = {name: record.samples[measure] for name, record in records.items()}
    return {text: how(samples[one], samples[other], unit) for text, one, other in conditions}


def _closer(records: Records, one: str, other: str, exact: str) -> Effect:
    """Return the distance of the mean queue of `other` from the exact one, less the distance of that of `one`."""
    samples = [records[name].samples["queue"] for name in (one, other, exact)]

    def statistic(keep: IntArray) -> float:
        near, far, hard = (values[keep].mean() for values in samples)
        return float(abs(far - hard) - abs(near - hard))

    return effects.estimate(statistic, len(samples[0]), "jobs")


def _name(k: int, delay: int = 0) -> str:
    return f"{k} rounds, delay {delay}"


def _rounds(k: int) -> str:
    return f"{k} round{'s' if k > 1 else ''}"


def _draw(axes: Axes, table: Table, looks: dict[str, Look], x: str) -> None:
    for name, colour in REFERENCES.items():
        axes.axhline(table.where(curve=name).last(), color=colour, lw=1.2, ls=style.DASHED, label=name)
    for curve, look in looks.items():
        style.curve(axes, table.where(curve=curve), look, curve, x=x)
