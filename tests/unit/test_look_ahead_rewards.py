"""Late rewards and observations of the default scheduler."""

from typing import Any

import numpy as np
import pytest
from default_scheduler import fail_until_paused, mean, scheduler, settle

from bilinq import BadInput, JobClass, Scheduler, ServerClass
from bilinq.scheduler.look_ahead import LookAhead
from bilinq.scheduler.scheduler import Observation

# Late rewards


def served(one: Scheduler, reward: float | None = None, features: list[float] | None = None) -> object:
    """Serve one job on p and return its name."""
    job = one.submit("chat", servers=["p"], features=features)
    [task] = one.assign({"p": 1})
    assert one.report(task.job, reward) and task.job == job
    return job


def test_late_reward_is_as_good_as_one_in_time() -> None:
    late, timely = scheduler(), scheduler()
    job = served(late, features=[1.0, 2.0])
    assert late.awaited == 1 and timely.awaited == 0
    late.late_reward(job, 0.8)
    served(timely, 0.8, [1.0, 2.0])
    assert late.awaited == 0
    for one in (late, timely):
        one.assign({})
    assert mean(late, "chat", "p") == mean(timely, "chat", "p") > 0.1


def test_late_reward_counts_once() -> None:
    one = scheduler()
    job = served(one)
    for _ in range(3):
        one.late_reward(job, 0.8)
        one.assign({})
    once = mean(one, "chat", "p")
    other = scheduler()
    other.late_reward(served(other), 0.8)
    other.assign({})
    assert once == mean(other, "chat", "p")


def test_late_reward_corrects() -> None:
    """A corrected reward leaves the beliefs that the right one would have left, however it was given first."""
    means = []
    for first, then in ((0.8, None), (-0.6, 0.8), (0.3, 0.8)):
        one = scheduler()
        for k in range(12):
            one.late_reward(served(one), 0.1 * k - 0.5)
        job = served(one, first)
        if then is not None:
            one.assign({})
            one.late_reward(job, 0.0)
            one.late_reward(job, then)
        one.assign({})
        one.update_settings(target_wait=3.0)
        means.append(mean(one, "chat", "p"))
    np.testing.assert_allclose(means, means[0], atol=0.02)


def test_correction_of_a_forgotten_reward_changes_nothing() -> None:
    """After `mark_new` nothing of the old server counts, so neither does what was wrong about it."""
    one = scheduler()
    job = served(one, -0.5)
    one.assign({})
    one.mark_new("p")
    before = one.beliefs()
    one.late_reward(job, 0.9)
    one.assign({})
    after = one.beliefs()
    assert before is not None and after is not None
    np.testing.assert_allclose(after.mean, before.mean, atol=1e-9)


def test_late_rewards_of_unknown_jobs_are_refused() -> None:
    one = scheduler(keep=3)
    names = [served(one) for _ in range(5)]
    assert one.awaited == 3
    for job in ("never", names[0], names[1], one.submit("chat")):
        with pytest.raises(BadInput, match="job must be one of the last 3 that were served and have left"):
            one.late_reward(job, 0.5)
    for job in names[2:]:
        one.late_reward(job, 0.5)
    with pytest.raises(BadInput, match="reward must be from -1 to 1"):
        one.late_reward(names[2], 2.0)
    assert one.awaited == 0


def test_late_reward_of_a_class_that_is_gone_is_refused() -> None:
    one = scheduler()
    job = served(one)
    one.assign({})
    one.drop_server_class("p")
    with pytest.raises(BadInput, match="job must be of classes that are still there; got 1, served by 'p'"):
        one.late_reward(job, 0.5)


def test_nothing_is_kept_if_keep_is_zero() -> None:
    one = scheduler(keep=0)
    job = served(one)
    assert one.awaited == 0
    with pytest.raises(BadInput, match="the last 0"):
        one.late_reward(job, 0.5)


# Observations


