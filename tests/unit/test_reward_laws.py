"""Laws of observed rewards: their means and spread, the same numbers as kernels draw, and what is refused."""

import doctest

import numpy as np
import pytest
from scipy.stats import binomtest, kstest, norm

from bilinq import BadInput, Greedy, Policy, Problem, Runs, Sabr, UgdaOl, simulate
from bilinq.arrays import Array
from bilinq.errors import UnstableLoad
from bilinq.experiments import Logistic, LowRank, OtherRewards, Synthetic, Unstructured
from bilinq.problem.instances import stack
from bilinq.simulation import BinaryRewards, HeavyTailedRewards, NormalRewards, RewardLaw, rewards


class Plain(RewardLaw):
    """Normal rewards again, by the path of all other laws."""

    def numbers(self, rng: np.random.Generator, count: int) -> Array:
        return rng.standard_normal(count)

    def rewards(self, mean: Array, noise: Array, number: Array) -> Array:
        return np.asarray(mean + noise * number)


def run(law: RewardLaw | None, policy: Policy, **options: object) -> Runs:
    problem = Problem.synthetic(traffic=2.0, servers=4, service_rate=0.5, seed=3)
    return simulate(problem, policy, slots=120, replications=3, seed=2, rewards=law)


@pytest.mark.parametrize("policy", [Sabr(V=5.0), UgdaOl(V=5.0), Sabr.as_printed(V=5.0)], ids=repr)
def test_every_law_gives_each_service_its_own_number(policy: Policy) -> None:
    """A second normal law takes the path of other laws, by class and by job: the same rewards, so the same run."""
    one, two = run(None, policy), run(Plain(), policy)
    np.testing.assert_array_equal(one.queue, two.queue)
    np.testing.assert_allclose(one.observed, two.observed, atol=1e-12)
    assert np.abs(run(HeavyTailedRewards(), policy).observed - one.observed).max() > 0.1


def only_pair(law: RewardLaw, mean: float, noise: float = 0.1, slots: int = 4000) -> Array:
    """Return the rewards of one service in each slot."""
    with pytest.warns(UnstableLoad):
        problem = Problem(arrival_rate=[1.0], servers=[1], mean_reward=[[mean]], noise=noise)
    runs = simulate(problem, Greedy(), slots=slots, seed=7, rewards=law)
    return np.asarray(runs.observed[0][runs.services[0] == 1])


def test_binary_rewards_are_one_as_often_as_their_mean_says() -> None:
    """Rejected in one case of 10,000; a chance that is 0.04 off is noticed."""
    found = only_pair(BinaryRewards(), 0.3)
    assert set(found.tolist()) == {0.0, 1.0}
    assert binomtest(int(found.sum()), found.size, 0.3).pvalue > 1e-4
    assert binomtest(int(found.sum()), found.size, 0.34).pvalue < 1e-4


def test_heavy_tails_have_the_law_of_student() -> None:
    """The test rejects in one case of 10,000; the normal law of the same scale is noticed."""
    found = only_pair(HeavyTailedRewards(1.5), 0.3, noise=0.2)
    scaled = (found - 0.3) / 0.2
    assert kstest(scaled, "t", args=(1.5,)).pvalue > 1e-4
    assert kstest(scaled, norm.cdf).pvalue < 1e-4
    limited = only_pair(HeavyTailedRewards(1.5, limit=2.0), 0.3, noise=0.2)
    np.testing.assert_array_equal(limited, np.clip(found, -2.0, 2.0))
    assert np.abs(found).max() > 4.0


def test_what_a_law_refuses() -> None:
    problem = Problem(arrival_rate=[0.2], servers=[1], mean_reward=[[-0.3]])
    with pytest.raises(BadInput, match=r"mean_reward must be in \[0, 1\] for rewards of zero or one"):
        simulate(problem, Greedy(), slots=5, rewards=BinaryRewards())
    with pytest.raises(BadInput, match="freedom must be above 1, or rewards have no mean; got 1"):
        HeavyTailedRewards(1.0)
    with pytest.raises(BadInput, match="limit must be positive"):
        HeavyTailedRewards(limit=0.0)
    with pytest.raises(BadInput, match="rewards must be a RewardLaw; got 'normal'"):
        simulate(problem, Greedy(), slots=5, rewards="normal")  # type: ignore[arg-type]
    masked = Problem(arrival_rate=[0.2], servers=[1, 1], mean_reward=[[-0.3, 0.5]], eligible=[[False, True]])
    BinaryRewards().check(stack([masked]))  # what no server earns does not matter


def test_settings_keep_what_they_do_not_change() -> None:
    """Logistic means of 1 / (1 + exp(-10 (r - 0.75))); the deviation of zero or one is sqrt(p (1 - p))."""
    base = Synthetic(law="poisson")
    setting = Unstructured(OtherRewards(Logistic(base, 10.0), BinaryRewards()))
    (old,), (new,) = (s.problems(1, range(1)) for s in (base, setting))
    np.testing.assert_allclose(new.mean_reward, 1 / (1 + np.exp(-10 * (old.mean_reward - 0.75))))
    np.testing.assert_allclose(new.noise**2, new.mean_reward * (1 - new.mean_reward))
    assert setting.reward_law() == BinaryRewards() and setting.arrivals() == base.arrivals()
    assert base.reward_law() == NormalRewards() and new.job_features.shape == (10, 10)


def test_examples() -> None:
    assert doctest.testmod(rewards, extraglobs={"np": np}).failed == 0


def test_low_rank_problems_keep_their_features() -> None:
    """The nearest parameter of a rank has its singular values first, by Eckart and Young; means follow from it."""
    base = Synthetic(dimension=3)
    (full,), (low,) = (setting.problems(2, range(1)) for setting in (base, LowRank(base, 2)))
    assert np.linalg.matrix_rank(np.asarray(low.theta)) == 2
    values = np.linalg.svd(np.asarray(full.theta), compute_uv=False)
    assert np.linalg.norm(np.asarray(full.theta) - np.asarray(low.theta)) == pytest.approx(values[2])
    u, v = np.asarray(low.job_features), np.asarray(low.server_features)
    np.testing.assert_array_equal(u, np.asarray(full.job_features))
    assert low.mean_reward == pytest.approx(u @ np.asarray(low.theta) @ v.T)
