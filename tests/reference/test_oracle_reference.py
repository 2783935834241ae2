"""The oracle against an interior-point solver and against a program solved by hand."""

import warnings
from typing import Any

import cvxpy
import numpy as np
import pytest

from bilinq.arrays import Array
from bilinq.errors import UnstableLoad
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


def masked_problem(seed: int) -> Problem:
    """Draw the same with a rate for each pair and eligible pairs, at 0.3 to 0.9999 of the largest stable load."""
    rng, plain = np.random.default_rng((seed, 1)), random_problem(seed)
    shape = plain.mean_reward.shape
    eligible = (rng.random(shape) < rng.choice([0.4, 0.8, 1.0])) | (np.arange(shape[1]) == rng.permutation(shape[1])[0])
    eligible[:, 0] |= ~(eligible & (plain.servers > 0)).any(axis=1)
    rate = rng.uniform(0.05, 1.0, shape) if seed % 4 else rng.uniform(0.05, 1.0, (shape[0], 1)) + np.zeros(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableLoad)
        problem = plain.replace(service_rate=rate, eligible=eligible)
    load = rng.choice([0.3, 0.9, 0.9999]) / max(problem.load_factor, 1e-9)
    return problem.replace(arrival_rate=problem.arrival_rate * min(load, 1e3))


def clarabel_by_pair(problem: Problem) -> tuple[float, float, Array]:
    """Return value, load and prices that Clarabel finds, in servers y (I, J): sum_j mu_ij y_ij = lam_i, Eq. (49)."""
    shape = problem.mean_reward.shape
    mu = problem.service_rate if problem.service_rate.ndim == 2 else problem.service_rate[:, None] + np.zeros(shape)
    banned = np.zeros(shape) if problem.eligible is None else (~problem.eligible).astype(float)
    y, grown = cp.Variable(shape, nonneg=True), cp.Variable()
    used, idle = cp.sum(y, axis=0) <= problem.servers, cp.sum(cp.multiply(banned, y)) == 0
    served = cp.sum(cp.multiply(mu, y), axis=1)
    gain = cp.sum(cp.multiply(problem.mean_reward, y))
    best = cp.Problem(cp.Maximize(gain), [used, idle, served == problem.arrival_rate])
    best.solve(solver=cp.CLARABEL)
    value, price = float(gain.value), np.asarray(used.dual_value)
    most = cp.Problem(cp.Maximize(grown), [used, idle, served >= grown * problem.arrival_rate])
    most.solve(solver=cp.CLARABEL)
    assert best.status == most.status == cp.OPTIMAL
    return value, 1.0 / float(grown.value), price


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


@pytest.mark.parametrize("start", range(0, CASES, 20))
def test_values_and_loads_by_pair_match_an_independent_solver(start: int) -> None:
    for seed in range(start, start + 20):
        problem = masked_problem(seed)
        if not problem.arrival_rate.any():
            continue
        answer, (value, load, _) = oracle(problem), clarabel_by_pair(problem)
        assert answer.value == pytest.approx(value, abs=1e-5), seed
        assert problem.load_factor == pytest.approx(load, rel=1e-5), seed
        assert answer.residual < 1e-8, seed
        assert problem.eligible is None or not answer.share[~problem.eligible].any()
        m, _ = problem.pairs.filled(answer.share.shape)
        assert (problem.traffic @ (answer.share * m) <= problem.servers + 1e-9).all()
        assert oracle_values(stack([problem, problem]))[1] == pytest.approx(answer.value, abs=1e-12)


def test_cases_by_pair_include_full_servers_masks_and_rates() -> None:
    problems = [masked_problem(seed) for seed in range(CASES)]
    assert 20 < sum(bool(oracle(problem).price.any()) for problem in problems) < CASES
    assert 40 < sum(problem.eligible is not None for problem in problems) < CASES
    assert 40 < sum(problem.service_rate.ndim == 2 for problem in problems) < CASES


def test_prices_by_pair_match_an_independent_solver() -> None:
    """Continuous random rewards, rates and loads: prices are unique."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        mask = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1]], bool)
        drawn = {"service_rate": rng.uniform(0.2, 1.0, (6, 3)), "eligible": mask}
        rare = Problem.synthetic(
            job_classes=6, server_classes=3, dimension=3, servers=6, traffic=1.0, seed=seed, **drawn
        )
        problem = rare.replace(arrival_rate=rare.arrival_rate * 0.97 / rare.load_factor)
        assert oracle(problem).price == pytest.approx(clarabel_by_pair(problem)[2], abs=1e-4)


def test_one_by_two_by_hand() -> None:
    """A job takes 2 slots on server 1 (reward 0.9 each) and 4 on server 2 (0.5 each): 1.8 and 2.0 a job.

    Server 2 is better and has room for 0.25 jobs a slot; of 0.3, 0.05 go to server 1. Value 0.25 * 2 + 0.05 * 1.8 = 0.59.
    One more server 2 serves 0.25 jobs for 0.2 more each: 0.05. The load: 0.3 / (0.5 + 0.25) = 0.4.
    """
    problem = Problem(arrival_rate=[0.3], servers=[1, 1], mean_reward=[[0.9, 0.5]], service_rate=[[0.5, 0.25]])
    answer = oracle(problem)
    assert answer.value == pytest.approx(0.59) and answer.share == pytest.approx(np.array([[1 / 6, 5 / 6]]))
    assert answer.price == pytest.approx([0.0, 0.05]) and problem.load_factor == pytest.approx(0.4)


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
