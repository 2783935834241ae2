"""What server classes charge for load: prices, slopes, integrals, and what is refused."""

import warnings
from typing import Any

import numpy as np
import pytest

from bilinq.distributed import Barrier, Bounded, Own, Penalty, Power, System
from bilinq.distributed.penalties import checked
from bilinq.errors import BadInput

STEEP = Own(price=lambda z, n: np.expm1(z / n), slope=lambda z, n: np.exp(z / n) / n)
PENALTIES: list[Penalty] = [
    Power(0.5), Power(3.0), Power([1.0, 2.0, 5.0]), Bounded(1.0, 2.0), Bounded(3.0, 0.5), Barrier(), STEEP,
]  # fmt: skip
N = np.array([1.0, 2.0, 7.0])


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize("fill", [0.1, 0.5, 0.9])
def test_slope_and_price_are_derivatives(penalty: Penalty, fill: float) -> None:
    """Central differences of the integral and of the price."""
    z, h = fill * N, 1e-5 * N
    price = (penalty.cost(z + h, N) - penalty.cost(z - h, N)) / (2 * h)
    slope = (penalty.price(z + h, N) - penalty.price(z - h, N)) / (2 * h)
    np.testing.assert_allclose(penalty.price(z, N), price, rtol=1e-6)
    np.testing.assert_allclose(penalty.slope(z, N), slope, rtol=1e-6)


def test_values_by_hand() -> None:
    """At x = 1/2: x^2 = 1/4; 3 x / (1 + x) = 1; x / (1 - x) = 1; integrals x^3 / 3, 3 (x - log(1 + x)), -log(1/2) - x."""
    z, n = np.array([1.0]), np.array([2.0])
    assert Power(2.0).price(z, n) == pytest.approx(0.25)
    assert Power(2.0).cost(z, n) == pytest.approx(2 / 24)
    assert Bounded(1.0, 3.0).price(z, n) == pytest.approx(1.0)
    assert Bounded(1.0, 3.0).cost(z, n) == pytest.approx(6 * (0.5 - np.log(1.5)))
    assert Barrier().price(z, n) == pytest.approx(1.0)
    assert Barrier().cost(z, n) == pytest.approx(2 * (np.log(2.0) - 0.5))


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_stiffness_is_a_bound(penalty: Penalty) -> None:
    """Eq. (39) against 1 + z p' / (p + c), with the barrier's loads at most 80 % of capacity."""
    c = np.random.default_rng(1).uniform(0.05, 2.0, (50, 3))
    z = np.random.default_rng(2).uniform(0.0, 0.8, (50, 3)) * N
    true = 1.0 + z * penalty.slope(z, N) / (penalty.price(z, N) + c)
    assert (true <= penalty.stiffness(c, 0.2) * (1 + 1e-12)).all()


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_stiffness_follows_from_the_price(penalty: Penalty) -> None:
    """Eq. (44) against 1 + z p' / (p + c); a penalty of the user's own does not know its load from its price."""
    c = np.random.default_rng(1).uniform(0.05, 2.0, (50, 3))
    z = np.random.default_rng(2).uniform(0.01, 0.99, (50, 3)) * N
    price = penalty.price(z, N)
    found = penalty.stiffness_at(price, c)
    if isinstance(penalty, Own):
        assert np.isinf(found).all()
    else:
        np.testing.assert_allclose(found, 1.0 + z * penalty.slope(z, N) / (price + c), rtol=1e-9)
        assert np.isfinite(penalty.stiffness_at(penalty.price(2.0 * N, N), c)).all()


def test_a_full_barrier_is_huge_but_finite() -> None:
    z = np.array([1.0, 2.0, 9.0])
    assert np.isfinite(Barrier().price(z, N)).all() and (Barrier().price(z, N) > 1e200).all()
    assert np.isfinite(Barrier().slope(z, N)).all()
    assert np.isinf(Barrier().cost(z, N)).all()


