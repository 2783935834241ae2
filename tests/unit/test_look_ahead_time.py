"""Time in the scheduler that looks ahead: ages, durations, and clocks that stand still."""

from typing import Any

import numpy as np
import pytest
from default_scheduler import mean, scheduler

from bilinq import BadInput, JobClass, Scheduler, ServerClass

# Time


def test_elapsed_zero_decides_again_at_the_same_time() -> None:
    one = scheduler(work_conserving=True)
    one.submit("chat")
    one.submit("chat")
    first = one.assign({"p": 1})
    second = one.assign({"p": 1}, elapsed=0.0)
    assert [task.job for task in first + second] == [1, 2]
    for task in first + second:
        one.report(task.job, 0.5)
    one.assign({}, elapsed=0.0)  # no time has passed: no duration is measured, the rewards count
    assert mean(one, "chat", "p") > 0.0
    with pytest.raises(BadInput, match="elapsed must be non-negative"):
        one.assign({}, elapsed=-1.0)
    with pytest.raises(BadInput, match="elapsed must be non-negative"):
        one.advance(-1.0)
    with pytest.raises(BadInput, match="elapsed must be finite"):
        one.advance(np.inf)


def test_clock_that_stands_still_is_no_error() -> None:
    one = scheduler()
    for _ in range(200):
        one.submit("chat", deadline=1.0)
        for task in one.assign({"p": 1, "q": 1}, elapsed=0.0):
            one.report(task.job, 0.5)
    assert one.expired() == []
    known = one.beliefs()
    assert known is not None and np.isfinite(known.mean).all() and np.isfinite(one.V)


def test_advance_gives_arrivals_their_own_times() -> None:
    """The first job has waited for two slots when the second arrives; so it is more urgent, though lighter."""
    for early, first in ((2.0, "old"), (0.0, "heavy")):
        one = scheduler(exploration="none")
        one.submit("chat", job="old")
        one.advance(0.1)
        one.advance(early)
        one.submit("chat", job="heavy", weight=2.0)
        assert [task.job for task in one.assign({"p": 1}, elapsed=0.0)] == [first]


@pytest.mark.parametrize("units", [1, 2])
def test_job_that_comes_back_has_not_arrived_in_the_future(units: int) -> None:
    """A job starts at once, is served for five slots and waits again for two: it is two slots old, also after a restart."""
    one = scheduler(work_conserving=True)
    one.advance(10.0)
    one.submit("chat", units, job="back")
    assert [task.job for task in one.assign({"p": 1}, elapsed=0.0)] == ["back"]
    one.advance(5.0)
    if units == 1:
        one.report("back", failed=True)
    else:
        one.report("back", 0.5, duration=1.0)
    one.advance(2.0)
    for restored in (False, True):
        one = Scheduler.restore(one.snapshot()) if restored else one
        for weight, first in ((2.9, "back"), (3.1, "heavy")):  # the job has 1 + age / mean duration = 3
            again = Scheduler.restore(one.snapshot())
            again.submit("chat", job="heavy", weight=weight)
            assert [task.job for task in again.assign({"q": 1}, elapsed=0.0)] == [first]


def test_age_counts_from_the_time_that_advance_has_set() -> None:
    """After `advance` a job arrives at its submission; after a slot, or before any, at the next time of the clock."""
    for known, first in ((True, "old"), (False, "heavy")):
        one = scheduler(exploration="none")
        one.advance(1.0) if known else one.assign({}, elapsed=1.0)
        one.submit("chat", job="old")
        one.advance(2.0)
        one.submit("chat", job="heavy", weight=2.0)
        assert [task.job for task in one.assign({"p": 1}, elapsed=0.0)] == [first]


def test_name_of_a_cancelled_job_is_free_for_one_that_has_waited() -> None:
    """The clock moves after both; the second job keeps the age that it was given."""
    for waited, first in ((3.0, "again"), (0.0, "heavy")):
        one = scheduler(exploration="none")
        one.submit("chat", job="again")
        one.cancel("again")
        one.submit("chat", job="again", waited=waited)
        one.submit("chat", job="heavy", weight=2.0)
        assert [task.job for task in one.assign({"p": 1})] == [first]


def test_durations_are_measured_from_slot_to_slot() -> None:
    one = scheduler()
    for _ in range(40):
        one.submit("chat", servers=["p"])
        [task] = one.assign({"p": 1})
        one.assign({}, elapsed=3.0)
        one.report(task.job, 0.5)
    one.submit("chat", servers=["p"])
    [task] = one.assign({"p": 1})
    [option] = one.explain(task.job).options
    assert 3.6 < option.duration < 4.4  # 3 slots, and 1 until the next decision after the report


