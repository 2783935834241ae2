"""The allocation program, Eq. (5): how much of each server class each job class gets in this slot."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, as_floats, non_negative, positive, require, short
from bilinq.errors import BadInput, NotSolved

TOLERANCE = 1e-9
"""The largest residual that is returned."""
FLOAT = np.dtype(np.float64)
NO_ALLOCATION, NO_PRICE = np.empty((0, 0, 0)), np.empty((0, 0))
"""What a cold start starts from."""
AIM = 1e-11
"""The residual at which the search stops; what it returns is usually exact to rounding."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """An optimal expected allocation with its prices and its certificate.

    Attributes
    ----------
    expected : (..., I, J) array
        y, the expected number of servers of class j that serve class i. Idle pairs are exactly zero.
    price : (..., J) array
        q, what one more server of class j is worth; zero where servers stay idle. Infinite only without any server.
    residual : (...) array or float
        The largest relative violation of the optimality conditions, Eq. (7), recomputed from y and q.
    steps : int
        Interior point steps over the whole batch; zero where no server class is saturated.
    """

    expected: Array
    price: Array
    residual: Array | float
    steps: int


def allocate(
    queue: ArrayLike,
    reward: ArrayLike,
    capacity: ArrayLike,
    V: ArrayLike,
    gamma: ArrayLike = 1.2,
    *,
    weight: ArrayLike = 1.0,
    limit: ArrayLike = np.inf,
    start: Allocation | None = None,
) -> Allocation:
    """Return the optimal expected allocation, certified.

    Maximise sum_i w_i Q_i / V log s_i - sum_ij (gamma - r_ij) y_ij with s_i = sum_j y_ij, sum_i y_ij <= n_j, s_i <= limit_i.
    Where several allocations are optimal, each class is spread over its tied server classes in proportion to their
    capacity as far as capacities allow; see Eq. (10) in `docs/maths.md`.

    Parameters
    ----------
    queue : (..., I) array
        Q, at least zero; a class with an empty queue gets nothing.
    reward : (..., I, J) array
        r, below gamma; bandit indices are clipped to [-1, 1].
    capacity : (..., J) array
        n, servers of each class, at least zero.
    V : float or (...) array
        Weight of the rewards against short queues, positive.
    gamma : float or (...) array
        Cost of using a server, above one.
    weight, limit : (..., I) arrays, optional
        w, positive; and a cap on each row sum, at least zero. All leading axes broadcast.
    start : Allocation, optional
        A nearby solution of the same shape to start from, such as the last slot's.

    Raises
    ------
    BadInput
        If an argument breaks a rule.
    NotSolved
        If the certificate stays above 1e-9.

    Examples
    --------
    >>> answer = allocate(queue=[3, 1], reward=[[0.2, 0.9], [0.5, 0.4]], capacity=[1, 1], V=10.0, gamma=1.2)
    >>> answer.expected.round(3).tolist()
    [[0.0, 1.0], [0.143, 0.0]]
    >>> answer.price.round(3).tolist()
    [0.0, 0.0]
    """
    if start is None and _is_plain(queue, reward, capacity, V, gamma, weight, limit):
        y, q, worst, steps = _kernels().solve_plain(queue, reward, capacity, V, gamma, AIM)
        if worst <= TOLERANCE:
            return Allocation(y, q, worst, steps)
    given = (
        as_floats("queue", queue),
        as_floats("reward", reward),
        as_floats("capacity", capacity),
        as_floats("V", V),
        as_floats("gamma", gamma),
        as_floats("weight", weight),
        as_floats("limit", limit),
    )
    batch, arrays = align(*given)
    warm = None if start is None else flattened(start, batch, arrays[1].shape)
    try:
        y, q, residual, steps = _solve(arrays, warm)
    except BadInput:
        explain(*given)
    if not batch:
        return Allocation(y[0], q[0], float(residual[0]), steps)
    return Allocation(y.reshape(*batch, *y.shape[1:]), q.reshape(*batch, q.shape[1]), residual.reshape(batch), steps)


def allocate_batch(
    queue: Array,
    reward: Array,
    capacity: Array,
    V: Array,
    gamma: Array,
    weight: Array,
    limit: Array,
    *,
    start: Allocation | None = None,
) -> Allocation:
    """Return the optimal allocations of a batch whose arrays have just the right shapes; for policies.

    queue, weight, limit (B, I); reward (B, I, J); capacity (B, J); V, gamma (B,).
    """
    return Allocation(*_solve([queue, reward, capacity, V, gamma, weight, limit], start))


def _solve(arrays: Sequence[Array], start: Allocation | None) -> tuple[Array, Array, Array, int]:
    y, q, residual = np.empty(arrays[1].shape), np.empty(arrays[2].shape), np.empty(len(arrays[0]))
    y_last, q_last = (NO_ALLOCATION, NO_PRICE) if start is None else (start.expected, start.price)
    steps = _kernels().solve_batch(*arrays, y_last, q_last, AIM, y, q, residual)
    if steps < 0:
        explain(*arrays)
    worst = max(residual.tolist(), default=0.0)
    if worst > TOLERANCE:
        raise NotSolved(
            f"allocation not certified: residual {worst:.1e} after {steps} steps; "
            "rescale queue / V or capacity so that they span fewer orders of magnitude"
        )
    return y, q, residual, steps


def _is_plain(
    queue: ArrayLike,
    reward: ArrayLike,
    capacity: ArrayLike,
    V: ArrayLike,
    gamma: ArrayLike,
    weight: ArrayLike,
    limit: ArrayLike,
) -> bool:
    """Return whether the arguments can go to the kernel as they are: the way that costs least, for schedulers' slots."""
    return (
        type(queue) is np.ndarray and queue.ndim == 1 and queue.dtype is FLOAT and queue.flags.carray
        and type(reward) is np.ndarray and reward.ndim == 2 and reward.dtype is FLOAT and reward.flags.carray
        and type(capacity) is np.ndarray and capacity.ndim == 1 and capacity.dtype is FLOAT and capacity.flags.carray
        and type(V) is float and type(gamma) is float and type(weight) is float and weight == 1.0
        and type(limit) is float and limit == np.inf
    )  # fmt: skip


