"""Simple baselines: MaxWeight, c-mu, greedy, random, first come first served, and a static split by the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bilinq.arrays import Array, BoolArray, non_negative, scalar, within
from bilinq.errors import BadInput
from bilinq.learning import Bilinear, BilinearState, Outcome
from bilinq.learning.bilinear import VARYING
from bilinq.policies.policy import Policy
from bilinq.problem.oracle import oracle_shares

if TYPE_CHECKING:
    from bilinq.problem.instances import Instances
    from bilinq.problem.pairs import Pairs


TIE = 1e-9  # how much rewards count between pairs of equal cost, relative to the largest cost


class RankedState(NamedTuple):
    """The learner's state, the service rates (R, I) or (R, I, J) that weigh queues, and the eligible pairs (R, I, J).

    `units` (R, I) are the services that waiting jobs still need, None if that is one for each job.
    """

    learnt: BilinearState
    service_rate: Array
    eligible: BoolArray | None = None
    units: Array | None = None

    def services(self, queue: Array) -> Array:
        """Return how many servers the jobs of each class can use in this slot (R, I)."""
        return queue if self.units is None else self.units


class _Ranked(Policy):
    """A policy that serves pairs by rank of a score, which a subclass computes from indices and queues."""

    learns, live = True, True
    varying = VARYING

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> RankedState:
        return RankedState(Bilinear().start(instances, horizon, rngs), instances.service_rate, instances.eligible)

    def with_units(self, state: RankedState, units: Array) -> RankedState:
        return state._replace(units=units)

    def learn(self, state: RankedState, outcome: Outcome) -> RankedState:
        return state._replace(learnt=Bilinear().learn(state.learnt, outcome))

    def adapt(self, state: RankedState, instances: Instances) -> RankedState:
        return RankedState(Bilinear().adapt(state.learnt, instances), instances.service_rate, instances.eligible)

    def beliefs(self, state: RankedState) -> tuple[Array, Array] | None:
        return Bilinear().beliefs(state.learnt)

    def check(self, state: RankedState) -> None:
        within("service_rate", state.service_rate, 1e-100, 1e100)
        Bilinear().check(state.learnt)


@dataclass(frozen=True)
class MaxWeight(_Ranked):
    """A policy that serves the pair with the largest positive mu_ij Q_i + V (r_ij - gamma), with learnt rewards.

    This is the classic throughput-optimal rule with rewards as a bonus. A large V waits for good matches; V = 0 serves
    the longest queue.
    """

    V: float = 10.0
    gamma: float = 1.0
    assignment: str = "distinct"

    def __post_init__(self) -> None:
        scalar("V", self.V, non_negative)
        scalar("gamma", self.gamma)

    def decide(self, state: RankedState, queue: Array, capacity: Array) -> Array:
        index = Bilinear().index(state.learnt)
        rate = state.service_rate if state.service_rate.ndim == 3 else state.service_rate[:, :, None]
        score = rate * queue[:, :, None] + self.V * (index - self.gamma)
        return _by_rank(np.where(score > 0.0, score, -np.inf), state.services(queue), capacity, state.eligible)


class CostState(NamedTuple):
    """Holding cost times service rate of each pair (R, I, J), and what `_Ranked` keeps."""

    urgency: Array
    ranked: RankedState


@dataclass(frozen=True)
class CMu(Policy):
    """The c-mu rule: serve the pair with the largest holding cost times service rate first, and never idle.

    With `generalised` the cost is quadratic, so the score is the cost of a job times the queue times the rate: the rule for
    convex costs. Both know the costs and rates; pairs of equal score are served by the highest learnt reward.
    """

    learns = True
    varying = VARYING
    generalised: bool = False
    assignment: str = "distinct"

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> CostState:
        rate = instances.service_rate if instances.service_rate.ndim == 3 else instances.service_rate[:, :, None]
        urgency = np.broadcast_to(instances.holding_cost[:, :, None] * rate, instances.mean_reward.shape)
        return CostState(np.asarray(urgency), Greedy().start(instances, horizon, rngs))

    def with_units(self, state: CostState, units: Array) -> CostState:
        return state._replace(ranked=state.ranked._replace(units=units))

    def decide(self, state: CostState, queue: Array, capacity: Array) -> Array:
        score = state.urgency * queue[:, :, None] if self.generalised else state.urgency
        step = TIE * max(float(score.max()), 1e-100)
        score = score + step * Bilinear().index(state.ranked.learnt)
        return _by_rank(score, state.ranked.services(queue), capacity, state.ranked.eligible)

    def learn(self, state: CostState, outcome: Outcome) -> CostState:
        return state._replace(ranked=Greedy().learn(state.ranked, outcome))


@dataclass(frozen=True)
class Greedy(_Ranked):
    """A policy that serves the pair with the highest learnt reward first and never idles while work waits."""

    assignment: str = "distinct"

    def decide(self, state: RankedState, queue: Array, capacity: Array) -> Array:
        return _by_rank(Bilinear().index(state.learnt), state.services(queue), capacity, state.eligible)


class _Sized(NamedTuple):
    """A policy's state, and the units of service (R, rows) that waiting jobs still need in this slot."""

    state: Any
    units: Array


