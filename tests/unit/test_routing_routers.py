"""Routers, scores, the scheduler as a router and the fluid bound, on cases that can be worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bilinq import BadInput, Router, Sabr, SchedulerRouter, Workload
from bilinq import replay as run
from bilinq.routing import FleetView
from bilinq.routing.bounds import fluid_bound
from bilinq.routing.router import WaitingJob
from bilinq.routing.routers import (
    ROUTERS,
    BestScore,
    BestSingle,
    ClassBeta,
    ClassGaussian,
    CMu,
    FirstComeFirstServed,
    KnownClasses,
    KnownJobs,
    LeastBusy,
    LinearThompson,
    LinearUcb,
    Matching,
    MaxWeightRouter,
    QueuePrice,
    RandomChoice,
    RoundRobin,
    Score,
    ShortestDelay,
)
from workloads import random_fleet


def two_servers(arrival: list[float], reward: Any, duration: Any = 10.0, **options: Any) -> Workload:
    return Workload(arrival=arrival, reward=reward, duration=duration, servers={"a": 1, "b": 1}, **options)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves_all_jobs_and_can_be_used_again(name: str) -> None:
    router, work = ROUTERS[name](), random_fleet(300, seed=1)
    first, second = run(work, router, seed=3), run(work, router, seed=3)
    assert first.complete.all()
    np.testing.assert_array_equal(first.start, second.start)
    if router.number is None:
        with pytest.raises(BadInput, match="has no number to tune"):
            router.search_range(FleetView(work))
    else:
        short, long = router.search_range(FleetView(work))
        waits = [run(work, replace(router, **{router.number: x})).wait.mean() for x in (short, long)]  # type: ignore[type-var]
        assert waits[0] < waits[1]


@pytest.mark.parametrize("score", [ClassGaussian(), ClassBeta(), LinearThompson(), LinearUcb()], ids=repr)
@pytest.mark.parametrize("family", [QueuePrice, Matching, FirstComeFirstServed])
def test_learnt_scores_earn_more_than_no_learning_and_less_than_known_rewards(score: Score, family: Any) -> None:
    work = random_fleet(1500, seed=2, load=0.6)
    reward = [run(work, one).earned.mean() for one in (LeastBusy(), family(score), family(KnownJobs()))]
    assert reward[0] + 0.02 < reward[1] < reward[2]


def test_the_best_score_is_a_queue_price_of_zero_without_a_number() -> None:
    work, score = random_fleet(400, seed=4, load=0.9), LinearUcb()
    free, priced = (run(work, router, seed=2) for router in (BestScore(score), QueuePrice(score, 0.0)))
    np.testing.assert_array_equal(free.start, priced.start)
    np.testing.assert_array_equal(free.server, priced.server)
    assert BestScore(KnownJobs()).sees_rewards and not BestScore().sees_rewards


@pytest.mark.parametrize("router", [BestScore(KnownJobs()), QueuePrice(KnownJobs(), 0.1)], ids=["free", "priced"])
def test_equal_scores_are_decided_at_random(router: Router) -> None:
    reward = np.tile([1.0, 1.0, 0.0], (300, 1))
    work = Workload(arrival=np.arange(300.0), reward=reward, duration=0.1, servers={"a": 1, "b": 1, "c": 1})
    sent = np.bincount(run(work, router, seed=1).server, minlength=3)
    assert sent[2] == 0 and 100 < sent[0] < 200  # sent[0] is binomial with mean 150 and standard deviation 8.7


def test_least_busy_takes_the_largest_idle_part() -> None:
    work = Workload(arrival=np.arange(6.0) * 0.1, reward=np.ones((6, 2)), duration=10.0, servers={"a": 4, "b": 2})
    assert run(work, LeastBusy()).server.tolist() == [0, 1, 0, 0, 1, 0]


def test_round_robin_goes_in_turn_and_skips_what_is_not_eligible() -> None:
    reward = [[1.0, 1.0], [1.0, 1.0], [1.0, np.nan], [1.0, 1.0], [1.0, 1.0]]
    assert run(two_servers([0.0] * 5, reward), RoundRobin()).server.tolist() == [0, 1, 0, 1, 0]


def test_random_choice_follows_the_number_of_servers() -> None:
    work = Workload(arrival=np.arange(4000.0), reward=np.ones((4000, 2)), duration=0.5, servers={"a": 3, "b": 1})
    assert (run(work, RandomChoice()).server == 0).mean() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("known", [False, True])
def test_best_single_ends_with_one_class(known: bool) -> None:
    work = two_servers(list(np.arange(200.0) * 10.0), np.tile([0.2, 0.9], (200, 1)))
    server = run(work, BestSingle(known=known, trials=5)).server
    assert (server[20:] == 1).all() and (server == 0).sum() == (0 if known else 5)


def test_shortest_delay_by_hand() -> None:
    """Durations 1 and 2.5: the first two jobs end first on a (1, 2), the third on b (2.5 against 3)."""
    assert run(two_servers([0.0] * 3, np.ones((3, 2)), [1.0, 2.5]), ShortestDelay()).server.tolist() == [0, 0, 1]


def test_queue_price_by_hand() -> None:
    """Job 0 starts on a; jobs 1 and 2 see 0 and 1 waiting there: 0.9 - 0 > 0.5, then 0.9 - 0.6 < 0.5."""
    work = two_servers([0.0, 1.0, 2.0], np.tile([0.9, 0.5], (3, 1)))
    assert run(work, QueuePrice(KnownJobs(), price=0.6)).server.tolist() == [0, 0, 1]
    assert run(work, QueuePrice(KnownJobs(), price=0.3)).server.tolist() == [0, 0, 0]


def test_matching_waits_for_a_better_server_if_waiting_is_cheap() -> None:
    """Job 1 finds a busy; it gains 0.8 by waiting for a about 10 times: worth it below 0.08 per time."""
    work = two_servers([0.0, 1.0], np.tile([1.0, 0.2], (2, 1)))
    assert run(work, Matching(KnownJobs(), holding=0.07)).server.tolist() == [0, 0]
    assert run(work, Matching(KnownJobs(), holding=0.09)).server.tolist() == [0, 1]


def test_matching_never_uses_a_pair_that_is_not_eligible() -> None:
    work = two_servers([0.0, 0.0], [[1.0, np.nan], [1.0, np.nan]])
    assert run(work, Matching(KnownJobs())).start.tolist() in ([0.0, 10.0], [10.0, 0.0])


def test_max_weight_and_c_mu_by_hand() -> None:
    """One server; job 0 runs to 1. Then class x has two jobs of value 0, y one of value 1 that takes twice as long."""
    work = Workload(arrival=[0.0, 0.5, 0.5, 0.5], reward=[[0.0], [0.0], [0.0], [1.0]], duration=[[1.0], [1.0], [1.0], [2.0]],
                    servers={"a": 1}, job_class=["x", "x", "x", "y"])  # fmt: skip
    assert run(work, MaxWeightRouter(KnownClasses(), V=1.0)).start.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert run(work, MaxWeightRouter(KnownClasses(), V=10.0)).start.tolist() == [0.0, 3.0, 4.0, 1.0]
    assert run(work, CMu(KnownClasses())).start.tolist() == [0.0, 3.0, 4.0, 1.0]


def test_linear_scores_are_ridge_regressions() -> None:
    """Against the normal equations, with a constant, one-hot classes and features."""
    work = random_fleet(200)
    score, fleet, rng = LinearUcb(scale=0.0, ridge=0.5), FleetView(work), np.random.default_rng(1)
    score.start(fleet, rng)
    assert work.features is not None
    jobs = [WaitingJob(k, 0.0, int(work.job_class[k]), work.features[k], (0, 1, 2), np.inf) for k in range(200)]
    for job in jobs[:150]:
        score.learn(job, 1, float(work.reward[job.number, 1]))
    x = np.hstack([np.ones((200, 1)), np.eye(3)[work.job_class], work.features])
    low, high = work.reward_range
    y = (work.reward[:150, 1] - (low + high) / 2) / ((high - low) / 2)
    theta = np.linalg.solve(0.5 * np.eye(6) + x[:150].T @ x[:150], x[:150].T @ y)
    expected = (low + high) / 2 + (high - low) / 2 * x[150:] @ theta
    np.testing.assert_allclose([score.value(job)[1] for job in jobs[150:]], expected, rtol=1e-9)


def test_what_a_router_may_not_know_is_refused() -> None:
    fleet = FleetView(random_fleet(10))
    with pytest.raises(BadInput, match="durations are for routers that declare sees_durations = True"):
        _ = fleet.durations
    with pytest.raises(BadInput, match="workload is for routers that declare sees_rewards = True"):
        _ = fleet.workload


def test_scheduler_learns_the_better_server() -> None:
    rng = np.random.default_rng(3)
    kind = rng.integers(2, size=1500)
    reward = 10.0 * np.array([[0.9, 0.1], [0.1, 0.9]])[kind]
    work = Workload(arrival=np.cumsum(rng.exponential(1.0, 1500)), reward=reward, duration=2.0, servers={"a": 3, "b": 3},
                    job_class=kind)  # fmt: skip
    result = run(work, SchedulerRouter(target_wait=4.0))
    assert result.complete.all() and result.earned[500:].mean() > 7.5
    assert result.wait.mean() < 10.0 and abs(result.growth[0]) < 0.02


def test_scheduler_copes_with_late_missing_failing_and_expired_jobs() -> None:
    base = random_fleet(400, seed=5).arguments()
    work = Workload(
        **(base | {"failure": 0.2, "units": 2, "deadline": 30.0, "reward_delay": 7.0, "reward_missing": 0.3})
    )
    result = run(work, SchedulerRouter(target_wait=1.0, slot=0.25, exploration="none"))
    assert (result.complete | result.expired | (result.attempts >= 5)).all()


def test_scheduler_router_serves_classes_by_eligible_servers() -> None:
    reward = np.tile([[1.0, 0.5], [np.nan, 0.4]], (50, 1))
    work = Workload(
        arrival=np.arange(100.0),
        reward=reward,
        duration=1.0,
        servers={"a": 1, "b": 1},
        job_class=["any", "b only"] * 50,
    )
    result = run(work, SchedulerRouter(target_wait=0.5))
    assert result.complete.all() and (result.server[1::2] == 1).all()


def test_scheduler_router_refuses_what_it_cannot_do() -> None:
    mixed = two_servers([0.0, 1.0], [[1.0, np.nan], [1.0, 0.5]])
    assert run(mixed, SchedulerRouter()).complete.all()
    with pytest.raises(BadInput, match="jobs of one class must have the same eligible servers for a policy"):
        run(mixed, SchedulerRouter(policy=Sabr.for_scheduler()))
    with pytest.raises(BadInput, match="target_wait must be positive"):
        SchedulerRouter(target_wait=0.0)
    with pytest.raises(BadInput, match="settings must not have 'seed'"):
        SchedulerRouter(seed=3)
    tuned: Router = replace(SchedulerRouter(target_wait=2.0, V=1.5), target_wait=3.0)
    assert repr(tuned) == "SchedulerRouter(target_wait=3.0, slot=None, known_classes=False, settings={'V': 1.5})"


def test_fluid_bound_by_hand() -> None:
    """Jobs at rate 1.25 of duration one; server a pays one and serves 0.8 of them, the others pay nothing."""
    work = Workload(
        arrival=np.arange(1001.0) / 1.25, reward=np.tile([1.0, 0.0], (1001, 1)), duration=1.0, servers={"a": 1, "b": 9}
    )
    assert fluid_bound(work) == pytest.approx(0.8)
    too_much = Workload(arrival=np.arange(1001.0) / 4.0, reward=np.ones((1001, 1)), duration=1.0, servers={"a": 1})
    assert fluid_bound(too_much) == pytest.approx(0.25)


def test_no_router_by_class_exceeds_the_fluid_bound() -> None:
    work = random_fleet(4000, seed=6)
    bound = fluid_bound(work)
    for router in (LeastBusy(), Matching(KnownClasses(), holding=0.01), QueuePrice(KnownClasses(), price=0.05)):
        assert run(work, router).earned.mean() < bound + 0.01
    assert run(work, Matching(KnownClasses(), holding=0.01)).earned.mean() > bound - 0.1
