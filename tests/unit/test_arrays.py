"""Checks of arguments: valid ones are returned as floats, invalid ones are named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bilinq.arrays import (
    Array,
    as_floats,
    count,
    finite,
    non_negative,
    one_of,
    positive,
    require,
    scalar,
    shaped,
    short,
)
from bilinq.errors import BadInput


@pytest.mark.parametrize(
    "value", [[1, 2], (1.0, 2.0), np.array([1, 2], np.int8), np.array([1, 2], object), range(1, 3)]
)
def test_numbers_become_floats(value: Any) -> None:
    array = as_floats("x", value)
    assert array.dtype == np.float64 and array.tolist() == [1.0, 2.0]


def test_one_number_has_no_axes() -> None:
    assert as_floats("x", 3).shape == () and as_floats("x", True) == 1.0


def test_arrays_come_back_in_c_order() -> None:
    given = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    array = as_floats("x", given)
    assert array.flags.c_contiguous and np.array_equal(array, given)


def test_floats_in_c_order_are_not_copied() -> None:
    given = np.arange(3.0)
    assert as_floats("x", given) is given


@pytest.mark.parametrize(
    "value",
    ["abc", "1.5", ["1", "2"], [[1], [1, 2]], 1j, [1, object()], {}, b"1", np.datetime64("2024-01-01"), 10**400],
)
def test_values_that_are_not_numbers_are_refused(value: Any) -> None:
    with pytest.raises(BadInput, match=r"^x must be numeric with rows of equal length; got "):
        as_floats("x", value)


def test_bad_input_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        as_floats("x", "abc")


@pytest.mark.parametrize("check", [finite, positive, non_negative])
@pytest.mark.parametrize(("value", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_only_finite_numbers(check: Callable[[str, Any], Array], value: float, shown: str) -> None:
    with pytest.raises(BadInput) as caught:
        check("weight", [[1.0, 2.0], [value, value]])
    assert str(caught.value) == f"weight must be finite; got weight[1, 0] = {shown}"


def test_positive() -> None:
    assert positive("x", [1, 1e-300]).tolist() == [1, 1e-300]
    with pytest.raises(BadInput, match=r"^x must be positive; got x\[1\] = 0$"):
        positive("x", [1, 0])


def test_non_negative() -> None:
    assert non_negative("x", [0, 1]).tolist() == [0, 1]
    with pytest.raises(BadInput, match=r"^x must be non-negative; got x = -0.5$"):
        non_negative("x", -0.5)


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2)])
def test_count(value: int) -> None:
    assert count("n", value) == 2 and type(count("n", value)) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", None, np.nan, [2]])
def test_count_refuses(value: Any) -> None:
    with pytest.raises(BadInput, match=r"^n must be a whole number of at least 1; got "):
        count("n", value)


def test_count_from_another_start() -> None:
    assert count("n", 0, least=0) == 0
    with pytest.raises(BadInput, match="at least 3; got 2"):
        count("n", 2, least=3)


def test_scalar() -> None:
    assert scalar("x", 2) == 2.0 and type(scalar("x", np.float64(2))) is float
    with pytest.raises(BadInput, match=r"^x must be positive; got x = -1$"):
        scalar("x", -1, positive)


@pytest.mark.parametrize("value", [[1.0], [1.0, 2.0], [[1.0]]])
def test_scalar_refuses_arrays(value: Any) -> None:
    with pytest.raises(BadInput, match=r"^x must be one number; got shape \("):
        scalar("x", value)


def test_one_of() -> None:
    assert one_of("kind", "a", ["a", "b"]) == "a"
    with pytest.raises(BadInput, match=r"^kind must be one of 'a', 'b'; got 'c'$"):
        one_of("kind", "c", ["a", "b"])


def test_shaped() -> None:
    array = shaped("x", np.array([1.0, 2.0]), (3, 2))
    assert array.shape == (3, 2) and array.flags.c_contiguous
    assert shaped("x", np.array(4.0), (2,)).tolist() == [4.0, 4.0]
    with pytest.raises(BadInput, match=r"^x must have shape \(3,\); got \(2,\)$"):
        shaped("x", np.zeros(2), (3,))


def test_require_names_the_first_offender() -> None:
    require("x", np.zeros((2, 2)), lambda x: x == 0, "zero")
    require("x", np.zeros(0), lambda x: x > 0, "positive")
    with pytest.raises(BadInput, match=r"^x must be below two; got x\[0, 1\] = 7$"):
        require("x", np.array([[1.0, 7.0], [8.0, 9.0]]), lambda x: x < 2, "below two")


def test_nothing_compares_with_nan() -> None:
    with pytest.raises(BadInput, match=r"^x must be at least zero; got x = nan$"):
        require("x", np.array(np.nan), lambda x: x >= 0, "at least zero")


def test_long_values_are_cut() -> None:
    assert short([1, 2]) == "[1, 2]"
    assert len(short("x" * 1000)) == 60 and short("x" * 1000).endswith("...")
    assert short("x" * 58) == repr("x" * 58)
