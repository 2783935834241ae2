"""Warm starts, absent server classes and odd batches: cases that failed in the past."""

from typing import Any

import numpy as np
import pytest

from bilinq.allocation import Allocation, allocate
from bilinq.allocation.program import certificate
from bilinq.errors import BadInput

R = [[0.2, 0.9], [0.5, 0.4]]
NO_TIME = np.empty((0, 0))


def test_infinite_prices_certify_nothing_where_there_are_servers() -> None:
    one = np.ones(1)
    assert certificate(one, one[:, None], NO_TIME, one, one * np.inf, np.zeros((1, 1)), one * np.inf)[0] > 1e-2


def test_servers_that_come_back_are_used() -> None:
    """The last slot had no servers, so its prices are infinite; today's answer must not be."""
    case: dict[str, Any] = {"queue": [9, 9], "reward": R, "V": 1.0, "gamma": 1.2}
    start = allocate(**case, capacity=[0, 0])
    cold, warm = allocate(**case, capacity=[1, 1]), allocate(**case, capacity=[1, 1], start=start)
    np.testing.assert_allclose(warm.expected, cold.expected, rtol=1e-9)


@pytest.mark.parametrize("queue", [1.3, 2.0, 3.0, 5.0, 20.0, 100.0, 1000.0])
def test_a_first_queue_after_an_empty_slot(queue: float) -> None:
    start = allocate([0.0], [[0.0]], [1.0], V=1.0)
    answer = allocate([queue], [[0.0]], [1.0], V=1.0, start=start)
    np.testing.assert_allclose(answer.expected, [[1.0]], rtol=1e-9)


@pytest.mark.parametrize("price", [[-5.0, 1.0], [1.0, np.nan], [np.inf, 1.0], [1e300, 0.0]])
def test_a_bad_start_is_refused_or_harmless(price: list[float]) -> None:
    start = Allocation(np.zeros((2, 2)), np.array(price), 0.0, 0)
    cold = allocate([9, 9], R, [1, 1], 1.0)
    try:
        warm = allocate([9, 9], R, [1, 1], 1.0, start=start)
    except BadInput as error:
        assert "start" in str(error)
    else:
        np.testing.assert_allclose(warm.expected, cold.expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["weight", "limit"])
def test_leading_axes_of_weight_and_limit_alone(name: str) -> None:
    options: dict[str, Any] = {name: np.ones((3, 2))}
    assert allocate([9, 9], R, [1, 1], 1.0, **options).expected.shape == (3, 2, 2)


def test_a_reward_above_one_of_several_gammas() -> None:
    with pytest.raises(BadInput, match="reward must be below"):
        allocate([1, 1], [[1.5, 0.0], [0.0, 0.0]], [1, 1], 1.0, [1.2, 1.3])


def test_an_empty_batch() -> None:
    answer = allocate(np.ones((0, 2)), R, [1, 1], 1.0)
    assert answer.expected.shape == (0, 2, 2) and answer.price.shape == (0, 2)


def test_an_absent_class_next_to_idle_servers() -> None:
    """Class 1 pays 1.2 on the first; on the absent one it would pay 0.2, so the first server there is worth 1."""
    answer = allocate([1], [[0.0, 1.0]], [1, 0], V=10.0)
    np.testing.assert_allclose(answer.price, [0, 1], rtol=1e-12)


def test_an_absent_class_wanted_by_a_capped_class() -> None:
    """Class 1 at its cap pays q_1 + 1.2 = 10 on the first server; on the absent one 0.2: a server there is worth 9.8."""
    answer = allocate([50, 50], [[0, 1], [0, -1]], [1, 0], V=10.0, limit=[0.5, 9])
    np.testing.assert_allclose(answer.price, [8.8, 9.8], rtol=1e-12)


