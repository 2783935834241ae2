"""First come, first served: by hand, and in runs where every job's times are known."""

from typing import Any

import numpy as np
import pytest

from bilinq import BadInput, FirstCome, Problem, simulate
from bilinq.arrays import Array
from bilinq.learning import Outcome
from bilinq.policies.registry import make_policy
from bilinq.problem.instances import stack
from bilinq.simulation import Breakdowns, Poisson, Recorded, Runs
from spy import Spy

INF = np.inf
PROBLEM = Problem(
    arrival_rate=[0.6, 0.5, 0.4], servers=[2, 1], mean_reward=[[0.2, 0.9], [0.5, 0.4], [0.1, 0.3]], service_rate=0.6
)


def decided(since: list[float], queue: list[float], capacity: list[float]) -> Array:
    y = FirstCome().decide(
        np.array([since], dtype=float), np.array([queue], dtype=float), np.array([capacity], dtype=float)
    )
    return np.asarray(y[0])


def outcome(slot: int, queue: list[float], left: list[bool]) -> Outcome:
    nothing = np.zeros((1, len(queue), 2))
    return Outcome(slot, nothing.astype(np.int64), nothing, nothing, np.array([left]), np.array([queue]))


def test_the_oldest_jobs_are_served_on_any_server() -> None:
    """Jobs arrived in slots 5, 2, 3; those of slots 2 and 3 get a server each, of every class by its capacity."""
    np.testing.assert_allclose(decided([5, 2, 3], [1, 1, 1], [1, 1]), [[0.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(decided([5, 2, 3], [1, 1, 1], [2, 0]), [[0, 0], [1, 0], [1, 0]])
    np.testing.assert_allclose(decided([5, 2, 3], [1, 1, 1], [3, 1]), [[0.75, 0.25]] * 3)
    np.testing.assert_allclose(decided([5, 2, 3], [1, 0, 1], [0, 1]), [[0, 0], [0, 0], [0, 1]])


def test_jobs_not_seen_before_are_the_youngest() -> None:
    np.testing.assert_allclose(decided([INF, 2, 3], [1, 1, 1], [1, 1]), [[0.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(decided([INF], [1, 1, 0], [1, 0]), [[0.5, 0.0], [0.5, 0.0], [0.0, 0.0]])


def test_jobs_of_one_slot_share_what_is_left() -> None:
    """One server for the job of slot 1, one for the three of slot 4: a third each."""
    third = [1 / 6, 1 / 6]
    np.testing.assert_allclose(decided([4, 1, 4, 4], [1] * 4, [1, 1]), [third, [0.5, 0.5], third, third])


def test_nobody_waits_or_nobody_serves() -> None:
    assert not decided([1, 2], [0, 0], [1, 1]).any()
    assert not decided([1, 2], [1, 1], [0, 0]).any()


def test_it_remembers_arrivals_and_forgets_jobs_that_left() -> None:
    """Rows 0 and 1 wait in slot 3 and row 0 leaves; in slot 4 its row has a new job, younger than that of row 1."""
    policy = FirstCome()
    start = policy.start(stack([PROBLEM]), 10, [np.random.default_rng(0)])
    assert start.shape == (1, 0)
    after = policy.learn(start, outcome(3, [1.0, 1.0], [True, False]))
    assert after.tolist() == [[INF, 3.0]]
    assert policy.learn(after, outcome(4, [1.0, 1.0, 0.0], [False] * 3)).tolist() == [[4.0, 3.0, INF]]
    assert after.tolist() == [[INF, 3.0]]


def test_a_job_that_has_begun_goes_before_others_of_its_slot() -> None:
    """Both arrived in slot 3 and row 1 was served in slots 3 and 4: it stays before row 0 and behind a job of slot 2."""
    told = outcome(3, [1.0, 1.0, 1.0], [False] * 3)
    told.count[0, 1, 0] = 1
    since = FirstCome().learn(np.array([[INF, INF, 2.0]]), told)
    since = FirstCome().learn(since, told)
    assert 2.0 < since[0, 1] < since[0, 0] == 3.0
    np.testing.assert_allclose(decided(since[0].tolist(), [1, 1, 1], [2, 0]), [[0, 0], [1, 0], [1, 0]])


def test_learning_needs_the_queue() -> None:
    told = outcome(1, [1.0], [False])
    silent = Outcome(told.slot, told.count, told.total, told.squares, told.left)
    with pytest.raises(BadInput, match=r"outcome.queue must be the queue that the policy was shown; got None"):
        FirstCome().learn(np.zeros((1, 0)), silent)


def in_order(runs: Runs) -> bool:
    """Return whether, of any two jobs of a replication, the earlier one was served no later."""
    jobs = runs.jobs
    assert jobs is not None and jobs.left.size > 100
    order = np.lexsort((jobs.first_served, jobs.arrived, jobs.replication))
    same = np.diff(jobs.replication[order]) == 0
    return bool((np.diff(jobs.first_served[order])[same] >= 0).all())


def crowded(**changes: Any) -> Runs:
    options: dict[str, Any] = {"slots": 600, "replications": 4, "seed": 5, "arrivals": Poisson()}
    return simulate(PROBLEM, FirstCome(), **(options | changes))


def test_jobs_start_in_order_of_arrival() -> None:
    """With three classes, three servers at 83 % load, and also where servers fail; a random order is noticed."""
    assert in_order(crowded())
    assert in_order(crowded(capacity=Breakdowns(0.02, 0.5)))
    assert not in_order(simulate(PROBLEM, make_policy("random", {}), slots=600, seed=5, arrivals=Poisson()))


def test_it_never_idles_while_a_job_waits() -> None:
    spy = Spy(make_policy("first-come", {}))
    simulate(PROBLEM, spy, slots=300, replications=3, seed=2, arrivals=Poisson(), capacity=Breakdowns(0.2, 0.5))
    for queue, capacity, seen in zip(spy.queues, spy.capacities, spy.outcomes, strict=True):
        np.testing.assert_array_equal(seen.count.sum(axis=(1, 2)), np.minimum(queue.sum(axis=1), capacity.sum(axis=1)))
        assert (seen.count.sum(axis=1) <= capacity).all() and seen.count.sum(axis=2).max() <= 1


def test_a_job_of_several_units_keeps_one_server() -> None:
    """Two servers; jobs of 3, 1 and 2 units come in slots 1, 1, 1 and one of 1 unit in slot 2.

    Of the jobs that came together chance serves two first; each stays until it is done, so the one of slot 2 is last.
    """
    problem = Problem(arrival_rate=[0.1], servers=[1, 1], mean_reward=[[0.5, 0.5]])
    trace = Recorded([(0, 0, 3), (0, 0, 1), (0, 0, 2), (1, 0, 1)])
    for seed in range(10):
        jobs = simulate(problem, FirstCome(), slots=12, seed=seed, arrivals=trace, service="units").jobs
        assert jobs is not None and jobs.left.size == 4
        assert sorted((jobs.left - jobs.first_served + 1).tolist()) == [1, 1, 2, 3]
        assert jobs.first_served[jobs.arrived == 2].item() == jobs.first_served.max()


def test_newest_servers_are_used_first() -> None:
    policy, capacity = FirstCome(newest=True), np.array([[2.0, 1.0, 2.0]])
    for jobs, used in ((1, [0, 0, 1]), (3, [0, 1, 2]), (4, [1, 1, 2]), (9, [2, 1, 2])):
        y = policy.decide(np.full((1, jobs), np.inf), np.ones((1, jobs)), capacity)
        assert y.sum(axis=1)[0].tolist() == pytest.approx(used)
        assert y.sum(axis=2).max() <= 1.0 + 1e-12
