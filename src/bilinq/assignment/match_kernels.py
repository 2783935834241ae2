"""Kernels of the look-ahead: jobs matched with servers that are idle or free soon, Eq. (63)."""

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import fast_kernel, inlined_kernel, kernel


@inlined_kernel
def place_cost(value: Array, now: Array, bend: Array, i: int, j: int, delay: float) -> float:
    """Return what it costs to serve job i on server class j after `delay`: less reward, and the price of waiting."""
    cost: float = (now[i] + bend[i] * delay) * delay - value[i, j]
    return cost


@kernel
def place_delay(idle: Array, ahead: Array, gap: Array, j: int, number: int) -> float:
    """Return the delay of place `number` (from zero) of server class j: zero if idle, then a `gap` for each release."""
    late = number + ahead[j] - idle[j] + 1.0
    return 0.0 if late <= 0.0 else late * gap[j]


@kernel
def match(
    value: Array, now: Array, bend: Array, idle: Array, ahead: Array, gap: Array, server: IntArray, delay: Array,
    toll: Array,
) -> float:  # fmt: skip
    """Fill `server` and `delay` (rows,) with the places that cost least together; return the residual of Eq. (64).

    Jobs enter one after the other. Each takes the cheapest place along a path of jobs that move (shortest augmenting
    paths). Places of a class fill up in order, so only the first free one of each class is looked at. `value` is minus
    infinity where a pair is not eligible; `server` is -1 for a job without a place. `toll` (rows, J) becomes what each
    server class costs each job: its waiting, and what others would pay for the place.
    """
    rows, J = value.shape
    size = rows + J
    owner, u, v = np.full(size, -1), np.zeros(rows), np.zeros(size)
    kind, late, filled = np.empty(size, np.int64), np.empty(size), np.zeros(J, np.int64)
    shortest, path, rest = np.empty(size), np.empty(size, np.int64), np.empty(size, np.int64)
    seen_row, seen_place, place = np.zeros(rows, np.bool_), np.zeros(size, np.bool_), np.full(rows, -1)
    for j in range(J):
        kind[j], late[j] = j, place_delay(idle, ahead, gap, j, 0)
    n = J
    for new in range(rows):
        sink, low = search(
            value, now, bend, new, n, kind, late, owner, u, v, shortest, path, rest, seen_row, seen_place
        )
        if sink < 0:
            continue
        u[new] += low
        for i in range(new):
            if seen_row[i]:
                u[i] += low - shortest[place[i]]
        for k in range(n):
            if seen_place[k]:
                v[k] -= low - shortest[k]
        j = kind[sink]
        filled[j] += 1
        kind[n], late[n] = j, place_delay(idle, ahead, gap, j, filled[j])
        n += 1
        k = sink
        while True:
            i = path[k]
            owner[k] = i
            k, place[i] = place[i], k
            if i == new:
                break
    worst = 0.0
    for i in range(rows):
        server[i], delay[i] = -1, np.inf
        for j in range(J):
            toll[i, j] = np.inf
        for k in range(n):
            toll[i, kind[k]] = min(toll[i, kind[k]], (now[i] + bend[i] * late[k]) * late[k] - v[k])
        if place[i] >= 0:
            k = place[i]
            server[i], delay[i] = kind[k], late[k]
            own = place_cost(value, now, bend, i, kind[k], late[k]) - v[k]
            for j in range(J):
                worst = max(worst, own + value[i, j] - toll[i, j])
    return worst


@kernel
def search(
    value: Array, now: Array, bend: Array, new: int, n: int, kind: IntArray, late: Array, owner: IntArray, u: Array,
    v: Array, shortest: Array, path: IntArray, rest: IntArray, seen_row: BoolArray, seen_place: BoolArray,
) -> tuple[int, float]:  # fmt: skip
    """Return the free place that is nearest to job `new`, and its distance; -1 if no place is eligible."""
    for k in range(n):
        shortest[k], seen_place[k], rest[k] = np.inf, False, k
    for i in range(new):
        seen_row[i] = False
    left, low, i = n, 0.0, new
    while True:
        if i != new:
            seen_row[i] = True
        best, lowest = -1, np.inf
        for a in range(left):
            k = rest[a]
            length = low + place_cost(value, now, bend, i, kind[k], late[k]) - u[i] - v[k]
            if length < shortest[k]:
                shortest[k], path[k] = length, i
            if shortest[k] < lowest or (shortest[k] == lowest < np.inf and owner[k] < 0):
                best, lowest = a, shortest[k]
        if best < 0:
            return -1, np.inf
        low, k = lowest, rest[best]
        seen_place[k] = True
        if owner[k] < 0:
            return k, low
        i = owner[k]
        left -= 1
        rest[best] = rest[left]


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
