"""Bilinear rewards: all job classes want the same servers. Answers against Clarabel, and the work that they take."""

from typing import Any

import cvxpy
import numpy as np
import pytest

from bilinq.allocation import Allocation, allocate
from bilinq.arrays import Array

LOADS = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
MOST, MEAN = 5.0, 2.5  # steps for each row and column
"""Largest number of steps, and their average; one search takes up to 100 before it gives up."""
V, GAMMA = 34.0, 1.2
cp: Any = cvxpy  # ships annotations that a strict check cannot follow


def bilinear_case(rows: int, columns: int, load: float, seed: int, rank: int = 3) -> dict[str, Any]:
    """Draw u' Theta v, clipped as indices are; `load` is sum_i a_i over all servers, so far above one all are priced high.

    Every third program is capped at the queue.
    """
    rng = np.random.default_rng([seed, rows, columns])
    u, v = rng.uniform(size=(rows, rank)), rng.uniform(size=(columns, rank))
    u[:, 0] = v[:, 0] = 1.0
    capacity = rng.integers(1, 20, columns).astype(float)
    queue = rng.poisson(load * capacity.sum() * V / rows, rows) + 1.0
    return {
        "queue": queue,
        "reward": np.clip(u @ rng.normal(0, 0.3, (rank, rank)) @ v.T, -1, 1),
        "capacity": capacity,
        "V": V,
        "gamma": GAMMA,
        "limit": queue if seed % 3 == 0 else np.inf,
    }


def random_case(rows: int, columns: int, load: float, seed: int) -> dict[str, Any]:
    """Draw the same with independent rewards."""
    reward = np.random.default_rng(seed).uniform(-1, 1, (rows, columns))
    return bilinear_case(rows, columns, load, seed) | {"reward": reward}


def objective(case: dict[str, Any], y: Array) -> float:
    """Return the value of the program, Eq. (6)."""
    return float(case["queue"] / V @ np.log(y.sum(axis=1)) - ((GAMMA - case["reward"]) * y).sum())


def clarabel(case: dict[str, Any]) -> Array:
    """Return the allocation that Clarabel finds, in shares of all servers and of all a_i."""
    a, n = case["queue"] / V, case["capacity"]
    y = cp.Variable(case["reward"].shape, nonneg=True)
    s = cp.sum(y, axis=1)
    cost = cp.sum(cp.multiply((GAMMA - case["reward"]) * n.sum() / a.sum(), y))
    cap = np.minimum(case["limit"] / n.sum(), 3.0) * np.ones(a.size)
    rules = [cp.sum(y, axis=0) <= n / n.sum(), s <= cap]
    program = cp.Problem(cp.Maximize(a / a.sum() @ cp.log(s) - cost), rules)
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    assert program.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
    found: Array = np.asarray(y.value) * n.sum()
    return found


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("load", LOADS)
def test_an_independent_solver_agrees(load: float) -> None:
    """Row sums are unique: they agree to 1e-5 of all servers; 1e-4 off in one of them would be noticed."""
    for seed in range(12):
        case = bilinear_case(40 - seed, 26, load, seed, rank=2 + seed % 3)
        answer = allocate(**case)
        y = clarabel(case)
        value = objective(case, y)
        assert answer.residual <= 1e-9 and (answer.price > 0).any() == (answer.steps > 0), seed
        assert objective(case, answer.expected) >= value - 1e-7 * max(1.0, abs(value)), seed
        np.testing.assert_allclose(
            answer.expected.sum(axis=1), y.sum(axis=1), rtol=0, atol=1e-5 * case["capacity"].sum()
        )


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(("rows", "columns"), [(50, 20), (60, 40), (200, 100), (100, 200), (500, 50)])
def test_the_work_is_bounded_at_every_load(rows: int, columns: int, load: float) -> None:
    """A search that continues with the wrong pairs, or ends too early, takes ten times as many in most large cases."""
    taken = []
    for seed in range(6):
        answer = allocate(**bilinear_case(rows, columns, load, seed))
        taken.append(answer.steps / (rows + columns))
        assert answer.residual <= 1e-9, seed
        assert allocate(**random_case(rows, columns, load, seed)).steps <= MEAN * (rows + columns), seed
    assert max(taken) <= MOST and np.mean(taken) <= MEAN


@pytest.mark.parametrize(("rows", "columns", "seed"), [(200, 100, 24), (200, 100, 43), (500, 50, 123)])
def test_a_search_that_hardly_advances_gives_up(rows: int, columns: int, seed: int) -> None:
    """Added pairs slowed down every interior point step in these cases."""
    answer = allocate(**bilinear_case(rows, columns, 0.1, seed))
    assert answer.residual <= 1e-9 and answer.steps <= MOST * (rows + columns)


def test_a_warm_start_changes_nothing() -> None:
    """From the last slot's answer: one job arrives, every index changes a little."""
    for load in LOADS:
        case = bilinear_case(60, 40, load, 1)
        before = allocate(**case)
        case["queue"] = case["queue"] + (np.arange(60) == 7)
        case["reward"] = np.clip(case["reward"] + np.random.default_rng(0).normal(0, 1e-3, (60, 40)), -1, 1)
        cold, warm = allocate(**case), allocate(**case, start=before)
        np.testing.assert_allclose(warm.expected, cold.expected, atol=1e-8 * case["capacity"].max())


@pytest.mark.parametrize("load", [10.0, 100.0])
@pytest.mark.parametrize(("rows", "columns", "rank"), [(100, 100, 6), (100, 200, 3)])
def test_programs_of_clipped_indices(rows: int, columns: int, rank: int, load: float) -> None:
    """Before much is learnt most indices are clipped, so most pairs tie; such programs took up to 12 seconds."""
    tied = 0
    for seed in range(6):
        case = bilinear_case(rows, columns, load, seed, rank)
        answer: Allocation = allocate(**case)
        assert answer.residual <= 1e-9, seed
        tied += bool(np.count_nonzero(answer.expected) > rows + columns)
    assert tied >= 1
