"""Two policies side by side: what each thinks of the same jobs, and what the second would have earned.

The estimate is the doubly robust one of `bilinq.evaluate`, over the last decisions. Predictions are those that were made
before the reward was known, so no folds are needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilinq.live.wire.samples import Bounds, ShadowInfo, ShadowState
from bilinq.off_policy import ENOUGH, Scores, too_rare

if TYPE_CHECKING:
    from bilinq.arrays import Array, BoolArray, IntArray
    from bilinq.scheduler.scheduler import Scheduler
    from bilinq.simulation.records import Interval

WINDOW = 5000  # decisions that are kept
FEW = 5  # rewarded decisions of a group and a server that are needed where the shadow uses that server
MEANING = (
    "Estimated for the jobs that the first policy started, on the servers that were idle then, over the decisions that can "
    "be compared. Queues and waits would differ if the shadow decided."
)
PARTLY = (
    "Compared are {:.0%} of the rewarded choices: in the others the first policy hardly ever chooses as the shadow would, "
    "or its chances are not known."
)
TOO_FEW = f"No estimate: the decisions are worth {{}} jobs of the shadow, and {ENOUGH:.0f} are needed."
MOST = 0.9  # part of the choices below which it is said that only some are compared


class Opinion(NamedTuple):
    """What a scheduler thinks of a job: the chance and the expected reward of each server class (J,), None if unknown."""

    chance: Array | None
    value: Array | None


class Opinions:
    """What a scheduler thinks of the jobs of its last slot, in the user's units."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._expected = scheduler, scheduler.expected
        known = None if scheduler.policy is None else scheduler.beliefs()
        self._mean = None if known is None else known.mean
        self._rows = {one.name: k for k, one in enumerate(scheduler.job_classes)}

    def of(self, job: Hashable, job_class: str) -> Opinion:
        """Return what it thinks of a job; the look-ahead must have started it."""
        row, scheduler = self._rows[job_class], self._scheduler
        if scheduler.policy is None:
            decision = scheduler.decision(job)
            if decision is None:
                return Opinion(None, None)
            return Opinion(decision.probabilities(), scheduler.reward.unscaled(decision.value))
        chance = self._expected.sum(axis=0) if scheduler.by_job else self._expected[row]
        return Opinion(chance, None if self._mean is None else self._mean[row])


def among(allowed: BoolArray, chance: Array | None, least: float = 0.0) -> Array | None:
    """Return the chances above `least` given that one of the `allowed` servers is chosen (J,); None if none can be."""
    if chance is None:
        return None
    some = np.where(allowed & (chance > least), chance, 0.0)
    total = float(some.sum())
    return some / total if total > 0.0 else None


