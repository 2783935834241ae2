"""Kernels of the nodes: rates and sums at past times of a flow, and one round over all pairs."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bilinq.arrays import Array, IntArray
from bilinq.jit import fast_kernel, inlined_kernel, kernel

Places: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Indices without a sign, so that compiled code has no branch for negative ones."""

# Continuous time: values are recorded with their slopes at increasing times, and interpolated by cubics in between.


@inlined_kernel
def place(times: Array, count: int, when: float) -> int:
    """Return the last entry that can start the interval of `when`."""
    found = int(np.searchsorted(times[:count], when, side="right")) - 1
    return min(max(found, 0), count - 2)


@inlined_kernel
def cubic(x: float, h: float, first: float, last: float, first_slope: float, last_slope: float) -> float:
    """Return the Hermite cubic at part x of an interval of length h, from values and slopes at its two ends."""
    rise = last - first
    left = h * first_slope - rise
    right = rise - h * last_slope
    return first + x * (rise + (1.0 - x) * ((1.0 - x) * left + x * right))


@kernel
def rates_ago(
    times: Array, value: Array, slope: Array, count: int, now: float, ago: Array, present: Array, out: Array
) -> None:
    """Fill out (B, I, J) with the rates `ago` (B, I, J) before `now`; those of no delay are `present`."""
    for b in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                when = now - ago[b, i, j]
                if ago[b, i, j] == 0.0:
                    out[b, i, j] = present[b, i, j]
                elif when <= times[0] or count < 2:
                    out[b, i, j] = value[0, b, i, j]
                else:
                    k = place(times, count, when)
                    h = times[k + 1] - times[k]
                    x = (when - times[k]) / h if h > 0.0 else 0.0
                    out[b, i, j] = cubic(
                        x, h, value[k, b, i, j], value[k + 1, b, i, j], slope[k, b, i, j], slope[k + 1, b, i, j]
                    )


@kernel
def slopes_ago(
    times: Array, value: Array, slope: Array, count: int, now: float, ago: Array, before: bool, out: Array
) -> None:
    """Fill out (B, I, J) with the slopes of the rates `ago` (B, I, J) before `now`, or just `before` that."""
    for b in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                when = now - ago[b, i, j]
                if when < times[0] or (before and when == times[0]) or count < 2:
                    out[b, i, j] = 0.0
                    continue
                k = place(times, count, when)
                if times[k + 1] == times[k]:
                    out[b, i, j] = slope[k + 1, b, i, j]
                    continue
                h = times[k + 1] - times[k]
                x = (when - times[k]) / h
                mean = (value[k + 1, b, i, j] - value[k, b, i, j]) / h
                left = slope[k, b, i, j]
                right = slope[k + 1, b, i, j]
                out[b, i, j] = (
                    6.0 * x * (1.0 - x) * mean + (1.0 - x) * (1.0 - 3.0 * x) * left + x * (3.0 * x - 2.0) * right
                )


@kernel
def sums_ago(
    times: Array,
    value: Array,
    slope: Array,
    count: int,
    now: float,
    ago: Array,
    present: Array,
    by_job: bool,
    out: Array,
) -> None:
    """Fill out (B, I, J) with the sum of node j (of node i unless `by_job`) as it was `ago` (B, I, J) before `now`."""
    for b in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                node = j if by_job else i
                when = now - ago[b, i, j]
                if ago[b, i, j] == 0.0:
                    out[b, i, j] = present[b, node]
                elif when <= times[0] or count < 2:
                    out[b, i, j] = value[0, b, node]
                else:
                    k = place(times, count, when)
                    h = times[k + 1] - times[k]
                    x = (when - times[k]) / h if h > 0.0 else 0.0
                    out[b, i, j] = cubic(
                        x, h, value[k, b, node], value[k + 1, b, node], slope[k, b, node], slope[k + 1, b, node]
                    )


# Rounds: a message that takes d rounds is added to the slot of the round in which it arrives.