@dataclass(frozen=True)
class Random(Policy):
    """A policy in which every server serves a random unit of work; it never idles while work waits."""

    live = True
    assignment: str = "distinct"

    def with_units(self, state: Instances, units: Array) -> _Sized:
        return _Sized(state, units)

    def decide(self, state: Instances | _Sized, queue: Array, capacity: Array) -> Array:
        instances, services = state if isinstance(state, _Sized) else (state, queue)
        return _by_rank(np.zeros((*queue.shape, capacity.shape[1])), services, capacity, instances.eligible)

    def learn(self, state: Instances | _Sized, outcome: Outcome) -> Instances:
        instances: Instances = state.state if isinstance(state, _Sized) else state
        return instances

    def adapt(self, state: Instances, instances: Instances) -> Instances:
        return instances


class _Masked(NamedTuple):
    """Slots of arrival (R, known rows), and which server classes may serve each row (R, rows, J) in this slot."""

    since: Array
    eligible: BoolArray


@dataclass(frozen=True)
class FirstCome(Policy):
    """First come, first served: the oldest jobs get one server each, of any class; it never idles while a job waits.

    A job that has a server keeps one until it leaves (unless servers fail), but not always of the same class: classes are
    drawn in each slot in proportion to their capacity. At most one server serves a job at a time, even if the job needs
    several units of service; with `several` it gets as many as it needs units. Jobs that arrived in the same slot are
    served in random order. With `newest` the last server classes are filled first, as operators do whose classes are
    listed by age. If not every server class may serve every job, a job takes one of the idle servers that may, and is
    passed over if there is none.
    """

    live = True
    newest: bool = False
    several: bool = False
    assignment = "distinct"  # no setting: independent draws would leave servers idle while jobs wait

    @property
    def rows(self) -> Literal["class", "job"]:
        return "job"

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Array:
        """Return the slot of arrival of each row's job (R, rows), infinite if unknown; at the start there are no rows."""
        return np.zeros((instances.count, 0))

    def with_pairs(self, state: Array, pairs: Pairs) -> Array | _Masked:
        return state if pairs.eligible is None else _Masked(state, pairs.eligible)

    def with_units(self, state: Array | _Masked, units: Array) -> Array | _Masked | _Sized:
        return _Sized(state, units) if self.several else state

    def decide(self, state: Array | _Masked | _Sized, queue: Array, capacity: Array) -> Array:
        """Return the servers of the oldest jobs, shared over the classes in proportion to the servers used."""
        known, services = state if isinstance(state, _Sized) else (state, queue)
        if isinstance(known, _Masked):
            return self._decide_masked(known, services, capacity)
        room = capacity.sum(axis=1, keepdims=True)
        served = _oldest(_with_rows(known, queue.shape[1]), services, room)
        total = served.sum(axis=1, keepdims=True)
        used = _last_first(capacity, total) if self.newest else capacity * total / np.maximum(room, 1.0)
        share = np.divide(used, total, out=np.zeros_like(capacity), where=total > 0.0)
        return np.asarray(served[:, :, None] * share[:, None, :])

    def _decide_masked(self, state: _Masked, queue: Array, capacity: Array) -> Array:
        """Serve jobs by age, each with one eligible server: from the last class with `newest`, else of any class."""
        columns = capacity.shape[1]
        age = np.minimum(_with_rows(state.since, queue.shape[1]), np.finfo(float).max)
        rank = np.stack([np.unique(ages, return_inverse=True)[1] for ages in age])
        score = -columns * rank[:, :, None] + (np.arange(columns) if self.newest else np.zeros(columns))
        return _by_rank(score, queue, capacity, state.eligible)

    def learn(self, state: Array | _Masked | _Sized, outcome: Outcome) -> Array:
        if outcome.queue is None:
            raise BadInput("outcome.queue must be the queue that the policy was shown; got None")
        known = state.state if isinstance(state, _Sized) else state
        since = _with_rows(known.since if isinstance(known, _Masked) else known, outcome.queue.shape[1])
        since = np.where((outcome.queue > 0.0) & np.isinf(since), float(outcome.slot), since)
        begun = np.ceil(since) - 0.5  # before jobs of the same slot that are not served yet
        since = np.where(outcome.count.sum(axis=2) > 0, begun, since)
        return np.where(outcome.left, np.inf, since)

    def adapt(self, state: Array, instances: Instances) -> Array:
        return state


