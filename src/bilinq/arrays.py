"""Array types, and the checks that public functions run on their arguments."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinq.errors import BadInput, BadState, did_you_mean

Array: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
Text = TypeVar("Text", bound=str)


def as_floats(name: str, value: ArrayLike) -> Array:
    """Return `value` as a C-ordered float64 array; raise an error if it is not numeric."""
    if type(value) is np.ndarray and value.dtype == np.float64 and value.flags.c_contiguous:
        return value
    if type(value) is float:
        return np.array(value)
    try:
        raw = np.asarray(value)
        if raw.dtype.kind not in "biufO":
            raise TypeError  # NumPy would read text as numbers and drop the imaginary part of complex ones
        return np.asarray(raw, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be numeric with rows of equal length; got {short(value)}") from None


def finite(name: str, value: ArrayLike) -> Array:
    """Return `value` as floats, none of them NaN or infinite."""
    return require(name, as_floats(name, value), np.isfinite, "finite")


def positive(name: str, value: ArrayLike) -> Array:
    """Return `value` as floats, all finite and above zero."""
    return require(name, finite(name, value), lambda x: x > 0, "positive")


def non_negative(name: str, value: ArrayLike) -> Array:
    """Return `value` as floats, all finite and at least zero."""
    return require(name, finite(name, value), lambda x: x >= 0, "non-negative")


def count(name: str, value: int, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int of at least `least` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise BadInput(f"{name} must be a whole number of at least {least}; got {short(value)}")
    if most is not None and value > most:
        raise BadInput(f"{name} must be at most {most:,}; got {short(value)}")
    return int(value)


def scalar(name: str, value: float, check: Callable[[str, ArrayLike], Array] = finite) -> float:
    """Return `value` as one float that passes `check`."""
    if type(value) is float and 0.0 < value < inf and check in (finite, positive, non_negative):
        return value
    array = check(name, value)
    if array.ndim:
        raise BadInput(f"{name} must be one number; got shape {array.shape}")
    return float(array)


def one_of(name: str, value: Text, allowed: Sequence[str]) -> Text:
    """Return `value` if it is one of `allowed`."""
    if value not in allowed:
        raise BadInput(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
    return value


def shaped(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """Return `array` broadcast to `shape`; raise an error that names the expected shape."""
    try:
        return np.ascontiguousarray(np.broadcast_to(array, shape))
    except ValueError:
        raise BadInput(f"{name} must have shape {shape}; got {array.shape}") from None


def require(name: str, array: Array, rule: Callable[[Array], ArrayLike], wording: str) -> Array:
    """Return `array`; raise an error that names its first entry that breaks `rule`."""
    good = np.asarray(rule(array))
    if good.all():
        return array
    where = tuple(int(k) for k in np.argwhere(~good)[0])
    index = f"[{', '.join(map(str, where))}]" if where else ""
    raise BadInput(f"{name} must be {wording}; got {name}{index} = {array[where]:g}")


def within(name: str, value: ArrayLike, low: float, high: float) -> None:
    """Raise `BadState` unless all numbers of a stored state are finite and from `low` to `high`."""
    array = np.asarray(value)
    good = (array >= low) & (array <= high)
    if not good.all():
        where = tuple(int(k) for k in np.argwhere(~good)[0])
        index, found = f"[{', '.join(map(str, where))}]" if where else "", array[where]
        rule = f"from {low:g} to {high:g}" if np.isfinite(found) else "finite"
        raise BadState(f"{name} must be {rule}; got {name}{index} = {found:g}")


def short(value: object, length: int = 60) -> str:
    """Return `value` for an error message, cut to `length` characters."""
    text = repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."


def check_known(given: Mapping[str, Any], known: Sequence[str], noun: str) -> None:
    """Raise `BadInput` if `given` has a key that is not in `known`; `noun` names the kind of key."""
    for key, value in given.items():
        if key not in known:
            raise BadInput(
                f"unknown {noun}: {key!r} (value {short(value)}){did_you_mean(key, known)}; known are {', '.join(known)}"
            )
