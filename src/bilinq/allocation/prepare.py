"""Kernels: from queues and rewards to the numbers of the program, with a look at each of them on the way, and solve it."""

import numpy as np

from bilinq.allocation.solve import solve_batch
from bilinq.arrays import Array
from bilinq.compiled import kernel


@kernel
def prepare(
    queue: Array,
    reward: Array,
    capacity: Array,
    V: Array,
    gamma: Array,
    weight: Array,
    limit: Array,
    a: Array,
    c: Array,
) -> bool:
    """Fill a_i = w_i Q_i / V and c_ij = gamma - r_ij of a batch; return whether every number obeys the rules."""
    bad = 0
    for b in range(queue.shape[0]):
        bad += not 0.0 < V[b] < np.inf
        bad += not 1.0 < gamma[b] < np.inf
        for j in range(capacity.shape[1]):
            bad += not 0.0 <= capacity[b, j] < np.inf
        for i in range(queue.shape[1]):
            a[b, i] = weight[b, i] * queue[b, i] / V[b]
            bad += not (0.0 <= queue[b, i] < np.inf and 0.0 < weight[b, i] < np.inf and limit[b, i] >= 0.0)
            bad += not a[b, i] < np.inf
            for j in range(capacity.shape[1]):
                cost = gamma[b] - reward[b, i, j]
                c[b, i, j] = cost
                bad += (cost <= 0.0) | (cost == np.inf) | (cost != cost)
    return bad == 0


@kernel
def prepare_and_solve(
    queue: Array,
    reward: Array,
    capacity: Array,
    V: Array,
    gamma: Array,
    weight: Array,
    limit: Array,
    y_last: Array,
    q_last: Array,
    tol: float,
    y: Array,
    q: Array,
    r: Array,
) -> int:
    """Fill y, q and r of a batch of programs and return the steps it took; -1 if a number breaks the rules."""
    a = np.empty(queue.shape)
    c = np.empty(reward.shape)
    if not prepare(queue, reward, capacity, V, gamma, weight, limit, a, c):
        return -1
    return solve_batch(a, c, capacity, limit, y_last, q_last, tol, y, q, r)
