"""A log of services replays to the same learnt state bit for bit: alone, in parts, and after a snapshot in between."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilinq import JobClass, Scheduler, ServerClass
from bilinq.errors import BadInput
from bilinq.scheduler.scheduler import Observation
from bilinq.scheduler.snapshot import encode

JOBS, SERVERS = ("chat", "code", "mail"), ("small", "large", "huge")
Event = Observation | int
"""A service, or the number of classes of both kinds from then on."""


def classes(number: int) -> tuple[list[JobClass], list[ServerClass]]:
    return [JobClass(name) for name in JOBS[:number]], [ServerClass(name) for name in SERVERS[:number]]


def fresh(number: int) -> Scheduler:
    return Scheduler(*classes(number), reward=(0.0, 10.0), target_wait=2.0, seed=3, keep=0)


def learnt(scheduler: Scheduler) -> Any:
    """Return what follows from the log: models, features and durations, as plain values with all their bits."""
    scheduler.assign({}, elapsed=0.0)
    found: Any = scheduler._engine
    one = found.learnt
    parts = (one.value, one.time, one.smear, one.class_time, one.moments, one.own, one.mean_time, one.timed)
    return [encode(part) for part in parts]


def make_log(seed: int, size: int, features: int) -> list[Event]:
    """Return services with rewards, durations, failures, late rewards and corrections, and changes of classes."""
    rng, log, given = np.random.default_rng(seed), list[Event]([2]), list[Observation]()
    number = 2
    for k in range(size):
        if k == size // 3 or (k == size // 2 and number < 3):
            number = 3 if rng.random() < 0.7 else 2
            log.append(number)
        if given and rng.random() < 0.1:
            old = given[rng.integers(len(given))]
            log.append(old._replace(reward=float(rng.uniform(0, 10)), before=old.reward, duration=None))
            given.remove(old)
            continue
        own = rng.normal(size=features).tolist() if features and rng.random() < 0.8 else None
        pair = JOBS[rng.integers(number)], SERVERS[rng.integers(number)]
        kind = rng.random()
        if kind < 0.1:
            log.append(Observation(*pair, failed=True, features=own))
        else:
            reward = None if kind < 0.2 else float(rng.uniform(0, 10))
            log.append(Observation(*pair, reward, float(rng.lognormal()), features=own))
            if reward is not None:
                given.append(log[-1])  # type: ignore[arg-type]
    return log


def play(scheduler: Scheduler, log: Sequence[Event], cuts: Sequence[int] = (), slots: Sequence[int] = ()) -> Scheduler:
    """Replay a log one by one, with snapshots and slots in between."""
    for k, event in enumerate(log):
        if k in cuts:
            scheduler = Scheduler.restore(scheduler.snapshot(jobs=False))
        if k in slots:
            scheduler.assign({}, elapsed=0.5)
        if isinstance(event, Observation):
            scheduler.replay([event])
        else:
            scheduler.set_classes(*classes(event))
    return scheduler


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0, 3]), st.data())
def test_a_log_replays_to_the_same_state_whatever_happens_in_between(
    seed: int, features: int, data: st.DataObject
) -> None:
    log = make_log(seed, 220, features)
    at = st.lists(st.integers(0, len(log) - 1), max_size=4)
    straight = learnt(play(fresh(2), log))
    assert learnt(play(fresh(2), log, cuts=data.draw(at), slots=data.draw(at))) == straight
    more = Observation("chat", "small", 5.0, 1.0, features=[0.0] * features or None)
    assert learnt(play(fresh(2), [*log, more])) != straight, "one observation more is seen"


def test_classes_that_are_set_again_or_come_before_the_first_observation_change_nothing() -> None:
    log = [one for one in make_log(5, 100, 0) if isinstance(one, Observation)]
    usual = learnt(play(fresh(3), log))
    late = fresh(1)
    late.set_classes(*classes(2))
    assert learnt(play(late, [3, *log])) == usual
    assert learnt(play(fresh(3), [*log[:50], 3, *log[50:]])) == usual


def test_services_that_were_served_here_are_learnt_as_in_their_log() -> None:
    """Jobs wait with features before anything is learnt, leave in any order, and some fail."""
    rng, scheduler, log = np.random.default_rng(1), fresh(2), list[Observation]()
    for job in range(60):
        own = rng.normal(size=2).tolist() if job % 3 else None
        scheduler.submit(JOBS[job % 2], job=job, features=own)
    features = {job: scheduler._jobs.get(job).features for job in range(60)}
    while len(log) < 60:
        for task in scheduler.assign({"small": 1, "large": 2}, elapsed=5.0):
            assert isinstance(task.job, int)
            failed, took = rng.random() < 0.2, float(rng.lognormal())
            reward = None if failed else float(rng.uniform(0, 10))
            scheduler.report(task.job, reward, True, took, failed)
            own = features[task.job]
            log.append(
                Observation(task.job_class, task.server_class, reward, None if failed else took, failed,
                            None if own is None else own.tolist())
            )  # fmt: skip
    assert learnt(play(fresh(2), log)) == learnt(scheduler)


def test_a_correction_of_what_no_longer_counts_changes_nothing() -> None:
    scheduler, first = fresh(2), Observation("chat", "small", 5.0, 1.0)
    scheduler.replay([first])
    scheduler.mark_new("small")
    before = learnt(scheduler)
    scheduler.replay([first._replace(reward=9.0, before=5.0, duration=None, epoch=0)])
    assert learnt(scheduler) == before
    assert scheduler.epoch("small") == 1


def test_a_log_must_fit() -> None:
    scheduler = fresh(2)
    for bad, rule in (
        (Observation("chat", "tiny", 5.0), "server_class must be one of"),
        (Observation("chat", "small", 11.0), "reward must be from 0 to 10"),
        (Observation("chat", "small", 5.0, -1.0), "duration must be positive"),
    ):
        with pytest.raises(BadInput, match=rule):
            scheduler.replay([bad])
