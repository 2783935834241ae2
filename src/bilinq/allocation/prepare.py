"""Kernels: from queues and rewards to the numbers of the program, with a look at each of them on the way, and solve it."""

import numpy as np

from bilinq.allocation.solve import solve_one
from bilinq.arrays import Array
from bilinq.jit import kernel

BAD = -1
"""In place of a number of steps: an argument breaks the rules."""


@kernel
def prepare(
    queue: Array,
    reward: Array,
    capacity: Array,
    V: float,
    gamma: float,
    weight: Array,
    limit: Array,
    a: Array,
    c: Array,
) -> bool:
    """Fill a_i = w_i Q_i / V and c_ij = gamma - r_ij; return whether every number obeys the rules."""
    bad = 0
    bad += not 0.0 < V < np.inf
    bad += not 1.0 < gamma < np.inf
    for j in range(capacity.size):
        bad += not 0.0 <= capacity[j] < np.inf
    for i in range(queue.size):
        a[i] = weight[i] * queue[i] / V
        bad += not (0.0 <= queue[i] < np.inf and 0.0 < weight[i] < np.inf and limit[i] >= 0.0)
        bad += not a[i] < np.inf
        for j in range(capacity.size):
            cost = gamma - reward[i, j]
            c[i, j] = cost
            bad += (cost <= 0.0) | (cost == np.inf) | (cost != cost)
    return bad == 0


@kernel
def solve_batch(
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
    """Fill y (B, I, J), q (B, J) and certificates r (B,) of a batch; return the steps it took, or `BAD`."""
    a = np.empty(queue.shape)
    c = np.empty(reward.shape)
    for b in range(queue.shape[0]):
        if not prepare(queue[b], reward[b], capacity[b], V[b], gamma[b], weight[b], limit[b], a[b], c[b]):
            return BAD
    nothing, no_price = np.empty((0, 0)), np.empty(0)
    cold = q_last.shape[0] == 0
    steps = 0
    for b in range(queue.shape[0]):
        y_near, q_near = (nothing, no_price) if cold else (y_last[b], q_last[b])
        more, r[b] = solve_one(a[b], c[b], capacity[b], limit[b], y_near, q_near, tol, y[b], q[b])
        steps += more
    return steps


@kernel
def solve_plain(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, tol: float
) -> tuple[Array, Array, float, int]:
    """Return y, q, certificate and steps, or `BAD`, of one program without weights, caps and start."""
    rows, columns = reward.shape
    y, q = np.empty((rows, columns)), np.empty(columns)
    if not rows or not columns or queue.size != rows or capacity.size != columns:
        return y, q, np.inf, BAD
    a, u = np.empty(rows), np.full(rows, np.inf)
    c = np.empty((rows, columns))
    if not prepare(queue, reward, capacity, V, gamma, np.ones(rows), u, a, c):
        return y, q, np.inf, BAD
    steps, r = solve_one(a, c, capacity, u, np.empty((0, 0)), np.empty(0), tol, y, q)
    return y, q, r, steps