@cache
def _kernels() -> Any:
    """Return the module of kernels; it pulls in the compiler, so it is loaded when first needed."""
    from bilinq.allocation import prepare

    return prepare


def align(
    queue: Array, reward: Array, capacity: Array, V: Array, gamma: Array, weight: Array, limit: Array
) -> tuple[tuple[int, ...], list[Array]]:
    """Return the batch shape and every argument broadcast to it, with one leading axis."""
    if reward.ndim < 2:
        raise BadInput(f"reward must have shape (..., job classes, server classes); got {reward.shape}")
    rows, columns = reward.shape[-2:]
    if not queue.ndim or queue.shape[-1] != rows:
        raise BadInput(f"queue must have shape (..., {rows}) to fit reward {reward.shape}; got {queue.shape}")
    if not capacity.ndim or capacity.shape[-1] != columns:
        raise BadInput(f"capacity must have shape (..., {columns}) to fit reward {reward.shape}; got {capacity.shape}")
    if not rows or not columns:
        raise BadInput(f"reward must have at least one job class and one server class; got {reward.shape}")
    for name, value in (("weight", weight), ("limit", limit)):
        if value.ndim and value.shape[-1] not in (1, rows):
            raise BadInput(f"{name} must have shape (..., {rows}) to fit reward {reward.shape}; got {value.shape}")
    batch = batch_shape(queue, reward, capacity, V, gamma, weight, limit)
    if not batch:
        row = (1, rows)
        return batch, [one(queue), one(reward), one(capacity), fitted(V, (1,)), fitted(gamma, (1,)), fitted(weight, row),
                       fitted(limit, row)]  # fmt: skip
    shapes = ((rows,), (rows, columns), (columns,), (), (), (rows,), (rows,))
    values = (queue, reward, capacity, V, gamma, weight, limit)
    size = math.prod(batch)
    return batch, [fitted(v, (*batch, *tail)).reshape(size, *tail) for v, tail in zip(values, shapes, strict=True)]