@dataclass(frozen=True)
class StaticSplit(Policy):
    """A fixed split of each class's services by the oracle, Eq. (2) or (49), which needs known rewards and rates."""

    assignment: str = "distinct"

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Array:
        share, duration = oracle_shares(instances), instances.pairs.duration
        if duration is None:
            return share
        time = share * duration  # a job stays longer where it is served at a lower rate
        return np.asarray(time / time.sum(axis=2, keepdims=True))

    def decide(self, state: Array, queue: Array, capacity: Array) -> Array:
        """Return every waiting job's share, scaled back if a server class has too few servers."""
        wanted = state * queue[:, :, None]
        load = wanted.sum(axis=1)
        fits = np.minimum(1.0, np.divide(capacity, load, out=np.ones_like(load), where=load > 0.0))
        return np.asarray(wanted * fits[:, None, :])

    def learn(self, state: Array, outcome: Outcome) -> Array:
        return state


def _by_rank(score: Array, queue: Array, capacity: Array, eligible: BoolArray | None) -> Array:
    from bilinq.policies.kernels import fill_by_rank

    y = np.empty(score.shape)
    fill_by_rank(score if eligible is None else np.where(eligible, score, -np.inf), queue, capacity, y)
    return y


def _with_rows(since: Array, rows: int) -> Array:
    """Return `since` (R, known rows) with room for `rows` jobs."""
    missing = rows - since.shape[1]
    return np.pad(since, ((0, 0), (0, missing)), constant_values=np.inf) if missing > 0 else since


def _last_first(capacity: Array, wanted: Array) -> Array:
    """Return how many servers of each class (R, J) are used if `wanted` (R, 1) are filled from the last class."""
    behind = np.cumsum(capacity[:, ::-1], axis=1)[:, ::-1] - capacity
    return np.clip(wanted - behind, 0.0, capacity)


def _oldest(since: Array, services: Array, room: Array) -> Array:
    """Return how many servers each row's job gets (R, rows) if the oldest share `room` (R, 1) servers.

    A job can use `services` (R, rows) servers, zero if none waits in the row. A job with `since` infinity has just arrived,
    so it is the youngest. All jobs older than the last one that fits get what they can use; those of the same age as the
    last one share the rest in proportion.
    """
    waits = services > 0.0
    age = np.where(waits, np.minimum(since, np.finfo(float).max), np.inf)
    rank = np.argsort(age, axis=1)
    before = np.take_along_axis(services, rank, axis=1).cumsum(axis=1) < room
    place = np.minimum(before.sum(axis=1, keepdims=True), np.maximum(waits.sum(axis=1, keepdims=True) - 1, 0))
    last = np.take_along_axis(np.take_along_axis(age, rank, axis=1), place, axis=1)
    full, tied = np.where(age < last, services, 0.0), np.where(waits & (age == last), services, 0.0)
    rest, wanted = room - full.sum(axis=1, keepdims=True), tied.sum(axis=1, keepdims=True)
    return np.asarray(
        full + tied * np.minimum(np.divide(rest, wanted, out=np.zeros_like(rest), where=wanted > 0.0), 1.0)
    )
