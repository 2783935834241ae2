"""Shards that learn apart and add their sufficient statistics, against one plain ridge regression on all observations."""

import numpy as np
import pytest

from bilinq import Problem
from bilinq.errors import BadInput
from bilinq.learning import Bilinear, BilinearState, Outcome, merged
from bilinq.problem.instances import stack

LEARNER = Bilinear("ucb", "paper")


def problem_of(seed: int) -> Problem:
    """Return a random problem; sizes, lengths of the features and the number of servers differ from seed to seed."""
    rng = np.random.default_rng([21, seed])
    I, J, d1, d2 = (int(rng.integers(2, high)) for high in (8, 5, 5, 4))
    return Problem.synthetic(job_classes=I, server_classes=J, dimension=(d1, d2), servers=2 * J, seed=seed)


class PlainRidge:
    """Ridge regression in plain NumPy: keeps all observations and solves once."""

    def __init__(self, problem: Problem) -> None:
        self.u, self.v = np.asarray(problem.job_features), np.asarray(problem.server_features)
        self.ridge = float(problem.servers.sum())
        self.rows: list[np.ndarray] = []
        self.targets: list[np.ndarray] = []

    def see(self, i: int, j: int, rewards: np.ndarray) -> None:
        self.rows.append(np.tile(np.outer(self.u[i], self.v[j]).ravel(), (rewards.size, 1)))
        self.targets.append(rewards)

    def solve(self) -> tuple[np.ndarray, np.ndarray]:
        X, y = np.concatenate(self.rows), np.concatenate(self.targets)
        gram = self.ridge * np.eye(X.shape[1]) + X.T @ X
        return np.linalg.solve(gram, X.T @ y), np.linalg.inv(gram)

    def index(self, slot: int, horizon: int) -> np.ndarray:
        """Return the indices of Algorithm 1 in a slot, one pair at a time."""
        theta, inverse = self.solve()
        radius = np.sqrt(len(theta) * np.log(slot * horizon)) + np.sqrt(self.ridge)
        found = np.empty((len(self.u), len(self.v)))
        for i, j in np.ndindex(found.shape):
            z = np.outer(self.u[i], self.v[j]).ravel()
            found[i, j] = np.clip(z @ theta + radius * np.sqrt(z @ inverse @ z), -1, 1)
        return found


def shard(problem: Problem, seed: int, plain: PlainRidge, slots: int) -> BilinearState:
    """Return the state of a shard after some slots of random services, which the plain regression sees too."""
    rng = np.random.default_rng(seed)
    state, shape = LEARNER.start(stack([problem]), 100, [rng]), problem.mean_reward.shape
    for slot in range(1, slots + 1):
        count = rng.integers(0, 300, (1, *shape))
        total, squares = np.zeros((1, *shape)), np.zeros((1, *shape))
        for _, i, j in np.argwhere(count):
            rewards = problem.mean_reward[i, j] + 0.1 * rng.standard_normal(count[0, i, j])
            total[0, i, j], squares[0, i, j] = rewards.sum(), (rewards**2).sum()
            plain.see(i, j, rewards)
        state = LEARNER.learn(state, Outcome(slot, count, total, squares, np.zeros((1, shape[0]), bool)))
    return state


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_merged_shards_know_what_one_learner_would(shards: int, seed: int) -> None:
    """Estimate and indices are those of one regression on all observations; those of one shard alone are not."""
    problem = problem_of(seed)
    plain = PlainRidge(problem)
    states = [shard(problem, number, plain, 20 + number) for number in range(shards)]
    both = LEARNER.resumed(merged(states))
    theta, _ = plain.solve()
    assert both.estimate[0] == pytest.approx(theta, abs=1e-8)
    expected = plain.index(int(both.slot) + 1, 100)
    assert LEARNER.index(both)[0] == pytest.approx(expected, abs=1e-8)
    assert (expected < 1.0).any()  # not all are clipped, which would hide an error
    assert both.seen[0] == sum(map(len, plain.targets))
    if shards > 1:
        assert np.abs(states[0].estimate[0] - theta).max() > 1e-3


def test_order_does_not_matter_and_features_must_agree() -> None:
    problem = problem_of(0)
    one, two = (shard(problem, seed, PlainRidge(problem), 10) for seed in (1, 2))
    assert merged([one, two]).gram == pytest.approx(merged([two, one]).gram, abs=1e-10)
    with pytest.raises(BadInput, match="states must have equal ridge to be merged"):
        merged([one, two._replace(ridge=two.ridge + 1.0)])
