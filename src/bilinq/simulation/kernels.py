"""Kernels of the simulator: jobs arrive, are served and leave. Replications are the first axis.

A job occupies a place of a table until it leaves. For place k of replication r, `job` (fields, R, places) keeps the class,
its rank among the members of the class, the slot of arrival, the slot of the first service (-1 before), and the units
left. `member` (R, I, ranks) lists the places of each class. `spare` (R, places) is a stack of free places.
"""

import numpy as np
from numpy.typing import NDArray

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import kernel

CLASS, RANK, ARRIVED, FIRST, UNITS = range(5)
FAULTS = (
    "sound",
    "finite and non-negative",
    "within the capacity of every server class",
    "zero where no job waits",
    "zero where the server class may not serve the job class",
)
"""The faults that `earn` reports, by number."""


@kernel
def crowd(queue: IntArray, start: IntArray, b: int) -> tuple[int, int]:
    """Return the most members of a class and the most jobs in total that there can be after slot `b` of a block."""
    most = 0
    total = 0
    for r in range(queue.shape[0]):
        new = start[r, b + 1] - start[r, b]
        jobs = new
        for i in range(queue.shape[1]):
            most = max(most, queue[r, i] + new)
            jobs += queue[r, i]
        total = max(total, jobs)
    return most, total


@kernel
def arrive(
    slot: int, start: IntArray, job_class: IntArray, units: IntArray, b: int, job: IntArray, member: IntArray,
    spare: IntArray, n_spare: IntArray, queue: IntArray,
) -> None:  # fmt: skip
    """Add the jobs of slot `b` of a block."""
    for r in range(queue.shape[0]):
        for g in range(start[r, b], start[r, b + 1]):
            i = job_class[r, g]
            n_spare[r] -= 1
            k = spare[r, n_spare[r]]
            job[CLASS, r, k] = i
            job[RANK, r, k] = queue[r, i]
            job[ARRIVED, r, k] = slot
            job[FIRST, r, k] = -1
            job[UNITS, r, k] = units[r, g]
            member[r, i, queue[r, i]] = k
            queue[r, i] += 1


@kernel
def waiting_jobs(job: IntArray, member: IntArray, queue: IntArray, out: Array) -> None:
    """Fill `out` (R, places) with one where a job waits and zero elsewhere."""
    for r in range(queue.shape[0]):
        for k in range(out.shape[1]):
            out[r, k] = 0.0
        for i in range(queue.shape[1]):
            for g in range(queue[r, i]):
                out[r, member[r, i, g]] = 1.0


@kernel
def units_left(job: IntArray, member: IntArray, queue: IntArray, by_job: bool, out: Array) -> None:
    """Fill the units of waiting jobs: of each class, `out` (R, I), or of each job's place, `out` (R, places)."""
    out[:] = 0.0
    for r in range(queue.shape[0]):
        for i in range(queue.shape[1]):
            for g in range(queue[r, i]):
                k = member[r, i, g]
                out[r, k if by_job else i] += job[UNITS, r, k]


@kernel
def earn(
    y: Array, mean: Array, eligible: BoolArray, job: IntArray, by_job: bool, waiting: Array, capacity: Array, out: Array
) -> int:
    """Fill the expected reward sum_ij r_ij y_ij (R,) of this slot; return the number of the fault in y, or zero.

    `eligible` is (R, I, J), or empty if every pair is.
    """
    load = np.empty(y.shape[2])
    masked = eligible.size > 0
    for r in range(y.shape[0]):
        total = 0.0
        load[:] = 0.0
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                if y[r, i, j] > 0.0:
                    row = job[CLASS, r, i] if by_job else i
                    total += mean[r, row, j] * y[r, i, j]
                    load[j] += y[r, i, j]
                    if waiting[r, i] == 0.0:
                        return 3
                    if masked and not eligible[r, row, j]:
                        return 4
                elif y[r, i, j] != 0.0:
                    return 1
        for j in range(y.shape[2]):
            if not load[j] <= capacity[r, j] * (1.0 + 1e-9):
                return 2
        out[r] = total
    return 0


@kernel
def count_picks(picks: IntArray, services: IntArray) -> int:
    """Write the number of services of each replication to `services` (R,) and return the largest."""
    most = 0
    for r in range(picks.shape[0]):
        total = 0
        for i in range(picks.shape[1]):
            for j in range(picks.shape[2]):
                total += picks[r, i, j]
        services[r] = total
        most = max(most, total)
    return most


