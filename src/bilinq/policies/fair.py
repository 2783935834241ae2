"""Policies that share servers by the fair program, Eq. (5), and differ in how they estimate the rewards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from bilinq.allocation.arguments import ALL_ELIGIBLE, EQUAL_DURATIONS
from bilinq.arrays import Array, as_floats, count, one_of, positive, require, scalar, shaped, short, within
from bilinq.assignment import METHODS
from bilinq.errors import BadInput
from bilinq.learning import Bilinear, Known, Learner, Outcome, PerJob, PerPair
from bilinq.learning.bilinear import VARYING
from bilinq.policies.allocators import EXACT, Allocator, Demand, Memory
from bilinq.policies.policy import Policy
from bilinq.problem.pairs import Pairs

if TYPE_CHECKING:
    from bilinq.learning.learner import State as LearnerState
    from bilinq.problem.instances import Instances


class FairState(NamedTuple):
    """State of a fair policy: the learner's state, V (R,), weights (R, I), and mu averaged over classes (R,).

    `shared` is the allocator's memory. `pairs` are those of the rows, None if all are eligible and of equal duration.
    `units` (R, rows) are the services that jobs of each row still need, None if that is one for each job.
    """

    learnt: LearnerState
    V: Array
    weight: Array
    service_rate: Array
    shared: Memory = None
    pairs: Pairs | None = None
    units: Array | None = None


@dataclass(frozen=True, kw_only=True)
class FairPolicy(Policy):
    """The program of Eq. (5) with a learner's indices as rewards; `Sabr` explains the settings."""

    varying = VARYING
    V: float | None = None
    horizon: int | None = None
    gamma: float = 1.2
    assignment: str = "distinct"
    limit: Literal["none", "queue"] = "queue"

    def __post_init__(self) -> None:
        if self.V is not None:
            scalar("V", self.V, positive)
        if self.horizon is not None:
            count("horizon", self.horizon)
        require("gamma", as_floats("gamma", self.gamma), lambda x: (x > 1.0) & np.isfinite(x), "above one")
        one_of("limit", self.limit, ("none", "queue"))
        one_of("assignment", self.assignment, METHODS)

    @abstractmethod
    def learner(self) -> Learner:
        """Return the learner that this policy's settings describe."""

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> FairState:
        slots, classes = self.horizon or horizon, instances.mean_reward.shape[1]
        V = np.sqrt(classes * float(slots)) if self.V is None else self.V
        learnt, ones = self.learner().start(instances, slots, rngs), np.ones(instances.arrival_rate.shape)
        rate, pairs = _rates(instances)
        return FairState(learnt, np.full(instances.count, V), ones, rate, None, pairs)

    def with_pairs(self, state: FairState, pairs: Pairs) -> FairState:
        return state._replace(pairs=pairs)

    def with_units(self, state: FairState, units: Array) -> FairState:
        return state._replace(units=units)

    def decide(self, state: FairState, queue: Array, capacity: Array) -> Array:
        learner = self.learner()
        value = self._value(state, learner.index(learner.grown(state.learnt, queue.shape[1])))
        weight = state.weight if self.rows == "class" else np.ones(queue.shape)
        demand = self._demand(state, value, queue, capacity, state.V, weight)
        return demand.servers(EXACT.share(None, demand)[0])

    def learn(self, state: FairState, outcome: Outcome) -> FairState:
        return state._replace(learnt=self.learner().learn(state.learnt, outcome))

    def paced(self, state: FairState, elapsed: float) -> FairState:
        """Return the state in which services are offered for `elapsed` slots: their number goes with 1 / V, Eq. (21)."""
        return state._replace(V=state.V / elapsed, service_rate=state.service_rate / elapsed)

    def beliefs(self, state: FairState) -> tuple[Array, Array] | None:
        return self.learner().beliefs(state.learnt)

    def check(self, state: FairState) -> None:
        for name in ("V", "weight", "service_rate"):
            within(name, getattr(state, name), 1e-100, 1e100)
        self.learner().check(state.learnt)

    def current_V(self, state: FairState) -> Array:
        return state.V

    def _value(self, state: FairState, index: Array) -> Array:
        """Return the reward of a service (R, rows, J), gamma - (gamma - index) duration, Eq. (48)."""
        if state.pairs is None or state.pairs.duration is None:
            return index
        return np.asarray(self.gamma - (self.gamma - index) * state.pairs.duration)

    def _demand(
        self, state: FairState, value: Array, queue: Array, capacity: Array, V: Array, weight: Array
    ) -> Demand:  # fmt: skip
        demand = Demand(
            queue=queue, reward=value, capacity=capacity, V=V, weight=weight, gamma=self.gamma,
            most=_services(state, queue) if self.limit == "queue" else None,
        )  # fmt: skip
        if state.pairs is None:
            return demand
        eligible, duration = state.pairs.eligible, state.pairs.duration
        return demand._replace(eligible=ALL_ELIGIBLE if eligible is None else eligible,
                               duration=EQUAL_DURATIONS if duration is None else duration)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class WeightedFairPolicy(FairPolicy):
    """A fair policy whose rows are job classes, with weights, a target wait, and allocators other than `Exact`."""

    takes_weights = True
    target_wait: float | None = None
    weight: ArrayLike | None = None
    work_conserving: bool = False
    allocation: Allocator = EXACT

    def __post_init__(self) -> None:
        if self.V is not None and self.target_wait is not None:
            raise BadInput("V and target_wait exclude each other; give at most one of them")
        super().__post_init__()
        if self.target_wait is not None:
            scalar("target_wait", self.target_wait, positive)
        if self.weight is not None:
            positive("weight", self.weight)
        if not isinstance(self.allocation, Allocator):
            raise BadInput(f"allocation must be an Allocator such as Rounds(5); got {short(self.allocation)}")

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> FairState:
        state = super().start(instances, horizon, rngs)
        shared = self.allocation.start(instances, self.gamma)
        return state._replace(weight=_weights(self.weight, instances), shared=shared)

    def decide(self, state: FairState, queue: Array, capacity: Array) -> Array:
        """Return the allocator's answer to Eq. (5); with `work_conserving` no server idles while a job waits."""
        value = self._value(state, self.learner().index(state.learnt))
        y, _ = self._share(state, value, queue, capacity)
        if self.work_conserving:
            from bilinq.policies.kernels import fill_idle

            fill_idle(_only_eligible(value, state.pairs), _services(state, queue), capacity, y)
        return y

    def learn(self, state: FairState, outcome: Outcome) -> FairState:
        after = super().learn(state, outcome)
        if state.shared is None:
            return after
        if outcome.queue is None or outcome.capacity is None:
            missing = "queue" if outcome.queue is None else "capacity"
            raise BadInput(f"outcome.{missing} must be what the policy was shown, for {self.allocation}; got None")
        value = self._value(state, self.learner().index(state.learnt))
        return after._replace(shared=self._share(state, value, outcome.queue, outcome.capacity)[1])

    def adapt(self, state: FairState, instances: Instances) -> FairState:
        learnt, shared = self.learner().adapt(state.learnt, instances), self.allocation.start(instances, self.gamma)
        V = state.V if self.V is None else np.full(instances.count, self.V)
        rate, pairs = _rates(instances)
        return FairState(learnt, V, _weights(self.weight, instances), rate, shared, pairs)

    def current_V(self, state: FairState) -> Array:
        return self._V(state, self._value(state, self.learner().index(state.learnt)))

    def _share(self, state: FairState, value: Array, queue: Array, capacity: Array) -> tuple[Array, Memory]:
        """Return the servers (R, I, J) that the allocator gives, and its memory."""
        demand = self._demand(state, value, queue, capacity, self._V(state, value), state.weight)
        expected, memory = self.allocation.share(state.shared, demand)
        return demand.servers(expected), memory

    def _V(self, state: FairState, value: Array) -> Array:
        """Return V (R,): as set, or as `target_wait` requires, Eq. (22) or (54)."""
        if self.target_wait is None:
            return state.V
        best = _only_eligible(value, state.pairs).max(axis=2)
        served = best > -np.inf
        cost = np.where(served, (self.gamma - best) / state.weight, 0.0).sum(axis=1) / np.maximum(served.sum(axis=1), 1)
        return np.asarray(self.target_wait * state.service_rate / np.where(cost > 0.0, cost, self.gamma))


