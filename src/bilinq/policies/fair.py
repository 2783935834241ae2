"""Policies that share servers by the fair program, Eq. (5), and differ in how they come to know the rewards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, one_of, positive, require, scalar, shaped, short
from bilinq.errors import BadInput
from bilinq.learning import Bilinear, Known, Learner, Outcome, PerJob, PerPair
from bilinq.learning.learner import State as LearnerState
from bilinq.policies.allocator import EXACT, Allocator, Memory
from bilinq.policies.policy import Policy
from bilinq.problem.instances import Instances


class FairState(NamedTuple):
    """What a fair policy knows: the learner's state, V (R,), weights (R, I), mu averaged over classes (R,).

    `shared` is what the allocator remembers.
    """

    learnt: LearnerState
    V: Array
    weight: Array
    service_rate: Array
    shared: Memory = None


class FairPolicy(Policy):
    """The program of Eq. (5) fed with a learner's indices.

    Attributes are those of its kinds: `V`, or `horizon` (V = sqrt(I T), Eq. (23)), or `target_wait` in slots (V by
    Eq. (22) from the current indices); `gamma`, `weight`, `limit` and `allocation`.
    """

    V: float | None = None
    horizon: int | None = None
    target_wait: float | None = None
    gamma: float = 1.2
    weight: ArrayLike | None = None
    limit: Literal["none", "queue"] = "none"
    work_conserving: bool = False
    allocation: Allocator = EXACT

    @abstractmethod
    def learner(self) -> Learner:
        """Return the learner that this policy's settings describe."""

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> FairState:
        """Return the state before the first slot."""
        classes = instances.mean_reward.shape[1]
        V = np.sqrt(classes * float(self.horizon or horizon)) if self.V is None else self.V
        return FairState(
            learnt=self.learner().start(instances, self.horizon or horizon, rngs),
            V=np.full(instances.count, V),
            weight=self._weights(instances),
            service_rate=instances.service_rate.mean(axis=1),
            shared=self.allocation.start(instances, self.gamma),
        )

    def decide(self, state: FairState, queue: Array, capacity: Array) -> Array:
        """Return the solution of Eq. (5), or what the allocator has instead; with `work_conserving` nobody idles."""
        from bilinq.policies.kernels import fill_idle

        index = self.learner().index(state.learnt)
        y, _ = self._share(state, index, queue, capacity)
        if self.work_conserving:
            fill_idle(index, queue, capacity, y)
        return y

    def learn(self, state: FairState, outcome: Outcome) -> FairState:
        """Return the state with what the learner and the allocator know after the slot."""
        learnt = self.learner().learn(state.learnt, outcome)
        if state.shared is None:
            return state._replace(learnt=learnt)
        if outcome.queue is None or outcome.capacity is None:
            missing = "queue" if outcome.queue is None else "capacity"
            raise BadInput(f"outcome.{missing} must say what the policy was shown, for {self.allocation}; got None")
        index = self.learner().index(state.learnt)
        return state._replace(learnt=learnt, shared=self._share(state, index, outcome.queue, outcome.capacity)[1])

    def _share(self, state: FairState, index: Array, queue: Array, capacity: Array) -> tuple[Array, Memory]:
        V, capped = self._V(state, index), self.limit == "queue"
        return self.allocation.share(state.shared, queue, index, capacity, V, state.weight, self.gamma, capped)

    def adapt(self, state: FairState, instances: Instances) -> FairState:
        """Return the state for other classes, weights or V; what was learnt stays."""
        V = state.V if self.V is None else np.full(instances.count, self.V)
        learnt = self.learner().adapt(state.learnt, instances)
        shared = self.allocation.start(instances, self.gamma)
        return FairState(learnt, V, self._weights(instances), instances.service_rate.mean(axis=1), shared)

    def paced(self, state: FairState, elapsed: float) -> FairState:
        """Return the state in which services are offered for `elapsed` slots: their number goes with 1 / V, Eq. (21)."""
        return state._replace(V=state.V / elapsed, service_rate=state.service_rate / elapsed)

    def beliefs(self, state: FairState) -> tuple[Array, Array] | None:
        """Return what the learner believes."""
        return self.learner().beliefs(state.learnt)

    def check(self, state: FairState) -> None:
        """Raise `BadState` if the learner's state is not sound."""
        self.learner().check(state.learnt)

    def _weights(self, instances: Instances) -> Array:
        """Return the weights (R, I)."""
        weight = np.ones(instances.arrival_rate.shape[1]) if self.weight is None else positive("weight", self.weight)
        return shaped("weight", weight, instances.arrival_rate.shape).copy()

    def current_V(self, state: FairState) -> Array:
        """Return V of the next slot (R,)."""
        return self._V(state, self.learner().index(state.learnt))

    def _V(self, state: FairState, index: Array) -> Array:
        """Return V (R,): as given, or what the wait to aim at asks for, Eq. (22)."""
        if self.target_wait is None:
            return state.V
        cost = ((self.gamma - index.max(axis=2)) / state.weight).sum(axis=1) / index.shape[1]
        return np.asarray(self.target_wait * state.service_rate / cost)

    def _check(self) -> None:
        if sum(value is not None for value in (self.V, self.horizon, self.target_wait)) > 1:
            raise BadInput("V, horizon and target_wait exclude each other; give at most one of them")
        for name in ("V", "target_wait"):
            value = getattr(self, name)
            if value is not None:
                scalar(name, value, positive)
        if self.horizon is not None:
            count("horizon", self.horizon)
        require("gamma", np.asarray(self.gamma, dtype=float), lambda x: (x > 1.0) & np.isfinite(x), "above one")
        if self.weight is not None:
            positive("weight", self.weight)
        one_of("limit", self.limit, ("none", "queue"))
        one_of("assignment", self.assignment, ("independent", "distinct"))
        if not isinstance(self.allocation, Allocator):
            raise BadInput(f"allocation must be an Allocator such as Rounds(5); got {short(self.allocation)}")