@pytest.mark.parametrize(
    ("queue", "reward", "V"),
    [
        (
            [2, 10],
            [[0.6873728340088698, 0.6777624865136759], [0.8697877214028775, 0.5518699376221193]],
            11.282185084915355,
        ),
        ([17, 27], [[0.92, 1.0], [0.741, 0.787]], 60.0),
    ],
)
def test_slight_saturation_does_not_make_the_steps_cycle(
    queue: list[float], reward: list[list[float]], V: float
) -> None:
    """With a full second-order correction the steps cycle on the first of these."""
    answer = allocate(queue, reward, [3, 3] if V < 20 else [1, 1], V)
    assert answer.residual <= 1e-9
    assert answer.steps < 20


def test_tied_pairs_that_can_carry_nothing_get_nothing() -> None:
    """The first two rows just fill classes 2 and 3, the last two just fill class 1, though all are tied there."""
    reward = [[0.9, 1.0, 1.0], [0.9, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    answer = allocate([2, 2, 2, 2], reward, capacity=[2, 1, 1], V=1 / 2.2)
    wanted = [[0.0, 0.5, 0.5], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    np.testing.assert_allclose(answer.expected, wanted, atol=1e-9)


def test_a_row_settled_elsewhere_leaves_its_other_ties_alone() -> None:
    answer = allocate([1, 3], [[1.0, 1.0, 1.0, 1.0], [0.95, 1.0, 1.0, 1.0]], capacity=[1, 1, 1, 1], V=0.2)
    np.testing.assert_allclose(answer.expected, [[1, 0, 0, 0], [0, 1, 1, 1]], atol=1e-9)


def test_queues_of_few_jobs_with_most_rewards_tied() -> None:
    """Whole numbers and ties make such balances common: 116 of 20,000 of these programs were not solved in the past."""
    for seed in range(1500):
        case = tied_case(seed)
        answer = allocate(**case)
        assert answer.residual <= 1e-9
        rng = np.random.default_rng(seed)
        i, j = rng.permutation(case["queue"].size), rng.permutation(case["capacity"].size)
        moved = {"queue": case["queue"][i], "reward": case["reward"][i][:, j], "capacity": case["capacity"][j],
                 "limit": case["limit"][i]}  # fmt: skip
        np.testing.assert_allclose(allocate(**(case | moved)).expected, answer.expected[i][:, j], atol=1e-7)


def tied_case(seed: int) -> dict[str, Any]:
    """Return a program as in early slots: few jobs, most indices one, often capped at the queue."""
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(2, 14)), int(rng.integers(2, 6))
    queue, capacity = rng.integers(0, 4, rows).astype(float), rng.integers(1, 5, columns).astype(float)
    reward = np.where(rng.random((rows, columns)) < rng.choice([0.1, 0.3, 0.6]), rng.choice([0.5, 0.9, 0.95]), 1.0)
    limit = queue if rng.random() < 0.6 else np.full(rows, np.inf)
    V = float(rng.choice([0.2, 1 / 2.2, 1.0, 2.0, 5.0]))
    return {"queue": queue, "reward": reward, "capacity": capacity, "V": V, "limit": limit}


def test_a_row_that_a_price_leaves_exactly_at_its_cap() -> None:
    """The price at which the first two columns tie asks the last row for its cap, twice what its only column has."""
    V, gamma, reward = (
        0.8093570067015556,
        2.270804765243491,
        [-0.10470530911116849, 0.24960393788617052, 0.07323530266199563],
    )
    no, yes = False, True
    answer = allocate(
        queue=[6.0, 4.0, 4.0], reward=[reward] * 3, capacity=[21.0, 3.0, 2.0], V=V, gamma=gamma, weight=[1.0, 1.0, 2.0],
        limit=[6.0, 4.0, 4.0], eligible=[[no, yes, yes], [yes, no, no], [no, no, yes]],
    )  # fmt: skip
    np.testing.assert_allclose(answer.expected[[0, 2], [1, 2]], [3.0, 2.0], rtol=1e-12)
    np.testing.assert_allclose(answer.price[2], 8.0 / V / 2.0 - (gamma - reward[2]), rtol=1e-12)
