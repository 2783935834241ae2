"""Shards that learn apart and add their sufficient statistics, against one plain ridge regression on all observations."""

import numpy as np
import pytest

from bilinq import Problem
from bilinq.errors import BadInput
from bilinq.learning import Bilinear, BilinearState, Outcome, merged
from bilinq.problem.instances import stack

PROBLEM = Problem.synthetic(job_classes=5, server_classes=3, dimension=3, servers=6, seed=4)
LEARNER = Bilinear("ucb", "paper")


class PlainRidge:
    """Ridge regression in plain NumPy: keeps all observations and solves once."""

    def __init__(self, ridge: float) -> None:
        self.ridge = ridge
        self.rows: list[np.ndarray] = []
        self.targets: list[float] = []

    def see(self, i: int, j: int, reward: float) -> None:
        self.rows.append(np.outer(PROBLEM.job_features[i], PROBLEM.server_features[j]).ravel())
        self.targets.append(reward)

    def solve(self) -> tuple[np.ndarray, np.ndarray]:
        X = np.array(self.rows)
        gram = self.ridge * np.eye(X.shape[1]) + X.T @ X
        return np.linalg.solve(gram, X.T @ np.array(self.targets)), np.linalg.inv(gram)


def shard(seed: int, plain: PlainRidge, slots: int) -> BilinearState:
    """Return the state of a shard after some slots of random services, which the plain regression sees too."""
    rng = np.random.default_rng(seed)
    state = LEARNER.start(stack([PROBLEM]), 100, [rng])
    for slot in range(1, slots + 1):
        count = rng.integers(0, 3, (1, 5, 3))
        total, squares = np.zeros((1, 5, 3)), np.zeros((1, 5, 3))
        for _, i, j in np.argwhere(count):
            rewards = PROBLEM.mean_reward[i, j] + 0.1 * rng.standard_normal(count[0, i, j])
            total[0, i, j], squares[0, i, j] = rewards.sum(), (rewards**2).sum()
            for reward in rewards:
                plain.see(i, j, float(reward))
        state = LEARNER.learn(state, Outcome(slot, count, total, squares, np.zeros((1, 5), bool)))
    return state


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_merged_shards_know_what_one_learner_would(shards: int) -> None:
    plain = PlainRidge(6.0)
    states = [shard(seed, plain, 20 + seed) for seed in range(shards)]
    both = LEARNER.resumed(merged(states))
    theta, inverse = plain.solve()
    assert both.estimate[0] == pytest.approx(theta, abs=1e-12)
    z = np.einsum("ia,jb->ijab", PROBLEM.job_features, PROBLEM.server_features).reshape(5, 3, 9)
    width = np.sqrt(np.einsum("ijp,pq,ijq->ij", z, inverse, z))
    radius = np.sqrt(9 * np.log((both.slot + 1) * 100)) + np.sqrt(6)
    assert LEARNER.index(both)[0] == pytest.approx(np.clip(z @ theta + radius * width, -1, 1), abs=1e-10)
    assert both.seen[0] == len(plain.targets)
    if shards > 1:
        assert np.abs(states[0].estimate[0] - theta).max() > 1e-3  # one shard alone knows something else


def test_order_does_not_matter_and_features_must_agree() -> None:
    plain = PlainRidge(6.0)
    one, two = (shard(seed, plain, 10) for seed in (1, 2))
    assert merged([one, two]).gram == pytest.approx(merged([two, one]).gram, abs=1e-12)
    with pytest.raises(BadInput, match="states must have equal ridge to be merged"):
        merged([one, two._replace(ridge=two.ridge + 1.0)])
