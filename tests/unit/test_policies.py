"""What each policy decides in cases that can be worked out by hand, and which settings it refuses."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from bilinq import Greedy, KnownRewards, MaxWeight, Policy, Problem, Random, Sabr, StaticSplit, UgdaOl, simulate
from bilinq.arrays import Array
from bilinq.errors import BadInput, UnstableLoad
from bilinq.learning import Outcome
from bilinq.policies import CMu
from bilinq.policies.registry import POLICIES, make_policy
from bilinq.problem.instances import stack

REWARD = [[0.2, 0.9], [0.5, 0.4]]
PROBLEM = Problem(arrival_rate=[0.3, 0.2], servers=[1, 1], mean_reward=REWARD, service_rate=[0.5, 1.0])


def started(policy: Policy, problem: Problem = PROBLEM, horizon: int = 100) -> Any:
    return policy.start(stack([problem]), horizon, [np.random.default_rng(0)])


def taught(policy: Policy, problem: Problem = PROBLEM) -> Any:
    """Return a state after so many services that what was learnt is the truth to five digits."""
    count = np.full((1, *problem.mean_reward.shape), 10**10, np.int64)
    total = count * problem.mean_reward
    squares = count * (problem.mean_reward**2 + problem.noise**2)
    return policy.learn(started(policy, problem), Outcome(1, count, total, squares, np.zeros((1, 2), np.bool_)))


def decided(policy: Policy, state: Any, queue: Any, capacity: Any) -> Array:
    y = policy.decide(state, np.array([queue], dtype=float), np.array([capacity], dtype=float))
    return np.asarray(y[0])


def test_random_shares_in_proportion() -> None:
    """Three jobs for two servers: each job has two thirds of a server. One job for two servers: half of each."""
    policy = Random()
    np.testing.assert_allclose(decided(policy, started(policy), [2, 1], [1, 1]), [[2 / 3, 2 / 3], [1 / 3, 1 / 3]])
    np.testing.assert_allclose(decided(policy, started(policy), [0, 1], [1, 1]), [[0.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(decided(policy, started(policy), [2, 1], [3, 1]), [[1.5, 0.5], [0.75, 0.25]])
    assert not decided(policy, started(policy), [0, 0], [1, 1]).any()
    assert not decided(policy, started(policy), [3, 4], [0, 0]).any()


def test_greedy_serves_the_best_pair_first() -> None:
    """Order 0.9, 0.5, 0.4, 0.2: class 0 on server class 1, class 1 on class 0; what is left goes to worse pairs."""
    policy = Greedy()
    state = taught(policy)
    np.testing.assert_allclose(decided(policy, state, [1, 1], [1, 1]), [[0, 1], [1, 0]])
    np.testing.assert_allclose(decided(policy, state, [3, 1], [2, 2]), [[1, 2], [1, 0]])
    np.testing.assert_allclose(decided(policy, state, [1, 5], [2, 2]), [[0, 1], [2, 1]])
    np.testing.assert_allclose(decided(policy, state, [0, 5], [1, 1]), [[0, 0], [1, 1]])
    np.testing.assert_allclose(decided(policy, state, [5, 0], [0, 2]), [[0, 2], [0, 0]])


def test_max_weight_serves_the_largest_drift_plus_reward() -> None:
    """V = 10, gamma = 1, mu = (0.5, 1). Queue (10, 2): scores 5 + (-8, -1) = (-3, 4) and 2 + (-5, -6) = (-3, -4): only
    class 0 on server class 1. Queue (10, 9): (-3, 4) and (4, 3): class 1 on server class 0, and the tie at 4 does not
    matter. Queue (20, 30): (2, 9) and (25, 24): class 1 takes both.
    """
    policy = MaxWeight(V=10.0, gamma=1.0)
    state = taught(policy)
    np.testing.assert_allclose(decided(policy, state, [10, 2], [1, 1]), [[0, 1], [0, 0]])
    np.testing.assert_allclose(decided(policy, state, [10, 9], [1, 1]), [[0, 1], [1, 0]])
    np.testing.assert_allclose(decided(policy, state, [20, 30], [1, 1]), [[0, 0], [1, 1]])
    np.testing.assert_allclose(decided(policy, state, [0, 0], [1, 1]), 0.0)


def test_max_weight_without_rewards_serves_the_longest_queue() -> None:
    """Longest as mu Q: 3 against 2 jobs' worth; it gets all servers as far as it has jobs, the other one the rest."""
    policy = MaxWeight(V=0.0)
    state = taught(policy)
    np.testing.assert_allclose(decided(policy, state, [6, 2], [4, 4]), [[3, 3], [1, 1]])
    np.testing.assert_allclose(decided(policy, state, [3, 2], [1, 1]), [[0, 0], [1, 1]])


