"""Heavy traffic: the queue as the spare capacity goes to zero, beside the shortest queue that any policy can have."""

from functools import cache
from math import ceil

import numpy as np
from scipy.stats import binom

from bilinq import style, theory
from bilinq.arrays import Array, IntArray
from bilinq.display import number
from bilinq.experiments import PlannedRun, Record, Synthetic
from bilinq.lab import effects
from bilinq.lab.claims import Claim, below, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import PRESETS, order, serve_once
from bilinq.problem import Problem
from bilinq.style import Drawing, Look, log_axis

SLACKS = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
NEAR = 1 / 8  # slack from which on a system counts as near capacity
SERVERS, RATE = 2, 0.5
MOST = 50  # replications at most
FACTOR = 1.5  # times the growth of the shortest queue that counts as no faster, our choice
LEAST, BOUND = "shortest possible", "bound"
LOOKS = {
    "large V": Look(style.BLUE, marker="o"),
    "small V": Look(style.SKY, marker="o"),
    LEAST: Look(style.INK, dashed=True),
    BOUND: Look(style.ORANGE, dashed=True),
}


class HeavyTrafficFigure(Figure):
    """Queue, queue times slack, and regret per slot over the inverse of the slack, at two V."""

    name = "heavy_traffic"
    title = "Heavy traffic"
    where = "Theorem 3.4"
    see = "Look how the queues follow the dashed line of the shortest possible queue as the slack falls."
    horizon = 6000, 250

    def runs(self) -> dict[str, PlannedRun]:
        return {
            f"{name}, slack {slack}": self.options.run(
                narrow(slack), serve_once(PRESETS["calibrated"].sabr(V)), self.slots, most=MOST
            )
            for name, V in two_V().items()
            for slack in self._slacks()
        }

    def table(self, records: Records) -> Table:
        rows: list[dict[str, object]] = []
        for name, V in two_V().items():
            for slack in self._slacks():
                record, place = records[f"{name}, slack {slack}"], {"line": name, "V": V, "inverse": 1 / slack}
                queue = effects.mean(late_queue(record))
                rows.append({"measure": "queue"} | place | queue.row())
                scaled = {cell: slack * value for cell, value in queue.row().items()}
                rows.append({"measure": "scaled"} | place | scaled)
                rows.append({"measure": "regret"} | place | effects.mean(effects.late_growth(record)).row())
        for slack in self._slacks():
            problem = narrow(slack).example
            for line, value in (
                (LEAST, shortest_queue(problem)),
                (BOUND, theory.queue_bound(problem, two_V()["small V"])),
            ):
                place = {"line": line, "inverse": 1 / slack}
                rows.append({"measure": "queue"} | place | effects.exact(value).row())
                if line == LEAST:
                    rows.append({"measure": "scaled"} | place | effects.exact(slack * value).row())
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, (queue, scaled, regret) = style.panels(1, 3, height=3.5)
        for axes, measure in ((queue, "queue"), (scaled, "scaled"), (regret, "regret")):
            shown = table.where(measure=measure)
            for line in shown.distinct("line"):
                label = str(line) if axes is queue else ""
                style.curve(axes, shown.where(line=line), LOOKS[str(line)], label, x="inverse")
            log_axis(axes, "x", shown.numbers("inverse"))
        log_axis(queue, "y", table.where(measure="queue").numbers("mean"), room=1.5)
        log_axis(scaled, "y", table.where(measure="scaled").numbers("mean"), room=1.5)
        for axes, title in ((queue, "(a) Queue"), (scaled, "(b) Queue times slack"), (regret, "(c) Regret per slot")):
            style.label(axes, title, x="1 / slack")
        style.legend(figure, queue)
        return figure

    def caption(self, table: Table) -> str:
        queue, last = table.where(measure="queue"), self._slacks()[-1]
        end = {str(line): number(queue.where(line=line).last()) for line in LOOKS}
        large, small = (number(V) for V in two_V().values())
        return (
            f"Two servers, jobs of two units, at most one arrival per slot; V = {large} and {small}; means of the second "
            f"half of {self.slots:,} slots. The shortest possible queue is that of one pool that never idles while a job "
            f"waits, computed exactly. At slack {last:g} it is {end[LEAST]}; SABR has {end['small V']} at the small V and "
            f"{end['large V']} at the large one; the theorem's bound is {end[BOUND]} at the small V. "
            f"{min(self.options.count, MOST)} instances."
        )

    def claims(self, records: Records) -> list[Claim]:
        runs = {
            f"V = {number(V)}": {slack: records[f"{name}, slack {slack}"] for slack in self._slacks()}
            for name, V in two_V().items()
        }
        slacks = self._slacks()
        return [
            Claim(
                "queue-inverse-in-slack", "Theorem 3.4",
                "The queue grows at most like the inverse of the spare capacity.",
                test=f"Slope of the log of the mean queue over log 1 / slack, slack from {slacks[0]:g} down to "
                f"1 / {1 / slacks[-1]:g}, second half of {self.slots:,} slots, Thompson sampling.",
                findings=judged({text: slope(mine) for text, mine in runs.items()}, below(1.0)),
            ),
            Claim(
                "queue-follows-the-shortest", "Theorem 3.4",
                "Near capacity the queue grows no faster than the shortest possible one.",
                test=f"Growth of the queue from slack 1 / {1 / self._near():g} to 1 / {1 / slacks[-1]:g} over that of the "
                f"queue of one pool that never idles; no faster means below {FACTOR:g} times, our choice.",
                findings=judged({text: self._growth(mine) for text, mine in runs.items()}, below(FACTOR)), ours=True,
                note="So what V and learning add to the queue does not grow like 1 / slack.",
            ),
        ]  # fmt: skip

    def _slacks(self) -> tuple[float, ...]:
        return self.options.pick(SLACKS, quick=SLACKS[1::2])

    def _near(self) -> float:
        return max(slack for slack in self._slacks() if slack <= NEAR)

    def _growth(self, runs: dict[float, Record]) -> Effect:
        near, last = self._near(), self._slacks()[-1]
        least = shortest_queue(narrow(last).example) - shortest_queue(narrow(near).example)
        return effects.mean((late_queue(runs[last]) - late_queue(runs[near])) / least, "times")


