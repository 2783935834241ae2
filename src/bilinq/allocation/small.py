"""Kernels: programs of at most `SMALL` pairs, nearly all of which are solved here.

Interior point steps are left out, since they take most of the time that it takes to compile the solver for all sizes. All
memory is taken once, and no references are counted: both take as long as the steps themselves.
"""

from typing import NamedTuple

import numpy as np

from bilinq.allocation.balance import balance
from bilinq.allocation.edges import place
from bilinq.allocation.finish import ambiguous, copy_flows, count_tight, fit, spread_ties
from bilinq.allocation.program import OVER, certify, price_absent, trim, unsaturated
from bilinq.allocation.start import (
    BAD,
    PATIENCE,
    bounds,
    level,
    prepare_batch,
    prepare_plain,
    restore,
    select,
    taking_part,
)
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import bare_kernel, kernel, part_kernel
from bilinq.linking import share

SMALL = 250  # pairs
UNFINISHED = np.inf  # the certificate where a program needs the steps that only the kernels for all sizes have
DONE, TIED, GAVE_UP = range(
    3
)  # how the steps ended: with an allocation, with prices at which rows have a choice, or not


class Room(NamedTuple):
    """Memory for a program: numbers, integers and marks. `parts` says what is where."""

    numbers: Array
    integers: IntArray
    marks: BoolArray


class Parts(NamedTuple):
    """The parts of a room for the rows and columns that take part; see `edges`, and `start` and `finish` for the others."""

    demand: Array
    cost: Array
    time: Array
    bound: Array
    price: Array
    held: Array
    edge: IntArray
    flow: Array
    node: IntArray
    value: Array
    inside: BoolArray
    width: IntArray
    group: IntArray
    idle: BoolArray


@kernel
def solve_small_batch(
    queue: Array, reward: Array, capacity: Array, V: Array, gamma: Array, weight: Array, limit: Array,
    eligible: BoolArray, duration: Array, q_last: Array, y: Array, q: Array, r: Array, gap: Array,
) -> int:  # fmt: skip
    """Do the same as `solve_batch`, but leave programs `UNFINISHED` that need another way."""
    no_time, no_price = np.empty((0, 0)), np.empty(0)
    good, a, c, m, u, f = prepare_batch(queue, reward, capacity, V, gamma, weight, limit, eligible, duration)
    if not good:
        return BAD
    steps, room = 0, room_for(*reward.shape[1:])
    for b in range(r.size):
        time = m[b] if m.size > 0 and (m[b] != 1.0).any() else no_time
        more, r[b], gap[b] = solve_small(
            a[b], c[b], time, capacity[b], u[b], q_last[b] if q_last.size > 0 else no_price, y[b], q[b], room
        )
        steps += more
    restore(f, m, y)
    return steps


@kernel
def solve_small_plain(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, y: Array, q: Array
) -> tuple[int, float, float]:
    """Do the same as `solve_plain`, but leave a program `UNFINISHED` that needs another way."""
    rows, columns = reward.shape
    room, rest = room_for(rows, columns), np.empty((columns + 2) * rows)
    a, u, c = rest[:rows], rest[rows : 2 * rows], rest[2 * rows :].reshape(rows, columns)
    if not prepare_plain(queue, reward, capacity, V, gamma, a, c, u, room.marks[:0]):
        return BAD, np.inf, np.inf
    return solve_small(a, c, c[:0], capacity, u, u[:0], y, q, room)


@kernel
def room_for(rows: int, columns: int) -> Room:
    """Return memory for a program."""
    nodes = rows + columns
    return Room(
        np.empty(11 * nodes + 1 + rows + 2 * rows * columns), np.empty(23 * nodes + 10, np.int64),
        np.empty(2 * nodes, np.bool_),
    )  # fmt: skip


@part_kernel
def parts(room: Room, rows: int, columns: int, timed: bool) -> Parts:
    """Return the parts of a room for so many rows and columns.

    It is compiled into its callers, since a function that counts no references must not return arrays to one that does.
    """
    nodes, pairs = rows + columns, rows * columns
    edges = 2 * nodes + 1
    numbers, integers = room.numbers, room.integers
    at, k = 7 * nodes, 10 * edges
    start = at + edges + rows
    times = pairs if timed else 0
    return Parts(
        demand=numbers[at + edges : start], cost=numbers[start : start + pairs].reshape(rows, columns),
        time=numbers[start + pairs : start + pairs + times].reshape(rows if timed else 0, columns),
        bound=numbers[:nodes], price=numbers[nodes : 2 * nodes], held=numbers[2 * nodes : 3 * nodes],
        edge=integers[: 6 * edges].reshape(6, edges), flow=numbers[at : at + edges],
        node=integers[6 * edges : k].reshape(4, edges), value=numbers[3 * nodes : at].reshape(4, nodes),
        inside=room.marks[:nodes], width=integers[k : k + rows], group=integers[k + nodes : k + 2 * nodes],
        idle=room.marks[nodes : 2 * nodes],
    )  # fmt: skip