class Comparison:
    """The last decisions of the first policy for which the shadow was asked; `columns` are the server classes.

    Jobs of a group differ in nothing that the first policy knows. Whatever else made it choose a server (queues, idle
    servers, draws) says nothing about the reward, so its chances are the frequencies in the group, and those of the shadow
    its mean chances there. Without a group the chances of the decision itself must be known.
    """

    def __init__(self, columns: Sequence[str], size: int = WINDOW) -> None:
        self.columns = tuple(columns)
        self._policy = np.zeros((size, len(columns)))
        self._group, self._chosen = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._weight, self._expected, self._predicted, self._reward = np.full((4, size), np.nan)
        self._groups: dict[Hashable, int] = {None: 0}
        self._leases, self._place = [0] * size, dict[int, int]()
        self._added = 0

    def add(
        self, lease: int, chosen: int, policy: Array, *, value: Array | None = None, group: Hashable = None,
        chance: Array | None = None,
    ) -> None:  # fmt: skip
        """Add a decision, in which the first policy chose a column with a `chance` (J,), None if that is not known.

        `policy` (J,) are the chances of the shadow, and `value` (J,) predicted rewards, None if there are none.
        """
        k = self._added % len(self._leases)
        self._place.pop(self._leases[k], None)
        self._leases[k], self._place[lease] = lease, k
        self._policy[k], self._chosen[k] = policy, chosen
        self._group[k] = self._groups.setdefault(group, len(self._groups))
        known = chance is not None and not too_rare(policy, chance).any() and chance[chosen] > 0.0
        self._weight[k] = policy[chosen] / chance[chosen] if chance is not None and known else np.nan
        self._expected[k], self._predicted[k] = (np.nan, np.nan) if value is None else (policy @ value, value[chosen])
        self._reward[k] = np.nan
        self._added += 1

    def reward(self, lease: int, value: float) -> None:
        """Note the reward of a lease, or another one that corrects it."""
        place = self._place.get(lease)
        if place is not None:
            self._reward[place] = value

    @property
    def choices(self) -> int:
        """How many decisions are kept."""
        return min(self._added, len(self._leases))

    def scores(self) -> Scores | None:
        """Return the decisions that can be compared and were rewarded; None if there are fewer than two."""
        rewarded, group = ~np.isnan(self._reward[: self.choices]), self._group[: self.choices]
        rows = np.flatnonzero(rewarded & (group == 0) & ~np.isnan(self._weight[: self.choices]))
        single = Scores(
            weight=self._weight[rows], earned=self._reward[rows], expected=np.nan_to_num(self._expected[rows]),
            predicted=np.nan_to_num(self._predicted[rows]),
        )  # fmt: skip
        found = single.joined(self._grouped(np.flatnonzero(rewarded & (group > 0))))
        return found if found.weight.size > 1 else None

    def _grouped(self, rows: IntArray) -> Scores:
        """Return those of some decisions in whose group the first policy often enough chooses as the shadow would.

        A reward is predicted by the mean of the others with the same group and server.
        """
        number, total, shadow = np.zeros((3, len(self._groups), len(self.columns)))
        cell = self._group[rows], self._chosen[rows]
        np.add.at(number, cell, 1.0)
        np.add.at(total, cell, self._reward[rows])
        np.add.at(shadow, cell[0], self._policy[rows])
        size = np.maximum(number.sum(axis=1, keepdims=True), 1.0)
        rare = too_rare(shadow / size, np.where(number < FEW, 0.0, number / size))
        kept = (rare.sum(axis=1) == 0)[cell[0]]
        rows, cell = rows[kept], (cell[0][kept], cell[1][kept])
        mean, weight = total / np.maximum(number, 1.0), shadow[cell] / number[cell]
        others = (total[cell] - self._reward[rows]) / np.maximum(number[cell] - 1.0, 1.0)
        expected = (self._policy[rows] * mean[cell[0]]).sum(axis=1)
        return Scores(weight=weight, earned=self._reward[rows], expected=expected, predicted=others)

    def info(self, policy: str, state: ShadowState, error: str | None = None) -> ShadowInfo:
        """Return how the shadow compares, as the API shows it."""
        n, scores = self.choices, self.scores()
        gained = self._expected[:n] - self._predicted[:n]
        gained = gained[~np.isnan(gained)]
        readable = scores if scores is not None and scores.enough else None
        return ShadowInfo(
            policy=policy, state=state, error=error, choices=n, compared=0 if scores is None else scores.weight.size,
            agreement=float(self._policy[np.arange(n), self._chosen[:n]].mean()) if n else None,
            predicted_gain=float(gained.mean()) if gained.size else None,
            earned=None if readable is None else _bounds(readable.logged),
            estimate=None if readable is None else _bounds(readable.doubly_robust),
            gain=None if readable is None else _bounds(readable.gain), notes=[MEANING, *self._doubts(scores)],
        )  # fmt: skip

    def _doubts(self, scores: Scores | None) -> list[str]:
        """Return why there is no estimate, or what speaks against it."""
        if scores is None or not scores.enough:
            return [TOO_FEW.format(0 if scores is None else round(scores.effective_jobs))]
        part = scores.weight.size / int((~np.isnan(self._reward[: self.choices])).sum())
        return ([] if part >= MOST else [PARTLY.format(part)]) + scores.doubts()


def _bounds(found: Interval) -> Bounds:
    mean, low, high = (round(value, 12) + 0.0 for value in (found.mean, found.low, found.high))  # zero, not 1e-17
    return Bounds(mean, low, high)
