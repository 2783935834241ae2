"""Snapshots and restarts of the default scheduler."""

from typing import Any

import numpy as np
import pytest
from default_scheduler import scheduler

from bilinq import Scheduler


def restored(one: Scheduler) -> Scheduler:
    return Scheduler.restore(one.snapshot())


def busy(one: Scheduler, rng: np.random.Generator, slots: int, out: dict[object, str]) -> list[Any]:
    """Run with everything that a job may have, and return what happened; `out` are the jobs at servers, by class."""
    log: list[Any] = []
    for _ in range(slots):
        for _ in range(int(rng.integers(0, 4))):
            options: dict[str, Any] = {}
            if rng.random() < 0.7:
                options["features"] = rng.normal(size=2).round(3).tolist()
            if rng.random() < 0.2:
                options["servers"] = ["q"]
            if rng.random() < 0.2:
                options["weight"] = float(rng.uniform(0.5, 3.0))
            if rng.random() < 0.2:
                options["deadline"] = float(rng.uniform(2.0, 9.0))
            if rng.random() < 0.2:
                options["duration"] = {"p": float(rng.uniform(0.5, 3.0))}
            one.submit(str(rng.choice(["chat", "code"])), int(rng.integers(1, 3)), **options)
        tasks = one.assign({"p": ["p1", "p2"][: int(rng.integers(0, 3))], "q": int(rng.integers(0, 3))})
        out |= {task.job: task.server_class for task in tasks}
        log.append((tasks, one.expired(), one.V, one.paused))
        for job in sorted(out, key=str):
            if rng.random() < 0.6:
                failed = bool(rng.random() < (0.6 if out[job] == "p" else 0.02))
                reward = None if failed or rng.random() < 0.3 else float(rng.uniform(-1.0, 1.0))
                gone = one.report(job, reward, failed=failed, duration=float(rng.uniform(0.5, 3.0)))
                del out[job]
                if gone and rng.random() < 0.5:
                    one.late_reward(job, float(rng.uniform(-1.0, 1.0)))
    return log


@pytest.mark.parametrize("slots", [1, 7, 60])
def test_restored_scheduler_repeats_all_decisions(slots: int) -> None:
    """Features, weights, deadlines, pauses, late rewards, reports that are not learnt yet: bit for bit the same."""
    one, out = scheduler(target_wait=2.0), dict[object, str]()
    busy(one, np.random.default_rng(4), slots, out)
    other, copy = restored(one), dict(out)
    assert other.queue == one.queue and other.paused == one.paused and other.awaited == one.awaited
    assert busy(one, np.random.default_rng(9), 60, out) == busy(other, np.random.default_rng(9), 60, copy)
    mine, theirs = one.beliefs(), other.beliefs()
    assert mine is not None and theirs is not None
    np.testing.assert_array_equal(mine.mean, theirs.mean)
    np.testing.assert_array_equal(mine.width, theirs.width)
    assert one.waits == other.waits


def test_snapshot_of_a_snapshot_is_the_same() -> None:
    one, out = scheduler(target_wait=2.0), dict[object, str]()
    busy(one, np.random.default_rng(4), 30, out)
    assert restored(one).snapshot() == one.snapshot()


def test_features_survive_a_restart() -> None:
    one = scheduler(work_conserving=True)
    one.submit("chat", features=[1.0, 2.0])
    one.submit("chat", features=[1.0, 3.0])
    one.assign({"p": 1})
    other = restored(one)
    other.report(1, 0.5)
    other.late_reward(1, 0.6)
    again = restored(other)
    again.assign({"p": 1})
    assert again.report(2, 0.5)


def test_jobs_that_have_just_been_submitted_survive_a_restart() -> None:
    """They arrive when the clock next moves, as they do without the restart."""
    one = scheduler(target_wait=2.0)
    one.submit("chat")
    other = restored(one)
    for each in (one, other):
        each.assign({})
        each.submit("code", weight=1.5)
        each.assign({})
    assert one.snapshot() == other.snapshot()


def test_expired_jobs_survive_a_restart() -> None:
    """They have left, so a caller that never hears of them would wait for ever."""
    one = scheduler()
    one.submit("chat", deadline=1.0)
    one.assign({})
    one.assign({}, elapsed=2.0)
    assert restored(one).expired() == [1]


def test_restart_with_a_long_queue_repeats_decisions() -> None:
    """More equal jobs wait than are looked at; which of them are is the same after a restart, in the order of arrival."""
    one, rng = scheduler(exploration="none"), np.random.default_rng(2)
    for _ in range(900):
        one.submit("chat", features=[float(rng.integers(2))])
    for job in rng.choice(np.arange(1, 901), 200, replace=False).tolist():
        one.cancel(job)
    for _ in range(150):
        one.submit("chat", features=[float(rng.integers(2))])
    other = restored(one)
    for _ in range(5):
        assert one.assign({"p": 3, "q": 2}) == other.assign({"p": 3, "q": 2})


def test_equal_jobs_of_a_long_queue_are_served_in_order() -> None:
    """All arrive at once with the same features, so the first to be submitted starts first."""
    one = scheduler(exploration="none", work_conserving=True)
    names = [one.submit("chat", features=[1.0]) for _ in range(1000)]
    found = [task.job for _ in range(4) for task in one.assign({"p": 3})]
    assert sorted(map(int, map(str, found))) == names[:12]
