"""A service inside this process whose slots run only when a test asks for one."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.retention import Retention
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.wire.messages import JobClassInfo, NewJob, NewServer, ServerClassInfo, WorkFinish

CLASSES = {
    "job_class": (JobClassInfo("a", [1.0, 0.0]), JobClassInfo("b", [0.6, 0.8])),
    "server_class": (ServerClassInfo("x", [1.0, 0.1]),),
}


@asynccontextmanager
async def serving(database: str, **options: Any) -> AsyncIterator[Service]:
    """A service whose slots run only when a test asks for one."""
    chosen: dict[str, Any] = {"slot": 60.0, "work_conserving": True, "checkpoint_every": 3600.0, "seed": 1}
    chosen |= {"retry_first": 0.0, "retry_longest": 0.0, "pause_longest": 0.0} | CLASSES
    settings = ServiceSettings(database=database, **(chosen | options))
    service = Service(settings, open_store(database, timeout=settings.database_timeout))
    try:
        await service.start()
        yield service
    finally:
        await service.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60.0))


async def ready(service: Service) -> None:
    """Return when the service is ready."""
    async with asyncio.timeout(20.0):
        while not service.ready:
            await asyncio.sleep(0.01)


async def serve_job(service: Service, reward: float = 0.5) -> str:
    """Submit, lease and finish a job; return its id."""
    id = (await service.submit(LOCAL, [NewJob("a")])).jobs[0].id
    server = await service.register(LOCAL, NewServer("x", "s"))
    lease = (await service.lease(LOCAL, [server.id], 0.0))[0]
    await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, reward))
    return id


async def delete_after(service: Service, seconds: float) -> None:
    """Delete what is too old so many seconds from now."""
    wall, steady = time.time(), time.monotonic()
    await Retention(service.replica, wall, steady).delete(wall + seconds, steady + seconds)
