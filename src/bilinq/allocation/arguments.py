"""The arguments of an allocation: the arrays of a program, checked and broadcast to a batch."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array
from bilinq.errors import BadInput


class Program(NamedTuple):
    """The arguments of one program, or of a batch: queue, weight, limit (..., I); reward (..., I, J); capacity (..., J)."""

    queue: Array
    reward: Array
    capacity: Array
    V: Array
    gamma: Array
    weight: Array
    limit: Array


def align(given: Program) -> tuple[tuple[int, ...], Program]:
    """Return the batch shape and the program with every array broadcast to it, with one leading axis."""
    _check_shapes(given)
    rows, columns = given.reward.shape[-2:]
    batch = _batch_shape(given)
    if not batch:
        queue, reward, capacity, V, gamma, weight, limit = given
        row = (1, rows)
        return batch, Program(_one(queue), _one(reward), _one(capacity), _fitted(V, (1,)), _fitted(gamma, (1,)),
                              _fitted(weight, row), _fitted(limit, row))  # fmt: skip
    shapes = ((rows,), (rows, columns), (columns,), (), (), (rows,), (rows,))
    size = math.prod(batch)
    return batch, Program(
        *(_fitted(v, (*batch, *tail)).reshape(size, *tail) for v, tail in zip(given, shapes, strict=True))
    )


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


def _batch_shape(given: Program) -> tuple[int, ...]:
    """Return the common leading shape, or raise an error if there is none."""
    queue, reward, capacity, V, gamma, weight, limit = given
    if reward.ndim == 2 and max(queue.ndim, capacity.ndim, weight.ndim, limit.ndim) == 1 and not (V.ndim or gamma.ndim):
        return ()
    leading = {
        "queue": queue.shape[:-1], "reward": reward.shape[:-2], "capacity": capacity.shape[:-1], "V": V.shape,
        "gamma": gamma.shape, "weight": weight.shape[:-1], "limit": limit.shape[:-1],
    }  # fmt: skip
    try:
        return np.broadcast_shapes(*leading.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in leading.items() if shape)
        raise BadInput(f"leading axes must broadcast; got {listed}") from None


def _one(value: Array) -> Array:
    return (value if value.flags.writeable else value.copy())[None]


def _fitted(value: Array, shape: tuple[int, ...]) -> Array:
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
