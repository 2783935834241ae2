"""Newton steps on the pairs in use remove what rounding has left."""

from typing import Any

import numpy as np
import pytest

from bilinq.allocation.arguments import ALL_ELIGIBLE, EQUAL_DURATIONS, Program
from bilinq.allocation.batch import NO_PRICE, solve
from bilinq.allocation.polish import polish


def program(seed: int, timed: bool, masked: bool, capped: bool) -> Program:
    rng = np.random.default_rng(seed)
    shape = (1, 12, 7)
    return Program(
        queue=rng.integers(1, 30, shape[:2]).astype(float), reward=rng.uniform(-1, 1, shape),
        capacity=rng.integers(1, 9, (1, 7)).astype(float), V=np.array([2.0]), gamma=np.array([1.2]),
        weight=rng.uniform(0.5, 2.0, shape[:2]), limit=np.full(shape[:2], 3.0 if capped else np.inf),
        eligible=rng.random(shape) < 0.7 if masked else ALL_ELIGIBLE,
        duration=10.0 ** rng.uniform(-1.5, 1.5, shape) if timed else EQUAL_DURATIONS,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", [(False, False, False), (True, False, False), (True, True, False), (True, True, True)])
def test_small_errors_vanish(seed: int, kind: tuple[bool, bool, bool]) -> None:
    given, rng = program(seed, *kind), np.random.default_rng(seed)
    answer = solve(given, NO_PRICE, given)
    y, q = (value * (1.0 + 1e-7 * rng.normal(size=value.shape)) for value in (answer.expected, answer.price))
    residual, gap = np.array([1e-6]), np.array([1e-6])
    polish(given, 0, y, q, residual, gap)
    assert residual[0] <= 1e-12 and gap[0] <= 1e-10
    np.testing.assert_allclose(q, answer.price, rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(y > 0.0, answer.expected > 0.0)


def test_a_good_answer_stays() -> None:
    given = program(1, True, True, False)
    answer = solve(given, NO_PRICE, given)
    kept: list[Any] = [answer.expected.copy(), answer.price.copy(), np.array([0.0]), np.array([0.0])]
    polish(given, 0, *kept)
    np.testing.assert_array_equal(kept[0], answer.expected)
    assert kept[2][0] == 0.0


@pytest.mark.parametrize(("flow", "weight"), [(0.0, 1.0), (1.0, 1e308)])
def test_an_answer_without_a_newton_step_stays(flow: float, weight: float) -> None:
    """No pair is in use, or numbers overflow."""
    given = program(1, True, True, False)
    given = given._replace(weight=np.full(given.weight.shape, weight))
    y, q = np.full(given.reward.shape, flow), np.ones(given.capacity.shape)
    kept: list[Any] = [y.copy(), q.copy(), np.array([np.inf]), np.array([np.inf])]
    polish(given, 0, *kept)
    np.testing.assert_array_equal(kept[0], y)
    np.testing.assert_array_equal(kept[1], q)
