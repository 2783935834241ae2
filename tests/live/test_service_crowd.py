"""Many callers at once, who also hang up in the middle of a call: whatever meets, memory and database agree in the end."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from typing import Any

import pytest
from learnt import from_log, learnt
from slotless import run, serving

from bilinq.errors import BadInput, Refused
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.bulk import JobFilter
from bilinq.live.service.memory import Memory
from bilinq.live.store import Transaction
from bilinq.live.store.admin_tables import list_audit
from bilinq.live.store.job_tables import active_leases, count_awaited, queued_jobs
from bilinq.live.wire.messages import (
    Extend,
    JobClassInfo,
    Lease,
    NewJob,
    NewReward,
    NewServer,
    SettingsUpdate,
    Work,
    WorkFinish,
)

pytest_plugins = ("databases",)

CALLERS, CALLS = 24, 50
SERVERS = [f"s{k}" for k in range(1, 25)]
TAGS = ["t1", "t2", "t3"]


class Crowd:
    """Callers and operators who share servers, leases, jobs and keys.

    `done` has the jobs whose end was acknowledged and how often, `rewarded` those whose reward was acknowledged as the
    first, `judged` the leases in the log of decisions as far as it was read, `cancelled` how many jobs bulk calls have
    cancelled, and `told` counts what operators were told.
    """

    def __init__(self, service: Service, seed: int) -> None:
        self.service, self.draw = service, random.Random(seed)
        self.held: list[Lease] = []
        self.known: list[str] = []
        self.dead: list[str] = []
        self.judged: list[str] = []
        self.cancelled: Counter[int] = Counter()
        self.done: Counter[str] = Counter()
        self.rewarded: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.told: Counter[str] = Counter()

    async def caller(self) -> None:
        """Make calls, some of which are cancelled, and check memory after each."""
        actions = (
            self.submit, self.submit, self.lease, self.lease, self.work, self.finish, self.rare, self.reward, self.operate
        )  # fmt: skip
        for _ in range(CALLS):
            call = asyncio.ensure_future(self.draw.choice(actions)())
            if self.draw.random() < 0.2:
                asyncio.get_running_loop().call_later(self.draw.uniform(0.0, 0.01), call.cancel)
            with contextlib.suppress(Refused, BadInput, asyncio.CancelledError):
                await call
            self.made[type(call.exception()).__name__ if not call.cancelled() else "hung up"] += 1
            check(self.service.replica.memory)

    async def submit(self) -> None:
        new = [self.draw.choice([self.keyed, self.tagged, self.tagged])() for _ in range(self.draw.randrange(1, 4))]
        told = await self.service.submit(LOCAL, new)
        self.known += [one.id for one in told.jobs]

    def keyed(self) -> NewJob:
        return NewJob(self.draw.choice("ab"), key=f"k{self.draw.randrange(40)}")

    def tagged(self) -> NewJob:
        """Return a job that bulk calls find, and that may be dead after one failure."""
        tags, attempts = self.draw.sample(TAGS, self.draw.randrange(3)), self.draw.choice([None, 1])
        return NewJob(self.draw.choice("ab"), tags=tags, max_attempts=attempts)

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

    async def reward(self) -> None:
        """Reward one of the jobs that ended last, or correct its reward, as others do at the same time."""
        if not self.done:
            return
        job, key = self.draw.choice(list(self.done)[-8:]), self.draw.choice([None, None, "r1", "r2"])
        told = await self.service.reward(LOCAL, job, NewReward(self.draw.choice([0.0, 0.25, 1.0]), key))
        self.rewarded[job] += not (told.repeated or told.corrected)
        self.told["corrected" if told.corrected else "rewarded"] += not told.repeated

    async def operate(self) -> None:
        """Make one of the calls of an operator."""
        await self.draw.choice([self.cancel_many, self.retry, self.hold, self.hold, self.explain, self.read_log])()

    async def cancel_many(self) -> None:
        wanted = self.draw.choice([{"tag": self.draw.choice(TAGS)}, {"state": "leased"}, {"job_class": "b"}])
        told = await self.service.cancel_jobs(LOCAL, JobFilter(**wanted, limit=3))
        self.cancelled.update([told.changed] if told.changed else [])

    async def retry(self) -> None:
        """Retry all dead jobs, or a single one."""
        if self.dead and self.draw.random() < 0.5:
            await self.service.retry(LOCAL, self.draw.choice(self.dead))
            self.told["retried"] += 1
        else:
            self.told["retried"] += (await self.service.retry_jobs(LOCAL, JobFilter())).changed

    async def hold(self) -> None:
        """Drain or quarantine a server, or release it."""
        how: Any = self.draw.choice(["draining", "quarantined", None, None, None])
        await self.service.hold(LOCAL, self.draw.choice(SERVERS), how)
        self.told["held"] += how is not None

    async def explain(self) -> None:
        if self.known:
            job = self.draw.choice(self.known[-20:])
            why = await self.service.decision(LOCAL, job)
            assert (why.job, why.chosen) == (job, "x") or why.lease is None
            self.told["explained"] += 1

    async def read_log(self) -> int:
        """Read on in the log of decisions, where no other caller has done so meanwhile; return how many there were."""
        after = self.judged[-1] if self.judged else None
        lines = (await self.service.decisions(LOCAL, after, 20)).splitlines()
        if after == (self.judged[-1] if self.judged else None):
            self.judged += [json.loads(line)["lease"] for line in lines]
        return len(lines)

    def ends(self, most: int) -> list[WorkFinish]:
        """Return ends of some leases, also of such as have ended or are being ended by another caller."""
        newest = self.held[-8:]
        some = self.draw.sample(newest, min(self.draw.randrange(1, most + 1), len(newest)))
        return [self.end(one) for one in some]

    def end(self, lease: Lease) -> WorkFinish:
        error = "broke" if self.draw.random() < 0.1 else None
        return WorkFinish(lease.lease, lease.fence, self.draw.choice([None, 0.5]), error=error)

    def count(self, end: WorkFinish, job: str, state: str, repeated: bool) -> None:
        if state == "dead":
            self.dead.append(job)
        if end.error is None and state == "done" and not repeated:
            self.done[job] += 1
            self.rewarded[job] += end.reward is not None


def check(memory: Memory) -> None:
    """No server has two leases, waits beside one or gets one while it is held; counts are those of what they count."""
    held = Counter(lease.row.server for lease in memory.leases.values())
    assert all(many == 1 for many in held.values()), held
    for id, server in memory.servers.items():
        assert (server.lease is not None) == (id in held)
        assert server.poll is None or server.lease is None
    there = {id for some in memory.servers._there.values() for id in some}
    assert there == {id for id, server in memory.servers.items() if server.state != "away"}
    idle = {id for some in memory.servers.idle().values() for id in some}
    assert idle == {id for id, one in memory.servers.items() if one.poll is not None and one.row.held is None}
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
            while await crowd.read_log():
                pass
            await service.replica.write(lambda tx: None)  # what callers did who hung up is done then
            memory = service.replica.memory  # read now: slots go on while the database is read
            kept, known = in_memory(memory), learnt(memory.scheduler)
            stored: Any = await service.replica.write(look)
            assert {name: stored[name] for name in kept} == kept
            assert known == await service.replica.write(lambda tx: from_log(tx, service.replica.settings))
            assert max(crowd.done.values()) == 1 and set(crowd.done) <= stored["done"]
            assert max(crowd.rewarded.values()) == 1 and crowd.cancelled <= stored["cancelled"]
            assert sorted(crowd.judged) == stored["judged"]
            assert service.replica.meters.recoveries == 0
            assert min(crowd.made["hung up"], crowd.made["Conflict"] + crowd.made["Stale"], len(crowd.done)) > 50
            happened = ("retried", "held", "explained", "rewarded", "corrected")
            assert min(crowd.told[name] for name in happened) > 5, crowd.told
            assert crowd.cancelled.total() > 5

    run(work())


def in_memory(memory: Memory) -> dict[str, Any]:
    """Return what memory has and the database must have too."""
    return {
        "queued": {id for id, job in memory.jobs.items() if job.lease is None},
        "leased": {(lease.row.job, lease.row.id) for lease in memory.leases.values()},
        "held": {id: server.row.held for id, server in memory.servers.items()},
        "counts": (memory.dead, memory.awaited, memory.counters["cancelled"]),
    }


def look(tx: Transaction) -> dict[str, Any]:
    """Return what the database has."""
    number: dict[str, int] = dict(tx.rows("SELECT state, count(*) FROM job GROUP BY state"))
    first = "failed = 1 OR (value IS NOT NULL AND before IS NULL)"
    return {
        "queued": {row.id for row in queued_jobs(tx)},
        "leased": {(row.job, row.id) for row in active_leases(tx)},
        "held": dict(tx.rows("SELECT id, held FROM server")),
        "counts": (number.get("dead", 0), sum(count_awaited(tx).values()), number.get("cancelled", 0)),
        "cancelled": Counter(
            int(one.detail.split()[0]) for one in list_audit(tx, 10**6, None) if one.what == "cancel jobs"
        ),
        "judged": sorted(f"l{row[0]}" for row in tx.rows(f"SELECT lease FROM observation WHERE {first}")),
        "done": {f"j{row[0]}" for row in tx.rows("SELECT id FROM job WHERE state = 'done'")},
    }
