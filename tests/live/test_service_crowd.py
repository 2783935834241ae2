"""Many callers at once, who also hang up in the middle of a call: whatever meets, memory and database agree in the end."""

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import pytest
from slotless import run, serving

from bilinq.errors import BadInput, Refused
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.memory import Memory
from bilinq.live.store import Transaction
from bilinq.live.store.job_tables import active_leases, queued_jobs
from bilinq.live.wire.messages import Extend, JobClassInfo, Lease, NewJob, NewServer, SettingsUpdate, Work, WorkFinish

pytest_plugins = ("databases",)

CALLERS, CALLS = 24, 60
SERVERS = [f"s{k}" for k in range(1, 25)]


class Crowd:
    """Callers who share servers, leases and keys; `done` has the jobs whose end was acknowledged, and how often."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service, self.draw = service, random.Random(seed)
        self.held: list[Lease] = []
        self.known: list[str] = []
        self.done: Counter[str] = Counter()
        self.made: Counter[str] = Counter()

    async def caller(self) -> None:
        """Make calls, some of which are cancelled, and check memory after each."""
        actions = (self.submit, self.submit, self.lease, self.lease, self.work, self.finish, self.rare)
        for _ in range(CALLS):
            call = asyncio.ensure_future(self.draw.choice(actions)())
            if self.draw.random() < 0.2:
                asyncio.get_running_loop().call_later(self.draw.uniform(0.0, 0.01), call.cancel)
            with contextlib.suppress(Refused, BadInput, asyncio.CancelledError):
                await call
            self.made[type(call.exception()).__name__ if not call.cancelled() else "hung up"] += 1
            check(self.service.replica.memory)

    async def submit(self) -> None:
        keys = [self.draw.choice([None, None, f"k{self.draw.randrange(40)}"]) for _ in range(self.draw.randrange(1, 4))]
        told = await self.service.submit(LOCAL, [NewJob(self.draw.choice("ab"), key=key) for key in keys])
        self.known += [one.id for one in told.jobs]

    async def lease(self) -> None:
        some = self.draw.sample(SERVERS, self.draw.randrange(1, 4))
        self.held += await self.service.lease(LOCAL, some, self.draw.choice([0.0, 0.01]))

    async def finish(self) -> None:
        for end in self.ends(1):
            told = await self.service.finish_one(LOCAL, end)
            self.count(end, told.job, told.state, told.repeated)

    async def work(self) -> None:
        ends, some = self.ends(3), self.draw.sample(SERVERS, self.draw.randrange(0, 4))
        told = await self.service.work(LOCAL, Work(ends, some, self.draw.choice([0.0, 0.01])))
        self.held += told.leases
        for end, outcome in zip(ends, told.finished, strict=True):
            if outcome.refused is None:
                self.count(end, str(outcome.job), str(outcome.state), outcome.repeated)

    async def rare(self) -> None:
        service, some = self.service, self.draw.choice(SERVERS)
        what = self.draw.randrange(5)
        if what == 0:
            await service.update_settings(LOCAL, SettingsUpdate(weight={"a": self.draw.uniform(0.5, 2.0)}))
        elif what == 1:
            await service.put_class(LOCAL, JobClassInfo("b", [0.6, self.draw.random()]))
        elif what == 2 and self.known:
            await service.cancel(LOCAL, self.draw.choice(self.known))
        elif what == 3 and self.held:
            held = self.draw.choice(self.held)
            await service.extend(LOCAL, held.lease, Extend(held.fence))
        else:
            await service.register(LOCAL, NewServer("x", f"name {some}"))

    def ends(self, most: int) -> list[WorkFinish]:
        """Return ends of some leases, also of such as have ended or are being ended by another caller."""
        newest = self.held[-8:]
        some = self.draw.sample(newest, min(self.draw.randrange(1, most + 1), len(newest)))
        return [
            WorkFinish(one.lease, one.fence, 0.5, error="broke" if self.draw.random() < 0.1 else None) for one in some
        ]

    def count(self, end: WorkFinish, job: str, state: str, repeated: bool) -> None:
        if end.error is None and state == "done" and not repeated:
            self.done[job] += 1


def check(memory: Memory) -> None:
    """No server has two leases or waits beside one; counts are those of what they count."""
    held = Counter(lease.row.server for lease in memory.leases.values())
    assert all(many == 1 for many in held.values()), held
    for id, server in memory.servers.items():
        assert (server.lease is not None) == (id in held)
        assert server.poll is None or server.lease is None
    there = {id for some in memory.servers._there.values() for id in some}
    assert there == {id for id, server in memory.servers.items() if server.state != "away"}
    assert +memory.leased == Counter(memory.jobs[lease.row.job].job_class for lease in memory.leases.values())
    waiting = Counter(job.job_class for job in memory.jobs.values() if job.lease is None)
    assert +memory.queued == waiting
    assert memory.scheduler is not None
    assert {name: many for name, many in memory.scheduler.queue.items() if many} == waiting


@pytest.mark.parametrize("seed", range(3))
def test_memory_and_database_agree_whatever_meets(database_url: str, seed: int) -> None:
    async def work() -> None:
        async with serving(database_url, slot=0.005, max_attempts=1000) as service:
            for name in SERVERS:
                await service.register(LOCAL, NewServer("x", f"name {name}"))
            crowd = Crowd(service, seed)
            await asyncio.gather(*(crowd.caller() for _ in range(CALLERS)))
            memory = service.replica.memory  # read now: slots go on while the database is read
            queued = {id for id, job in memory.jobs.items() if job.lease is None}
            leased = {(lease.row.job, lease.row.id) for lease in memory.leases.values()}
            stored: Any = await service.replica.write(look)
            assert (stored["queued"], stored["leased"]) == (queued, leased)
            assert max(crowd.done.values()) == 1 and set(crowd.done) <= stored["done"]
            assert service.replica.meters.recoveries == 0
            assert min(crowd.made["hung up"], crowd.made["Conflict"] + crowd.made["Stale"], len(crowd.done)) > 50

    run(work())


def look(tx: Transaction) -> dict[str, Any]:
    """Return what the database has."""
    return {
        "queued": {row.id for row in queued_jobs(tx)},
        "leased": {(row.job, row.id) for row in active_leases(tx)},
        "done": {f"j{row[0]}" for row in tx.rows("SELECT id FROM job WHERE state = 'done'")},
    }
