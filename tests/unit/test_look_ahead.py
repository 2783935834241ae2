"""The default scheduler: features, servers, deadlines and durations of jobs, time, classes, speed."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from default_scheduler import SERVERS, mean, scheduler

from bilinq import BadInput, JobClass, Sabr, Scheduler, ServerClass
from bilinq.scheduler.classes import Exploration

# Features, servers, weight, deadline, duration of a job


def test_a_job_that_is_placed_keeps_its_servers_and_weight_when_it_comes_back() -> None:
    """By both ways: after a service of several, and given back."""
    one = Scheduler([JobClass("chat")], [ServerClass("p"), ServerClass("q")], seed=1)
    one.place("chat", "p", "two units", units=2, servers=["p"], weight=3.0)
    one.place("chat", "p", "returned", servers=["p"])
    one.report("two units", 0.5)
    one.give_back("returned")
    assert one.assign({"q": 9}) == [] and {task.job for task in one.assign({"p": 9})} == {"two units", "returned"}
    with pytest.raises(BadInput, match="weight must be positive; got weight = -1"):
        one.place("chat", "p", "other", weight=-1.0)


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


# Speed


@pytest.mark.parametrize("pools", [1, 10])
def test_a_slot_with_ten_thousand_jobs_is_fast(pools: int) -> None:
    """10,000 waiting jobs with 16 features x 20 server classes: 20 ms; three times that here, since machines are busy.

    Jobs of one pool are older than those of the next, so that a slot matches the jobs of one pool after the other.
    """
    rng = np.random.default_rng(1)
    names = [f"s{j}" for j in range(20)]
    one = Scheduler([JobClass("chat"), JobClass("code")], [ServerClass(name) for name in names], seed=1)
    for k in range(10_000):
        one.submit("chat" if k % 2 else "code", features=rng.normal(size=16), pool=f"n{k * pools // 10_000}")
    idle, times = dict.fromkeys(names, 1), []
    for _ in range(8):
        began = perf_counter()
        tasks = one.assign(idle)
        times.append(perf_counter() - began)
        for task in tasks:
            one.report(task.job, float(rng.uniform(-1.0, 1.0)))
    assert min(times[2:]) < 0.060


def test_a_job_avoids_a_server_if_another_of_its_class_is_idle() -> None:
    one = scheduler(work_conserving=True)
    one.submit("chat", servers=["p"], avoid="p1")
    [task] = one.assign({"p": ["p1", "p2"]})
    assert task.server == "p2"
    one.submit("chat", servers=["p"], avoid="p1")
    [task] = one.assign({"p": ["p1"]})
    assert task.server == "p1"


# Bad input


@pytest.mark.parametrize("server", ["gpu-7", b"gpu-7", ""])
def test_text_is_no_list_of_idle_servers(server: Any) -> None:
    """It was taken as a server for each character."""
    one = scheduler()
    one.submit("chat")
    with pytest.raises(BadInput, match=r"idle\['p'\] must be a number or a list of servers, such as \[.*\]; got "):
        one.assign({"p": server})
    assert [task.server for task in one.assign({"p": ["gpu-7"]})] == ["gpu-7"]


@pytest.mark.parametrize(
    ("duration", "rule"), [(0.0, "positive"), (-1.0, "positive"), (np.nan, "finite"), (np.inf, "finite")]
)
def test_bad_duration_of_a_service_is_refused_and_the_job_stays_out(duration: float, rule: str) -> None:
    one = scheduler()
    one.submit("chat")
    [task] = one.assign({"p": 1})
    with pytest.raises(BadInput, match=f"duration must be {rule}; got duration = "):
        one.report(task.job, 0.5, duration=duration)
    one.assign({})
    assert mean(one, "chat", "p") == mean(scheduler(), "chat", "p"), "nothing was learnt"
    assert one.report(task.job, 0.5, duration=2.0)


# Settings


def test_target_and_percentile_do_not_end_each_other() -> None:
    one = scheduler(target_wait=7.0)
    one.update_settings(percentile=0.95)
    assert one.waits is not None and (one.waits.target, one.waits.percentile) == (7.0, 0.95)
    one.update_settings(target_wait=3.0)
    assert one.waits is not None and (one.waits.target, one.waits.percentile) == (3.0, 0.95)
    one.update_settings(V=20.0)
    assert one.waits is not None and one.waits.percentile is None and one.V == 20.0
    one.update_settings(target_wait=3.0)
    assert one.waits is not None and (one.waits.target, one.waits.percentile) == (3.0, None)