def _weights(weight: ArrayLike | None, instances: Instances) -> Array:
    """Return the weights of all classes (R, I); default: ones."""
    given = positive("weight", 1.0 if weight is None else weight)
    return shaped("weight", given, instances.arrival_rate.shape).copy()


def _rates(instances: Instances) -> tuple[Array, Pairs | None]:
    """Return the service rates averaged over classes (R,), and the pairs if they differ, as arrays for kernels."""
    pairs = instances.pairs
    arrays = (None if array is None else array.copy(order="C") for array in pairs[1:])
    return pairs.rate.mean(axis=1), None if pairs.plain else Pairs(pairs.rate, *arrays)  # type: ignore[arg-type]


def _only_eligible(value: Array, pairs: Pairs | None) -> Array:
    """Return `value` (R, rows, J), minus infinity for pairs that are not eligible."""
    if pairs is None or pairs.eligible is None:
        return value
    return np.where(pairs.eligible, value, -np.inf)


def _services(state: FairState, queue: Array) -> Array:
    """Return how many services the jobs of each row need (R, rows)."""
    return queue if state.units is None else state.units


@dataclass(frozen=True, kw_only=True)
class Sabr(WeightedFairPolicy):
    """The paper's policy: fair sharing with bilinear learning; with `weight` it is W-SABR.

    The default is what users should run: Thompson sampling, which learns at the lowest price, and no job served twice in a
    slot. `Sabr.as_printed()` is the paper's Algorithm 1 to the letter.

    Parameters
    ----------
    V, target_wait : float, optional, at most one
        V itself, or the wait in slots to aim at, which sets V by Eq. (22) from the current indices.
    horizon : int, optional
        The number T of slots to tune for: V by sqrt(I T), Eq. (23), if nothing else sets it, and the radius "paper" or
        "published". Default: the number of simulated slots.
    gamma : float
        Cost of using a server, above one.
    weight : (I,) array, optional
        Priority of each class; default: ones.
    exploration : "thompson", "ucb" or "none", optional
        Default: "ucb" if `radius` is given, else "thompson".
    scale : float
        Standard errors by which Thompson samples vary. One is the posterior itself; a half learns at a lower price.
    radius : "calibrated", "paper" or "published", a number, or a function of the slot
        The confidence radius of "ucb"; a function gets the number of the slot, from 1.
    confidence, bound : float
        Of the radius "calibrated": the chance that it fails, and the norm S that the parameter has at most.
    rank : int, optional
        Use the best approximation of this rank of the estimated or sampled parameter: a low-rank bilinear bandit.
    anytime : "growing" or "doubling", optional
        Let V grow without a horizon: sqrt(I t), or sqrt(I T) for T = 1, 2, 4, ... as slots pass. Excludes V, target_wait.
    noise : float, "known" or "estimate"
        Noise scale of a reward.
    regularization : float, optional
        Ridge parameter.
    assignment : "distinct" or "independent"
        No job served twice in a slot, or the paper's independent draws.
    limit : "queue" or "none"
        Whether a class gets at most as many servers as its jobs need, or perhaps more (the paper).
    work_conserving : bool
        Whether servers that the program leaves idle serve jobs that still wait, highest index first; the paper's policy
        lets both wait for a better match.
    allocation : Allocator
        How the program is solved in each slot: `Exact()`, or `Rounds(k)` by nodes that exchange messages.
    """

    learns, live = True, True
    adjustable = ("target_wait", "V", "work_conserving", "exploration", "gamma")
    exploration: Literal["thompson", "ucb", "none"] | None = None
    scale: float = 0.5
    radius: Literal["calibrated", "paper", "published"] | float | Callable[[int], float] | None = None
    noise: float | Literal["known", "estimate"] = "known"
    regularization: float | None = None
    confidence: float = 0.1
    bound: float = 1.0
    rank: int | None = None
    anytime: Literal["growing", "doubling"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            "confidence", np.asarray(scalar("confidence", self.confidence, positive)), lambda x: x < 1.0, "below one"
        )
        scalar("bound", self.bound, positive)
        if self.rank is not None:
            count("rank", self.rank)
        if self.anytime is not None:
            one_of("anytime", self.anytime, ("growing", "doubling"))
            if self.V is not None or self.target_wait is not None:
                raise BadInput("V, target_wait and anytime exclude each other; give at most one of them")
        if self.exploration is not None:
            one_of("exploration", self.exploration, ("thompson", "ucb", "none"))
        scalar("scale", self.scale, positive)
        if self.radius is not None:
            if isinstance(self.radius, str):
                one_of("radius", self.radius, ("calibrated", "paper", "published"))
            elif not callable(self.radius):
                scalar("radius", self.radius, positive)
            if self.exploration not in (None, "ucb"):
                raise BadInput(f"radius goes with exploration = 'ucb'; got exploration = {self.exploration!r}")
        if isinstance(self.noise, str):
            one_of("noise", self.noise, ("known", "estimate"))
        else:
            scalar("noise", self.noise, positive)
        if self.regularization is not None:
            scalar("regularization", self.regularization, positive)

    @classmethod
    def as_printed(cls, horizon: int | None = None, V: float | None = None, **settings: Any) -> Self:
        """Return the paper's Algorithm 1 to the letter: its radius for T = `horizon`, and independent draws of jobs.

        V is by default sqrt(I T). Other settings are those of `Sabr`, such as `weight` for W-SABR.

        Examples
        --------
        >>> policy = Sabr.as_printed(horizon=500, V=58.0)
        >>> policy.radius, policy.assignment, policy.limit
        ('paper', 'independent', 'none')
        """
        printed: dict[str, Any] = {"radius": "paper", "assignment": "independent", "limit": "none"}
        return cls(horizon=horizon, V=V, **{**printed, **settings})

    @property
    def needs_horizon(self) -> bool:
        """The radii "paper" and "published" have T in them."""
        return self.radius in ("paper", "published") and self.horizon is None

    @classmethod
    def for_scheduler(cls, **settings: Any) -> Self:
        """Return the policy with measured noise."""
        return cls(noise="estimate", **settings)

    def learner(self) -> Bilinear:
        exploration = self.exploration or ("thompson" if self.radius is None else "ucb")
        return Bilinear(
            exploration, "calibrated" if self.radius is None else self.radius, self.noise, self.regularization,
            confidence=self.confidence, scale=self.scale, bound=self.bound, rank=self.rank,
        )  # fmt: skip

    def _V(self, state: FairState, value: Array) -> Array:
        if self.anytime is None:
            return super()._V(state, value)
        t = state.learnt.slot + 1
        known = t if self.anytime == "growing" else 2 ** (t - 1).bit_length()
        return np.full(state.V.shape, np.sqrt(value.shape[1] * float(known)))