@dataclass(frozen=True)
class Sabr(FairPolicy):
    """The paper's policy: fair sharing with bilinear learning; with `weight` it is W-SABR.

    The default is what measured best (Thompson sampling); `Sabr(radius="paper")` is the paper's Algorithm 1.

    Parameters
    ----------
    V, horizon, target_wait : optional, at most one
        V itself; the number of slots to tune V for, by sqrt(I T); or the wait in slots to aim at. The number of
        simulated slots is the horizon unless given.
    gamma : float
        Cost of using a server, above one.
    weight : (I,) array, optional
        Priority of each class; ones unless given.
    exploration : "thompson", "ucb" or "none", optional
        "thompson" unless given, or "ucb" where `radius` is given.
    radius : "calibrated", "paper" or "published"
        The confidence radius of "ucb".
    noise : float, "known" or "estimate"
        Noise scale of a reward.
    regularization : float, optional
        Ridge parameter.
    assignment : "independent" or "distinct"
        The paper's independent draws, or no job served twice in a slot.
    limit : "none" or "queue"
        Whether a class may get more servers than it has jobs (the paper), or not.
    work_conserving : bool
        Whether servers that the program leaves idle take jobs that still wait, highest index first; the paper's policy
        lets both wait for a better match.
    allocation : Allocator
        How the program is solved in each slot: `Exact()`, or `Rounds(k)` by nodes that exchange messages.
    """

    learns, takes_weights, live = True, True, True
    adjustable = ("target_wait", "V", "work_conserving", "exploration", "gamma")
    V: float | None = None
    horizon: int | None = None
    target_wait: float | None = None
    gamma: float = 1.2
    weight: ArrayLike | None = None
    exploration: Literal["thompson", "ucb", "none"] | None = None
    radius: Literal["calibrated", "paper", "published"] | None = None
    noise: float | Literal["known", "estimate"] = "known"
    regularization: float | None = None
    assignment: str = "independent"
    limit: Literal["none", "queue"] = "none"
    work_conserving: bool = False
    allocation: Allocator = EXACT

    def __post_init__(self) -> None:
        self._check()
        if self.exploration is not None:
            one_of("exploration", self.exploration, ("thompson", "ucb", "none"))
        if self.radius is not None:
            one_of("radius", self.radius, ("calibrated", "paper", "published"))
            if self.exploration not in (None, "ucb"):
                raise BadInput(f"radius goes with exploration = 'ucb'; got exploration = {self.exploration!r}")
        if isinstance(self.noise, str):
            one_of("noise", self.noise, ("known", "estimate"))
        else:
            scalar("noise", self.noise, positive)
        if self.regularization is not None:
            scalar("regularization", self.regularization, positive)

    @classmethod
    def for_scheduler(cls, **settings: Any) -> Self:
        """Return the policy with measured noise that serves no job twice in a slot."""
        return cls(noise="estimate", assignment="distinct", limit="queue", **settings)

    def learner(self) -> Bilinear:
        """Return the bilinear learner."""
        exploration = self.exploration or ("thompson" if self.radius is None else "ucb")
        return Bilinear(exploration, self.radius or "calibrated", self.noise, self.regularization)


@dataclass(frozen=True)
class KnownRewards(FairPolicy):
    """The same program with the true mean rewards: the reference that learning is measured against."""

    takes_weights = True
    V: float | None = None
    horizon: int | None = None
    target_wait: float | None = None
    gamma: float = 1.2
    weight: ArrayLike | None = None
    assignment: str = "independent"
    limit: Literal["none", "queue"] = "none"
    work_conserving: bool = False
    allocation: Allocator = EXACT

    def __post_init__(self) -> None:
        self._check()

    def learner(self) -> Known:
        """Return the learner that knows."""
        return Known()


@dataclass(frozen=True)
class UgdaOl(FairPolicy):
    """The baseline of Hsu et al.: the same program with unstructured indices.

    `learning` is "job" (an index for each job, as they define it), "class" (shared by the jobs of a class, the fair
    comparison) or "published" (the variant that the paper's authors ran).
    """

    learns = True
    learning: Literal["job", "class", "published"] = "job"
    V: float | None = None
    horizon: int | None = None
    gamma: float = 1.2
    assignment: str = "independent"
    limit: Literal["none", "queue"] = "none"

    def __post_init__(self) -> None:
        self._check()
        one_of("learning", self.learning, ("job", "class", "published"))

    @property
    def rows(self) -> Literal["class", "job"]:
        """Jobs, unless indices are kept per class."""
        return "class" if self.learning == "class" else "job"

    def learner(self) -> PerPair | PerJob:
        """Return the counting learner."""
        return PerPair() if self.learning == "class" else PerJob(published=self.learning == "published")

    def decide(self, state: FairState, queue: Array, capacity: Array) -> Array:
        """Return the solution of Eq. (5), with a row for each job where indices are kept per job, Eq. (19)."""
        learner = self.learner()
        learnt = learner.grown(state.learnt, queue.shape[1]) if isinstance(learner, PerJob) else state.learnt
        index, weight = learner.index(learnt), np.ones(queue.shape)
        return self.allocation.share(None, queue, index, capacity, state.V, weight, self.gamma, self.limit == "queue")[
            0
        ]
