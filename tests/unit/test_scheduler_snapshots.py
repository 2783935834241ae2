"""Snapshots of a scheduler: what they keep, and what is refused."""

import numpy as np
import pytest
from test_scheduler import SERVERS, learn, sabr, scheduler

from bilinq import (
    BadInput,
    Greedy,
    JobClass,
    MaxWeight,
    Random,
    Sabr,
    Scheduler,
)
from bilinq.errors import BadState
from bilinq.scheduler.look_ahead import LookAhead
from bilinq.scheduler.slots import SlotEngine
from bilinq.scheduler.snapshot import seal, unseal


@pytest.mark.parametrize("exploration", ["thompson", "ucb", "none"])
def test_a_restored_scheduler_continues_the_same(exploration: str) -> None:
    one = scheduler(exploration=exploration, reward=(0.0, 10.0))
    learn(one, np.full((2, 2), 5.0), slots=50)
    for _ in range(9):
        one.submit("code", units=2)
    one.assign({"large": 3})
    other = Scheduler.restore(one.snapshot())
    for _ in range(60):
        for some in (one, other):
            some.submit("chat")
        first, second = one.assign({"small": 2, "large": 1}), other.assign({"small": 2, "large": 1})
        assert first == second
        assert np.array_equal(one.expected, other.expected)
        for task in first:
            assert one.report(task.job, reward=4.0) == other.report(task.job, reward=4.0)


def test_a_snapshot_without_jobs_keeps_what_was_learnt() -> None:
    one = scheduler(reward=(0.0, 10.0))
    learn(one, np.full((2, 2), 5.0), slots=50)
    other = Scheduler.restore(one.snapshot(jobs=False))
    assert sum(other.queue.values()) == 0
    mine, theirs = one.beliefs(), other.beliefs()
    assert mine is not None and theirs is not None
    assert np.array_equal(mine.mean, theirs.mean)


def test_a_snapshot_without_later_optional_values_is_restored() -> None:
    """Older snapshots have neither `pairs` of fair policies nor `eligible` of others; other missing values are refused."""
    for policy in (Sabr(), Greedy(), Random()):
        classes = [JobClass("chat", [1.0, 0.1]), JobClass("code", [1.0, 0.9])]
        one = Scheduler(classes, SERVERS, policy=policy)
        document = unseal(one.snapshot())
        assert document["engine"]["state"].pop() is None
        other = Scheduler.restore(seal(document), policy)
        assert other.snapshot() == one.snapshot()
        del document["engine"]["state"][1:]
        with pytest.raises(BadState, match="snapshot must fit this version and policy"):
            Scheduler.restore(seal(document), policy)


def test_a_damaged_snapshot_is_noticed_at_any_byte() -> None:
    data = scheduler().snapshot()
    for place in range(0, len(data), 97):
        bad = bytearray(data)
        bad[place] ^= 1
        with pytest.raises(BadState, match="snapshot must"):
            Scheduler.restore(bytes(bad))
    for cut in (0, 10, len(data) - 1):
        with pytest.raises(BadState, match="snapshot must"):
            Scheduler.restore(data[:cut])


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("gram", lambda a: a * np.nan, "gram must be finite"),
        ("gram", lambda a: -a, "gram must be positive definite"),
        ("inverse", lambda a: 1.1 * a, "inverse must be that of gram"),
        ("seen", lambda a: a - 1.0, "seen must be from 0 to"),
    ],
)
def test_a_sealed_but_unsound_state_is_refused(name: str, spoil: object, message: str) -> None:
    from bilinq.learning import BilinearState
    from bilinq.scheduler.snapshot import encode

    one = sabr()
    document = unseal(one.snapshot())
    place = BilinearState._fields.index(name)
    assert isinstance(one._engine, SlotEngine)
    value = getattr(one._engine.learnt.learnt, name)
    document["engine"]["state"][0][place] = encode(spoil(value))  # type: ignore[operator]
    with pytest.raises(BadState, match=message):
        Scheduler.restore(seal(document), Sabr.for_scheduler())


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("gram", lambda a: a * np.nan, "gram must be finite"),
        ("number", lambda a: a - 1.0, "long.number must be from 0 to"),
        ("inverse", lambda a: -a, "inverse must be positive definite"),
    ],
)
def test_an_unsound_state_of_the_look_ahead_is_refused(name: str, spoil: object, message: str) -> None:
    from bilinq.learning.memory import Memory
    from bilinq.scheduler.snapshot import encode

    one = scheduler()
    learn(one, np.zeros((2, 2)), slots=20)
    document = unseal(one.snapshot())
    place = Memory._fields.index(name)
    assert isinstance(one._engine, LookAhead)
    value = getattr(one._engine.learnt.value.long, name)
    document["engine"]["state"][0][0][place] = encode(spoil(value * 0 if name == "number" else value))  # type: ignore[operator]
    with pytest.raises(BadState, match=message):
        Scheduler.restore(seal(document))


def test_a_snapshot_is_restored_with_the_policy_that_made_it_only() -> None:
    classes = [JobClass("a", [1.0])], SERVERS
    greedy, default = Scheduler(*classes, policy=Greedy()).snapshot(), Scheduler(*classes).snapshot()
    assert Scheduler.restore(greedy, Greedy()).policy == Greedy()
    with pytest.raises(BadInput, match="policy must be given, since the snapshot was made with one"):
        Scheduler.restore(greedy)
    for data, policy, name in ((greedy, MaxWeight(), "Greedy"), (default, Greedy(), "the look-ahead")):
        with pytest.raises(BadState, match=f"snapshot must be of policy {type(policy).__name__}; got one of {name}"):
            Scheduler.restore(data, policy)
    mine = Scheduler.restore(Scheduler(*classes, policy=Sabr()).snapshot(), Sabr.for_scheduler(V=7.0))
    assert mine.settings is not None and mine.settings.V == 7.0