def test_own_integral_is_used_where_given() -> None:
    own = Own(lambda z, n: z, lambda z, n: np.ones_like(z), lambda z, n: 17.0 + 0 * z)
    assert own.cost(N, N).tolist() == [17.0] * 3


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: Power(0.0), ["beta must be positive", "beta = 0"]),
        (lambda: Power(float("nan")), ["beta must be finite", "nan"]),
        (lambda: Bounded(1.0, -2.0), ["ceiling must be positive", "-2"]),
        (lambda: Own(3.0, STEEP.slope), ["price must be a function", "got 3.0"]),  # type: ignore[arg-type]
        (lambda: Own(STEEP.price, STEEP.slope, 2.0), ["cost must be a function"]),  # type: ignore[arg-type]
        (lambda: Barrier().stiffness(np.ones((1, 1)), 0.0), ["spare must be between zero and one", "got 0.0"]),
    ],
)
def test_bad_settings_are_explained(make: Any, parts: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        make()
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(
    ("penalty", "parts"),
    [
        (
            Own(lambda z, n: 1.0 - z / n, lambda z, n: 1 / n + 0 * z),
            ["rise of the penalty price must be positive", "-0.04"],
        ),
        (
            Own(lambda z, n: 1.0 + 0 * z, lambda z, n: 1 / n + 0 * z),
            ["rise of the penalty price must be positive", "= 0"],
        ),
        (Own(lambda z, n: z / n - 0.5, lambda z, n: 1 / n + 0 * z), ["penalty price must be non-negative", "-0.48"]),
        (Own(lambda z, n: z / n, lambda z, n: 0 * z), ["penalty slope must be positive", "= 0"]),
        (Own(lambda z, n: z / n, lambda z, n: 3 / n + 0 * z), ["penalty slope over the slope of its price", "-0.66"]),
        (Own(lambda z, n: np.ones(7), lambda z, n: np.ones(7)), ["one price for each of 2 server classes"]),
        (Power([1.0, 2.0, 3.0]), ["one price for each of 2 server classes"]),
        ("power", ["penalty must be a Penalty", "'power'"]),
    ],
)
def test_bad_penalties_are_explained(penalty: Any, parts: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        System([1.0], [[0.5, 0.2]], [1.0, 1.0], 10.0, penalty=penalty)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_looking_at_a_penalty_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for penalty in PENALTIES:
            System([1.0], [[0.5, 0.2, 0.1]], [1.0, 0.0, 3.0], 10.0, penalty=penalty).fixed_point()


def test_own_penalty_of_bounded_elasticity_is_as_good_as_the_built_in_one() -> None:
    """The same function with its beta and ceiling as `Own` gets the same safe gains; without them it gets none."""
    bounded = Bounded(2.0, 3.0)
    mine = Own(bounded.price, bounded.slope, beta=2.0, ceiling=3.0)
    cost = np.array([[0.2, 1.5], [0.7, 2.0]])
    np.testing.assert_allclose(mine.stiffness(cost, 0.1), bounded.stiffness(cost, 0.1))
    assert np.isinf(Own(bounded.price, bounded.slope).stiffness(cost, 0.1)).all()
    np.testing.assert_allclose(Own(bounded.price, bounded.slope, beta=2.0).stiffness(cost, 0.1), 3.0)
    price = np.array([0.5, 1.0])
    assert (mine.stiffness_at(price, cost) >= bounded.stiffness_at(price, cost)).all()  # it knows less
    capacity = np.array([2.0, 4.0])
    assert checked(mine, capacity) is mine
    with pytest.raises(BadInput, match="elasticity of the penalty price less beta must be at most zero"):
        checked(Own(bounded.price, bounded.slope, beta=1.0), capacity)
    with pytest.raises(BadInput, match="penalty price less its ceiling must be at most zero"):
        checked(Own(bounded.price, bounded.slope, beta=2.0, ceiling=0.5), capacity)
    with pytest.raises(BadInput, match="ceiling needs beta"):
        Own(bounded.price, bounded.slope, ceiling=0.5)
