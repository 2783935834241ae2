"""Kernels of the look-ahead: what each job is worth on each server class, less what its service costs."""

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import fast_kernel


@fast_kernel
def weigh(
    rows: IntArray, now: float, eta: float, tau: float, scale: float, crowding: Array, mean: Array, width: Array,
    log_time: Array, smear: float, farthest: float, known: Array, draw: Array, eligible: BoolArray, weight: Array,
    since: Array, urgency: Array, bend: Array, duration: Array, fee: Array, value: Array,
) -> None:  # fmt: skip
    """Fill the arguments of the program for `rows` (K,): Eq. (65) and (66); `value` is drawn, and less the `fee`.

    `urgency` and `bend` (K,) are the price of waiting and how fast it grows; `duration` and `fee` (K, J) the expected time
    of a service, Eq. (70), and what it costs. `value` is minus infinity where a pair is not eligible.
    """
    for a in range(rows.size):
        i = rows[a]
        urgency[a] = eta * weight[i] * (1.0 + (now - since[i]) / tau)
        bend[a] = 0.5 * eta * weight[i] / tau
        for j in range(draw.shape[1]):
            time = known[i, j]
            if np.isnan(time):
                time = min(max(np.exp(log_time[i, j]) * smear, tau / farthest), tau * farthest)
            duration[a, j] = time
            fee[a, j] = (urgency[a] + eta * crowding[j]) * time
            value[a, j] = mean[i, j] + scale * width[i, j] * draw[i, j] - fee[a, j] if eligible[i, j] else -np.inf