@fast_kernel
def advance(
    y: Array,
    late: Array,
    gain: Array,
    c: Array,
    own: Array,
    heard: Array,
    heard_from: np.uint64,
    hear_at: Places,
    far: Array,
    far_from: np.uint64,
    send_at: Places,
    near: Array,
    near_from: np.uint64,
    back_in: Places,
    known: Array,
    low: Array,
    high: float,
    delayed: bool,
    by_job: bool,
) -> None:
    """Replace y (R, K, L) by the next rates and send them; each pair has its own delays.

    own (R, K) is s_i / a_i of a job node or the price of a server node, `heard` the other of the two. The step is scaled
    by the rate, or by `late` (R, K, L) if `delayed`, clipped to [low, high]; low (R,). `known` (R, K) gets the sums that
    the nodes know in the next round.
    """
    rows, columns = y.shape[1:]
    lap = np.uint64(near.shape[2] // 2)
    for r in range(y.shape[0]):
        g = r if hear_at.shape[0] > 1 else 0
        least = low[r]
        for k in range(rows):
            own_k = own[r, k]
            for l in range(columns):
                answer = heard[r, heard_from + hear_at[g, k, l]]
                used = (answer + c[r, k, l]) * own_k if by_job else (own_k + c[r, k, l]) * answer
                old = y[r, k, l]
                scale = min(max(late[r, k, l] if delayed else old, least), high)
                new = max(old + gain[r, k, l] * scale * (1.0 - used), 0.0)
                y[r, k, l] = new
                far[r, far_from + send_at[g, k, l]] += new
                near[r, k, near_from + back_in[g, k, l]] += new
        for k in range(rows):
            known[r, k] = near[r, k, near_from] + near[r, k, near_from + lap]
            near[r, k, near_from] = 0.0
            near[r, k, near_from + lap] = 0.0


@fast_kernel
def advance_alike(
    y: Array,
    late: Array,
    gain: Array,
    c: Array,
    own: Array,
    heard: Array,
    far: Array,
    near: Array,
    low: Array,
    high: float,
    delayed: bool,
    by_job: bool,
) -> None:
    """Do the same as `advance` where all pairs have the same delays: heard and far are (R, L), near (R, K)."""
    rows, columns = y.shape[1:]
    for r in range(y.shape[0]):
        least = low[r]
        for k in range(rows):
            own_k = own[r, k]
            total = 0.0
            for l in range(columns):
                answer = heard[r, l]
                used = (answer + c[r, k, l]) * own_k if by_job else (own_k + c[r, k, l]) * answer
                old = y[r, k, l]
                scale = min(max(late[r, k, l] if delayed else old, least), high)
                new = max(old + gain[r, k, l] * scale * (1.0 - used), 0.0)
                y[r, k, l] = new
                far[r, l] += new
                total += new
            near[r, k] = total


@fast_kernel
def look_back(past: Array, now: int, lag: IntArray, late: Array) -> None:
    """Fill late (R, K, L) with the rates of `lag` (R or 1, K, L) rounds ago out of a ring past (N, R, K, L)."""
    depth = past.shape[0]
    for r in range(late.shape[0]):
        g = r if lag.shape[0] > 1 else 0
        for k in range(late.shape[1]):
            for l in range(late.shape[2]):
                late[r, k, l] = past[(now + depth - lag[g, k, l]) % depth, r, k, l]


@fast_kernel
def post(y: Array, far: Array, send: IntArray, near: Array, back: IntArray) -> None:
    """Fill the tables as if the rates y (R, K, L) had been sent in every round up to now, round 0.

    A message that takes d rounds fills the slots of rounds 0 to d; `send` and `back` (R or 1, K, L) are these delays.
    """
    columns = y.shape[2]
    for r in range(y.shape[0]):
        g = r if send.shape[0] > 1 else 0
        for k in range(y.shape[1]):
            for l in range(columns):
                for d in range(send[g, k, l] + 1):
                    far[r, d * columns + l] += y[r, k, l]
                for d in range(back[g, k, l] + 1):
                    near[r, k, d] += y[r, k, l]