def test_static_split_follows_the_oracle() -> None:
    """Everybody's best server class has room: p* = ((0, 1), (1, 0)). Jobs beyond the servers wait."""
    policy = StaticSplit()
    state = started(policy)
    assert state[0].tolist() == [[0, 1], [1, 0]]
    np.testing.assert_allclose(decided(policy, state, [1, 1], [1, 1]), [[0, 1], [1, 0]])
    np.testing.assert_allclose(decided(policy, state, [5, 0], [1, 1]), [[0, 1], [0, 0]])


def test_static_split_shares_a_full_class() -> None:
    """Traffic 1.5 of class 0: one unit fits on its best server class, so shares are a third and two thirds."""
    problem = Problem(arrival_rate=[0.9], servers=[1, 1], mean_reward=[[0.2, 0.9]], service_rate=0.6)
    policy = StaticSplit()
    np.testing.assert_allclose(started(policy, problem)[0], [[1 / 3, 2 / 3]], rtol=1e-9)
    np.testing.assert_allclose(decided(policy, started(policy, problem), [1], [1, 1]), [[1 / 3, 2 / 3]])
    np.testing.assert_allclose(decided(policy, started(policy, problem), [6], [1, 1]), [[1.0, 1.0]])


def test_static_split_needs_a_stable_load() -> None:
    with pytest.warns(UnstableLoad):
        problem = PROBLEM.replace(arrival_rate=[3.0, 3.0])
    with pytest.raises(BadInput, match="the oracle exists only for a load within capacity"):
        started(StaticSplit(), problem)


def test_known_rewards_by_hand() -> None:
    """Eq. (8): s = w Q / (V (gamma - r)) on the best server class: 3 / (10 * 0.3) = 1 and 1 / (10 * 0.7)."""
    policy = KnownRewards(V=10.0)
    np.testing.assert_allclose(decided(policy, started(policy), [3, 1], [1, 1]), [[0.0, 1.0], [1 / 7, 0.0]], rtol=1e-9)
    weighted = KnownRewards(V=20.0, weight=[1.0, 4.0], gamma=1.5)
    expected = [[0, 3 / (20 * 0.6)], [4 / (20 * 1.0), 0]]
    np.testing.assert_allclose(decided(weighted, started(weighted), [3, 1], [1, 1]), expected, rtol=1e-9)


def test_limit_keeps_to_the_jobs_there_are() -> None:
    """V = 1: one job would get 1 / 0.3 servers; with the cap one."""
    for limit, service in (("none", 10 / 3), ("queue", 1.0)):
        policy = KnownRewards(V=1.0, limit=limit)  # type: ignore[arg-type]
        np.testing.assert_allclose(
            decided(policy, started(policy), [1, 0], [9, 9]), [[0.0, service], [0.0, 0.0]], rtol=1e-9
        )


@pytest.mark.parametrize(
    "policy", [Sabr(V=10.0, radius="paper"), Sabr(V=10.0, radius="published"), UgdaOl("class", V=10.0)]
)
def test_optimists_spread_what_they_do_not_know(policy: Policy) -> None:
    """Before anything is seen every index is one: s = Q / (V 0.2), in proportion to the servers of each class."""
    y = decided(policy, started(policy), [3, 1], [6, 2])
    np.testing.assert_allclose(y, [[1.125, 0.375], [0.375, 0.125]], rtol=1e-9)


