"""What the look-ahead has learnt: values and durations of pairs of classes, features, and how long services take."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isfinite, log
from typing import Any, NamedTuple

import numpy as np

from bilinq.arrays import Array, IntArray, within
from bilinq.learning import PairModel
from bilinq.learning.pair_model import CAUTIOUS
from bilinq.scheduler.classes import LookAheadSettings, Roster
from bilinq.scheduler.snapshot import LARGEST_COUNT, LATEST, decode, listed, whole
from bilinq.scheduler.waits import WaitController


class Services(NamedTuple):
    """Services that have ended (n,), in their order; NaN where a reward or a duration is not known.

    `features` (n, d) are those of the class, then those of the job, NaN if it has none.
    """

    features: Array
    kind: IntArray
    column: IntArray
    reward: Array
    weight: Array
    duration: Array
    log_duration: Array

    def part(self, begin: int, end: int) -> Services:
        """Return those from `begin` to before `end`."""
        return self if not begin and end == self.kind.size else Services._make(one[begin:end] for one in self)


LIMITS = {
    "smear": (1e-150, 1e150), "class_time": (1e-150, 1e150), "mean_time": (1e-150, 1e150), "crowd": (0.0, 1e15),
    "present": (0.0, 1e15), "moments": (-1e250, 1e250), "timed": (0.0, 1e3), "looked": (0.0, LATEST),
}  # fmt: skip
"""The smallest and the largest value after a restore."""


MOST_FEATURES = 1_000_000  # of a single job, after a restore


@dataclass
class Learnt:
    """Everything that a look-ahead knows; a snapshot keeps it.

    `value` predicts rewards and `time` the logarithms of durations; `smear` are sums of durations and of their predictions,
    Eq. (70). `crowd` (J,) is how many jobs wait for each server class and `present` (J,) how many servers it has, both
    averaged. `moments` (3, d) are count, mean and sum of squares of the features. `own` is the number of features of single
    jobs, zero until one was observed.
    """

    value: PairModel
    time: PairModel
    waits: WaitController
    smear: Array
    class_time: Array
    crowd: Array
    present: Array
    moments: Array
    own: int = 0
    mean_time: float = 1.0
    timed: float = 0.0
    looked: float = 0.0

    @classmethod
    def nothing(cls, roster: Roster, settings: LookAheadSettings) -> Learnt:
        """Return what is known before the first observation."""
        J, d = len(roster.servers), len(roster.job_classes[0].features)
        value, time = _new_models(roster)
        waits = WaitController(settings.target_wait, settings.V, settings.percentile)
        return cls(
            value=value, time=time, waits=waits, smear=np.ones(2), class_time=np.ones(J), crowd=np.zeros(J),
            present=np.zeros(J), moments=np.zeros((3, d)),
        )  # fmt: skip

    @classmethod
    def restored(cls, plain: Any, fresh: Learnt) -> Learnt:
        """Return what `encode` saved, after checks against what is known before the first observation."""
        own = whole(
            "own", listed("state", plain)[[field.name for field in fields(cls)].index("own")], high=MOST_FEATURES
        )
        models = {name: getattr(fresh, name).layout(own) for name in ("value", "time")}
        like = replace(fresh, **models, moments=np.broadcast_to(0.0, (3, fresh.moments.shape[1] + own)))
        found: Learnt = decode(plain, like, varying=("server_features",))
        for name, model in models.items():
            getattr(found, name).check_fixed(model)
            getattr(found, name).check()
        found.waits.check()
        for name, (low, high) in LIMITS.items():
            within(name, getattr(found, name), low, high)
        within("counts of moments", found.moments[0], 0, LARGEST_COUNT)
        within("squares of moments", found.moments[2], 0.0, 1e250)
        settings = fresh.waits
        found.waits = replace(found.waits, target=settings.target, fixed=settings.fixed, percentile=settings.percentile)
        return found

    def learn(self, services: Services) -> None:
        """Learn from services; standardise features whenever the number of observations is a power of two."""
        from bilinq.scheduler.look_ahead_kernels import note_features

        begin, noted, end = 0, 0, services.kind.size
        while begin < end:
            due = note_features(services.features, services.reward, noted, self.moments)
            some = services.part(begin, due)
            self.value.learn(some.features, some.kind, some.column, some.reward, some.weight)
            self._learn_durations(some)
            if due < end:
                self._standardise()
            begin, noted = due, due + 1

    def _learn_durations(self, some: Services) -> None:
        """Learn how long services take, and what must be added to exp of a logarithm on average, Eq. (70)."""
        from bilinq.scheduler.look_ahead_kernels import note_durations

        if not self.timed:
            first = next((one for one in some.duration.tolist() if one > 0.0), None)
            if first is None:
                return
            self.time.begin(log(first))
            self.class_time[:] = first
        error = self.time.learn(some.features, some.kind, some.column, some.log_duration, np.ones(some.kind.size))
        self.mean_time, self.timed = note_durations(
            some.duration,
            some.log_duration,
            error,
            some.column,
            self.smear,
            self.class_time,
            self.mean_time,
            self.timed,
        )

    def _standardise(self) -> None:
        """Standardise features by the mean and spread of those seen so far."""
        number, mean, square = self.moments
        spread = np.sqrt(square / np.maximum(number, 1.0))
        usual = np.where(mean == 0.0, 1.0, np.abs(mean))
        step = 2 if self.value.squares else 1
        center = np.where(number > 0.0, mean, self.value.center[1::step])
        scale = np.where(number > 0.0, np.where(spread > 1e-9 * usual, spread, usual), self.value.scale[1::step])
        standards = self.value.standards(center, scale)
        for model in (self.value, self.time):
            model.rescale(*standards)

    def widen(self, first: Array) -> None:
        """Learn from features of single jobs from now on; jobs without them count as average ones."""
        self.own, self.moments = first.size, np.pad(self.moments, ((0, 0), (0, first.size)))
        self.value.widen(first)
        self.time.widen(first)

    def forget(self, column: int) -> None:
        """Forget what was learnt of a server class."""
        self.value.forget(column)
        self.time.forget(column)

    def arrange(self, before: Roster, after: Roster) -> None:
        """Change the classes. Only changes that matter count, so that a log replays to the same state."""
        rows = [before.jobs.get(name) for name in after.jobs]
        columns = [before.servers.get(name) for name in after.servers]
        same = rows == list(range(len(before.jobs))) and columns == list(range(len(before.servers)))
        if not self.value.seen and not self.time.seen:
            self.value, self.time = _new_models(after)
            for model in (self.value, self.time) if self.own else ():
                model.widen(np.zeros(self.own))
        elif not same or not np.array_equal(_server_features(after), _server_features(before)):
            for model in (self.value, self.time):
                model.arrange(rows, columns, _server_features(after))
        self.class_time = np.array([self.mean_time if k is None else self.class_time[k] for k in columns])
        self.crowd, self.present = (
            np.array([0.0 if k is None else some[k] for k in columns]) for some in (self.crowd, self.present)
        )

    def durations(self, features: Array) -> Array:
        """Return the expected duration of each pair of classes (I, J), for features (I, d), Eq. (70)."""
        mean, _ = self.time.predict(features, np.arange(len(features)))
        return np.asarray(np.exp(mean) * (self.smear[0] / self.smear[1]))

    def sound(self) -> bool:
        """Tell whether the numbers behind decisions are finite."""
        numbers = (self.value.noise, self.time.noise, self.mean_time, float(self.smear.sum()))
        models = (self.value.long.theta, self.time.long.theta, self.value.mean, self.time.mean)
        return all(map(isfinite, numbers)) and all(isfinite(one.sum()) for one in models)


def _server_features(roster: Roster) -> Array:
    return np.array([one.features for one in roster.server_classes], dtype=np.float64).reshape(len(roster.servers), -1)


def _new_models(roster: Roster) -> tuple[PairModel, PairModel]:
    """Return models of rewards and of durations that have learnt nothing."""
    I, d, servers = len(roster.jobs), len(roster.job_classes[0].features), _server_features(roster)
    return PairModel.new(I, servers, d, noise=0.5), PairModel.new(I, servers, d, noise=1.0, usual=CAUTIOUS)
