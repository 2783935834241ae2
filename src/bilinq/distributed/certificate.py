"""How far rates can be from the optimum, from rates and prices alone, Eq. (45): a bound that needs no solver."""

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, BoolArray, non_negative, shaped
from bilinq.distributed.system import System


def gap_bound(system: System, expected: ArrayLike) -> Array:
    """Return what Eq. (33) can fall short of its optimum by at most, over the sum of all a_i, (...).

    It is at least `Track.gap`, and zero at the optimum; infinite if a class with jobs gets nothing.

    Examples
    --------
    >>> system = System(queue=[3, 1], reward=[[0.2, 0.9], [0.5, 0.4]], capacity=[1, 1], V=10.0)
    >>> bool(gap_bound(system, system.fixed_point()) < 1e-9)
    True
    >>> gap_bound(system, [[0.1, 0.4], [0.1, 0.0]]).round(3).tolist()
    0.292
    """
    y = shaped("expected", non_negative("expected", expected), system.reward.shape)
    a, n = system.demand, system.capacity
    live = (a > 0.0)[..., :, None] & (n > 0.0)[..., None, :]
    price = system.penalty.price(y.sum(axis=-2), np.where(n > 0.0, n, 1.0))
    total = row_gaps(y, a, system.cost, price, live).sum(axis=-1)
    return np.asarray(total / np.maximum(a.sum(axis=-1), 1e-300))


def row_gaps(y: Array, a: Array, c: Array, price: Array, live: BoolArray) -> Array:
    """Return the part of each row in the bound, (..., I): y, c, live (..., I, J), a (..., I), price (..., J)."""
    paid, on = price[..., None, :] + c, live.any(axis=-1)
    least = np.where(on, np.where(live, paid, np.inf).min(axis=-1), 1.0)
    spent = np.where(live, paid * y, 0.0).sum(axis=-1)
    with np.errstate(divide="ignore"):
        fair = -np.log(np.where(on, least * y.sum(axis=-1) / np.where(on, a, 1.0), 1.0))
    return np.where(on, a * (fair - 1.0) + spent, 0.0)
