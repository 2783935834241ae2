"""The oracle against an interior-point solver and against a program solved by hand."""

from typing import Any

import cvxpy
import numpy as np
import pytest

from bilinq.arrays import Array
from bilinq.problem import Problem
from bilinq.problem.instances import stack
from bilinq.problem.oracle import oracle, oracle_values

CASES = 100
cp: Any = cvxpy  # ships annotations that a strict check cannot follow


def random_problem(seed: int) -> Problem:
    """Draw shape, load and rewards; half of the cases within two per cent of capacity, some classes empty."""
    rng = np.random.default_rng(seed)
    n_jobs, n_servers = rng.integers(1, 12), rng.integers(1, 6)
    servers = rng.integers(0, 5, n_servers) + (np.arange(n_servers) == 0)
    traffic = rng.exponential(size=n_jobs) * (rng.random(n_jobs) < 0.85)
    load = rng.uniform(0.98, 0.9999) if seed % 2 else rng.uniform(0.1, 0.9)
    traffic *= load * servers.sum() / max(traffic.sum(), 1e-9)
    reward = rng.uniform(-1, 1, (n_jobs, n_servers)).round(1 if seed % 3 else 12)
    return Problem(arrival_rate=traffic, servers=servers, mean_reward=reward)


def clarabel(problem: Problem) -> tuple[float, Array]:
    """Return the value and the capacity prices that Clarabel finds."""
    p = cp.Variable(problem.mean_reward.shape, nonneg=True)
    used = problem.traffic @ p <= problem.servers
    gain = cp.sum(cp.multiply(problem.mean_reward * problem.traffic[:, None], p))
    program = cp.Problem(cp.Maximize(gain), [used, cp.sum(p, axis=1) == 1])
    program.solve(solver=cp.CLARABEL)
    assert program.status == cp.OPTIMAL
    return float(gain.value), np.asarray(used.dual_value)


@pytest.mark.parametrize("start", range(0, CASES, 20))
def test_values_match_an_independent_solver(start: int) -> None:
    for seed in range(start, start + 20):
        problem = random_problem(seed)
        answer, (value, _) = oracle(problem), clarabel(problem)
        assert answer.value == pytest.approx(value, abs=1e-6), seed
        assert answer.residual < 1e-9, seed
        assert (answer.share >= 0).all() and np.abs(answer.share.sum(axis=1) - 1).max() < 1e-12
        assert (problem.traffic @ answer.share <= problem.servers + 1e-9).all()
        assert oracle_values(stack([problem]))[0] == pytest.approx(answer.value, abs=1e-12)


def test_cases_include_full_servers() -> None:
    full = [bool(oracle(random_problem(seed)).price.any()) for seed in range(CASES)]
    assert 30 < sum(full) < CASES


def test_prices_match_an_independent_solver() -> None:
    """Continuous random rewards and loads: prices are unique."""
    for seed in range(10):
        problem = Problem.synthetic(job_classes=6, server_classes=3, dimension=3, servers=6, traffic=5.7, seed=seed)
        assert oracle(problem).price == pytest.approx(clarabel(problem)[1], abs=1e-5)


def test_two_by_two_by_hand() -> None:
    """Both classes prefer server 1, which has room for 1.0 of the traffic 0.8 + 0.7.

    Moving class 1 away costs 0.9 - 0.1 = 0.8 per unit, class 2 only 0.8 - 0.3 = 0.5, so class 2 gives way: 0.2 of its
    0.7 stays. Value 0.8 * 0.9 + 0.2 * 0.8 + 0.5 * 0.3 = 1.03; one more unit of server 1 is worth 0.5.
    """
    answer = oracle(Problem(arrival_rate=[0.8, 0.7], servers=[1, 1], mean_reward=[[0.9, 0.1], [0.8, 0.3]]))
    assert answer.value == pytest.approx(1.03)
    assert answer.share == pytest.approx(np.array([[1, 0], [2 / 7, 5 / 7]]))
    assert answer.price == pytest.approx([0.5, 0.0])