def one(value: Array) -> Array:
    """Return `value` as a batch of one."""
    return (value if value.flags.writeable else value.copy())[None]


def fitted(value: Array, shape: tuple[int, ...]) -> Array:
    """Return `value` broadcast to `shape`; writeable, since read-only arrays are another type to the compiler."""
    if not value.ndim:
        return constant(value.item(), shape)
    if value.shape == shape:
        return value if value.flags.writeable else value.copy()
    return np.broadcast_to(value, shape).copy()


@lru_cache(maxsize=256)
def constant(value: float, shape: tuple[int, ...]) -> Array:
    """Return an array of one value, the same one each time; kernels do not write to their arguments."""
    return np.full(shape, value)


def batch_shape(
    queue: Array, reward: Array, capacity: Array, V: Array, gamma: Array, weight: Array, limit: Array
) -> tuple[int, ...]:
    """Return the common leading shape, or say that there is none."""
    if reward.ndim == 2 and max(queue.ndim, capacity.ndim, weight.ndim, limit.ndim) == 1 and not (V.ndim or gamma.ndim):
        return ()
    leading = {
        "queue": queue.shape[:-1],
        "reward": reward.shape[:-2],
        "capacity": capacity.shape[:-1],
        "V": V.shape,
        "gamma": gamma.shape,
        "weight": weight.shape[:-1],
        "limit": limit.shape[:-1],
    }
    try:
        return np.broadcast_shapes(*leading.values())
    except ValueError:
        shown = ", ".join(f"{name} {shape}" for name, shape in leading.items() if shape)
        raise BadInput(f"leading axes must broadcast; got {shown}") from None


def flattened(start: Allocation, batch: tuple[int, ...], shape: tuple[int, ...]) -> Allocation:
    """Return the allocation to start from with one leading axis."""
    if not isinstance(start, Allocation):
        raise BadInput(f"start must be an Allocation; got {short(start)}")
    if start.price.shape != (*batch, shape[2]):
        raise BadInput(f"start must hold prices of shape {(*batch, shape[2])}; got {start.price.shape}")
    if start.expected.shape != (*batch, *shape[1:]):
        raise BadInput(f"start must hold an allocation of shape {(*batch, *shape[1:])}; got {start.expected.shape}")
    y, q = start.expected.reshape(shape), start.price.reshape(shape[0], shape[2])
    return Allocation(np.ascontiguousarray(y), np.ascontiguousarray(q), start.residual, start.steps)


def explain(
    queue: Array, reward: Array, capacity: Array, V: Array, gamma: Array, weight: Array, limit: Array
) -> NoReturn:
    """Raise the error that names what `prepare` found."""
    non_negative("queue", queue)
    non_negative("capacity", capacity)
    positive("V", V)
    require("gamma", gamma, lambda x: (x > 1.0) & np.isfinite(x), "above one and finite")
    positive("weight", weight)
    require("limit", limit, lambda x: x >= 0.0, "non-negative")
    require("reward", reward, np.isfinite, "finite")
    below = np.broadcast_to(reward, np.broadcast_shapes(reward.shape, (*gamma.shape, 1, 1)))
    require("reward", below, lambda x: x < gamma[..., None, None], f"below gamma = {shown(gamma)}")
    require("gamma - reward", gamma[..., None, None] - reward, np.isfinite, "finite")
    raise BadInput("weight * queue / V must be finite; it overflows")


def shown(value: Array) -> str:
    """Show a number plainly."""
    return "its own gamma" if value.ndim else f"{value:g}"