def test_sabr_learns_what_is_known() -> None:
    """After very many rewards SABR decides as if it knew them, however it explores."""
    known = KnownRewards(V=30.0)
    expected = decided(known, started(known), [3, 1], [1, 1])
    options: list[dict[str, Any]] = [{}, {"radius": "calibrated"}, {"exploration": "none"}, {"noise": "estimate"}]
    for settings in options:
        sabr = Sabr(V=30.0, **settings)
        np.testing.assert_allclose(
            decided(sabr, taught(sabr), [3, 1], [1, 1]), expected, rtol=1e-3, err_msg=str(settings)
        )


def test_sabr_explores_as_set() -> None:
    assert Sabr().learner().exploration == "thompson" and Sabr(exploration="ucb").learner().radius == "calibrated"
    assert Sabr(radius="paper").learner().exploration == "ucb" and Sabr(radius="paper").learner().radius == "paper"
    assert Sabr(exploration="none").learner().exploration == "none"
    learner = Sabr(noise=0.3, regularization=2.0).learner()
    assert learner.noise == 0.3 and learner.regularization == 2.0
    assert Sabr().learner().scale == 0.5 and Sabr(scale=1.0).learner().scale == 1.0


def test_sabr_serves_no_job_twice_unless_it_is_as_printed() -> None:
    """Algorithm 1 has the printed radius and independent draws; T and V are both at will, and T is not the run's."""
    assert (Sabr().assignment, Sabr().limit) == ("distinct", "queue")
    printed = Sabr.as_printed(horizon=500, V=58.0, weight=[1.0, 2.0])
    assert (printed.radius, printed.assignment, printed.limit) == ("paper", "independent", "none")
    assert (printed.horizon, printed.V, printed.weight) == (500, 58.0, [1.0, 2.0])
    problem = Problem.synthetic(seed=7)
    longer, shorter = (
        simulate(problem, Sabr.as_printed(500, 58.0), slots=slots, seed=1, record_allocation=True) for slots in (80, 40)
    )
    assert longer.allocation is not None and shorter.allocation is not None
    np.testing.assert_array_equal(longer.allocation[:, :40], shorter.allocation)


def test_ugda_has_a_row_for_each_job() -> None:
    """Four places, two jobs: each has index one, so V 0.2 s = 1, in proportion to the servers of each class."""
    policy = UgdaOl(V=10.0)
    assert policy.rows == "job" and UgdaOl("published").rows == "job" and UgdaOl("class").rows == "class"
    y = decided(policy, started(policy), [1, 0, 1, 0], [6, 2])
    np.testing.assert_allclose(y, [[0.375, 0.125], [0.0, 0.0], [0.375, 0.125], [0.0, 0.0]], rtol=1e-9)


def test_ugda_job_learns_from_itself_alone() -> None:
    """A job that was paid -1 four times on server class 0 avoids it: -1 + sqrt(2 log 4 / 4) = -0.167 against 1."""
    policy = UgdaOl(V=10.0)
    count = np.zeros((1, 2, 2), np.int64)
    count[0, 0, 0] = 4
    outcome = Outcome(1, count, -count.astype(float), count.astype(float), np.zeros((1, 2), np.bool_))
    y = decided(policy, policy.learn(started(policy), outcome), [1, 1], [6, 2])
    np.testing.assert_allclose(y, [[0, 0.5], [0.375, 0.125]], rtol=1e-9)


def test_weights_of_ugda_ol_by_class_are_those_of_the_program() -> None:
    """With true rewards learnt, the services of a class are those of known rewards with the same weights, Eq. (5)."""
    weighted, known = UgdaOl("class", V=10.0, weight=[3.0, 0.5]), KnownRewards(V=10.0, weight=[3.0, 0.5])
    y = decided(weighted, taught(weighted), [4, 4], [1, 1])
    np.testing.assert_allclose(y, decided(known, started(known), [4, 4], [1, 1]), atol=1e-3)
    plain = UgdaOl("class", V=10.0)
    assert np.abs(y - decided(plain, taught(plain), [4, 4], [1, 1])).max() > 0.05


@pytest.mark.parametrize("kind", [Sabr, KnownRewards, UgdaOl])
def test_horizon_sets_v(kind: Callable[..., Any]) -> None:
    """Eq. (23): with two classes sqrt(2 * 200) = 20; without a horizon the number of simulated slots is used."""
    by_v, by_horizon, by_slots = kind(V=20.0), kind(horizon=200), kind()
    for policy, slots in ((by_v, 7), (by_horizon, 7), (by_slots, 200)):
        assert started(policy, horizon=slots).V.tolist() == [20.0]


