"""The allocation program, Eq. (5): how much of each server class each job class gets in this slot."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from bilinq.allocation.arguments import Program, align
from bilinq.arrays import Array, as_floats, non_negative, positive, require, short
from bilinq.errors import BadInput, NotSolved

TOLERANCE = 1e-9  # the largest residual of an answer; above it `NotSolved` is raised
AIM = 1e-11  # the residual at which the search stops; the answer is usually exact to rounding
FLOAT = np.dtype(np.float64)
NO_ALLOCATION, NO_PRICE = np.empty((0, 0, 0)), np.empty((0, 0))  # passed to the kernel for a cold start


@dataclass(frozen=True, slots=True)
class Allocation:
    """An optimal expected allocation with its prices and its certificate.

    Attributes
    ----------
    expected : (..., I, J) array
        y, the expected number of servers of class j that serve class i. Unused pairs are exactly zero.
    price : (..., J) array
        q, the value of one more server of class j; zero where servers stay idle, infinite only without any server.
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
    queue: ArrayLike, reward: ArrayLike, capacity: ArrayLike, V: ArrayLike, gamma: ArrayLike = 1.2, *,
    weight: ArrayLike = 1.0, limit: ArrayLike = np.inf, start: Allocation | None = None,
) -> Allocation:  # fmt: skip
    """Return the optimal expected allocation with a certificate.

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
    if start is None and (quick := _allocate_plain(queue, reward, capacity, V, gamma, weight, limit)):
        return quick
    # by position, in the order of the fields: keywords would take a twentieth of a small program's time
    given = Program(as_floats("queue", queue), as_floats("reward", reward), as_floats("capacity", capacity),
                    as_floats("V", V), as_floats("gamma", gamma), as_floats("weight", weight),
                    as_floats("limit", limit))  # fmt: skip
    if start is None and (quick := _allocate_plain(*given[:3], V, gamma, weight, limit)):  # lists are arrays now
        return quick
    batch, program = align(given)
    warm = None if start is None else _flattened(start, batch, program.reward.shape)
    try:
        y, q, residual, steps = _solve(program, warm)
    except BadInput:
        _explain(given)
    if not batch:
        return Allocation(y[0], q[0], float(residual[0]), steps)
    return Allocation(y.reshape(*batch, *y.shape[1:]), q.reshape(*batch, q.shape[1]), residual.reshape(batch), steps)


def allocate_batch(program: Program) -> Allocation:
    """Return the optimal allocations of a batch of B programs whose arrays have their full shapes; for policies.

    queue, weight, limit (B, I); reward (B, I, J); capacity (B, J); V, gamma (B,).
    """
    return Allocation(*_solve(program, None))


def _solve(program: Program, start: Allocation | None) -> tuple[Array, Array, Array, int]:
    y, q, residual = np.empty(program.reward.shape), np.empty(program.capacity.shape), np.empty(len(program.queue))
    y_last, q_last = (NO_ALLOCATION, NO_PRICE) if start is None else (start.expected, start.price)
    steps = _kernels().batch(*program, y_last, q_last, AIM, y, q, residual)
    if steps < 0:
        _explain(program)
    worst = max(residual.tolist(), default=0.0)
    if worst > TOLERANCE:
        raise NotSolved(
            f"allocation not certified: residual {worst:.1e} after {steps} steps; "
            "rescale queue / V or capacity so that they span fewer orders of magnitude"
        )
    return y, q, residual, steps


def _allocate_plain(
    queue: ArrayLike, reward: ArrayLike, capacity: ArrayLike, V: ArrayLike, gamma: ArrayLike, weight: ArrayLike,
    limit: ArrayLike,
) -> Allocation | None:  # fmt: skip
    """Return the answer if the arguments can go to the kernel as they are and it certifies: the fastest way; else None."""
    if not (
        type(V) is float and type(gamma) is float and type(weight) is float and weight == 1.0
        and type(limit) is float and limit == np.inf
        and type(queue) is np.ndarray and queue.ndim == 1 and queue.dtype is FLOAT and queue.flags.carray
        and type(reward) is np.ndarray and reward.ndim == 2 and reward.dtype is FLOAT and reward.flags.carray
        and type(capacity) is np.ndarray and capacity.ndim == 1 and capacity.dtype is FLOAT and capacity.flags.carray
    ):  # fmt: skip
        return None
    y, q, worst, steps = _kernels().plain(queue, reward, capacity, V, gamma, AIM)
    return Allocation(y, q, worst, steps) if worst <= TOLERANCE else None


class Kernels(NamedTuple):
    """The kernels for a program without weights, caps and start, and for a batch."""

    plain: Callable[[Array, Array, Array, float, float, float], tuple[Array, Array, float, int]]
    batch: Callable[[Array, Array, Array, Array, Array, Array, Array, Array, Array, float, Array, Array, Array], int]


@cache
def _kernels() -> Kernels:
    """Return the kernels; loaded when first needed, since they load the compiler, and once, since imports take time."""
    from bilinq.allocation.solve import solve_batch, solve_plain

    return Kernels(solve_plain, solve_batch)


def _flattened(start: Allocation, batch: tuple[int, ...], shape: tuple[int, ...]) -> Allocation:
    """Return the allocation to start from, with one leading axis."""
    if not isinstance(start, Allocation):
        raise BadInput(f"start must be an Allocation; got {short(start)}")
    if start.price.shape != (*batch, shape[2]):
        raise BadInput(f"start must have prices of shape {(*batch, shape[2])}; got {start.price.shape}")
    if start.expected.shape != (*batch, *shape[1:]):
        raise BadInput(f"start must have an allocation of shape {(*batch, *shape[1:])}; got {start.expected.shape}")
    y, q = start.expected.reshape(shape), start.price.reshape(shape[0], shape[2])
    return Allocation(np.ascontiguousarray(y), np.ascontiguousarray(q), start.residual, start.steps)


def _explain(given: Program) -> NoReturn:
    """Raise the error that names the argument that the kernel rejected."""
    queue, reward, capacity, V, gamma, weight, limit = given
    non_negative("queue", queue)
    non_negative("capacity", capacity)
    positive("V", V)
    require("gamma", gamma, lambda x: (x > 1.0) & np.isfinite(x), "above one and finite")
    positive("weight", weight)
    require("limit", limit, lambda x: x >= 0.0, "non-negative")
    require("reward", reward, np.isfinite, "finite")
    below = np.broadcast_to(reward, np.broadcast_shapes(reward.shape, (*gamma.shape, 1, 1)))
    shown = "its own gamma" if gamma.ndim else f"{gamma:g}"
    require("reward", below, lambda x: x < gamma[..., None, None], f"below gamma = {shown}")
    require("gamma - reward", gamma[..., None, None] - reward, np.isfinite, "finite")
    raise BadInput("weight * queue / V must be finite; it overflows")
