"""The allocation program, Eq. (5): how much of each server class each job class gets in this slot."""

import numpy as np
from numpy import empty, ndarray  # by name: a small program notices the time of np.empty
from numpy.typing import ArrayLike

from bilinq.allocation.arguments import ALL_ELIGIBLE, EQUAL_DURATIONS, NO_LIMIT, ONE, Program, align, as_mask
from bilinq.allocation.batch import NO_PRICE, TOLERANCE, Allocation, explain, kernels, solve
from bilinq.arrays import Array, as_floats, short
from bilinq.errors import BadInput, NotSolved

FLOAT = np.dtype(np.float64)
new = tuple.__new__  # of a named tuple in half of the time
TALL = 8192  # rows from which a program is solved block by block, if it has at least as many rows as columns


def allocate(
    queue: ArrayLike, reward: ArrayLike | None, capacity: ArrayLike, V: ArrayLike, gamma: ArrayLike = 1.2, *,
    weight: ArrayLike | None = None, limit: ArrayLike | None = None, eligible: ArrayLike | None = None,
    duration: ArrayLike | None = None, job_features: ArrayLike | None = None, server_features: ArrayLike | None = None,
    theta: ArrayLike | None = None, start: Allocation | None = None, strict: bool = True,
) -> Allocation:  # fmt: skip
    """Return the optimal expected allocation with a certificate.

    Maximise sum_i w_i Q_i / V log s_i - sum_ij (gamma - r_ij) y_ij with s_i = sum_j y_ij, over the eligible pairs, subject
    to sum_i m_ij y_ij <= n_j and s_i <= limit_i. Where several allocations are optimal, each class is spread over its tied
    server classes in proportion to their capacity as far as capacities allow; see Eq. (10) in `docs/maths.md`.

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
        w, positive, 1 if not given; and a cap on each row sum, at least zero. All leading axes broadcast.
    eligible : (..., I, J) array of bool, optional
        Which pairs may be used. A class without an eligible server gets nothing.
    duration : (..., I, J) array, optional
        m, the server time of a service, positive, 1 if not given; within a row at most 1e9 times the shortest.
    job_features, server_features, theta : (I, d1), (J, d2) and (d1, d2) arrays, optional
        Rewards u_i' theta v_j, clipped to [-1, 1], with `reward=None`: no table is needed, and `expected` is sparse.
    start : Allocation, optional
        A solution of the same shape whose prices are a good start, such as the last slot's.
    strict : bool, optional
        Whether to raise an error if the answer cannot be certified. Otherwise `status` and `residual` tell.

    Raises
    ------
    BadInput
        If an argument breaks a rule.
    NotSolved
        If the residual stays above 1e-9, with `strict`.

    Examples
    --------
    >>> answer = allocate(queue=[3, 1], reward=[[0.2, 0.9], [0.5, 0.4]], capacity=[1, 1], V=10.0, gamma=1.2)
    >>> answer.expected.round(3).tolist()
    [[0.0, 1.0], [0.143, 0.0]]
    >>> answer.price.round(3).tolist()
    [0.0, 0.0]
    """
    by_features = not (job_features is server_features is theta is None)
    plain = weight is limit is eligible is duration is None and start is None and not by_features
    if plain and (quick := _allocate_plain(queue, reward, capacity, V, gamma)):
        return quick
    if by_features is not (reward is None):
        raise BadInput("reward must be None if features are given, and only then; got both or neither")
    given = Program(
        queue=as_floats("queue", queue), reward=as_floats("reward", 0.0 if reward is None else reward),
        capacity=as_floats("capacity", capacity), V=as_floats("V", V), gamma=as_floats("gamma", gamma),
        weight=ONE if weight is None else as_floats("weight", weight),
        limit=NO_LIMIT if limit is None else as_floats("limit", limit),
        eligible=ALL_ELIGIBLE if eligible is None else as_mask("eligible", eligible),
        duration=EQUAL_DURATIONS if duration is None else as_floats("duration", duration),
    )  # fmt: skip
    if by_features:
        from bilinq.allocation.rows import Features, solve_features

        if duration is not None:
            raise BadInput(f"duration must be None where rewards come from features; got {short(duration)}")
        features = Features.checked(job_features, server_features, theta)
        price = NO_PRICE if start is None else _prices(start, (), (1, len(features.job), len(features.server)))
        sparse = solve_features(given, features, price)
        if strict:
            _require_certificate(sparse)
        return sparse
    if plain and (quick := _allocate_plain(*given[:3], V, gamma)):  # lists are arrays now
        return quick
    batch, program = align(given)
    price = NO_PRICE if start is None else _prices(start, batch, program.reward.shape)
    rows, columns = program.reward.shape[1:]
    if not batch and rows >= max(TALL, columns) and program.duration is EQUAL_DURATIONS:
        from bilinq.allocation.rows import solve_table

        answer = solve_table(program, price) or explain(given)
    else:
        answer = solve(program, price, given)
    if strict:
        _require_certificate(answer)
    y, q, steps = answer.expected, answer.price, answer.steps
    residual, gap = np.reshape(answer.residual, batch), np.reshape(answer.gap, batch)
    if not batch:
        return Allocation(y[0], q[0], float(residual), steps, float(gap))
    return Allocation(y.reshape(*batch, *y.shape[1:]), q.reshape(*batch, q.shape[1]), residual, steps, gap)


def _require_certificate(answer: Allocation) -> None:
    if answer.status == "uncertified":
        raise NotSolved(
            f"allocation not certified: residual {np.max(answer.residual):.1e} (at most {TOLERANCE:g}), duality gap "
            f"{np.max(answer.gap):.1e}; strict=False returns this feasible answer"
        )


def _allocate_plain(
    queue: ArrayLike, reward: ArrayLike | None, capacity: ArrayLike, V: ArrayLike, gamma: ArrayLike
) -> Allocation | None:
    """Return the answer if the arguments can go to the kernel as they are and it certifies: the fastest way; else None."""
    if not (
        type(V) is float and type(gamma) is float
        and type(queue) is ndarray and queue.ndim == 1 and queue.dtype is FLOAT and queue.flags.carray
        and type(reward) is ndarray and reward.ndim == 2 and reward.dtype is FLOAT and reward.flags.carray
        and type(capacity) is ndarray and capacity.ndim == 1 and capacity.dtype is FLOAT and capacity.flags.carray
    ):  # fmt: skip
        return None
    known = kernels()
    if reward.size <= known.small:
        plain = known.small_plain
    elif queue.size < TALL:
        plain = known.plain
    else:
        return None
    y, q = empty(reward.shape), empty(capacity.shape)
    steps, worst, gap = plain(queue, reward, capacity, V, gamma, y, q)
    return new(Allocation, (y, q, worst, steps, gap)) if worst <= TOLERANCE else None


def _prices(start: Allocation, batch: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Return the prices to start from, with one leading axis."""
    if not isinstance(start, Allocation):
        raise BadInput(f"start must be an Allocation; got {short(start)}")
    if start.price.shape != (*batch, shape[2]):
        raise BadInput(f"start must have prices of shape {(*batch, shape[2])}; got {start.price.shape}")
    return np.ascontiguousarray(start.price.reshape(shape[0], shape[2]))