def test_target_wait_sets_v() -> None:
    """Eq. (22) averaged over classes: mu = 0.75 and costs 0.3 and 0.7 on average 0.5, so V = 10 * 0.75 / 0.5 = 15."""
    by_wait, by_v = KnownRewards(target_wait=10.0), KnownRewards(V=15.0)
    args = ([3, 1], [1, 1])
    np.testing.assert_allclose(
        decided(by_wait, started(by_wait), *args), decided(by_v, started(by_v), *args), rtol=1e-9
    )


@pytest.mark.parametrize("target", [10.0, 40.0])
@pytest.mark.parametrize("weight", [None, [0.5, 1.0, 1.0, 2.0, 1.0]])
def test_target_wait_is_met(target: float, weight: Any) -> None:
    """Known rewards, a third of the servers busy: the mean time in the system is within 25 % of the target.

    Not so for twice the target, which shows that the setting has an effect.
    """
    problem = Problem.synthetic(job_classes=5, server_classes=2, servers=6, traffic=2.0, service_rate=0.4, seed=5)
    policy = KnownRewards(target_wait=target, weight=weight)
    runs = simulate(problem, policy, slots=3000, replications=5, seed=6)
    assert runs.jobs is not None
    mean = float(runs.jobs.sojourn[runs.jobs.arrived > 500].mean())
    assert abs(mean / target - 1.0) < 0.25
    assert abs(mean / (2.0 * target) - 1.0) > 0.25


