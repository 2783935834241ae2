"""The most urgent jobs of a board, against a sort of all of them, and boards that grow."""

from typing import Any

import numpy as np
import pytest

from bilinq import JobClass, Scheduler, ServerClass
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.scheduler.board import PAIR, ROW, TOGETHER, Records
from bilinq.scheduler.window import LEAST, MORE, WINDOW, window


def board(rng: np.random.Generator, size: int, J: int, ties: bool) -> tuple[Records, Records]:
    """Return random waiting jobs in a random order of rows, one row in ten not in use; with ties most are as urgent."""
    table, pairs = np.zeros(size, ROW), np.zeros((size, J), PAIR)
    table["used"], table["rank"] = rng.random(size) < 0.9, rng.permutation(size)
    table["since"] = -rng.integers(3, size=size) if ties else -rng.exponential(1.0, size)
    table["weight"], table["pool"] = 1.0 if ties else rng.uniform(0.5, 2.0, size), rng.integers(3, size=size)
    pairs["eligible"] = rng.random((size, J)) < rng.choice([0.02, 0.5, 1.0], J)
    return table, pairs


def sorted_rows(table: Records, pairs: Records, allowed: BoolArray, idle: Array) -> IntArray:
    """Return what `window` should, at time 2 and with a mean duration of 1, by a sort of all rows."""
    used = table["used"] & (allowed[table["pool"]] if allowed.size else True)
    rows = np.flatnonzero(used)
    urgency = table["weight"][rows] * (3.0 - table["since"][rows])
    rows = rows[np.lexsort((table["rank"][rows], -urgency))]
    if rows.size <= WINDOW:
        return rows
    kept = np.zeros(rows.size, np.bool_)
    for j in np.flatnonzero(idle):
        kept[np.flatnonzero(pairs["eligible"][rows, j])[: LEAST + MORE * int(idle.sum())]] = True
    return rows[kept]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("size", [0, 5, 256, 300, 3000])
def test_window_is_that_of_a_full_sort(size: int, ties: bool) -> None:
    for seed in range(10):
        rng = np.random.default_rng((size, seed))
        table, pairs = board(rng, size, 4, ties)
        idle = rng.integers(0, 30, 4).astype(np.float64)
        idle[rng.integers(4)] += 1.0
        for allowed in (np.zeros(0, np.bool_), np.array([True, False, True])):
            found = window(table, pairs, allowed, idle, 2.0, 1.0)
            np.testing.assert_array_equal(found, sorted_rows(table, pairs, allowed, idle), str(seed))


def starts(one: Scheduler, number: int, idle: int) -> list[Any]:
    """Return all jobs in the order in which they start, if so many servers are idle in each slot."""
    found: list[Any] = []
    while len(found) < number:
        found += [task.job for task in one.assign({"s": idle})]
    return found


def test_jobs_of_a_crowd_start_in_their_order() -> None:
    """More than are written to the board together, in one slot; some are ahead of the others."""
    number = 2 * TOGETHER + 30
    one = Scheduler([JobClass("a")], [ServerClass("s")], work_conserving=True)
    for k in range(number):
        one.submit("a", job=k)
    assert one.queue == {"a": number}
    for k in range(3):
        one.submit("a", job=f"ahead {k}", ahead=True)
    wanted = ["ahead 2", "ahead 1", "ahead 0", *range(number)]
    assert starts(one, number + 3, 40) == wanted


def test_a_job_that_leaves_before_the_first_slot_leaves_no_trace() -> None:
    one = Scheduler([JobClass("a")], [ServerClass("s")], work_conserving=True)
    for k in range(5):
        one.submit("a", job=k, features=[float(k)] if k % 2 else None)
    one.cancel(0)
    one.cancel(3)
    assert one.queue == {"a": 3} and sorted(starts(one, 3, 2)) == [1, 2, 4]


def test_no_server_of_many_classes_idles_while_jobs_wait() -> None:
    """Classes may take the same jobs, so as many are looked at as all of them can serve."""
    names = [f"s{j}" for j in range(20)]
    one = Scheduler([JobClass("a")], [ServerClass(name) for name in names], work_conserving=True)
    for k in range(2000):
        one.submit("a", job=k)
    assert len(one.assign(dict.fromkeys(names, 10))) == 200
