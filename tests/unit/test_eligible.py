"""Eligible pairs and rates by pair in policies and in the simulator: what is served, how fast, and what is refused."""

from typing import Any

import numpy as np
import pytest

from bilinq import (  # fmt: skip
    FirstCome,
    FixedPoint,
    Greedy,
    KnownRewards,
    MaxWeight,
    Policy,
    Problem,
    Random,
    Rounds,
    Sabr,
    StaticSplit,
    UgdaOl,
    simulate,
)
from bilinq.arrays import Array
from bilinq.checks import check_policy
from bilinq.errors import BadInput
from bilinq.learning import Outcome
from bilinq.policies.registry import POLICIES, make_policy
from bilinq.problem.instances import stack
from bilinq.problem.pairs import Pairs
from bilinq.simulation import Breakdowns, Poisson, Sized
from spy import Spy

MASK = np.array([[1, 1, 0], [1, 0, 1], [0, 0, 1], [1, 1, 1]], bool)
RATE = np.array([[0.5, 0.9, 0.3], [0.5, 0.5, 0.4], [0.6, 0.6, 0.15], [0.4, 0.4, 0.4]])
REWARD = np.array([[0.2, 0.9, 0.5], [0.5, 0.4, 0.1], [0.3, 0.3, 0.9], [0.1, 0.2, 0.6]])
FLEET = Problem(arrival_rate=[0.3, 0.2, 0.08, 0.15], servers=[2, 1, 1], mean_reward=np.where(MASK, REWARD, -1.0),
                service_rate=RATE, eligible=MASK, noise=0.0)  # fmt: skip
"""Rewards tell which pairs were served: only those that are not eligible are negative. Class 2 has one slow server; the
load is 0.08 / 0.15 there, and nothing else needs it."""
BY_CLASS = FLEET.replace(service_rate=0.4)

CASES: dict[str, Policy] = {
    **{name: make_policy(name, {}) for name in POLICIES},
    "sabr, capped": Sabr(V=5.0, limit="queue", assignment="distinct", work_conserving=True),
    "sabr, ucb": Sabr(V=5.0, exploration="ucb", work_conserving=True),
    "sabr, target wait": Sabr(target_wait=5.0, weight=[1.0, 2.0, 3.0, 1.0]),
    "known, capped": KnownRewards(V=1.0, limit="queue"),
    "ugda-ol by class": UgdaOl(V=5.0, learning="class"),
    "ugda-ol, capped": UgdaOl(V=5.0, limit="queue", assignment="distinct"),
    "newest": FirstCome(newest=True),
    "random, independent": Random(assignment="independent"),
}


def served(policy: Policy, problem: Problem = FLEET, slots: int = 250, **options: Any) -> tuple[Spy, Any]:
    spy = Spy(policy)
    return spy, simulate(problem, spy, slots=slots, replications=2, seed=3, arrivals=Poisson(), **options)


def least_reward(spy: Spy) -> float:
    """Return the least mean reward of any row and server class that was served in a slot."""
    return min(float((o.total[o.count > 0] / o.count[o.count > 0]).min(initial=1.0)) for o in spy.outcomes)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("problem", [FLEET, BY_CLASS], ids=["rates by pair", "rates by class"])