@pytest.mark.parametrize("took", [0.01, 1.0, 100.0])
def test_expected_duration_does_not_depend_on_the_unit_of_time(took: float) -> None:
    """After ten services that took the same, the next is expected to take about as long, whatever the unit."""
    one = scheduler()
    for k in range(10):
        one.place("chat", "p", k)
        one.report(k, 0.5, duration=took)
        one.assign({"p": 1})
    [option] = one.explain(one.submit("chat", servers=["p"])).options
    assert 0.85 < option.duration / took < 1.15


def test_correction_does_not_shorten_a_measured_duration() -> None:
    """A duration ends at the next decision after its report, whether or not a reward is corrected in between."""
    found = []
    for corrects in (False, True):
        one = scheduler()
        one.place("chat", "q", "other")
        one.report("other", 0.5, duration=1.0)
        for _ in range(20):
            one.submit("chat", servers=["p"])
            [task] = one.assign({"p": 1}, elapsed=4.0)
            one.report(task.job, 0.5)
            if corrects:
                one.late_reward("other", 0.1)
                one.late_reward("other", 0.2)
        one.submit("chat", servers=["p"])
        [task] = one.assign({"p": 1}, elapsed=4.0)
        found.append(one.explain(task.job).options[0].duration)
    assert found[1] == pytest.approx(found[0], rel=0.01)


def test_a_class_may_be_dropped_while_a_duration_is_to_be_measured() -> None:
    scheduler = Scheduler(
        [JobClass("a", [1.0]), JobClass("b", [1.0])], [ServerClass("x", [1.0]), ServerClass("y", [1.0])]
    )
    scheduler.submit("a")
    [task] = scheduler.assign({"x": 1})
    scheduler.report(task.job, 0.5)
    scheduler.drop_job_class("a")
    scheduler.drop_server_class("x")
    scheduler.submit("b", job="next")
    assert [task.job for task in scheduler.assign({"y": 1})] == ["next"]


@pytest.mark.parametrize("options", [{}, {"ahead": True}])
@pytest.mark.parametrize("waited", [np.inf, np.nan, -1.0, "2"])
def test_bad_age_is_refused_before_the_job_is_added(waited: Any, options: dict[str, Any]) -> None:
    one = scheduler()
    with pytest.raises(BadInput, match="waited must be"):
        one.submit("chat", job="z", waited=waited, **options)
    assert one.queue == {"chat": 0, "code": 0}
    assert one.submit("chat", job="z", waited=2.0, **options) == "z"


@pytest.mark.parametrize("failed", [False, True])
def test_clock_that_moves_after_a_start_does_not_make_the_job_younger(failed: bool) -> None:
    """The slot of the arrival is the one of the start; then the clock moves by `assign`, and the job waits again."""
    one = scheduler(work_conserving=True)
    one.submit("chat", 2, job="back")
    assert [task.job for task in one.assign({"p": 1}, elapsed=0.0)] == ["back"]
    one.assign({}, elapsed=5.0)
    one.report("back", None if failed else 0.5, failed=failed, duration=None if failed else 1.0)
    one = Scheduler.restore(one.snapshot())
    one.assign({}, elapsed=1.0)  # the service ended here
    one.assign({}, elapsed=2.0)
    for weight, first in ((2.9, "back"), (3.1, "heavy")):
        again = Scheduler.restore(one.snapshot())
        again.submit("chat", job="heavy", weight=weight)
        assert [task.job for task in again.assign({"q": 1}, elapsed=0.0)] == [first]


# Durations


def test_a_service_that_hung_changes_what_is_usual_little() -> None:
    """After 200 services of one slot, one of 100,000 moves the mean, and the default target, by a half; it was by 500."""
    one = scheduler()
    for k in range(201):
        one.place("chat", "p", k)
        one.report(k, 0.5, duration=1e5 if k == 200 else 1.0)
        one.assign({"p": 1})
    assert one.waits is not None and one.waits.target == pytest.approx(1.5, rel=0.01)
    for k in range(1000):  # and a duration that has really changed is learnt
        one.place("chat", "p", k)
        one.report(k, 0.5, duration=1e5)
        one.assign({"p": 1})
    assert one.waits is not None and one.waits.target == pytest.approx(1e5, rel=0.05)