@dataclass(frozen=True, kw_only=True)
class KnownRewards(WeightedFairPolicy):
    """The same program with the true mean rewards: the reference that learning is measured against.

    Its settings are those of `Sabr` that do not concern learning.
    """

    def learner(self) -> Known:
        return Known()


@dataclass(frozen=True)
class UgdaOl(FairPolicy):
    """The baseline of Hsu et al.: the same program with unstructured indices.

    `learning` is "job" (an index for each job, Eq. (19), as they define it), "class" (shared by the jobs of a class, the
    fair comparison) or "published" (the variant that the paper's authors ran). `V`, `horizon`, `gamma`, `assignment` and
    `limit` are as in `Sabr`, and so is `weight` with "class"; rows of the others are jobs, which have no weights.
    """

    learns, takes_weights = True, True
    learning: Literal["job", "class", "published"] = "job"
    weight: ArrayLike | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("learning", self.learning, ("job", "class", "published"))
        if self.weight is not None:
            weight = positive("weight", self.weight)
            if self.learning != "class" and np.ptp(weight) > 0.0:
                raise BadInput(
                    f"weight must be equal for all classes if learning = {self.learning!r}; got {short(weight)}"
                )

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> FairState:
        return super().start(instances, horizon, rngs)._replace(weight=_weights(self.weight, instances))

    @property
    def rows(self) -> Literal["class", "job"]:
        """Jobs, unless indices are kept per class."""
        return "class" if self.learning == "class" else "job"

    def learner(self) -> PerPair | PerJob:
        return PerPair() if self.learning == "class" else PerJob(published=self.learning == "published")
