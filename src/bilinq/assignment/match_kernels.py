"""Kernels of the look-ahead: jobs matched with servers that are idle or free soon, Eq. (63)."""

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.jit import in_place_kernel, kernel

TIE = 1e-12  # costs that differ by less are equal up to rounding: jobs that came first then keep their places


@in_place_kernel
def open_places(
    idle: Array, ahead: Array, gap: Array, j: int, number: int, kind: IntArray, late: Array, room: IntArray, n: int
) -> int:
    """Add the next places of server class j, after `number` others, as group n; return how many there are.

    All places without delay are one group, then each release of a server is one; without releases there is none.
    """
    delay = number + ahead[j] - idle[j] + 1.0
    if delay > 0.0 and gap[j] == np.inf:
        return 0
    free = int(np.floor(-delay)) + 1 if delay <= 0.0 else 1
    kind[n], late[n], room[n] = j, 0.0 if delay <= 0.0 else delay * gap[j], free
    return free


@in_place_kernel
def reach(
    value: Array, now: Array, bend: Array, i: int, low: float, left: int, kind: IntArray, late: Array, room: IntArray,
    u: Array, v: Array, shortest: Array, path: IntArray, rest: IntArray,
) -> int:  # fmt: skip
    """Shorten the distances of the groups `rest[:left]` to which job i, at distance `low`, can move.

    Return where in `rest` the nearest group is, one with a free place if there are several; -1 if none can be reached.
    """
    best, lowest = -1, np.inf
    base, price, growth, worth = low - u[i], now[i], bend[i], value[i]
    for a in range(left):
        k = rest[a]
        t, known = late[k], shortest[k]
        length = base + (price + growth * t) * t - worth[kind[k]] - v[k]
        if length < known - TIE:
            shortest[k], path[k], known = length, i, length
        if known < lowest or (known == lowest < np.inf and room[k] > 0):
            best, lowest = a, known
    return best


@in_place_kernel
def search(
    value: Array, now: Array, bend: Array, new: int, n: int, kind: IntArray, late: Array, room: IntArray, owner: IntArray,
    place: IntArray, u: Array, v: Array, shortest: Array, path: IntArray, rest: IntArray,
) -> tuple[int, int]:  # fmt: skip
    """Return the group with a free place that is nearest to job `new`, -1 if there is none.

    Full groups that are nearer are `rest[left:]`; return `left` too. `owner` is the only job of a group with a delay.
    """
    for k in range(n):
        shortest[k], rest[k] = np.inf, k
    left = n
    a = reach(value, now, bend, new, 0.0, left, kind, late, room, u, v, shortest, path, rest)
    while a >= 0:
        k = rest[a]
        if room[k] > 0:
            return k, left
        left -= 1
        rest[a], rest[left] = rest[left], k
        low = shortest[k]
        if late[k] > 0.0:
            a = reach(value, now, bend, owner[k], low, left, kind, late, room, u, v, shortest, path, rest)
        else:
            for i in range(new):
                if place[i] == k:
                    a = reach(value, now, bend, i, low, left, kind, late, room, u, v, shortest, path, rest)
    return -1, left


@kernel
def match(
    value: Array, now: Array, bend: Array, idle: Array, ahead: Array, gap: Array, server: IntArray, delay: Array,
    toll: Array,
) -> float:  # fmt: skip
    """Fill `server` and `delay` (rows,) with the places that cost least together; return the residual of Eq. (64).

    Jobs enter one after the other. Each takes the cheapest place along a path of jobs that move (shortest augmenting
    paths). Equal places of a class are a group; groups of a class fill up in order, so only the first with a free place is
    looked at. `value` is minus infinity where a pair is not eligible; `server` is -1 for a job without a place. `toll`
    (rows, J) becomes what each server class costs each job: its waiting, and what others would pay for the place.
    """
    rows, J = value.shape
    size = rows + J
    kind, late, room, v = np.empty(size, np.int64), np.empty(size), np.empty(size, np.int64), np.zeros(size)
    shortest, indices = np.empty(size), np.empty((3, size), np.int64)
    path, rest, owner = indices[0], indices[1], indices[2]
    place, u, opened = np.full(rows, -1), np.zeros(rows), np.zeros(J, np.int64)
    n, unfilled = 0, 0
    for j in range(J):
        opened[j] = open_places(idle, ahead, gap, j, 0, kind, late, room, n)
        n, unfilled = n + min(opened[j], 1), unfilled + min(opened[j], 1)
    for new in range(rows):
        if unfilled == 0:
            break
        sink, left = search(value, now, bend, new, n, kind, late, room, owner, place, u, v, shortest, path, rest)
        if sink < 0:
            continue
        low = shortest[sink]
        u[new] += low
        for a in range(left, n):
            k = rest[a]
            v[k] -= low - shortest[k]
            if late[k] > 0.0:
                u[owner[k]] += low - shortest[k]
            else:
                for i in range(new):
                    if place[i] == k:
                        u[i] += low - shortest[k]
        room[sink] -= 1
        k = sink
        while k >= 0:
            i = owner[k] = path[k]
            k, place[i] = place[i], k
        if room[sink] == 0:
            j = kind[sink]
            free = open_places(idle, ahead, gap, j, opened[j], kind, late, room, n)
            opened[j] += free
            n, unfilled = n + min(free, 1), unfilled - 1 + min(free, 1)
    return settle(value, now, bend, n, kind, late, place, v, server, delay, toll)


@in_place_kernel
def settle(
    value: Array, now: Array, bend: Array, n: int, kind: IntArray, late: Array, place: IntArray, v: Array,
    server: IntArray, delay: Array, toll: Array,
) -> float:  # fmt: skip
    """Fill the answer of `match` from the places of jobs and the prices `v` of groups; return the residual."""
    rows, J = value.shape
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
            own = (now[i] + bend[i] * late[k]) * late[k] - v[k] - value[i, kind[k]]
            for j in range(J):
                worst = max(worst, own + value[i, j] - toll[i, j])
    return worst