@share
@kernel
def solve_small(
    a: Array, c: Array, m: Array, n: Array, u: Array, q_last: Array, y: Array, q: Array, room: Room
) -> tuple[int, float, float]:
    """Fill y (I, J) and prices q (J,) of a program; return its steps, the certificate and the duality gap."""
    end, steps, rows, columns = take_steps(a, c, m, n, u, q_last, y, q, room)
    if end == GAVE_UP:
        return 0, UNFINISHED, UNFINISHED
    if end == TIED:
        apply_tie_rule(rows, columns, c, m, y, room)
    return certified(a, c, m, n, u, y, q, room.numbers, steps)


@kernel
def apply_tie_rule(rows: int, columns: int, c: Array, m: Array, y: Array, room: Room) -> None:
    """Fill y (I, J) at the prices in a room, where rows have a choice."""
    p = parts(room, rows, columns, m.size > 0)
    cost, time = (c, m) if rows + columns == y.shape[0] + y.shape[1] else (p.cost, p.time)
    part = room.integers[room.integers.size - y.shape[0] - y.shape[1] :]
    some, others = part[:rows], part[y.shape[0] : y.shape[0] + columns]
    if not spread_ties(cost, time, p.bound, p.price, p.held, p.width, some, others, y):
        copy_flows(p.edge, p.flow, p.node, some, others, y)
    fit(time, p.bound, some, others, y)


@bare_kernel
def certified(
    a: Array, c: Array, m: Array, n: Array, u: Array, y: Array, q: Array, memory: Array, steps: int
) -> tuple[int, float, float]:
    """Return the steps, the certificate and the duality gap, and set the prices of columns without servers."""
    r, gap = certify(a, c, m, n, u, y, q, memory[: n.size], memory[n.size : 2 * n.size])
    price_absent(a, c, m, n, u, q)
    return steps, r, gap


@bare_kernel
def take_steps(
    a: Array, c: Array, m: Array, n: Array, u: Array, q_last: Array, y: Array, q: Array, room: Room
) -> tuple[int, int, int, int]:
    """Fill y and q, or q only if rows have a choice; return how it ended, the steps, and how many rows and columns count.

    Which these are is at the end of the integers of the room.
    """
    if unsaturated(a, c, m, n, u, y, q, room.numbers[: n.size]):
        trim(m, n, y, 2.0 * OVER)
        return DONE, 0, 0, 0
    for i in range(a.size):
        for j in range(n.size):
            y[i, j] = 0.0
    part = room.integers[room.integers.size - a.size - n.size :]
    size, some = taking_part(a, c, n, u, part[: a.size], part[a.size :])
    if size == 0:
        for j in range(n.size):
            q[j] = 0.0
        return DONE, 0, 0, 0
    rows, columns = part[:size], part[a.size : a.size + some]
    p = parts(room, size, some, m.size > 0)
    bounds(n, u, rows, columns, p.bound)
    if size + some < a.size + n.size:
        select(a, c, m, rows, columns, p.demand, p.cost, p.time)
        a, c, m = p.demand, p.cost, p.time
    warm = q_last.size > 0
    for j in range(some if warm else 0):
        p.price[size + j] = q_last[columns[j]]
        warm = warm and 0.0 <= q_last[columns[j]] < np.inf
    if not warm:
        first = level(a, c, m, p.bound, p.value[0], p.value[1])
        for j in range(some):
            p.price[size + j] = first
    budget = PATIENCE * (size + some) if not warm else 2 * (size + some)
    place(a, c, m, p.bound, p.price, p.held, p.edge, p.flow, p.node)
    steps = balance(a, c, m, p.bound, p.price, p.held, p.edge, p.flow, p.node, p.value, p.inside, budget)
    for j in range(n.size):
        q[j] = 0.0
    if steps > budget:
        return GAVE_UP, steps, size, some
    for j in range(some):
        q[columns[j]] = p.price[size + j]
    count_tight(c, m, p.price, p.width)
    if ambiguous(p.width, p.price, p.edge, p.flow, p.node, p.group, p.idle):
        return TIED, steps, size, some
    copy_flows(p.edge, p.flow, p.node, rows, columns, y)
    fit(m, p.bound, rows, columns, y)
    return DONE, steps, size, some