def test_server_marked_as_new_has_the_shared_part() -> None:
    one = scheduler(work_conserving=True)
    for _ in range(40):
        one.observe([("chat", "p", -0.8), ("chat", "q", 0.6)])
    settle(one)
    fail_until_paused(one, None)
    one.assign({})
    assert mean(one, "chat", "p") < -0.5
    one.mark_new("p")
    assert abs(mean(one, "chat", "p") - mean(one, "chat", "q")) < 0.15 and one.paused == {}
    known = one.beliefs()
    assert known is not None and known.width[0, 0] > known.width[0, 1]
    with pytest.raises(BadInput, match="server_class must be one of"):
        one.mark_new("x")


def test_weight_of_two_is_two_observations() -> None:
    double, twice = scheduler(), scheduler()
    double.observe([("code", "q", -0.4, 2.0, [1.0, 5.0]), ("chat", "p", 0.7, 2.0)])
    twice.observe([("code", "q", -0.4, 1.0, [1.0, 5.0])] * 2 + [("chat", "p", 0.7), ("chat", "p", 0.7, 1.0)])
    for one in (double, twice):
        one.assign({})
    found, wanted = double.beliefs(), twice.beliefs()
    assert found is not None and wanted is not None
    np.testing.assert_allclose(found.mean, wanted.mean, atol=1e-12)
    np.testing.assert_allclose(found.width, wanted.width, rtol=1e-12)


def test_bad_observations_are_named() -> None:
    one = scheduler()
    for row, message in (
        (("x", "p", 0.1), "job_class must be one of"),
        (("chat", "x", 0.1), "server_class must be one of"),
        (("chat", "p", 7.0), "reward must be from -1 to 1"),
        (("chat", "p", np.nan), "reward must be finite"),
        (("chat", "p", 0.1, 0.0), "weight must be positive"),
        (("chat", "p", 0.1, 1.0, [np.nan]), "features must be finite"),
    ):
        with pytest.raises(BadInput, match=message):
            one.observe([row])


def test_late_rewards_belong_to_the_features_that_the_class_had() -> None:
    """The features of a class change between a service and its reward, or the correction of it; also over a restart."""
    old, new = JobClass("a", features=[1.0]), JobClass("a", features=[-3.0])
    other = JobClass("b", features=[0.0])

    def learnt(changes: str, restart: bool = False) -> Any:
        one = Scheduler([old, other], [ServerClass("p")])
        for k in range(40):
            one.place("ab"[k % 2], "p", k)
            one.report(k, {"late": None, "corrected": -0.5}.get(changes, 0.5) if k == 0 else 0.5 * (1 - k % 2))
            one.assign({})
        one = Scheduler.restore(one.snapshot()) if restart else one
        if changes == "dropped":
            one.drop_job_class("a")
        one.set_job_class(new)
        one = Scheduler.restore(one.snapshot()) if restart else one
        if changes in ("late", "corrected"):
            one.late_reward(0, 0.5)
        one = Scheduler.restore(one.snapshot()) if restart else one
        one.assign({})
        assert isinstance(one._engine, LookAhead)
        return one._engine.learnt.value.long

    timely = learnt("")
    for changes in ("late", "corrected"):
        for restart in (False, True):
            found = learnt(changes, restart)
            for name in ("moment", "square", "rewards", "number"):
                np.testing.assert_allclose(getattr(found, name), getattr(timely, name), rtol=1e-9, atol=1e-9)


def test_late_services_with_features_of_another_length_are_refused() -> None:
    one = scheduler()
    served(one, 0.5, [1.0, 2.0])
    with pytest.raises(BadInput, match="features of a job must have length 2, as those of earlier jobs; got 3"):
        one.replay([Observation("chat", "p", 0.5, features=[1.0, 2.0, 3.0])])
    with pytest.raises(BadInput, match="features of a job must have length 2, as those of earlier jobs; got 1"):
        one.observe([("chat", "p", 0.5, 1.0, [1.0])])
    with pytest.raises(BadInput, match="features must be finite"):
        one.replay([Observation("chat", "p", 0.5, features=[1.0, np.nan])])