def test_larger_v_earns_more_from_a_job_and_waits_longer() -> None:
    """At six tenths of capacity, where the better server class is often taken."""
    problem = Problem.synthetic(job_classes=5, server_classes=2, servers=4, traffic=2.4, service_rate=0.4, seed=2)
    policies = [KnownRewards(V=V, limit="queue", assignment="distinct") for V in (1.0, 60.0)]
    small, large = (simulate(problem, policy, slots=1500, replications=5, seed=3) for policy in policies)
    assert small.jobs is not None and large.jobs is not None
    assert large.summary()["queue"].low > small.summary()["queue"].high
    assert large.observed.sum() / large.jobs.left.size > small.observed.sum() / small.jobs.left.size


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Sabr(V=1.0, target_wait=2.0), "V and target_wait exclude each other; give at most one of them"),
        (lambda: Sabr(V=0.0), "V must be positive; got V = 0"),
        (lambda: Sabr(V=float("nan")), "V must be finite; got V = nan"),
        (lambda: Sabr(V=[1.0, 2.0]), r"V must be one number; got shape \(2,\)"),  # type: ignore[arg-type]
        (lambda: Sabr(target_wait=-3.0), "target_wait must be positive; got target_wait = -3"),
        (lambda: Sabr(horizon=0), "horizon must be a whole number of at least 1; got 0"),
        (lambda: Sabr(gamma=1.0), "gamma must be above one; got gamma = 1"),
        (lambda: Sabr(gamma=float("inf")), "gamma must be above one; got gamma = inf"),
        (lambda: Sabr(gamma={"": {}}), "gamma must be numeric"),  # type: ignore[arg-type]
        (lambda: Sabr(gamma="1.5"), "gamma must be numeric"),  # type: ignore[arg-type]
        (lambda: Sabr(weight=[1.0, 0.0]), r"weight must be positive; got weight\[1\] = 0"),
        (lambda: Sabr(limit="jobs"), "limit must be one of 'none', 'queue'; got 'jobs'"),  # type: ignore[arg-type]
        (lambda: Sabr(assignment="greedy"), "assignment must be one of 'independent', 'distinct'; got 'greedy'"),
        (lambda: Sabr(exploration="greedy"),  # type: ignore[arg-type]
         "exploration must be one of 'thompson', 'ucb', 'none'; got 'greedy'"),
        (lambda: Sabr(radius="small"),  # type: ignore[arg-type]
         "radius must be one of 'calibrated', 'paper', 'published'; got 'small'"),
        (lambda: Sabr(radius="paper", exploration="thompson"),
         "radius goes with exploration = 'ucb'; got exploration = 'thompson'"),
        (lambda: Sabr(noise="loud"), "noise must be one of 'known', 'estimate'; got 'loud'"),  # type: ignore[arg-type]
        (lambda: Sabr(noise=0.0), "noise must be positive; got noise = 0"),
        (lambda: Sabr(scale=0.0), "scale must be positive; got scale = 0"),
        (lambda: Sabr(regularization=-1.0), "regularization must be positive; got regularization = -1"),
        (lambda: KnownRewards(V=-1.0), "V must be positive; got V = -1"),
        (lambda: UgdaOl(learning="both"),  # type: ignore[arg-type]
         "learning must be one of 'job', 'class', 'published'; got 'both'"),
        (lambda: UgdaOl(gamma=0.5), "gamma must be above one; got gamma = 0.5"),
        (lambda: MaxWeight(V=-1.0), "V must be non-negative; got V = -1"),
        (lambda: MaxWeight(gamma=float("nan")), "gamma must be finite; got gamma = nan"),
    ],
)  # fmt: skip
def test_bad_settings(build: Callable[[], Policy], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build()


def test_a_policy_must_decide_and_learn() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Policy()  # type: ignore[abstract]


@pytest.mark.parametrize("name", POLICIES)
def test_registered_policies_have_what_they_claim(name: str) -> None:
    """Each can be made without options; weights and adjustable settings are fields; live policies can adapt."""
    policy = make_policy(name, {})
    settings = [field.name for field in fields(type(policy))]  # type: ignore[arg-type]
    assert type(policy) is POLICIES[name]
    assert ("weight" in settings) == policy.takes_weights
    assert set(policy.adjustable) <= set(settings)
    assert not policy.live or type(policy).adapt is not Policy.adapt


@pytest.mark.parametrize("kind", [Sabr, KnownRewards])
def test_settings_of_fair_policies_have_names(kind: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        kind(58.0)


def test_per_job_learning_has_no_weights() -> None:
    with pytest.raises(BadInput, match="weight must be equal for all classes if learning = 'job'"):
        make_policy("ugda-ol", {"weight": [1.0, 2.0]})


def test_c_mu_serves_the_most_expensive_class_and_the_generalised_rule_the_dearest_queue() -> None:
    """Costs 3 and 1, rates 0.5 and 1: c-mu has 1.5 and 1; with 2 and 4 jobs the generalised rule has 3 and 4."""
    problem = Problem(arrival_rate=[0.1, 0.1], servers=[1], mean_reward=[[0.1], [0.9]], service_rate=[0.5, 1.0],
                      holding_cost=[3.0, 1.0])  # fmt: skip
    queue, capacity = np.array([[2.0, 4.0]]), np.array([[1.0]])
    for policy, expected in ((CMu(), [1.0, 0.0]), (CMu(generalised=True), [0.0, 1.0])):
        state = policy.start(stack([problem]), 10, [np.random.default_rng(1)])
        assert policy.decide(state, queue, capacity)[0, :, 0] == pytest.approx(expected)


def test_c_mu_prefers_the_learnt_reward_between_equal_costs() -> None:
    problem = Problem(arrival_rate=[0.2], servers=[1, 1], mean_reward=[[0.1, 0.9]])
    runs = simulate(problem, CMu(), slots=300, seed=1, record_allocation=True)
    assert (
        runs.allocation is not None
        and runs.allocation[0, -100:, 0, 1].sum() > 4 * runs.allocation[0, -100:, 0, 0].sum()
    )


def test_radius_of_ones_own() -> None:
    """A number and a function of the slot reach the learner, and so do confidence and the bound on the parameter."""
    problem, rngs = stack([Problem.synthetic(seed=1)]), [np.random.default_rng(1)]
    assert Sabr(radius=0.25).start(problem, 10, rngs).learnt.radius == 0.25
    policy = Sabr(radius=lambda t: 2.0 / t)
    state = policy.start(problem, 10, rngs)
    assert state.learnt.radius == 2.0
    zero = np.zeros((1, 10, 2))
    after = policy.learn(state, Outcome(1, zero.astype(int), zero, zero, np.zeros((1, 10), bool)))
    assert after.learnt.radius == 1.0
    usual = Sabr(radius="calibrated").start(problem, 10, rngs).learnt.radius[0]
    wide, rare = Sabr(radius="calibrated", bound=3.0), Sabr(radius="calibrated", confidence=0.001)
    assert wide.start(problem, 10, rngs).learnt.radius[0] == pytest.approx(usual + 0.2)
    sure = 0.1 * (np.sqrt(2 * np.log(1 / 0.001)) - np.sqrt(2 * np.log(1 / 0.1)))
    assert rare.start(problem, 10, rngs).learnt.radius[0] == pytest.approx(usual + sure)
    with pytest.raises(BadInput, match="radius must be positive"):
        Sabr(radius=-1.0)
    with pytest.raises(BadInput, match="confidence must be below one"):
        Sabr(confidence=1.5)


def test_V_grows_without_a_horizon() -> None:
    """sqrt(10 t), or sqrt(10 T) for the next power of two, in slots 1 to 6."""
    problem, zero = stack([Problem.synthetic(seed=1)]), np.zeros((1, 10, 2))
    for anytime, known in (("growing", [1, 2, 3, 4, 5, 6]), ("doubling", [1, 2, 4, 4, 8, 8])):
        policy = Sabr(anytime=anytime)  # type: ignore[arg-type]
        state, found = policy.start(problem, 10**6, [np.random.default_rng(1)]), []
        for slot in range(1, 7):
            found.append(policy.current_V(state)[0])
            state = policy.learn(state, Outcome(slot, zero.astype(int), zero, zero, np.zeros((1, 10), bool)))
        assert found == pytest.approx(np.sqrt(10.0 * np.array(known)))
    with pytest.raises(BadInput, match="V, target_wait and anytime exclude each other"):
        Sabr(V=3.0, anytime="growing")


def test_low_rank_indices_are_of_that_rank() -> None:
    """Rewards of rank one, three features: after some noisy services the estimate has rank three, the index rank one."""
    rng = np.random.default_rng(3)
    u, v, a, b = rng.random((6, 3)), rng.random((5, 3)), rng.random(3), rng.random(3)
    problem = Problem(arrival_rate=np.full(6, 0.1), servers=np.ones(5), job_features=u / 3, server_features=v / 3,
                      theta=np.outer(a, b))  # fmt: skip
    count, noise = np.ones((1, 6, 5), int), 0.3 * rng.standard_normal((1, 6, 5))
    ranks = []
    for rank in (None, 1):
        policy = Sabr(exploration="none", rank=rank)
        state = policy.start(stack([problem]), 10, [rng])
        total = problem.mean_reward[None] + noise
        state = policy.learn(state, Outcome(1, count, total, total**2, np.zeros((1, 6), bool)))
        ranks.append(np.linalg.matrix_rank(policy.learner().index(state.learnt)[0], tol=1e-9))
    assert ranks == [3, 1]


def test_cuts_to_a_rank_keep_what_was_learnt() -> None:
    """Features of six, two server classes: most of a sample is in directions that no pair shows, and must not count.

    After 1,000 services of each pair indices are within 0.05 of the truth, which has rank one, with the cut and without.
    """
    rng = np.random.default_rng(7)
    u, v = rng.random((10, 6)) / 3, rng.random((2, 6)) / 3
    theta = np.outer(rng.random(6), rng.random(6))
    problem = Problem(arrival_rate=np.full(10, 0.1), servers=[2, 2], job_features=u, server_features=v, theta=theta,
                      noise=0.1)  # fmt: skip
    total = 1000.0 * problem.mean_reward[None]
    outcome = Outcome(1, np.full((1, 10, 2), 1000), total, total * problem.mean_reward, np.zeros((1, 10), bool))
    for rank in (None, 1):
        policy = Sabr(rank=rank, scale=1.0)
        learnt = policy.learn(policy.start(stack([problem]), 10, [rng]), outcome).learnt
        index = policy.learner().index(learnt)[0]
        assert np.abs(index - problem.mean_reward).max() < 0.05
    assert np.linalg.matrix_rank(index, tol=1e-9) == 1
