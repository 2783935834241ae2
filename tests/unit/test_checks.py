"""The contract of policies: all of bilinq meet it, and each way to break it is named."""

import doctest
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bilinq import (
    FirstCome,
    FixedPoint,
    Greedy,
    KnownRewards,
    MaxWeight,
    Problem,
    Random,
    Rounds,
    Sabr,
    StaticSplit,
    UgdaOl,
    checks,
)
from bilinq.arrays import Array
from bilinq.checks import check_policy
from bilinq.distributed import Barrier
from bilinq.errors import BadInput
from bilinq.learning import Outcome
from bilinq.policies import Policy
from bilinq.problem.instances import Instances

SHIPPED: list[Policy] = [
    Sabr(),
    Sabr(V=20.0, weight=[1.0, 2.0, 0.5, 1.0], assignment="distinct", limit="queue"),
    Sabr(radius="paper"),
    Sabr(radius="published"),
    Sabr(radius="calibrated", noise="estimate"),
    Sabr(exploration="none", target_wait=5.0),
    Sabr(V=20.0, allocation=Rounds(1)),
    Sabr(V=9.0, allocation=Rounds(3, Barrier(), forward=[[0, 1], [2, 0], [1, 2], [0, 1]], backward=1), limit="queue"),
    Sabr(target_wait=5.0, allocation=Rounds(2, nodes="server", rule="delayed", forward=2, backward=3)),
    KnownRewards(V=2.0, allocation=FixedPoint()),
    KnownRewards(V=5.0),
    KnownRewards(horizon=100, limit="queue", assignment="distinct"),
    UgdaOl(learning="job"),
    UgdaOl(learning="class"),
    UgdaOl(learning="published", assignment="distinct", limit="queue"),
    MaxWeight(),
    MaxWeight(V=0.0, assignment="independent"),
    Greedy(),
    Random(),
    FirstCome(),
    FirstCome(several=True),
    StaticSplit(),
]


class Fair(Policy):
    """A sound policy: servers in proportion to queues. Policies that break a rule follow."""

    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        waiting = np.maximum(queue.sum(axis=1, keepdims=True), 1.0)
        return np.asarray((queue / waiting)[:, :, None] * capacity[:, None, :])

    def learn(self, state: Any, outcome: Outcome) -> Any:
        return state


class NoArray(Fair):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        answer: Any = super().decide(state, queue, capacity).tolist()
        return answer  # type: ignore[no-any-return]


class WrongShape(Fair):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        return super().decide(state, queue, capacity).transpose(0, 2, 1)


class NotFinite(Fair):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        """Divide by the number of jobs, which may be zero."""
        with np.errstate(invalid="ignore"):
            return np.asarray((queue / queue.sum(axis=1, keepdims=True))[:, :, None] * capacity[:, None, :])


class Negative(Fair):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        return np.asarray(super().decide(state, queue, capacity) - 1e-3)


class AboveCapacity(Fair):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        return np.asarray(super().decide(state, queue, capacity) * (1.0 + 1e-6))


class BlindToFailures(Fair):
    def decide(self, state: Instances, queue: Array, capacity: Array) -> Array:
        return super().decide(state, queue, state.servers)


class ServesNobody(Fair):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        return super().decide(state, np.ones_like(queue), capacity)


class Fickle(Fair):
    def __init__(self) -> None:
        self.calls = 0

    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        self.calls += 1
        return np.asarray(super().decide(state, queue, capacity) / self.calls)


class EatsQueue(Fair):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        y = super().decide(state, queue, capacity)
        queue[...] = 0.0
        return y


class EatsCapacity(Fair):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        y = super().decide(state, queue, capacity)
        capacity -= y.sum(axis=1)
        return y


class Notes(Fair):
    """Keeps what it has seen in a mutable state."""

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Any:
        return SimpleNamespace(seen={"count": [np.zeros(instances.mean_reward.shape)]}, rng=rngs[0])