def two_V() -> dict[str, float]:
    """Return the two values of V: one dominates the queue, the other hardly matters."""
    V = order(narrow(1.0).example, 500)
    return {"large V": V, "small V": V / 16}


def narrow(slack: float) -> Synthetic:
    """Return two servers with this spare capacity; jobs of two units, so that at most one arrives per slot."""
    return Synthetic(servers=SERVERS, traffic=SERVERS - slack, service_rate=RATE)


def late_queue(record: Record) -> Array:
    """Return the mean queue in the second half of a run (R,)."""
    path = record.paths["queue"][:, record.slot > record.slot[-1] // 2]
    return np.asarray(path.mean(axis=1, dtype=np.float64))


def slope(runs: dict[float, Record]) -> Effect:
    """Return the slope of the late queue over 1 / slack on log axes, from records by slack."""
    inverse: Array = 1.0 / np.array(list(runs))
    queues = [late_queue(record) for record in runs.values()]

    def statistic(keep: IntArray) -> float:
        return effects.slope(inverse, np.array([queue[keep].mean() for queue in queues]))

    return effects.estimate(statistic, len(queues[0]), "slope")


@cache
def shortest_queue(problem: Problem) -> float:
    """Return the stationary mean queue of a pool that serves as many jobs as it can in each slot.

    Jobs arrive one at a time at most, all with the same service rate, and no policy that gives a job one server at most
    has a shorter queue. The queue is a Markov chain, which is cut where its tail is below rounding.
    """
    n, mu, arrival = int(problem.servers.sum()), float(problem.service_rate[0]), float(problem.arrival_rate.sum())
    size = ceil(40.0 / problem.slack) + 10 * n
    chain = np.zeros((size, size))
    for q in range(size):
        for done in range(min(q, n) + 1):
            chance = float(binom.pmf(done, min(q, n), mu))
            chain[q, q - done] += chance * (1.0 - arrival)
            chain[q, min(q - done + 1, size - 1)] += chance * arrival
    equations = chain.T - np.eye(size)
    equations[-1] = 1.0
    share = np.linalg.solve(equations, np.append(np.zeros(size - 1), 1.0))
    return float(share @ np.arange(size))
