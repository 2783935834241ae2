"""The default scheduler: features, deadlines and durations of jobs, late rewards, failures, explanations, restarts."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from bilinq import BadInput, JobClass, Sabr, Scheduler, ServerClass
from bilinq.scheduler.classes import Exploration

JOBS = [JobClass("chat"), JobClass("code")]
SERVERS = [ServerClass("p"), ServerClass("q")]


def scheduler(**options: Any) -> Scheduler:
    return Scheduler(JOBS, SERVERS, **{"seed": 3, **options})


def mean(one: Scheduler, job_class: str, server_class: str) -> float:
    """Return the learnt mean reward of a pair."""
    known = one.beliefs()
    assert known is not None
    row = [each.name for each in one.job_classes].index(job_class)
    return float(known.mean[row, [each.name for each in one.server_classes].index(server_class)])


def settle(one: Scheduler, services: int = 20, server_class: str = "q", reward: float = 0.5) -> None:
    """Let a server class succeed, so that failures of another are unusual."""
    for k in range(services):
        one.place("chat", server_class, f"settled {k}")
        one.report(f"settled {k}", reward)


# Features, servers, weight, deadline, duration of a job


def test_features_of_another_length_are_refused() -> None:
    one = scheduler()
    one.submit("chat", features=[1.0, 2.0])
    with pytest.raises(BadInput, match="features of a job must have length 2, as those of earlier jobs; got 3"):
        one.submit("chat", features=[1.0, 2.0, 3.0])
    with pytest.raises(BadInput, match="must have length 2"):
        one.observe([("chat", "p", 0.5, 1.0, [1.0])])
    with pytest.raises(BadInput, match="must have length 2"):
        one.place("chat", "p", "placed", features=[1.0])
    assert one.queue == {"chat": 1, "code": 0}


def test_features_of_a_placed_job_set_the_length_too() -> None:
    """Otherwise the job could never be reported once another length was accepted."""
    one = scheduler()
    one.place("chat", "p", "placed", features=[1.0, 2.0, 3.0])
    with pytest.raises(BadInput, match="must have length 3"):
        one.submit("chat", features=[1.0, 2.0])
    assert one.report("placed", 0.5)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([1.0, np.nan], r"features must be finite; got features\[1\] = nan"),
        ([np.inf], "features must be finite"),
        ([1e101, 0.0], r"features must be at most 1e\+100 in size; got 1e\+101"),
        ([], r"features must be a list of numbers; got shape \(0,\)"),
        ([[1.0]], r"features must be a list of numbers; got shape \(1, 1\)"),
        (3.0, r"features must be a list of numbers; got shape \(\)"),
        (["a"], "features must be numeric"),
    ],
)
def test_bad_features_are_named_and_nothing_is_queued(features: Any, message: str) -> None:
    one = scheduler()
    with pytest.raises(BadInput, match=message):
        one.submit("chat", features=features)
    assert one.queue["chat"] == 0
    assert one.submit("chat", features=[1.0, 2.0, 3.0, 4.0]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": "p"}, "servers must be a list of names"),
        ({"servers": []}, "servers must be a list of names"),
        ({"weight": 0.0}, "weight must be positive; got weight = 0"),
        ({"deadline": -1.0}, "deadline must be positive"),
        ({"deadline": 0.0}, "deadline must be positive"),
        ({"duration": {"p": 0.0}}, r"duration\['p'\] must be positive"),
        ({"duration": {"x": 1.0}}, "server_class must be one of"),
        ({"duration": 3.0}, "duration must map server classes to slots"),
        ({"units": 0}, "units must be a whole number"),
    ],
)
def test_bad_arguments_of_a_job_are_named(options: dict[str, Any], message: str) -> None:
    one = scheduler()
    with pytest.raises(BadInput, match=message):
        one.submit("chat", **options)
    assert one.queue["chat"] == 0


def test_a_policy_of_slots_refuses_what_it_does_not_know() -> None:
    one = scheduler(policy=Sabr.for_scheduler())
    for options in ({"features": [1.0]}, {"servers": ["p"]}, {"weight": 2.0}, {"duration": {"p": 1.0}}):
        with pytest.raises(BadInput, match="needs a scheduler without `policy`"):
            one.submit("chat", **options)
    for call in (lambda: one.mark_new("p"), lambda: one.explain(one.submit("chat"))):
        with pytest.raises(BadInput, match="needs a scheduler without `policy`"):
            call()


def test_servers_of_a_job_are_respected() -> None:
    one = scheduler(work_conserving=True)
    for _ in range(5):
        one.submit("chat", servers=["q"])
    assert one.assign({"p": 5}) == []
    assert [task.server_class for task in one.assign({"p": 5, "q": 3})] == ["q"] * 3


def test_servers_of_class_and_job_must_both_allow() -> None:
    one = Scheduler([JobClass("chat", servers=["p"])], SERVERS, work_conserving=True)
    one.submit("chat", servers=["q", "p"], job="both")
    one.submit("chat", servers=["q"], job="neither")
    assert [(task.job, task.server_class) for task in one.assign({"p": 2, "q": 2})] == [("both", "p")]


def test_unknown_servers_of_a_job_are_waited_for() -> None:
    """A job may name a server class that is not there yet; it starts when the class is added."""
    one = scheduler(work_conserving=True)
    one.submit("chat", servers=["later"], job="waits")
    for _ in range(5):
        assert one.assign({"p": 1, "q": 1}) == []
    one.set_server_class(ServerClass("later"))
    assert [task.job for task in one.assign({"later": 1})] == ["waits"]


def test_job_of_more_weight_starts_first() -> None:
    """Ten equal jobs and one server: the heavy one, submitted last, is first."""
    one = scheduler(exploration="none")
    for k in range(9):
        one.submit("chat", job=f"light {k}")
    one.submit("chat", job="heavy", weight=5.0)
    assert [task.job for task in one.assign({"p": 1})] == ["heavy"]


def test_known_duration_is_used() -> None:
    """Two servers of equal value: the job goes to the faster one, whichever that is."""
    for fast, slow in (("p", "q"), ("q", "p")):
        one = scheduler(exploration="none", V=10.0)
        for _ in range(3):
            one.submit("chat", duration={fast: 1.0, slow: 10.0})
            [task] = one.assign({"p": 1, "q": 1})
            assert task.server_class == fast
            known = {option.server_class: option.duration for option in one.explain(task.job).options}
            assert known == {fast: 1.0, slow: 10.0}
            one.cancel(task.job)


def test_known_cost_counts_in_the_decision_and_is_not_learnt() -> None:
    """Two servers of equal value: the job avoids the expensive one; a price of 0.5 in [-1, 1] is seen in `explain`."""
    for cheap, expensive in (("p", "q"), ("q", "p")):
        one = scheduler(exploration="none", V=10.0)
        for _ in range(3):
            one.submit("chat", cost={expensive: 0.5})
            [task] = one.assign({"p": 1, "q": 1})
            assert task.server_class == cheap
            price = {option.server_class: option.price for option in one.explain(task.job).options}
            assert price[expensive] - price[cheap] == pytest.approx(0.5)
            one.report(task.job, 0.25)
        one.assign({})
        assert mean(one, "chat", cheap) > 0.1, "only what is reported is learnt"


def test_known_cost_is_checked_and_saved() -> None:
    one = scheduler(exploration="none", reward=(0.0, 10.0))
    wrong_costs: list[tuple[Any, str]] = [
        ({"p": -1.0}, "non-negative"), ({"r": 1.0}, "'r'"), ([1.0], "map server classes"),
    ]  # fmt: skip
    for wrong, rule in wrong_costs:
        with pytest.raises(BadInput, match=rule):
            one.submit("chat", cost=wrong)
    one.submit("chat", job="a", cost={"p": 9.0})
    again = Scheduler.restore(one.snapshot())
    assert [task.server_class for task in again.assign({"p": 1, "q": 1})] == ["q"]


def test_learnt_duration_is_used() -> None:
    one = scheduler(exploration="none", V=10.0)
    for k in range(60):
        for name, took in (("p", 9.0), ("q", 1.0)):
            one.place("chat", name, f"{name}{k}")
            one.report(f"{name}{k}", 0.5, duration=took)
    one.assign({"p": 1, "q": 1})
    job = one.submit("chat")
    [task] = one.assign({"p": 1, "q": 1})
    assert (task.job, task.server_class) == (job, "q")
    known = {option.server_class: option.duration for option in one.explain(job).options}
    assert 7.0 < known["p"] < 11.0 and 0.8 < known["q"] < 1.3


def test_jobs_that_are_not_served_in_time_leave() -> None:
    """They arrive when the clock next moves, at 1, and the short deadline is then at 4."""
    one = scheduler()
    one.submit("chat", deadline=3.0, job="short")
    one.submit("chat", deadline=30.0, job="long")
    for _ in range(2):
        one.assign({})
        assert one.expired() == []
    one.assign({"p": 0}, elapsed=1.5)
    assert one.expired() == []
    one.assign({"p": 0}, elapsed=0.5)
    assert one.expired() == ["short"] and one.expired() == []
    assert one.queue["chat"] == 1
    with pytest.raises(BadInput, match="job must be waiting or assigned"):
        one.cancel("short")
    one.submit("chat", job="short")  # the name is free again


def test_deadline_shorter_than_a_slot_leaves_time_for_one_decision() -> None:
    one = scheduler()
    one.submit("chat", deadline=0.1)
    assert len(one.assign({"p": 1, "q": 1})) == 1 and one.expired() == []


def test_job_starts_before_its_deadline_and_then_has_none() -> None:
    one = scheduler(work_conserving=True)
    one.submit("chat", deadline=2.0)
    [task] = one.assign({"p": 1})
    one.assign({}, elapsed=50.0)
    assert one.expired() == []
    assert one.report(task.job, 0.5)


def test_job_that_has_started_does_not_expire_between_its_services() -> None:
    """A deadline is for a job that has not started; one of two units has, when it waits for the second."""
    one = scheduler(work_conserving=True)
    one.submit("chat", units=2, deadline=3.0)
    [task] = one.assign({"p": 1})
    assert not one.report(task.job, 0.5)
    one.assign({}, elapsed=50.0)
    assert one.expired() == [] and one.queue["chat"] == 1


def test_job_that_was_given_back_still_has_its_deadline() -> None:
    one = scheduler(work_conserving=True)
    one.submit("chat", deadline=3.0)
    [task] = one.assign({"p": 1})
    one.give_back(task.job)
    one.assign({}, elapsed=50.0)
    assert one.expired() == [task.job]


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


# Classes and features


Submit = Callable[[Scheduler, str], object]


def decisions(one: Scheduler, submit: Submit, slots: int = 150) -> list[list[tuple[str, str]]]:
    """Return the pairs of classes that were assigned in each slot of a run with rewards that depend on the pair."""
    rng, found = np.random.default_rng(5), []
    worth = {("chat", "p"): 0.8, ("chat", "q"): 0.1, ("code", "p"): -0.2, ("code", "q"): 0.4}
    for _ in range(slots):
        for name in ("chat", "code"):
            for _ in range(int(rng.integers(0, 3))):
                submit(one, name)
        tasks = sorted(
            one.assign({"p": int(rng.integers(0, 3)), "q": int(rng.integers(0, 3))}), key=lambda task: task[1:3]
        )
        for task in tasks:
            one.report(task.job, worth[task.job_class, task.server_class] + 0.1 * float(rng.uniform(-1.0, 1.0)))
        found.append([(task.job_class, task.server_class) for task in tasks])
    return found


FEATURES = {"chat": [1.0, -3.0], "code": [0.2, 40.0]}


@pytest.mark.parametrize("exploration", ["none", "ucb"])
def test_equal_features_are_classes(exploration: Exploration) -> None:
    """Features of the class, or the same of each of its jobs: the same pairs in every slot and the same V, bit for bit.

    Which of several equal jobs starts may differ, and so may draws, which belong to single jobs. Features of single jobs
    count from the first observation of one on, so there is one before the first decision.
    """
    by_class = Scheduler(
        [JobClass(name, row) for name, row in FEATURES.items()], SERVERS, seed=3, exploration=exploration
    )
    by_job = scheduler(exploration=exploration)
    by_class.observe([("chat", "p", 0.3)])
    by_job.observe([("chat", "p", 0.3, 1.0, FEATURES["chat"])])
    one = decisions(by_class, lambda each, name: each.submit(name))
    other = decisions(by_job, lambda each, name: each.submit(name, features=FEATURES[name]))
    assert sum(map(len, one)) > 100 and one == other
    assert by_class.V == by_job.V
    known = by_class.beliefs()
    assert known is not None
    for row, name in enumerate(FEATURES):
        for option in by_job.explain(by_job.submit(name, features=FEATURES[name])).options:
            assert option.value == pytest.approx(known.mean[row, ["p", "q"].index(option.server_class)], abs=1e-12)


def test_features_that_tell_nothing_change_nothing_much() -> None:
    """A constant feature of all jobs leaves the beliefs about pairs as they are without it, within a tenth."""
    plain, other = scheduler(), scheduler()
    decisions(plain, lambda each, name: each.submit(name))
    decisions(other, lambda each, name: each.submit(name, features=[7.0]))
    for name in ("chat", "code"):
        best = max(("p", "q"), key=lambda server: mean(plain, name, server))
        assert abs(mean(plain, name, best) - mean(other, name, best)) < 0.1


def test_features_decide() -> None:
    """One class; the sign of a feature says which server is right, and after 200 jobs it is chosen."""
    one, rng = Scheduler([JobClass("chat")], SERVERS, seed=2, work_conserving=True), np.random.default_rng(2)
    right = []
    for _ in range(300):
        sign = float(rng.choice([-1.0, 1.0]))
        one.submit("chat", features=[1000.0 + sign])
        [task] = one.assign({"p": 1, "q": 1})
        good = (task.server_class == "p") == (sign > 0.0)
        right.append(good)
        one.report(task.job, 0.5 if good else -0.5)
    assert np.mean(right[200:]) > 0.95


@pytest.mark.parametrize("size", [1e9, 1e50])
def test_large_features_leave_a_snapshot_that_can_be_restored(size: float) -> None:
    """Before they are standardised, the precision of some directions is lost in rounding."""
    one, rng = scheduler(), np.random.default_rng(1)
    for k in range(9):
        one.observe([("chat", "pq"[k % 2], 0.1, 1.0, size * (1.0 + 0.1 * rng.normal(size=2)))])
        one.assign({})
        other = Scheduler.restore(one.snapshot())
        assert one.sound and mean(other, "chat", "p") == mean(one, "chat", "p")


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


# Failures


def test_job_of_a_failed_service_waits_again_first() -> None:
    one = scheduler(work_conserving=True)
    names = [one.submit("chat") for _ in range(3)]
    [task] = one.assign({"p": 1})
    assert task.job == names[0] and not one.report(task.job, failed=True)
    assert one.queue["chat"] == 3
    assert [each.job for each in one.assign({"q": 1})] == [names[0]]
    assert not one.report(names[0], failed=True)  # it has one unit, which is not done
    assert one.report(one.assign({"q": 1})[0].job, 0.5)
    with pytest.raises(BadInput, match=r"reward must be None for a failed service; got 0\.5"):
        one.report(one.assign({"q": 1})[0].job, 0.5, failed=True)


def test_failed_job_may_be_dropped() -> None:
    one = scheduler(work_conserving=True)
    one.submit("chat")
    [task] = one.assign({"p": 1})
    assert one.report(task.job, failed=True, done=True) and one.queue["chat"] == 0


def test_failures_teach() -> None:
    """A failed service is worth the low end of the range, or what was set."""
    for options, low in (({}, -1.0), ({"failure_reward": 0.2}, 0.2)):
        failed, rewarded = scheduler(**options), scheduler()
        for one in (failed, rewarded):
            settle(one)
            one.assign({})
        before = mean(failed, "chat", "p")
        for k in range(10):
            failed.place("chat", "p", f"f{k}")
            failed.report(f"f{k}", failed=True, done=True)
            rewarded.place("chat", "p", f"f{k}")
            rewarded.report(f"f{k}", low, done=True)
        for one in (failed, rewarded):
            one.assign({})
        assert mean(failed, "chat", "p") < before
        assert abs(mean(failed, "chat", "p") - mean(rewarded, "chat", "p")) < 1e-12


def fail_until_paused(one: Scheduler, server: object) -> None:
    """Let a server of p fail until it is paused, after five failures in a row at most."""
    for k in range(5):
        if ("p", server) in one.paused:
            return
        one.place("chat", "p", f"failed {k}", server=server)
        one.report(f"failed {k}", failed=True, done=True)
    assert ("p", server) in one.paused


def trial(one: Scheduler, idle: Any, *, failed: bool) -> float:
    """Wait for the end of the pause, serve one job on trial and return how long the pause was."""
    [pause] = one.paused.values()
    one.submit("chat", servers=["p"], job="trial")
    if pause > 0.0:
        assert one.assign({"p": idle}, elapsed=0.99 * pause) == []
    tasks = one.assign({"p": idle}, elapsed=0.02 * pause + 1e-9)
    assert [task.job for task in tasks] == ["trial"]
    one.report("trial", None if failed else 0.5, failed=failed, done=True)
    return pause


@pytest.mark.parametrize(("server", "idle"), [(None, 3), ("gpu-1", ["gpu-1"])])
def test_server_that_fails_is_tried_again_with_doubling_pauses(server: object, idle: Any) -> None:
    one = scheduler(work_conserving=True)
    settle(one)
    one.assign({})
    fail_until_paused(one, server)
    pauses = [trial(one, idle, failed=True) for _ in range(6)]
    np.testing.assert_allclose(np.divide(pauses[1:], pauses[:-1]), 2.0)
    trial(one, idle, failed=False)
    assert one.paused == {}
    one.submit("chat", servers=["p"])
    assert len(one.assign({"p": idle})) == 1


def test_pause_of_a_named_server_leaves_the_others_alone() -> None:
    one = scheduler(work_conserving=True)
    settle(one)
    fail_until_paused(one, "bad")
    for _ in range(3):
        one.submit("chat", servers=["p"])
    assert [task.server for task in one.assign({"p": ["bad", "good"]}, elapsed=0.0)] == ["good"]


def test_servers_without_names_get_one_job_on_trial() -> None:
    one = scheduler(work_conserving=True)
    settle(one)
    fail_until_paused(one, None)
    for _ in range(5):
        one.submit("chat", servers=["p"])
    [pause] = one.paused.values()
    assert one.assign({"p": 4}, elapsed=0.0) == []
    [task] = one.assign({"p": 4}, elapsed=pause)
    assert one.assign({"p": 3}) == []  # until the trial has ended
    one.report(task.job, 0.5)
    assert len(one.assign({"p": 4})) == 4


def test_trial_that_was_given_back_or_cancelled_says_nothing() -> None:
    """The server is tried again with the next job, at once."""
    for end in (Scheduler.give_back, Scheduler.cancel):
        one = scheduler(work_conserving=True)
        settle(one)
        fail_until_paused(one, "gpu")
        one.submit("chat", servers=["p"])
        [task] = one.assign({"p": ["gpu"]}, elapsed=10.0)
        end(one, task.job)
        one.submit("chat", servers=["p"])
        assert len(one.assign({"p": ["gpu"]}, elapsed=10.0)) == 1, end


def test_failures_everywhere_pause_nobody() -> None:
    """A server that fails no more than others is not to blame."""
    one, rng = scheduler(), np.random.default_rng(1)
    for k in range(200):
        name = "p" if k % 2 else "q"
        one.place("chat", name, k)
        one.report(k, failed=bool(rng.random() < 0.9), done=True)
    assert one.paused == {} or len(one.paused) < 2


# Explanations


def taught(**options: Any) -> Scheduler:
    """Return a scheduler that knows that p is better for chat, with rewards from 0 to 10."""
    one = scheduler(reward=(0.0, 10.0), **options)
    rng = np.random.default_rng(3)
    for _ in range(15):
        one.observe([("chat", "p", 6.0 + rng.uniform(-1.0, 1.0)), ("chat", "q", 5.0 + rng.uniform(-1.0, 1.0))])
    one.assign({"p": 2, "q": 2})
    return one


def test_options_are_sorted_and_their_probabilities_sum_to_one() -> None:
    one = taught()
    waiting, assigned = one.submit("chat"), one.submit("code")
    for _ in range(4):
        one.submit("code")
    told = [one.explain(waiting)]
    assert told[0].chosen is None and told[0].probability is None
    assert told[0].second == told[0].options[0]
    tasks = one.assign({"p": 2, "q": 2})
    told += [one.explain(task.job) for task in tasks]
    assert assigned in {each.job for each in told}
    for each in told:
        scores = [option.score for option in each.options]
        assert len(scores) == 2 and scores == sorted(scores, reverse=True)
        assert abs(sum(option.probability for option in each.options) - 1.0) < 1e-12
        assert min(option.price for option in each.options) == 0.0
        for option in each.options:
            assert abs(option.score - (option.value - option.price)) < 1e-9
            assert 0.0 <= option.value <= 10.0 and option.uncertainty > 0.0 and option.duration > 0.0


def test_choice_and_second_are_named() -> None:
    one = taught()
    one.submit("chat")
    [task] = one.assign({"p": 1, "q": 1})
    told = one.explain(task.job)
    assert (told.job, told.job_class, told.chosen) == (task.job, "chat", task.server_class)
    assert told.second is not None and {told.chosen, told.second.server_class} == {"p", "q"}
    [own] = [option for option in told.options if option.server_class == told.chosen]
    assert told.probability == own.probability


def test_explanation_is_in_the_caller_s_units() -> None:
    """Value and uncertainty are those of `beliefs`, for a job like all of its class."""
    one = taught()
    known = one.beliefs()
    assert known is not None
    for option in one.explain(one.submit("chat")).options:
        column = ["p", "q"].index(option.server_class)
        assert abs(option.value - known.mean[0, column]) < 1e-9
        assert abs(option.uncertainty - known.width[0, column]) < 1e-9
    assert 5.0 < mean(one, "chat", "p") < 7.0


def test_best_score_is_chosen_without_exploration() -> None:
    """Nothing is drawn, so the choice has the best score, and is certain."""
    one = taught(exploration="none")
    for _ in range(10):
        one.submit("chat")
        one.submit("code")
        tasks = one.assign({"p": 2, "q": 2})
        for task in tasks:
            told = one.explain(task.job)
            assert told.options[0].score - 1e-9 <= max(
                option.score for option in told.options if option.server_class == told.chosen
            )
            one.report(task.job, 5.0)


def test_probability_without_exploration_is_one() -> None:
    """Values that differ by little are not drawn, so the better server is chosen for certain."""
    one = scheduler(exploration="none")
    one.observe([("chat", "p", 0.5), ("chat", "q", 0.45)] * 5)
    one.submit("chat")
    [task] = one.assign({"p": 1, "q": 1})
    assert task.server_class == "p"
    assert one.explain(task.job).probability == pytest.approx(1.0, abs=1e-6)


def test_probability_is_how_often_a_server_is_chosen() -> None:
    """Over 1,500 jobs that differ only in their draws; five standard errors of a part are 0.065, and a half is rejected."""
    one = scheduler(reward=(0.0, 10.0), V=100.0)
    one.observe([("chat", "p", 5.0), ("chat", "q", 5.0), ("chat", "p", 5.6), ("chat", "q", 4.6)])
    one.assign({"p": 1, "q": 1})
    chosen, chance = [], []
    for _ in range(1500):
        job = one.submit("chat", servers=["p", "q"])
        [task] = one.assign({"p": 1, "q": 1}, elapsed=0.0)
        chosen.append(task.server_class == "p")
        chance.append({each.server_class: each.probability for each in one.explain(job).options}["p"])
        one.cancel(job)
    assert abs(np.mean(chosen) - np.mean(chance)) < 0.065
    assert abs(np.mean(chance) - 0.5) > 0.1


def test_only_eligible_servers_are_options() -> None:
    one = taught()
    waiting = one.submit("chat", servers=["q"])
    assert [option.server_class for option in one.explain(waiting).options] == ["q"]
    [task] = one.assign({"p": 1, "q": 1})
    assert [option.server_class for option in one.explain(task.job).options] == ["q"]
    assert one.explain(task.job).probability == 1.0 and one.explain(task.job).second is None


def test_waiting_jobs_are_explained_with_work_conserving_too() -> None:
    one = taught(work_conserving=True)
    assert {option.server_class for option in one.explain(one.submit("chat")).options} == {"p", "q"}


def test_explanations_of_unknown_jobs_are_refused() -> None:
    one = taught()
    with pytest.raises(BadInput, match="job must be waiting or assigned; got 'no'"):
        one.explain("no")
    one.place("chat", "p", "placed")
    with pytest.raises(BadInput, match="job must have been assigned by this scheduler"):
        one.explain("placed")


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


# Snapshots


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


# Speed


def test_a_slot_with_ten_thousand_jobs_is_fast() -> None:
    """10,000 waiting jobs with 8 features x 20 server classes: 20 ms; three times that here, since machines are busy."""
    rng = np.random.default_rng(1)
    names = [f"s{j}" for j in range(20)]
    one = Scheduler([JobClass("chat"), JobClass("code")], [ServerClass(name) for name in names], seed=1)
    for k in range(10_000):
        one.submit("chat" if k % 2 else "code", features=rng.normal(size=8))
    idle, times = dict.fromkeys(names, 1), []
    for _ in range(8):
        began = perf_counter()
        tasks = one.assign(idle)
        times.append(perf_counter() - began)
        for task in tasks:
            one.report(task.job, float(rng.uniform(-1.0, 1.0)))
    assert min(times[2:]) < 0.060


def test_a_class_whose_servers_all_fail_is_paused_as_one_and_tried_with_one_job() -> None:
    one = scheduler(longest_pause=50.0)
    settle(one)
    for server in ("p1", "p2", "p1", "p2"):
        one.submit("chat", servers=["p"])
        for task in one.assign({"p": [server]}):
            one.report(task.job, failed=True, done=True)
    assert ("p", None) in one.paused
    for _ in range(3):
        one.submit("chat", servers=["p"])
    assert one.assign({"p": ["p1", "p2", "p3"]}, elapsed=0.0) == []
    [trial] = one.assign({"p": ["p1", "p2", "p3"]}, elapsed=one.paused["p", None])
    assert one.assign({"p": ["p2", "p3"]}, elapsed=0.0) == [], "one trial at a time"
    one.report(trial.job, 0.5)
    assert ("p", None) not in one.paused
    assert len(one.assign({"p": ["p3"]}, elapsed=0.0)) == 1


def test_trials_of_a_class_go_to_one_server_after_the_other() -> None:
    """Also if the idle servers are always named in the same order: otherwise one that stays broken would speak for all."""
    one, tried = scheduler(longest_pause=50.0), []
    settle(one)
    for server in ("p1", "p2", "p3", "p1", "p2", "p3"):
        one.submit("chat", servers=["p"])
        for task in one.assign({"p": [server]}):
            one.report(task.job, failed=True, done=True)
    for _ in range(6):
        one.submit("chat", servers=["p"])
        [trial] = one.assign({"p": ["p1", "p2", "p3"]}, elapsed=60.0)
        one.report(trial.job, failed=True, done=True)
        tried.append(trial.server)
    assert set(tried[:4]) == set(tried[-3:]) == {"p1", "p2", "p3"}


def test_one_bad_server_does_not_pause_its_class_and_trust_ends_its_pause() -> None:
    one = scheduler(longest_pause=50.0)
    settle(one)
    fail_until_paused(one, "p1")
    assert list(one.paused) == [("p", "p1")]
    one.trust("p", "p1")
    assert one.paused == {}
    with pytest.raises(BadInput, match="longest_pause must be"):
        scheduler(longest_pause=-1.0)
    never = scheduler(longest_pause=0.0)
    settle(never)
    for _ in range(20):
        never.submit("chat", servers=["p"])
        [task] = never.assign({"p": ["p1"]})
        never.report(task.job, failed=True, done=True)


def test_a_job_avoids_a_server_if_another_of_its_class_is_idle() -> None:
    one = scheduler(work_conserving=True)
    one.submit("chat", servers=["p"], avoid="p1")
    [task] = one.assign({"p": ["p1", "p2"]})
    assert task.server == "p2"
    one.submit("chat", servers=["p"], avoid="p1")
    [task] = one.assign({"p": ["p1"]})
    assert task.server == "p1"


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