def test_no_policy_serves_a_pair_that_is_not_eligible(name: str, problem: Problem) -> None:
    """Nor where servers fail; and the class with one slow server leaves as fast as it comes."""
    spy, runs = served(CASES[name], problem, capacity=Breakdowns(0.05, 0.5))
    assert least_reward(spy) >= 0.0
    assert runs.jobs is not None and set(runs.jobs.job_class.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "allocation", [Rounds(5, forward=1), Rounds(5, nodes="server", rule="delayed"), FixedPoint()], ids=repr
)
def test_no_nodes_serve_a_pair_that_is_not_eligible(allocation: Any) -> None:
    spy, runs = served(Sabr(V=5.0, allocation=allocation, limit="queue"), BY_CLASS, capacity=Breakdowns(0.05, 0.5))
    assert least_reward(spy) >= 0.0
    assert runs.jobs is not None and set(runs.jobs.job_class.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", CASES)
def test_the_queue_of_a_class_with_one_slow_server_is_stable(name: str) -> None:
    """At most a sixth of the 120 jobs that come wait at the end, on average over the last half."""
    _, runs = served(CASES[name], FLEET, slots=1500)
    assert runs.queue[:, 750:, 2].mean() < 20.0, runs.queue[:, 750:].mean(axis=(0, 1))


@pytest.mark.parametrize("name", ["sabr", "ugda-ol", "first-come", "max-weight", "random", "static-split"])
def test_contract_of_policies_holds(name: str) -> None:
    check_policy(CASES[name], FLEET, slots=30)


def test_a_policy_that_ignores_the_mask_is_refused() -> None:
    class Everywhere(Policy):
        def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
            waits = (queue > 0.0) / np.maximum((queue > 0.0).sum(axis=1, keepdims=True), 1)
            return np.asarray(waits[:, :, None] * capacity[:, None, :])

        def learn(self, state: Any, outcome: Outcome) -> Any:
            return state

    with pytest.raises(BadInput, match="zero where the server class may not serve the job class"):
        served(Everywhere())


@pytest.mark.parametrize(
    "policy", [Sabr(V=10.0, limit="queue"), MaxWeight(), UgdaOl(V=10.0), FirstCome(), StaticSplit()]
)
def test_equal_rates_and_a_full_mask_change_nothing(policy: Policy) -> None:
    plain = FLEET.replace(eligible=None, service_rate=[0.5, 0.4, 0.3, 0.2])
    same = plain.replace(
        eligible=np.ones((4, 3), bool), service_rate=np.repeat([[0.5], [0.4], [0.3], [0.2]], 3, axis=1)
    )
    one, two = (served(policy, problem)[1] for problem in (plain, same))
    assert np.array_equal(one.queue, two.queue) and np.array_equal(one.observed, two.observed)
    assert np.array_equal(one.oracle, two.oracle)


@pytest.mark.parametrize("policy", [Sabr(V=10.0), Greedy(), FirstCome()])
def test_rates_of_other_pairs_do_not_matter(policy: Policy) -> None:
    """Equal rates of the eligible pairs, whatever the others have, give the run of rates by class."""
    one, two = BY_CLASS, BY_CLASS.replace(service_rate=np.where(MASK, 0.4, 0.9))
    assert np.array_equal(served(policy, one)[1].queue, served(policy, two)[1].queue)


class Priority(Policy):
    """One job at a time on server class j."""

    assignment = "distinct"

    def __init__(self, j: int) -> None:
        self.j = j

    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        return np.asarray(np.minimum(queue, 1.0)[:, :, None] * (np.arange(capacity.shape[1]) == self.j))

    def learn(self, state: Any, outcome: Outcome) -> Any:
        return state


def test_services_complete_at_the_rate_of_their_pair() -> None:
    """On server class 0 every service completes its job; on class 1 none does in this run."""
    problem = Problem(arrival_rate=[0.6], servers=[1, 1], mean_reward=[[0.0, 0.0]], service_rate=[[1.0, 1e-9]])
    fast, slow = (simulate(problem, Priority(j), slots=200, seed=1) for j in (0, 1))
    assert fast.jobs is not None and (fast.jobs.sojourn == 1).all() and fast.queue.max() == 1
    assert slow.jobs is not None and not slow.jobs.left.size and slow.queue.max() > 80


def test_rates_that_a_problem_accepts_can_be_simulated() -> None:
    """At the largest ratio rounding decides which of the rates are accepted; a policy then solves programs with them."""
    table: dict[str, Any] = {"arrival_rate": [0.01], "servers": [1, 1], "mean_reward": [[0.0, 0.5]]}
    rng, refused = np.random.default_rng(1), 0
    for high in rng.uniform(0.1, 1.0, 20).tolist():
        with pytest.raises(BadInput, match=r"service_rate must not differ by more than 1e.09 times .* got .* in row 0"):
            Problem(**table, service_rate=[[high, 0.99e-9 * high]])
        try:
            problem = Problem(**table, service_rate=[[high, 1e-9 * high]])
        except BadInput:
            refused += 1
        else:
            assert simulate(problem, Sabr(), slots=5, seed=1).slots == 5
    assert refused < 20
    free = Problem(**table, service_rate=[[1.0, 1e-12]], eligible=[[1, 0]])
    assert simulate(free, Sabr(), slots=5, seed=1).slots == 5


def first_decision(policy: Policy, problem: Problem, queue: Any, capacity: Any = None) -> Array:
    state = policy.start(stack([problem]), 100, [np.random.default_rng(0)])
    servers = np.array(problem.servers if capacity is None else capacity, float)
    return np.asarray(policy.decide(state, np.array([queue], float), servers[None])[0])


def test_known_rewards_by_hand() -> None:
    """Eq. (47) with idle servers: row i uses the least c_ij / mu_ij and has a_i / s_i = c there, s in servers.

    Class 0, V = 10, Q = 3: c = (1, 0.3), mu = (0.5, 0.1): c / mu = (2, 3), so server class 0, y = 0.3 / 1.
    Class 1 may use only class 1: c = 0.8, y = 0.1 / 0.8.
    """
    problem = Problem(arrival_rate=[0.1, 0.01], servers=[2, 2], mean_reward=[[0.2, 0.9], [0.5, 0.4]],
                      service_rate=[[0.5, 0.1], [1.0, 0.5]], eligible=[[1, 1], [0, 1]])  # fmt: skip
    y = first_decision(KnownRewards(V=10.0), problem, [3, 1])
    np.testing.assert_allclose(y, [[0.3, 0.0], [0.0, 0.125]], rtol=1e-6)


def test_target_wait_by_hand() -> None:
    """Eq. (54): min_j c_ij / mu_ij is 2 and 4 slots, the waits of the classes at V = 1; f is 0.3 for both.

    V = 6 * 0.3 / mean(0.3 * 2, 0.3 * 4) = 2, so the waits are 4 and 8, on average 6.
    """
    problem = Problem(arrival_rate=[0.1, 0.01], servers=[2, 2], mean_reward=[[0.2, 0.9], [-0.1, 0.0]],
                      service_rate=[[0.5, 0.1], [0.3, 0.3]])  # fmt: skip
    policy = KnownRewards(target_wait=6.0)
    state = policy.start(stack([problem]), 100, [np.random.default_rng(0)])
    np.testing.assert_allclose(policy.current_V(state), [2.0], rtol=1e-12)


def test_target_wait_ignores_servers_that_are_not_eligible() -> None:
    problem = Problem(arrival_rate=[0.1], servers=[2, 2], mean_reward=[[0.2, 0.9]], service_rate=0.5, eligible=[[1, 0]])
    policy = KnownRewards(target_wait=6.0)
    state = policy.start(stack([problem]), 100, [np.random.default_rng(0)])
    np.testing.assert_allclose(policy.current_V(state), [6.0 * 0.5 / 1.0], rtol=1e-12)


def test_first_come_with_eligible_pairs_by_hand() -> None:
    """The oldest job may use both servers and takes half of each; the next may use class 0 only and gets what is left."""
    eligible = np.array([[[True, True], [True, False], [False, True]]])
    queue, capacity = np.array([[1.0, 1.0, 1.0]]), np.array([[1.0, 1.0]])
    pairs, since = Pairs(np.ones((1, 3)), None, eligible), np.array([[1.0, 2.0, 3.0]])
    policy, newest = FirstCome(), FirstCome(newest=True)
    y = policy.decide(policy.with_pairs(since, pairs), queue, capacity)[0]
    np.testing.assert_allclose(y, [[0.5, 0.5], [0.5, 0.0], [0.0, 0.5]])
    y = newest.decide(newest.with_pairs(since, pairs), queue, capacity)[0]
    np.testing.assert_allclose(y, [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    everyone = Pairs(np.ones((1, 3)), None, np.ones((1, 3, 2), bool))
    plain = policy.decide(since, queue, capacity)
    np.testing.assert_allclose(policy.decide(policy.with_pairs(since, everyone), queue, capacity), plain)


def test_static_split_spends_time_where_services_are_slow() -> None:
    """Of 0.3 jobs 0.25 are completed by server class 1, each in 4 slots, and 0.05 by class 0 in 2: times 1 and 0.1."""
    problem = Problem(arrival_rate=[0.3], servers=[1, 1], mean_reward=[[0.9, 0.5]], service_rate=[[0.5, 0.25]])
    state = StaticSplit().start(stack([problem]), 100, [np.random.default_rng(0)])
    np.testing.assert_allclose(state[0], [[1 / 11, 10 / 11]], rtol=1e-7)


def test_max_weight_weighs_queues_by_the_rate_of_the_pair() -> None:
    """V = 0: class 0 with 6 jobs has scores 3 and 0.6, class 1 with 2 jobs 1 and 1: one server each."""
    problem = Problem(arrival_rate=[0.1, 0.1], servers=[1, 1], mean_reward=np.zeros((2, 2)),
                      service_rate=[[0.5, 0.1], [0.5, 0.5]])  # fmt: skip
    np.testing.assert_allclose(first_decision(MaxWeight(V=0.0), problem, [6, 2]), [[1, 0], [0, 1]])


@pytest.mark.parametrize("allocation", [Rounds(5), FixedPoint()], ids=repr)
def test_nodes_refuse_durations(allocation: Any) -> None:
    with pytest.raises(
        BadInput, match=f"service_rate must not depend on the server class for {type(allocation).__name__}"
    ):
        served(Sabr(V=5.0, allocation=allocation))


@pytest.mark.parametrize("allocation", [FixedPoint(), Rounds(6000)], ids=repr)
def test_nodes_that_do_not_know_each_other_are_as_pairs_that_cost_too_much(allocation: Any) -> None:
    queue = [5, 4, 3, 2]
    policy, expensive = KnownRewards(V=3.0, allocation=allocation), np.where(MASK, REWARD, -50.0)
    y = first_decision(policy, BY_CLASS, queue)
    assert not y[~MASK].any()

    class Costly(KnownRewards):
        def _value(self, state: Any, index: Array) -> Array:
            return expensive[None]

    plain = first_decision(Costly(V=3.0, allocation=allocation), BY_CLASS.replace(eligible=None), queue)
    np.testing.assert_allclose(y, plain, atol=2e-4)


def test_jobs_of_given_length_need_rates_by_class() -> None:
    with pytest.raises(BadInput, match="service must be 'geometric' where service_rate depends on the server class"):
        simulate(FLEET, Random(), slots=5, service="units")
    with pytest.raises(BadInput, match="service_rate must not depend on the server class for jobs of a given number"):
        simulate(FLEET, Random(), slots=5, arrivals=Sized(Poisson()))
    assert simulate(BY_CLASS, Random(), slots=5, service="units", arrivals=Sized(Poisson())).slots == 5
