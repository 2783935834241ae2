"""The arguments of an allocation: the arrays of a program, checked and broadcast to a batch."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, BoolArray, short
from bilinq.errors import BadInput

ONE, NO_LIMIT = np.array(1.0), np.array(np.inf)  # weight and limit if none are given
ALL_ELIGIBLE, EQUAL_DURATIONS = np.empty((0, 0, 0), np.bool_), np.empty((0, 0, 0))
"""`eligible` and `duration` if none are given: every pair may be used, every service takes one unit of server time."""


class Program(NamedTuple):
    """The arguments of one program, or of a batch.

    queue, weight, limit (..., I); reward (..., I, J); capacity (..., J); V, gamma (...); eligible and duration (..., I, J),
    or the empty arrays above.
    """

    queue: Array
    reward: Array
    capacity: Array
    V: Array
    gamma: Array
    weight: Array
    limit: Array
    eligible: BoolArray = ALL_ELIGIBLE
    duration: Array = EQUAL_DURATIONS


def as_mask(name: str, value: ArrayLike) -> BoolArray:
    """Return `value` as an array of bool with at least one True."""
    try:
        mask = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must have rows of equal length; got {short(value)}") from None
    if mask.dtype.kind != "b":
        raise BadInput(f"{name} must be an array of bool; got {short(value)}")
    if not mask.any():
        raise BadInput(f"{name} must have at least one True; got none in shape {mask.shape}")
    return np.ascontiguousarray(mask)


def align(given: Program) -> tuple[tuple[int, ...], Program]:
    """Return the batch shape and the program with every array broadcast to it, with one leading axis."""
    _check_shapes(given)
    rows, columns = given.reward.shape[-2:]
    batch = _batch_shape(given)
    eligible, duration = given.eligible, given.duration
    if eligible is not ALL_ELIGIBLE:
        eligible = _fitted(eligible, (*batch, rows, columns)).reshape(-1, rows, columns)
    if duration is not EQUAL_DURATIONS:
        duration = _fitted(duration, (*batch, rows, columns)).reshape(-1, rows, columns)
    if not batch:
        queue, reward, capacity, V, gamma, weight, limit = given[:7]
        row = (1, rows)
        return batch, Program(_one(queue), _one(reward), _one(capacity), _fitted(V, (1,)), _fitted(gamma, (1,)),
                              _fitted(weight, row), _fitted(limit, row), eligible, duration)  # fmt: skip
    shapes = ((rows,), (rows, columns), (columns,), (), (), (rows,), (rows,))
    plain = [
        _fitted(v, (*batch, *tail)).reshape(math.prod(batch), *tail) for v, tail in zip(given[:7], shapes, strict=True)
    ]
    return batch, Program(*plain)._replace(eligible=eligible, duration=duration)


def _check_shapes(given: Program) -> None:
    """Raise an error if the last axes do not fit those of reward."""
    queue, reward, capacity = given.queue, given.reward, given.capacity
    if reward.ndim < 2:
        raise BadInput(f"reward must have shape (..., job classes, server classes); got {reward.shape}")
    rows, columns = reward.shape[-2:]
    if not queue.ndim or queue.shape[-1] != rows:
        raise BadInput(f"queue must have shape (..., {rows}) to fit reward {reward.shape}; got {queue.shape}")
    if not capacity.ndim or capacity.shape[-1] != columns:
        raise BadInput(f"capacity must have shape (..., {columns}) to fit reward {reward.shape}; got {capacity.shape}")
    if not rows or not columns:
        raise BadInput(f"reward must have at least one job class and one server class; got {reward.shape}")
    for name, value in (("weight", given.weight), ("limit", given.limit)):
        if value.ndim and value.shape[-1] not in (1, rows):
            raise BadInput(f"{name} must have shape (..., {rows}) to fit reward {reward.shape}; got {value.shape}")
    for name, pair in (("eligible", given.eligible), ("duration", given.duration)):
        if pair is not ALL_ELIGIBLE and pair is not EQUAL_DURATIONS and pair.shape[-2:] != (rows, columns):
            raise BadInput(
                f"{name} must have shape (..., {rows}, {columns}) to fit reward {reward.shape}; got {pair.shape}"
            )


def _batch_shape(given: Program) -> tuple[int, ...]:
    """Return the common leading shape, or raise an error if there is none."""
    queue, reward, capacity, V, gamma, weight, limit, eligible, duration = given
    none, equal = eligible is ALL_ELIGIBLE or eligible.ndim == 2, duration is EQUAL_DURATIONS or duration.ndim == 2
    rows = max(queue.ndim, capacity.ndim, weight.ndim, limit.ndim) == 1
    if reward.ndim == 2 and rows and none and equal and not (V.ndim or gamma.ndim):
        return ()
    leading = {
        "queue": queue.shape[:-1], "reward": reward.shape[:-2], "capacity": capacity.shape[:-1], "V": V.shape,
        "gamma": gamma.shape, "weight": weight.shape[:-1], "limit": limit.shape[:-1],
        "eligible": () if eligible is ALL_ELIGIBLE else eligible.shape[:-2],
        "duration": () if duration is EQUAL_DURATIONS else duration.shape[:-2],
    }  # fmt: skip
    try:
        return np.broadcast_shapes(*leading.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in leading.items() if shape)
        raise BadInput(f"leading axes must broadcast; got {listed}") from None


def _one(value: Array) -> Array:
    return (value if value.flags.writeable else value.copy())[None]


def _fitted(value: Any, shape: tuple[int, ...]) -> Any:
    """Return `value` broadcast to `shape`; writeable, since read-only arrays are another type to the compiler."""
    if not value.ndim:
        return _constant(value.item(), shape)
    if value.shape == shape:
        return value if value.flags.writeable else value.copy()
    return np.broadcast_to(value, shape).copy()


@lru_cache(maxsize=256)
def _constant(value: float, shape: tuple[int, ...]) -> Array:
    """Return an array of one value, the same array each time; kernels do not write to their arguments."""
    return np.full(shape, value)
