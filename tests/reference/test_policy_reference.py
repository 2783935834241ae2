"""The paper's policy and W-SABR, slot by slot, against plain NumPy and CVXPY that share no code with the package."""

from dataclasses import dataclass, field
from typing import Any

import cvxpy
import numpy as np
import pytest

from bilinq import Problem, Sabr
from bilinq.arrays import Array, IntArray
from bilinq.learning import Outcome
from bilinq.problem.instances import stack

SLOTS, T, GAMMA = 10, 500, 1.2
cp: Any = cvxpy  # ships annotations that a strict check cannot follow


@dataclass
class PlainSabr:
    """Algorithm 1: ridge regression, a radius, clipped indices, and the convex program.

    As the paper prints it; or `as_run`, with the radius, the ridge and the clipped rewards of the authors' public code. With
    `capped` no class gets more services than it has jobs.
    """

    u: Array
    v: Array
    n: Array
    V: float
    weight: Array
    as_run: bool = False
    capped: bool = False
    t: int = 1
    Lambda: Array = field(init=False)
    b: Array = field(init=False)

    def __post_init__(self) -> None:
        self.d = self.u.shape[1] * self.v.shape[1]
        self.Lambda, self.b = (1.0 if self.as_run else self.n.sum()) * np.eye(self.d), np.zeros(self.d)

    def z(self, i: int, j: int) -> Array:
        return np.outer(self.u[i], self.v[j]).ravel()

    def beta(self) -> float:
        n = self.n.sum()
        if self.as_run:
            return float(0.1 * np.sqrt(self.d * np.log((1 + n * self.t) * T)) + 1)
        return float(np.sqrt(self.d * np.log(self.t * T)) + np.sqrt(n))

    def index(self, radius: float = 1.0) -> Array:
        """Return the indices (I, J), with `radius` times the radius."""
        theta, inverse = np.linalg.solve(self.Lambda, self.b), np.linalg.inv(self.Lambda)
        found = np.empty((len(self.u), len(self.v)))
        for i in range(len(self.u)):
            for j in range(len(self.v)):
                z = self.z(i, j)
                found[i, j] = np.clip(z @ theta + radius * self.beta() * np.sqrt(z @ inverse @ z), -1.0, 1.0)
        return found

    def served(self, queue: Array) -> Array:
        """Return the expected services of each class (I,), which are unique; how they are split over ties is not."""
        waits = np.flatnonzero(queue)
        y = cp.Variable((waits.size, self.n.size), nonneg=True)
        fair = cp.sum(cp.multiply(self.weight[waits] * queue[waits] / self.V, cp.log(cp.sum(y, axis=1))))
        paid = cp.sum(cp.multiply(self.index()[waits] - GAMMA, y))
        rules = [cp.sum(y, axis=0) <= self.n]
        if self.capped:
            rules.append(cp.sum(y, axis=1) <= queue[waits])
        cp.Problem(cp.Maximize(fair + paid), rules).solve(
            cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
        )
        found = np.zeros(queue.size)
        found[waits] = np.asarray(y.value).sum(axis=1)
        return found

    def learn(self, count: IntArray, total: Array) -> None:
        """Add the rewards of a slot: how many services each pair had (I, J), and the sum of their rewards."""
        for i, j in np.argwhere(count):
            self.Lambda += count[i, j] * np.outer(self.z(i, j), self.z(i, j))
            self.b += (np.clip(total[i, j], 0.0, count[i, j]) if self.as_run else total[i, j]) * self.z(i, j)
        self.t += 1


def unit(rows: Array) -> Array:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def random_problem(rng: np.random.Generator) -> Problem:
    """Draw a problem whose last two server classes are alike, so that every row is tied over them in all slots."""
    I, J, d1, d2 = (int(rng.integers(low, high)) for low, high in ((2, 6), (2, 5), (1, 4), (2, 4)))
    u, v = unit(rng.normal(size=(I, d1))), unit(rng.normal(size=(J, d2)))
    v[-1] = v[-2]
    theta = rng.normal(size=(d1, d2))
    return Problem(
        arrival_rate=np.full(I, 0.5 / I), servers=rng.integers(2, 5, J), job_features=u, server_features=v,
        theta=theta / np.linalg.norm(theta), noise=0.1, service_rate=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["as printed", "as run", "as printed, at most the queue", "as run, at most the queue"])
def test_the_policy_is_algorithm_1(kind: str, seed: int) -> None:
    """Indices agree to 1e-9 and services to CVXPY's accuracy in each slot; a radius that is 1 % longer is noticed.

    Ties are split in proportion to capacity: between the two equal server classes always, and over all of them in the first
    slot, where every index is one. With caps queues and V are small, so that caps bind in a third of the slots at least.
    """
    rng = np.random.default_rng([seed, len(kind)])
    problem = random_problem(rng)
    shape, capped = problem.mean_reward.shape, "queue" in kind
    weight: Array = np.asarray(rng.uniform(0.25, 1.75, shape[0])) if seed % 2 else np.ones(shape[0])
    V = float(rng.uniform(0.2, 0.6) if capped else rng.uniform(1.0, 30.0))
    settings: dict[str, Any] = {"horizon": T, "V": V, "gamma": GAMMA, "weight": weight}
    settings |= {"limit": "queue" if capped else "none", "radius": "published" if "run" in kind else "paper"}
    policy = Sabr.as_printed(**settings)
    state: Any = policy.start(stack([problem]), SLOTS, [np.random.default_rng(0)])
    assert problem.job_features is not None and problem.server_features is not None
    n = problem.servers.astype(float)
    plain = PlainSabr(problem.job_features, problem.server_features, n, V, weight, "run" in kind, capped)
    noticed = bound = 0
    for slot in range(SLOTS):
        queue = rng.integers(0, 2 if capped else 8, shape[0]).astype(float)
        queue[slot % shape[0]] += 1.0
        index = policy.learner().index(state.learnt)[0]
        assert np.abs(index - plain.index()).max() < 1e-9
        noticed += np.abs(index - plain.index(1.01)).max() > 1e-6
        y = policy.decide(state, queue[None], n[None])[0]
        assert (y.sum(axis=0) <= n + 1e-9).all()
        served = plain.served(queue)
        np.testing.assert_allclose(y.sum(axis=1), served, atol=5e-5)
        np.testing.assert_allclose(y[:, -1] / n[-1], y[:, -2] / n[-2], atol=1e-7)
        if slot == 0 and "printed" in kind:
            np.testing.assert_allclose(y, np.outer(y.sum(axis=1), n) / n.sum(), atol=1e-7)
        bound += capped and bool((served[queue > 0] > queue[queue > 0] - 1e-6).any())
        count = rng.integers(0, 40, shape)
        total = count * problem.mean_reward + 0.1 * np.sqrt(count) * rng.normal(size=shape)
        squares = np.zeros(shape)  # only an estimated noise needs them
        ended = np.zeros((1, shape[0]), np.bool_)
        state = policy.learn(state, Outcome(slot + 1, count[None], total[None], squares[None], ended))
        plain.learn(count, total)
    assert noticed > SLOTS / 2
    assert bound > SLOTS / 3 or not capped
