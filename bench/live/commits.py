"""How long operations of the store take on SQLite, with and without checkpoints: jobs from submission to end, with keys."""

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from unittest.mock import patch

import numpy as np

from bilinq.live.store import Store, Transaction, open_store
from bilinq.live.store import checkpoints as own
from bilinq.live.store import job_tables as tables

BEFORE, BATCH, OPEN = 50_000, 5, 100
"""Jobs in the database before, jobs in an operation, and jobs that are leased at a time."""
NEVER = 10**12


def seconds(
    rate: float, length: float, rounds: int, disk: Callable[[], AbstractContextManager[object]] = nullcontext
) -> tuple[list[float], list[float]]:
    """Return the seconds of operations with checkpoints and without, in turns; `rate` is in jobs each second.

    Both have the same arrivals, which differ between rounds: else a single burst decides the longest times. Within `disk()`
    SQLite may work on a slow disk.
    """
    gc.freeze()  # a collection of all that was imported takes longer than most operations
    with tempfile.TemporaryDirectory() as folder:
        url, ids, spent = f"sqlite:///{folder}/commits.db", count(1), (list[float](), list[float]())
        asyncio.run(_fill(url, ids))
        with disk():
            for seed in range(rounds):
                for found, every in zip(spent, (own.EVERY, NEVER), strict=True):
                    with patch.object(own, "EVERY", every):
                        found += asyncio.run(_load(url, ids, rate, length, seed))
    return spent


async def _fill(url: str, ids: "count[int]") -> None:
    store = open_store(url)
    await store.start()
    await store.write(lambda tx: tables.insert_jobs(tx, [_job(next(ids)) for _ in range(BEFORE)]))
    await store.stop()


async def _load(url: str, ids: "count[int]", rate: float, length: float, seed: int) -> list[float]:
    """Let operations come at random times, also while earlier ones wait."""
    store, spent, draw = open_store(url), list[float](), np.random.default_rng(seed)
    await store.start()
    tasks, leased, due = set[asyncio.Task[None]](), list[int](), time.perf_counter()
    end = due + length
    while due < end:
        due += draw.exponential(BATCH / rate)
        await asyncio.sleep(max(due - time.perf_counter(), 0.0))
        new = [next(ids) for _ in range(BATCH)]
        over, leased = (leased[:BATCH], leased[BATCH:]) if len(leased) >= OPEN else ([], leased)
        leased += new
        tasks.add(asyncio.create_task(_timed(store, new, over, due, spent)))
    await asyncio.gather(*tasks)
    await store.stop()
    return spent


async def _timed(store: Store, new: list[int], over: list[int], due: float, spent: list[float]) -> None:
    def operation(tx: Transaction) -> None:
        tables.insert_jobs(tx, [_job(id) for id in new])
        tables.grant_leases(tx, [_lease(id) for id in new])
        tables.end_leases(tx, [tables.LeaseEnd(id, "finished", 3.0, 0.5) for id in over])
        tables.end_jobs(tx, [tables.JobEnd(id, "done", 3.0, 0, 0, reward=0.5) for id in over])
        tables.add_observations(tx, [tables.ObservationRow(id, id, 0, 1, 1, 0.5) for id in over])

    await store.write(operation)
    spent.append(time.perf_counter() - due)


def _job(id: int) -> tables.JobRow:
    """Return a job whose key is at a random place of the index."""
    key = f"{id * 2_654_435_761 % 2**32:08x}"
    return tables.JobRow(id, "default", "job", "queued", key, "0" * 32, '{"prompt": "hello"}', 1, 1, 0, 1.0)


def _lease(id: int) -> tables.LeaseRow:
    return tables.LeaseRow(id, id, 1, 1, 1, 2.0, 32.0, decision="t" + "A" * 80)
