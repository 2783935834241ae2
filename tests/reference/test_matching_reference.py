"""The look-ahead against SciPy's assignment solver, with every place of a server class written out, Eq. (63) and (64)."""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from bilinq import BadInput
from bilinq.arrays import Array
from bilinq.assignment.matching import Match, look_ahead

FORBIDDEN = 1e6  # cost of a place that SciPy must not choose


class Program(NamedTuple):
    value: Array
    urgency: Array
    idle: Array
    gap: Array
    bend: Array
    ahead: Array


def program(seed: int, most: int = 9) -> Program:
    """Return a random program with many ties: values in quarters, some pairs not eligible, some classes absent."""
    rng = np.random.default_rng(seed)
    rows, J = int(rng.integers(1, most)), int(rng.integers(1, 5))
    value = np.round(4.0 * rng.normal(size=(rows, J))) / 4.0
    value[rng.random((rows, J)) < 0.25 * (seed % 3)] = -np.inf
    idle = rng.integers(0, 4, J).astype(float)
    gap = np.round(4.0 * rng.uniform(0.3, 3.0, J)) / 4.0
    absent = rng.random(J) < 0.2
    idle[absent], gap[absent] = 0.0, np.inf
    urgency = np.round(4.0 * rng.uniform(0.0, 1.0, rows)) / 4.0
    bend = np.round(4.0 * rng.uniform(0.0, 0.5, rows)) / 4.0 * (seed % 2)
    ahead = rng.integers(0, 9, J) / 4.0 * (seed % 5 > 2)
    return Program(value, urgency, idle, gap, bend, ahead)


def solved(one: Program) -> Match:
    return look_ahead(one.value, one.urgency, one.idle, one.gap, bend=one.bend, ahead=one.ahead)


def places(one: Program) -> tuple[Array, Array]:
    """Return what each job earns at each of N places of each server class, (N, J N), and their delays (J N,)."""
    rows = len(one.value)
    number = np.arange(rows) + one.ahead[:, None] - one.idle[:, None] + 1.0
    late = np.maximum(number, 0.0)
    delay = np.where(late > 0.0, late * np.where(late > 0.0, one.gap[:, None], 0.0), 0.0).ravel()
    price = (one.urgency[:, None] + one.bend[:, None] * np.where(np.isinf(delay), 0.0, delay)) * np.where(
        np.isinf(delay), 0.0, delay
    )
    earned = np.repeat(one.value, rows, axis=1) - price
    return np.where(np.isinf(delay), -np.inf, earned), delay


def total(one: Program, found: Match) -> float:
    """Return what the jobs that have a place earn together."""
    rows = np.flatnonzero(found.server >= 0)
    delay = found.delay[rows]
    return float((one.value[rows, found.server[rows]] - (one.urgency[rows] + one.bend[rows] * delay) * delay).sum())


def best(one: Program) -> float:
    """Return SciPy's optimum over the jobs that have any place."""
    earned, _ = places(one)
    earned = earned[np.isfinite(earned).any(axis=1)]
    cost = np.where(np.isfinite(earned), -earned, FORBIDDEN)
    rows, columns = linear_sum_assignment(cost)
    assert (cost[rows, columns] < FORBIDDEN).all()
    return -float(cost[rows, columns].sum())


@pytest.mark.parametrize("block", range(6))
def test_total_value_is_that_of_scipy(block: int) -> None:
    """Over 600 random programs the total is the optimum, the residual says so, and only jobs without a place wait on."""
    for seed in range(100 * block, 100 * (block + 1)):
        one = program(seed)
        found = solved(one)
        assert abs(total(one, found) - best(one)) < 1e-9, seed
        assert 0.0 <= found.residual < 1e-9, seed
        served = np.isfinite(one.value) & np.isfinite(one.gap)
        np.testing.assert_array_equal(found.server >= 0, served.any(axis=1), str(seed))
        rows = np.flatnonzero(found.server >= 0)
        assert np.isfinite(one.value[rows, found.server[rows]]).all(), seed


def test_no_place_is_used_twice() -> None:
    """The delays of the jobs of a class are those of its first places, each once; `idle` less `ahead` of them are zero."""
    for seed in range(300):
        one = program(seed)
        found, (_, delay) = solved(one), places(one)
        delay = delay.reshape(one.value.shape[1], -1)
        for j in range(len(one.idle)):
            mine = np.sort(found.delay[found.server == j])
            np.testing.assert_allclose(mine, delay[j, : mine.size], rtol=0.0, atol=1e-12, err_msg=str(seed))
            assert (mine == 0.0).sum() <= max(one.idle[j] - one.ahead[j], 0.0), seed


def test_order_of_the_jobs_does_not_change_the_total() -> None:
    rng = np.random.default_rng(3)
    for seed in range(200):
        one = program(seed)
        order = rng.permutation(len(one.value))
        other = one._replace(value=one.value[order], urgency=one.urgency[order], bend=one.bend[order])
        assert abs(total(one, solved(one)) - total(other, solved(other))) < 1e-9, seed


def test_order_of_the_server_classes_does_not_change_the_total() -> None:
    rng = np.random.default_rng(4)
    for seed in range(200):
        one = program(seed)
        order = rng.permutation(len(one.idle))
        other = one._replace(
            value=one.value[:, order], idle=one.idle[order], gap=one.gap[order], ahead=one.ahead[order]
        )
        assert abs(total(one, solved(one)) - total(other, solved(other))) < 1e-9, seed


