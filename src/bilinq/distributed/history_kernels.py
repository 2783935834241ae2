"""Kernels: what was so many units of time ago, out of a history of values and slopes, by cubic Hermite interpolation.

A history is times (N,) with values and slopes (N, B, ...), of which the first `count` are filled. Before its first time
everything was as in its first entry. Where slopes jump there are two entries of one time, one for either side.
"""

import numpy as np

from bilinq.arrays import Array
from bilinq.compiled import inlined_kernel, kernel


@inlined_kernel
def place(times: Array, count: int, when: float) -> int:
    """Return the last entry that can start the interval of `when`."""
    found = int(np.searchsorted(times[:count], when, side="right")) - 1
    return min(max(found, 0), count - 2)


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
                    rise = value[k + 1, b, i, j] - value[k, b, i, j]
                    left = h * slope[k, b, i, j] - rise
                    right = rise - h * slope[k + 1, b, i, j]
                    out[b, i, j] = value[k, b, i, j] + x * (rise + (1.0 - x) * ((1.0 - x) * left + x * right))


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
                    rise = value[k + 1, b, node] - value[k, b, node]
                    left = h * slope[k, b, node] - rise
                    right = rise - h * slope[k + 1, b, node]
                    out[b, i, j] = value[k, b, node] + x * (rise + (1.0 - x) * ((1.0 - x) * left + x * right))
