"""From the soft fixed point back to an allocation that servers can serve, and what that costs; Eq. (42)."""

import numpy as np
from numpy.typing import ArrayLike

from bilinq.allocation import allocate
from bilinq.arrays import Array, non_negative
from bilinq.distributed.system import System
from bilinq.errors import BadInput


def scaled_back(expected: ArrayLike, capacity: ArrayLike) -> Array:
    """Return the allocation (..., I, J) with every server class that is asked for too much scaled back to its capacity.

    Examples
    --------
    >>> scaled_back([[1.0, 0.2], [3.0, 0.3]], [2.0, 1.0]).tolist()
    [[0.5, 0.2], [1.5, 0.3]]
    """
    y, n = non_negative("expected", expected), non_negative("capacity", capacity)
    if y.ndim < 2 or not n.ndim or y.shape[-1] != n.shape[-1]:
        raise BadInput(f"capacity must have shape (..., {y.shape[-1:]}) to fit expected {y.shape}; got {n.shape}")
    load = y.sum(axis=-2)
    return np.asarray(y * np.where(load > n, n / np.where(load > n, load, 1.0), 1.0)[..., None, :])


def shortfall(system: System, expected: ArrayLike | None = None) -> Array:
    """Return what an allocation, scaled back, loses against the exact program, over the sum of all a_i, (...).

    0.01 is as if every class got 1 % less service than at the optimum of Eq. (6). The fixed point unless `expected`
    (..., I, J) is given; infinite if a class with jobs gets nothing.
    """
    y = scaled_back(system.equilibrium.expected if expected is None else expected, system.capacity)
    best = allocate(system.queue, system.reward, system.capacity, system.V, system.gamma, weight=system.weight)
    total = np.maximum(system.demand.sum(axis=-1), 1e-300)
    return np.asarray((_value(system, best.expected) - _value(system, y)) / total)


def _value(system: System, y: Array) -> Array:
    """Return the value of Eq. (6); minus infinity if a class with jobs gets nothing."""
    a, served = system.demand, y.sum(axis=-1)
    fair = np.where(a > 0.0, a * np.log(np.where(served > 0.0, served, 1.0)), 0.0)
    fair = np.where((a > 0.0) & (served <= 0.0), -np.inf, fair)
    return np.asarray(fair.sum(axis=-1) - (system.cost * y).sum(axis=(-2, -1)))
