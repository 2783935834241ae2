"""The duration of a slot of a large service, inside its process: 100 x 20 classes, 10^5 waiting jobs."""

import asyncio
import tempfile
import time
from unittest.mock import patch

import numpy as np

from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.slots import Slots
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.wire.messages import JobClassInfo, NewJob, NewServer, ServerClassInfo, WorkFinish

JOBS, SERVERS, QUEUED, IDLE = 100, 20, 100_000, 200


def slot_seconds(slots: int = 50) -> tuple[list[float], list[float]]:
    """Return the seconds of slots, by CPU and by wall clock; in each slot `IDLE` servers get jobs."""
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = zip(*asyncio.run(_slots(f"sqlite:///{folder}/slots.db", slots)), strict=True)
    return list(cpu), list(wall)


async def _slots(database: str, slots: int) -> list[tuple[float, float]]:
    draw = np.random.default_rng(1)
    features = draw.uniform(0.0, 1.0, (JOBS + SERVERS, 4)).tolist()
    settings = ServiceSettings(
        database=database, work_conserving=True, slot=60.0,
        job_class=tuple(JobClassInfo(f"job{k}", features[k]) for k in range(JOBS)),
        server_class=tuple(ServerClassInfo(f"server{k}", features[JOBS + k]) for k in range(SERVERS)),
    )  # fmt: skip
    service = Service(settings, open_store(database))
    await service.start()
    try:
        for _ in range(QUEUED // 1000):
            await service.submit(LOCAL, [NewJob(f"job{k % JOBS}") for k in range(1000)])
        ids = [(await service.register(LOCAL, NewServer(f"server{k % SERVERS}"))).id for k in range(IDLE)]
        return [await _one(service, ids, draw.uniform(0.0, 1.0, IDLE).tolist()) for _ in range(slots)]
    finally:
        await service.stop()


async def _one(service: Service, ids: list[str], rewards: list[float]) -> tuple[float, float]:
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
    ends = [WorkFinish(lease.lease, lease.fence, value) for lease, value in zip(leases, rewards, strict=True)]
    await service.finish(LOCAL, ends)
    await service.submit(LOCAL, [NewJob(lease.job.job_class) for lease in leases])
    return spent[0], spent[1]