@kernel
def serve(
    slot: int, picks: IntArray, by_job: bool, distinct: bool, geometric: bool, mean: Array, noise: Array,
    mu: Array, job: IntArray, member: IntArray, queue: IntArray, uniform: Array, cursor: IntArray,
    normal: Array, normal_cursor: IntArray, total: Array, squares: Array, observed: Array, done: IntArray,
) -> tuple[int, int]:  # fmt: skip
    """Serve `picks` (R, rows, J): choose jobs, draw rewards and completions; return the furthest cursors.

    Fills the sums of rewards and of their squares, the observed reward (R,), and marks places whose job is complete in
    `done` (R, 1 + places): their number, then the places. Completion rates mu are (R, I, J).
    """
    for r in range(picks.shape[0]):
        at = cursor[r]
        gone = 0
        observed[r] = 0.0
        for row in range(picks.shape[1]):
            served = 0
            for j in range(picks.shape[2]):
                total[r, row, j] = 0.0
                squares[r, row, j] = 0.0
                for _ in range(picks[r, row, j]):
                    if by_job:
                        k = row
                    elif distinct and not geometric:
                        k = choose_unit(job, member, queue, r, row, uniform[r, at])
                        at += 1
                    else:
                        k = choose(job, member, queue, r, row, served if distinct else -1, uniform[r, at])
                        at += 1
                    served += 1
                    i = job[CLASS, r, k]
                    reward = mean[r, i, j] + noise[r, i, j] * normal[r, normal_cursor[r]]
                    normal_cursor[r] += 1
                    total[r, row, j] += reward
                    squares[r, row, j] += reward * reward
                    observed[r] += reward
                    if job[FIRST, r, k] < 0:
                        job[FIRST, r, k] = slot
                    if job[UNITS, r, k] <= 0:
                        continue
                    if geometric:
                        complete = uniform[r, at] < mu[r, i, j]
                        at += 1
                        job[UNITS, r, k] = 0 if complete else job[UNITS, r, k]
                    else:
                        job[UNITS, r, k] -= 1
                    if job[UNITS, r, k] == 0:
                        gone += 1
                        done[r, gone] = k
        done[r, 0] = gone
        cursor[r] = at
    return int(cursor.max()), int(normal_cursor.max())


@kernel
def choose(job: IntArray, member: IntArray, queue: IntArray, r: int, i: int, served: int, u: float) -> int:
    """Return the place of a job of class i, chosen by the uniform number `u`.

    With `served` >= 0 the first `served` members were chosen before; the new one is moved behind them.
    """
    low = max(served, 0)
    rank = low + min(np.int64(u * (queue[r, i] - low)), queue[r, i] - low - 1)
    if served < 0:
        return int(member[r, i, rank])
    swap(job, member, r, i, rank, served)
    return int(member[r, i, served])


@kernel
def choose_unit(job: IntArray, member: IntArray, queue: IntArray, r: int, i: int, u: float) -> int:
    """Return the place of the job of class i to which a unit belongs that is chosen by the uniform number `u`."""
    left = 0
    for g in range(queue[r, i]):
        left += job[UNITS, r, member[r, i, g]]
    rank = min(np.int64(u * left), left - 1)
    g = 0
    while rank >= job[UNITS, r, member[r, i, g]]:
        rank -= job[UNITS, r, member[r, i, g]]
        g += 1
    return int(member[r, i, g])


@kernel
def swap(job: IntArray, member: IntArray, r: int, i: int, one: int, other: int) -> None:
    """Exchange two ranks within a class."""
    a = member[r, i, one]
    b = member[r, i, other]
    member[r, i, one] = b
    member[r, i, other] = a
    job[RANK, r, b] = one
    job[RANK, r, a] = other


@kernel
def leave(
    slot: int, done: IntArray, job: IntArray, member: IntArray, spare: IntArray, n_spare: IntArray,
    queue: IntArray, left: BoolArray, by_job: bool, log: NDArray[np.int32], n_log: IntArray,
) -> int:  # fmt: skip
    """Remove the jobs in `done`; log class, arrival, first service and departure; return the length of the longest log."""
    for r in range(queue.shape[0]):
        for g in range(1, done[r, 0] + 1):
            k = done[r, g]
            i = job[CLASS, r, k]
            queue[r, i] -= 1
            swap(job, member, r, i, job[RANK, r, k], queue[r, i])
            spare[r, n_spare[r]] = k
            n_spare[r] += 1
            if by_job:
                left[r, k] = True
            if log.shape[2] > 0:
                log[r, 0, n_log[r]] = i
                log[r, 1, n_log[r]] = job[ARRIVED, r, k]
                log[r, 2, n_log[r]] = job[FIRST, r, k]
                log[r, 3, n_log[r]] = slot
                n_log[r] += 1
    return int(n_log.max())
