"""Slots of large services, inside their process: how long they take, and how long the records of decisions are."""

import asyncio
import tempfile
import time
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from bilinq.arrays import Array
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.slots import Slots
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.wire.messages import JobClassInfo, NewJob, NewServer, ServerClassInfo, WorkFinish

WARM = 3  # slots before those that count; kernels are loaded meanwhile


class Size(NamedTuple):
    """Classes of both kinds, numbers of features, of classes and of single jobs, waiting jobs, and servers that are idle."""

    jobs: int
    servers: int
    waiting: int
    idle: int
    features: int = 4
    own: int = 0


class Spent(NamedTuple):
    """Seconds of slots by CPU and by wall clock, and the bytes of the longest record of a decision."""

    cpu: Array
    wall: Array
    record: int


def slot_seconds(size: Size, slots: int = 50) -> Spent:
    """Run a service with SQLite and return what its slots take; in each slot all idle servers get jobs."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_slots(f"sqlite:///{folder}/slots.db", size, slots))


async def _slots(database: str, size: Size, slots: int) -> Spent:
    draw = np.random.default_rng(1)
    features = draw.uniform(0.0, 1.0, (size.jobs + size.servers, size.features)).tolist()
    settings = ServiceSettings(
        database=database, work_conserving=True, slot=60.0, backlog=10**6, seed=1,
        job_class=tuple(JobClassInfo(f"job{k}", features[k]) for k in range(size.jobs)),
        server_class=tuple(ServerClassInfo(f"server{k}", features[size.jobs + k]) for k in range(size.servers)),
    )  # fmt: skip
    service = Service(settings, open_store(database))
    await service.start()
    try:
        names = [f"job{k % size.jobs}" for k in range(size.waiting)]
        for first in range(0, size.waiting, 1000):
            await service.submit(LOCAL, _new(names[first : first + 1000], size, draw))
        ids = [(await service.register(LOCAL, NewServer(f"server{k % size.servers}"))).id for k in range(size.idle)]
        spent = np.array([await _one(service, ids, size, draw) for _ in range(WARM + slots)])[WARM:]
        longest = "SELECT max(length(decision)) FROM lease"
        record = await service.replica.store.read(lambda tx: int(tx.rows(longest)[0][0]))  # ASCII
        return Spent(spent[:, 0], spent[:, 1], record)
    finally:
        await service.stop()


def _new(names: list[str], size: Size, draw: np.random.Generator) -> list[NewJob]:
    own = draw.normal(size=(len(names), size.own)).tolist() if size.own else [None] * len(names)
    return [NewJob(name, features=some) for name, some in zip(names, own, strict=True)]


async def _one(service: Service, ids: list[str], size: Size, draw: np.random.Generator) -> tuple[float, float]:
    """Run a slot, finish its leases, submit as many jobs again, and return the duration of the slot by both clocks."""
    spent: list[float] = []

    def timed() -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        Slots.run_slot(service.slots)
        spent.extend((time.thread_time() - cpu, time.perf_counter() - wall))

    with patch.object(service.slots, "run_slot", timed):
        leases = await service.lease(LOCAL, ids, 0.0)
    if len(leases) != len(ids):
        raise AssertionError(f"{len(ids)} servers were idle; {len(leases)} got a job")
    rewards = draw.uniform(0.0, 1.0, len(ids)).tolist()
    ends = [WorkFinish(lease.lease, lease.fence, value) for lease, value in zip(leases, rewards, strict=True)]
    await service.finish(LOCAL, ends)
    await service.submit(LOCAL, _new([lease.job.job_class for lease in leases], size, draw))
    return spent[0], spent[1]
