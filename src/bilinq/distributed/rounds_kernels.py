"""Kernels: one round of the nodes' rules, Eq. (35) and (36), with integer delays, for a batch of R systems.

Row k is a node that computes its pairs: a job node, or a server node with everything transposed. Column l is a node of the
other kind. When a rate is known it is added to the sums that will be complete once it has arrived: `far` (R, 2 P L), sums
over rows at the other nodes, and `near` (R, K, 2 N), sums over columns that come back to the node itself. Slots wrap at P
and at N; the two halves of a table are two laps, so that no index needs a remainder. `heard` (R, 2 H L) holds what the
other nodes sent back, the same in both halves. Tables of indices have one leading axis of R or 1.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bilinq.arrays import Array, IntArray
from bilinq.compiled import fast_kernel

Places: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Indices without a sign, which the compiler need not check for one."""


@fast_kernel
def advance(
    y: Array,
    late: Array,
    gain: Array,
    c: Array,
    own: Array,
    heard: Array,
    heard_from: int,
    hear_at: Places,
    far: Array,
    far_from: int,
    send_at: Places,
    near: Array,
    near_from: int,
    back_in: Places,
    known: Array,
    low: Array,
    high: float,
    delayed: bool,
    by_job: bool,
) -> None:
    """Replace y (R, K, L) by the next rates and send them; pairs of any delays.

    own (R, K) is s_i / a_i of a job node or the price of a server node, `heard` the other of the two. The step is scaled
    by the rate, or by `late` (R, K, L) if `delayed`, clipped to [low, high]; low (R,). The sums of the next round that the
    nodes know, (R, K), are left in `known`.
    """
    rows, columns = y.shape[1:]
    lap = np.uint64(near.shape[2] // 2)
    for r in range(y.shape[0]):
        g = r if hear_at.shape[0] > 1 else 0
        least = low[r]
        for k in range(rows):
            mine = own[r, k]
            for l in range(columns):
                told = heard[r, heard_from + hear_at[g, k, l]]
                used = (told + c[r, k, l]) * mine if by_job else (mine + c[r, k, l]) * told
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
    """Do the same where all pairs have the same delays: heard and far are (R, L), near (R, K), for these delays."""
    rows, columns = y.shape[1:]
    for r in range(y.shape[0]):
        least = low[r]
        for k in range(rows):
            mine = own[r, k]
            total = 0.0
            for l in range(columns):
                told = heard[r, l]
                used = (told + c[r, k, l]) * mine if by_job else (mine + c[r, k, l]) * told
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

    What takes d rounds fills the slots of rounds 0 to d; `send` and `back` (R or 1, K, L) are these delays.
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