def test_larger_programs_are_solved_too() -> None:
    """64 jobs, the size of a batch, on 20 server classes."""
    rng = np.random.default_rng(5)
    for seed in range(3):
        one = Program(
            np.round(4.0 * rng.normal(size=(64, 20))) / 4.0, np.full(64, 0.25), rng.integers(0, 3, 20).astype(float),
            rng.uniform(0.5, 2.0, 20), np.full(64, 0.125), np.zeros(20),
        )  # fmt: skip
        found = solved(one)
        assert abs(total(one, found) - best(one)) < 1e-9, seed
        assert found.residual < 1e-9


def test_tolls_support_the_answer() -> None:
    """At the tolls every job is at its best server class, and a class with an idle server to spare costs nothing."""
    for seed in range(200):
        one = program(seed)
        found = solved(one)
        for i in np.flatnonzero(found.server >= 0):
            net = one.value[i] - found.toll[i]
            assert net[found.server[i]] >= net.max() - 1e-9, seed
        for j in range(len(one.idle)):
            if (found.server == j).sum() + one.ahead[j] + 1.0 <= one.idle[j]:
                np.testing.assert_allclose(found.toll[:, j], 0.0, atol=1e-9, err_msg=str(seed))


def test_where_nobody_is_free_soon_as_many_jobs_as_possible_start() -> None:
    """All gaps infinite, as with `work_conserving`: SciPy's maximum matching has as many jobs, and none has a delay."""
    for seed in range(200):
        one = program(seed)
        one = one._replace(gap=np.full(one.gap.size, np.inf), ahead=np.zeros(one.gap.size))
        found = solved(one)
        slots = np.repeat(np.isfinite(one.value), one.idle.astype(int), axis=1)
        most = 0
        if slots.size:
            most = int((maximum_bipartite_matching(csr_matrix(slots), perm_type="column") >= 0).sum())
        assert (found.server >= 0).sum() == most, seed
        assert (found.delay[found.server >= 0] == 0.0).all()
        assert found.residual < 1e-9


def test_idle_server_goes_to_the_job_for_which_waiting_costs_more() -> None:
    """Both jobs can have the server: the one for which waiting is cheaper waits, whatever they earn."""
    found = look_ahead([[0.3], [0.9]], urgency=[0.1, 0.5], idle=[1], gap=[1.0])
    assert found.delay.tolist() == [1.0, 0.0] and found.server.tolist() == [0, 0]


def test_of_jobs_for_which_waiting_costs_the_same_the_first_starts() -> None:
    """Who waits makes no difference to the total, whatever they earn: the order decides, and not rounding."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        value = np.repeat(rng.normal(size=(6, 1)), 2, axis=1) - [0.0, 1000.0]
        found = look_ahead(
            value, urgency=rng.uniform(), idle=[2, 0], gap=[rng.uniform(0.1, 1.0), 1.0], bend=rng.uniform()
        )
        assert found.server.tolist() == [0] * 6 and (np.diff(found.delay) >= 0.0).all(), seed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": [1.0, 2.0]}, r"value must be an \(N, J\) array below infinity; got shape \(2,\)"),
        ({"value": [[np.nan, 1.0]]}, "value must be an .* below infinity"),
        ({"value": [[np.inf, 1.0]]}, "value must be an .* below infinity"),
        ({"value": [["a", "b"]]}, "value must be numeric"),
        ({"urgency": -1.0}, "urgency must be non-negative; got urgency = -1"),
        ({"urgency": [1.0, 1.0, 1.0]}, r"urgency must have shape \(1,\); got \(3,\)"),
        ({"urgency": np.nan}, "urgency must be finite"),
        ({"bend": -0.5}, "bend must be non-negative; got bend = -0.5"),
        ({"idle": [1.0, -1.0]}, r"idle must be non-negative; got idle\[1\] = -1"),
        ({"idle": [1.0, 1.0, 1.0]}, r"idle must have shape \(2,\); got \(3,\)"),
        ({"ahead": [np.inf, 0.0]}, "ahead must be finite"),
        ({"gap": [1.0, 0.0]}, r"gap must be positive; got gap\[1\] = 0"),
        ({"gap": [1.0, np.nan]}, r"gap must be positive; got gap\[1\] = nan"),
    ],
)
def test_bad_input_is_named(change: dict[str, ArrayLike], message: str) -> None:
    good: dict[str, ArrayLike] = {"value": [[1.0, 0.5]], "urgency": 0.1, "idle": [1.0, 1.0], "gap": [1.0, 1.0]}
    with pytest.raises(BadInput, match=message):
        look_ahead(**{**good, **change})


def test_no_jobs_and_no_servers() -> None:
    found = look_ahead(np.zeros((0, 2)), urgency=0.0, idle=[1, 1], gap=[1.0, 1.0])
    assert found.server.size == 0 and found.residual == 0.0
    found = look_ahead(np.zeros((2, 0)), urgency=0.0, idle=[], gap=[])
    assert found.server.tolist() == [-1, -1] and found.toll.shape == (2, 0)
