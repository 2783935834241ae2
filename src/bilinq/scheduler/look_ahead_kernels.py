"""Kernels of the look-ahead: waiting jobs, what they are worth now, and which of them start.

`table` (R,) and `pairs` (R, J) are the arrays of the board with named fields, and `features` (R, d) those of its jobs.
"""

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.assignment.match_kernels import match
from bilinq.jit import fast_kernel, inlined_kernel, kernel
from bilinq.learning.pair_kernels import expect, standardise
from bilinq.learning.pair_model import Model
from bilinq.linking import share
from bilinq.scheduler.board import THERE, Records, Terms

BATCH = 64  # jobs that are matched together
FARTHEST = 100.0  # factor by which a predicted duration may differ from the mean
DURATIONS = 200.0  # services over which durations are averaged
STEP, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Odd numbers that spread the bits of `mix`."""


# Random numbers


@inlined_kernel
def mix(x: np.uint64) -> np.uint64:
    """Return a number in which every bit depends on all bits of x (the last step of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


@kernel
def normal(key: np.uint64, serial: int, j: int) -> float:
    """Return the standard normal number of a job on server class j: it depends on nothing else."""
    own = mix(key + np.uint64(serial) * STEP)
    a, b = mix(own + np.uint64(2 * j + 1) * STEP), mix(own + np.uint64(2 * j + 2) * STEP)
    u, v = (np.float64(a >> np.uint64(11)) + 0.5) * 2.0**-53, np.float64(b >> np.uint64(11)) * 2.0**-53
    drawn: float = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
    return drawn


@kernel
def draw(table: Records, pairs: Records, key: np.uint64, fixed: float) -> None:
    """Set the draws of all jobs: standard normal numbers, or a `fixed` one unless that is NaN."""
    for i in range(table.size):
        for j in range(pairs.shape[1]):
            pairs[i, j].draw = normal(key, table[i].serial, j) if np.isnan(fixed) else fixed


# Waiting jobs


@kernel
def place(
    table: Records, pairs: Records, features: Array, arrivals: Array, kind: IntArray, pool: IntArray, weight: Array,
    eligible: BoolArray, shared: Array, key: np.uint64, fixed: float,
) -> None:  # fmt: skip
    """Write new jobs to the board. `arrivals` (K, 7): row, claim, serial number, rank, when each was submitted and when
    it joined the queue, and whether it was counted as an arrival.

    A claim is what jobs of a class and a pool have in common: `kind`, `pool` and `weight` (C,) and `eligible` (C, J).
    `shared` (I, d) are the features of classes; jobs have none of their own, and no known durations or costs.
    """
    for a in range(len(arrivals)):
        i, c = int(arrivals[a, 0]), int(arrivals[a, 1])
        one = table[i]
        one.kind, one.pool, one.weight, one.used = kind[c], pool[c], weight[c], True
        one.serial, one.rank, one.since = int(arrivals[a, 2]), arrivals[a, 3], arrivals[a, 4]
        one.queued, one.counted = arrivals[a, 5], arrivals[a, 6] > 0.0
        for d in range(features.shape[1]):
            features[i, d] = shared[kind[c], d] if d < shared.shape[1] else np.nan
        for j in range(pairs.shape[1]):
            pair = pairs[i, j]
            pair.eligible, pair.known, pair.cost = eligible[c, j], np.nan, 0.0
            pair.value_stamp, pair.time_stamp = 0, 0
            pair.draw = normal(key, one.serial, j) if np.isnan(fixed) else fixed


@inlined_kernel
def servable(pairs: Records, i: int, present: Array) -> bool:
    """Tell whether a server class that is there may serve the job of row i; `present` (J,) are servers."""
    found = False
    for j in range(present.size):
        found = found or (present[j] >= THERE and pairs[i, j].eligible)
    return found


@kernel
def count_servable(table: Records, pairs: Records, present: Array) -> int:
    """Return how many waiting jobs a server class that is there may serve."""
    found = 0
    for i in range(table.size):
        found += table[i].used and servable(pairs, i, present)
    return found


@kernel
def survey(
    table: Records, pairs: Records, present: Array, now: float, before: float, target: float
) -> tuple[float, int, int, int]:
    """Return what the controller counts of jobs that a server class that is there may serve.

    That is how long they have waited since the time `before`, how many have just waited for `target`, how many are new, and
    how many there are. New ones are marked as counted.
    """
    waited, late, arrivals, number = 0.0, 0, 0, 0
    for i in range(table.size):
        one = table[i]
        if one.used and servable(pairs, i, present):
            age, more = now - one.since, now - max(one.queued, before)
            waited += more
            late += age - more <= target < age
            arrivals += not one.counted
            one.counted = True
            number += 1
    return waited, late, arrivals, number


@kernel
def waiting(table: Records, allowed: BoolArray, now: float, tau: float, rows: IntArray, keys: Array) -> int:
    """Fill the rows (R,) of waiting jobs and `keys` (2, R), by the last of which they come in order; return how many.

    The keys are ranks and minus the urgency. With `allowed` (by pool) that is not empty, only jobs of such pools.
    """
    n = 0
    for i in range(table.size):
        one = table[i]
        if one.used and (allowed.size == 0 or allowed[one.pool]):
            rows[n], keys[0, n], keys[1, n] = i, one.rank, -(one.weight * (tau + now - one.since))
            n += 1
    return n


@kernel
def eligible_jobs(pairs: Records, rows: IntArray, j: int, found: IntArray) -> int:
    """Fill the places in `rows` of jobs that server class j may serve; return how many there are."""
    n = 0
    for a in range(rows.size):
        if pairs[rows[a], j].eligible:
            found[n] = a
            n += 1
    return n


@kernel
def smallest(values: Array, k: int) -> float:
    """Return the value that would be at place k if `values` were sorted; reorders them (quickselect)."""
    low, high = 0, values.size - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return float(values[k])


@kernel
def first_jobs(rank: Array, late: Array, number: int, found: IntArray) -> None:
    """Fill the `number` jobs (of more) with the lowest `late`, by rank where it is equal, in any order."""
    values = late.copy()
    level = smallest(values, number - 1)
    less, tied = 0, 0
    for a in range(late.size):
        less += late[a] < level
        if late[a] == level:
            values[tied] = rank[a]
            tied += 1
    last, n = smallest(values[:tied], number - less - 1), 0
    for a in range(late.size):
        if n < number and (late[a] < level or (late[a] == level and rank[a] <= last)):
            found[n] = a
            n += 1


# Decisions


@share
@fast_kernel
def weigh(
    table: Records, pairs: Records, features: Array, rows: IntArray, value: Model, time: Model, terms: Terms,
    urgency: Array, bend: Array, duration: Array, fee: Array, worth: Array,
) -> None:  # fmt: skip
    """Fill the arguments of the program for `rows` (K,): Eq. (65) and (66); `worth` is drawn, Eq. (63), and less the `fee`.

    `urgency` and `bend` (K,) are the price of waiting and how fast it grows; `duration` and `fee` (K, J) the expected time
    of a service, Eq. (70), and what it costs. `worth` is minus infinity where a pair is not eligible. Predictions are
    renewed where a model has changed.
    """
    d = value.center.size
    x, z = np.empty(d), np.empty(d)
    for a in range(rows.size):
        i = rows[a]
        one = table[i]
        urgency[a] = terms.eta * one.weight * (1.0 + (terms.now - one.since) / terms.tau)
        bend[a] = 0.5 * terms.eta * one.weight / terms.tau
        standardise(features[i], value.center, value.scale, value.squares, x)
        for j in range(pairs.shape[1]):
            pair = pairs[i, j]
            if pair.value_stamp != value.version[j]:
                pair.value, pair.value_width = expect(value, x, one.kind, j, z)
                pair.value_stamp = value.version[j]
            if pair.time_stamp != time.version[j]:
                pair.time, pair.time_width = expect(time, x, one.kind, j, z)
                pair.time_stamp = time.version[j]
            lasts = pair.known
            if np.isnan(lasts):
                lasts = min(max(np.exp(pair.time) * terms.smear, terms.tau / FARTHEST), terms.tau * FARTHEST)
            duration[a, j] = lasts
            fee[a, j] = (urgency[a] + terms.eta * terms.crowding[j]) * lasts + pair.cost
            variance = pair.value_width**2
            spread = pair.value_width * max(terms.scale, variance / (variance + value.noise))
            drawn = pair.value + spread * pair.draw
            worth[a, j] = drawn - fee[a, j] if pair.eligible else -np.inf


@kernel
def weigh_jobs(
    table: Records, pairs: Records, features: Array, rows: IntArray, value: Model, time: Model, terms: Terms,
    urgency: Array, bend: Array, duration: Array, fee: Array, worth: Array,
) -> None:  # fmt: skip
    """Do the same as `weigh`, for calls from Python."""
    weigh(table, pairs, features, rows, value, time, terms, urgency, bend, duration, fee, worth)


@kernel
def choose(
    table: Records, pairs: Records, features: Array, rows: IntArray, value: Model, time: Model, terms: Terms, gap: Array,
    idle: Array, ahead: Array, row: IntArray, column: IntArray, numbers: Array,
) -> int:  # fmt: skip
    """Match `rows`, the most urgent first, with places, batch by batch; return how many jobs start now.

    Fill `row` and `column` (S,) with them, and `numbers` (S, 5, J) with what decides: value, its standard error, duration,
    fee and toll. `ahead` (J,) becomes the number of jobs that wait for each server class, `idle` (J,) what is left.
    """
    J, found = idle.size, 0
    most = min(rows.size, BATCH)
    urgency, bend, delay, server = np.empty(most), np.empty(most), np.empty(most), np.empty(most, np.int64)
    duration, fee, worth, toll = np.empty((most, J)), np.empty((most, J)), np.empty((most, J)), np.empty((most, J))
    for first in range(0, rows.size, BATCH):
        some = rows[first : first + BATCH]
        K = some.size
        weigh(table, pairs, features, some, value, time, terms, urgency, bend, duration, fee, worth)
        match(worth[:K], urgency[:K], bend[:K], idle, ahead, gap, server[:K], delay[:K], toll[:K])
        for a in range(K):
            j = server[a]
            if j < 0 or delay[a] > 0.0:
                continue
            row[found], column[found] = some[a], j
            for h in range(J):
                pair = pairs[some[a], h]
                numbers[found, 0, h], numbers[found, 1, h] = pair.value, pair.value_width
                numbers[found, 2, h], numbers[found, 3, h] = duration[a, h], fee[a, h]
                numbers[found, 4, h] = toll[a, h] if pair.eligible else np.inf
            found += 1
        for a in range(K):
            j = server[a]
            if j >= 0 and delay[a] > 0.0:
                ahead[j] += 1.0
            elif j >= 0:
                idle[j] -= 1.0
        if not idle.any():
            break
    return found


# What is learnt beside the models


@kernel
def note_features(features: Array, reward: Array, first: int, moments: Array) -> int:
    """Follow mean and spread of the features (n, d) of services with a reward, beginning with number `first`.

    Stop where the number of those of the class (the first), or of jobs' own (the last), is a power of two from 8 on, and
    return which service that was; n if there is none.
    """
    n, d = len(reward), features.shape[1]
    for k in range(first, n):
        if np.isnan(reward[k]):
            continue
        for h in range(d):
            if not np.isnan(features[k, h]):
                moments[0, h] += 1.0
                away = features[k, h] - moments[1, h]
                moments[1, h] += away / moments[0, h]
                moments[2, h] += away * (features[k, h] - moments[1, h])
        for h in range(0, d, max(d - 1, 1)):
            seen = int(moments[0, h])
            if seen >= 8 and not seen & (seen - 1) and not np.isnan(features[k, h]):
                return k
    return n


@kernel
def note_durations(
    duration: Array, log_duration: Array, error: Array, column: IntArray, smear: Array, class_time: Array,
    mean_time: float, timed: float,
) -> tuple[float, float]:  # fmt: skip
    """Follow durations (n,), those of each server class, and their predictions, which were off by `error` (n,).

    A duration counts at most as `FARTHEST` times what is usual so far: a single service that hung changes little.
    Return the mean duration and how many services it is the mean of.
    """
    for k in range(duration.size):
        if np.isnan(duration[k]):
            continue
        took, j = duration[k], column[k]
        if timed > 0.0:
            took = min(took, FARTHEST * max(mean_time, class_time[j]))
        smear[0] = (1.0 - 1.0 / DURATIONS) * smear[0] + took
        smear[1] = (1.0 - 1.0 / DURATIONS) * smear[1] + np.exp(log_duration[k] - error[k])
        timed = min(timed + 1.0, DURATIONS)
        mean_time += (took - mean_time) / timed
        class_time[j] += (took - class_time[j]) / min(timed, DURATIONS / 4.0)
    return mean_time, timed
