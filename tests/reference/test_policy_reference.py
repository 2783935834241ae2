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

SLOTS, T, GAMMA = 12, 500, 1.2
cp: Any = cvxpy  # ships annotations that a strict check cannot follow


@dataclass
class PlainSabr:
    """Algorithm 1 as the paper prints it: ridge regression, its radius, clipped indices, and the convex program."""

    u: Array
    v: Array
    n: Array
    V: float
    weight: Array
    t: int = 1
    Lambda: Array = field(init=False)
    b: Array = field(init=False)

    def __post_init__(self) -> None:
        self.d = self.u.shape[1] * self.v.shape[1]
        self.Lambda, self.b = self.n.sum() * np.eye(self.d), np.zeros(self.d)

    def z(self, i: int, j: int) -> Array:
        return np.outer(self.u[i], self.v[j]).ravel()

    def index(self, radius: float = 1.0) -> Array:
        """Return the indices (I, J), with `radius` times the radius of the paper."""
        beta = np.sqrt(self.d * np.log(self.t * T)) + np.sqrt(self.n.sum())
        theta, inverse = np.linalg.solve(self.Lambda, self.b), np.linalg.inv(self.Lambda)
        found = np.empty((len(self.u), len(self.v)))
        for i in range(len(self.u)):
            for j in range(len(self.v)):
                z = self.z(i, j)
                found[i, j] = min(max(z @ theta + radius * beta * np.sqrt(z @ inverse @ z), -1.0), 1.0)
        return found

    def served(self, queue: Array) -> Array:
        """Return the expected services of each class (I,), which are unique; how they are split over ties is not."""
        waits = np.flatnonzero(queue)
        y = cp.Variable((waits.size, self.n.size), nonneg=True)
        fair = cp.sum(cp.multiply(self.weight[waits] * queue[waits] / self.V, cp.log(cp.sum(y, axis=1))))
        paid = cp.sum(cp.multiply(self.index()[waits] - GAMMA, y))
        cp.Problem(cp.Maximize(fair + paid), [cp.sum(y, axis=0) <= self.n]).solve(
            cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
        )
        found = np.zeros(queue.size)
        found[waits] = np.asarray(y.value).sum(axis=1)
        return found

    def learn(self, count: IntArray, total: Array) -> None:
        """Add the rewards of a slot: how many services each pair had (I, J), and the sum of their rewards."""
        for i, j in np.argwhere(count):
            self.Lambda += count[i, j] * np.outer(self.z(i, j), self.z(i, j))
            self.b += total[i, j] * self.z(i, j)
        self.t += 1


def unit(rows: Array) -> Array:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def random_problem(rng: np.random.Generator, shape: tuple[int, int], dims: tuple[int, int]) -> Problem:
    u, v = unit(rng.normal(size=(shape[0], dims[0]))), unit(rng.normal(size=(shape[1], dims[1])))
    theta = rng.normal(size=dims)
    return Problem(
        arrival_rate=np.full(shape[0], 0.5 / shape[0]), servers=rng.integers(1, 4, shape[1]), job_features=u,
        server_features=v, theta=theta / np.linalg.norm(theta), noise=0.1, service_rate=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "dims", "weighted"), [((3, 2), (2, 2), False), ((5, 3), (3, 2), True), ((4, 4), (2, 3), True)]
)
def test_the_policy_is_algorithm_1(shape: tuple[int, int], dims: tuple[int, int], weighted: bool) -> None:
    """Indices agree to 1e-9 and services to CVXPY's accuracy in each slot; a radius that is 1 % longer is noticed."""
    rng = np.random.default_rng(sum(shape))
    problem = random_problem(rng, shape, dims)
    weight = rng.uniform(0.25, 1.75, shape[0]) if weighted else np.ones(shape[0])
    policy = Sabr.as_printed(horizon=T, V=20.0, gamma=GAMMA, weight=weight)
    state: Any = policy.start(stack([problem]), SLOTS, [np.random.default_rng(0)])
    assert problem.job_features is not None and problem.server_features is not None
    plain = PlainSabr(problem.job_features, problem.server_features, problem.servers.astype(float), 20.0, weight)
    noticed = 0
    for slot in range(SLOTS):
        queue = rng.integers(0, 8, shape[0]).astype(float)
        queue[slot % shape[0]] += 1.0
        index = policy.learner().index(state.learnt)[0]
        assert np.abs(index - plain.index()).max() < 1e-9
        noticed += np.abs(index - plain.index(1.01)).max() > 1e-6
        y = policy.decide(state, queue[None], plain.n[None])[0]
        assert (y.sum(axis=0) <= plain.n + 1e-9).all()
        np.testing.assert_allclose(y.sum(axis=1), plain.served(queue), atol=5e-5)
        count = rng.integers(0, 40, shape)
        total = count * problem.mean_reward + 0.1 * np.sqrt(count) * rng.normal(size=shape)
        squares = np.zeros(shape)  # only an estimated noise needs them
        ended = np.zeros((1, shape[0]), np.bool_)
        state = policy.learn(state, Outcome(slot + 1, count[None], total[None], squares[None], ended))
        plain.learn(count, total)
    assert noticed > SLOTS / 2