class NotesInDecide(Notes):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        state.seen["count"][0] += 1.0
        return super().decide(state, queue, capacity)


class DrawsInDecide(Notes):
    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        state.rng.random()
        return super().decide(state, queue, capacity)


class NotesInLearn(Notes):
    def learn(self, state: Any, outcome: Outcome) -> Any:
        state.seen["count"][0] += outcome.count
        return state


class EatsOutcome(Fair):
    def learn(self, state: Any, outcome: Outcome) -> Any:
        outcome.total[...] = 0.0
        return state


class Unseeded(Fair):
    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> Any:
        return np.random.default_rng().random()

    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        return np.asarray(state * super().decide(state, queue, capacity))


class Gossip(Fair):
    """Waits for the slowest replication."""

    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        return np.asarray(super().decide(state, queue, capacity) / (1.0 + queue.sum(axis=1).max()))


class OddAssignment(Fair):
    assignment = "greedy"


class OddRows(Fair):
    @property
    def rows(self) -> Any:
        return "server"


class NoWeight(Fair):
    takes_weights = True


class NothingToAdjust(Fair):
    adjustable = ("speed",)


BROKEN: list[tuple[type[Policy], str]] = [
    (NoArray, r"decide must return an array of numbers; got \[\["),
    (WrongShape, r"decide must return shape \(3, 4, 2\).*got \(3, 2, 4\) in slot 1"),
    (NotFinite, r"decide must return finite numbers; got nan in slot"),
    (Negative, r"decide must return no negative number; got -0.001 in slot 1"),
    (AboveCapacity, r"at most its capacity 3; got 3.000003 in slot"),
    (BlindToFailures, r"decide must give server class \d at most its capacity [012]; got"),
    (ServesNobody, r"decide must give zero to a row with an empty queue; got"),
    (Fickle, r"decide must return the same for the same arguments"),
    (EatsQueue, r"decide must not change queue; it did in slot"),
    (EatsCapacity, r"decide must not change capacity; it did in slot"),
    (NotesInDecide, r"decide must not change state; it did in slot 1"),
    (DrawsInDecide, r"decide must not change state; it did in slot 1"),
    (NotesInLearn, r"learn must not change state; it did in slot"),
    (EatsOutcome, r"learn must not change outcome; it did in slot"),
    (Unseeded, r"policy must give the same run for the same seed; got another run from slot"),
    (Gossip, r"replications must not influence each other; got another run from slot \d+ on, replication 0, with 1"),
    (OddAssignment, r"assignment must be one of 'independent', 'distinct'; got 'greedy'"),
    (OddRows, r"rows must be one of 'class', 'job'; got 'server'"),
    (NoWeight, r"takes_weights needs a field weight; NoWeight has no field 'weight'"),
    (NothingToAdjust, r"adjustable must name fields; NothingToAdjust has no field 'speed'"),
]


@pytest.mark.parametrize("policy", SHIPPED, ids=repr)
def test_shipped_policies_meet_the_contract(policy: Policy) -> None:
    check_policy(policy)


def test_sound_policies_pass() -> None:
    check_policy(Fair(), slots=10, replications=1, seed=5)
    check_policy(Notes(), slots=10)


def test_own_problem() -> None:
    problem = Problem(arrival_rate=[2.0], servers=[3, 1], mean_reward=[[0.5, -0.5]])
    check_policy(Random(), problem)
    with pytest.raises(BadInput, match=r"shape \(3, 1, 2\)"):
        check_policy(WrongShape(), problem)


@pytest.mark.parametrize(("policy", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_breaches_are_named(policy: type[Policy], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_policy(policy())


def test_not_a_policy() -> None:
    nobody: Any = "SABR"
    with pytest.raises(BadInput, match="policy must be a Policy; got 'SABR'"):
        check_policy(nobody)


def test_example_runs() -> None:
    results = doctest.testmod(checks)
    assert results.attempted and not results.failed
