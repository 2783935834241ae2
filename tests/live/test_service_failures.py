"""Servers that fail: pauses, retries elsewhere, and operators who hold servers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from databases import stored
from learnt import from_log, learnt
from slotless import run, serving

from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.store.job_tables import observations_since
from bilinq.live.wire.messages import JobClassInfo, Lease, NewJob, NewServer, ServerClassInfo, ServerInfo, WorkFinish

pytest_plugins = ["databases"]

CLASSES: dict[str, Any] = {
    "job_class": (JobClassInfo("a"), JobClassInfo("b", retry_first=0.0, retry_longest=0.0)),
    "server_class": (ServerClassInfo("x"), ServerClassInfo("y")),
}
FLEET: dict[str, Any] = {
    "slot": 0.01, "retry_first": 0.02, "retry_longest": 0.2, "pause_longest": 0.5, "max_attempts": 3,
} | CLASSES  # fmt: skip


async def submit(service: Service, job_class: str = "a", **options: Any) -> str:
    return (await service.submit(LOCAL, [NewJob(job_class, **options)])).jobs[0].id


async def end(service: Service, lease: Lease, error: str | None = None) -> str:
    return (
        await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, None if error else 0.5, error=error))
    ).state


class Fleet:
    """Servers at work; those that `fails` is true for fail each job at once."""

    def __init__(self, service: Service, fails: Callable[[str], bool]) -> None:
        self.service, self.fails = service, fails
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.before_pause = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self, **servers: int) -> None:
        for server_class, many in servers.items():
            for k in range(many):
                info = await self.service.register(LOCAL, NewServer(server_class, f"{server_class}{k}"))
                self.tasks.append(asyncio.create_task(self.serve(info)))

    async def serve(self, server: ServerInfo) -> None:
        assert server.name is not None
        while True:
            for lease in await self.service.lease(LOCAL, [server.id], 1.0):
                bad = self.fails(server.name)
                if not bad:
                    await asyncio.sleep(0.01)
                (self.failed if bad else self.done)[server.name] += 1
                await end(self.service, lease, "broken" if bad else None)
                if not self.service.replica.memory.scheduler.paused:  # type: ignore[union-attr]
                    self.before_pause = self.failed.total() + 1

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def held(self) -> dict[str | None, str | None]:
        return {one.name: one.held for one in await self.service.servers(LOCAL) if one.held is not None}


async def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def states(service: Service) -> Counter[str]:
    await service.replica.write(lambda tx: None)
    return Counter(job.state for job in (await service.jobs(LOCAL, None, None, None, 1000)).jobs)


def test_one_server_that_fails_at_once_kills_no_job_and_comes_back(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two healthy servers and a bad one: 60 jobs, none dead; it is paused within five failures and back once repaired."""

    async def work() -> None:
        async with serving(database_url, **FLEET) as service:
            broken = {"x2"}
            fleet = Fleet(service, lambda name: name in broken)
            await fleet.start(x=3)
            for _ in range(60):
                await submit(service)
            await eventually(lambda: fleet.done.total() == 60)
            assert await states(service) == {"done": 60}
            assert fleet.before_pause <= 5
            assert fleet.failed["x2"] < 15, "pauses double, so trials are rare"
            assert await fleet.held() == {"x2": "paused"}
            [info] = [one for one in await service.servers(LOCAL) if one.name == "x2"]
            assert info.reason is not None and info.reason.startswith(
                "it fails more often than others; the next trial is"
            )
            assert 'bilinq_servers_held{server_class="x",held="paused"} 1' in await service.metrics()
            broken.clear()
            while not fleet.done["x2"]:
                for _ in range(5):
                    await submit(service)
                await asyncio.sleep(0.05)
            await eventually(lambda: not service.replica.memory.jobs)
            assert await fleet.held() == {} and fleet.done["x2"] > 0
            await fleet.stop()

    with caplog.at_level(logging.INFO, "bilinq.live"):
        run(work())
    lines = [record.getMessage() for record in caplog.records if "paused" in record.getMessage()]
    assert lines == [
        "server s3 of class x is paused: it fails more often than others",
        "server s3 of class x is no longer paused",
    ]


def test_a_class_of_servers_that_fails_altogether_is_paused_as_one(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(sqlite_url, **FLEET) as service:
            broken = {"y"}
            fleet = Fleet(service, lambda name: name[0] in broken)
            await fleet.start(x=2, y=4)
            for _ in range(100):
                await submit(service)
            await eventually(lambda: sum(fleet.done.values()) == 100)
            assert await states(service) == {"done": 100}
            scheduler = service.replica.memory.scheduler
            assert scheduler is not None and ("y", None) in scheduler.paused
            assert (await fleet.held()).keys() == {"y0", "y1", "y2", "y3"}
            trials = fleet.failed.total()
            assert trials < 40
            broken.clear()
            while not fleet.done["y0"] + fleet.done["y1"] + fleet.done["y2"] + fleet.done["y3"]:
                for _ in range(5):
                    await submit(service)
                await asyncio.sleep(0.05)
            await eventually(lambda: ("y", None) not in scheduler.paused)
            await fleet.stop()

    with caplog.at_level(logging.INFO, "bilinq.live"):
        run(work())
    assert caplog.text.count("server class y is paused: it fails more often than others") == 1


async def registered(service: Service, *names: str) -> list[str]:
    return [(await service.register(LOCAL, NewServer(name[0], name))).id for name in names]


def test_a_job_is_not_retried_at_once_on_the_server_that_failed_it(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, retry_longest=60.0, **CLASSES) as service:
            first, second = await registered(service, "x1", "x2")
            busy = await submit(service)
            [other] = await service.lease(LOCAL, [second], 0.0)
            assert other.job.id == busy
            job = await submit(service)
            [lease] = await service.lease(LOCAL, [first], 0.0)
            assert await end(service, lease, "no") == "queued"
            assert await service.lease(LOCAL, [first], 0.0) == [], "the other server will be idle"
            last = await submit(service)
            [lease] = await service.lease(LOCAL, [first], 0.0)
            assert lease.job.id == last, "the server serves others meanwhile"
            assert await end(service, lease) == "done"
            await end(service, other)
            await asyncio.sleep(0.06)
            [lease] = await service.lease(LOCAL, [second], 0.0)
            assert lease.job.id == job
            assert await end(service, lease) == "done"

    run(work())


def test_a_job_is_retried_where_it_failed_if_there_is_no_other_server(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url, retry_longest=60.0, max_attempts=3, **CLASSES) as service:
            [only] = await registered(service, "x1")
            await submit(service)
            for wanted in ("queued", "queued", "dead"):
                [lease] = await service.lease(LOCAL, [only], 0.0)
                assert await end(service, lease, "no") == wanted

    run(work())


def test_a_job_is_dead_after_attempts_on_two_servers_where_there_are_two(database_url: str) -> None:
    """The second server is busy for long, so the first may fail the job again; that is known after a restart too."""

    async def work() -> None:
        options: dict[str, Any] = {"retry_longest": 0.001, "max_attempts": 2} | CLASSES
        async with serving(database_url, **options) as service:
            first, second = await registered(service, "x1", "x2")
            await submit(service)
            [other] = await service.lease(LOCAL, [second], 0.0)
            job = await submit(service)
            for wanted in ("queued", "queued"):
                await asyncio.sleep(0.01)
                [lease] = await service.lease(LOCAL, [first], 0.0)
                assert (lease.job.id, await end(service, lease, "no")) == (job, wanted)
        async with serving(database_url, **options) as service:
            assert service.replica.memory.jobs[int(job[1:])].failed_on == {int(first[1:])}
            await end(service, other)
            [lease] = await service.lease(LOCAL, [second], 0.0)
        async with serving(database_url, **options) as service:  # also while the job runs
            assert service.replica.memory.jobs[int(job[1:])].failed_on == {int(first[1:])}
            assert (lease.job.id, await end(service, lease, "no")) == (job, "dead")

    run(work())


def test_retries_wait_longer_and_longer_with_jitter(sqlite_url: str) -> None:
    """Class a pauses up to 1, 2, 4 and then 5 s; class b has no pauses of its own class's making."""

    async def work() -> None:
        async with serving(sqlite_url, retry_first=1.0, retry_longest=5.0, **CLASSES) as service:
            retries = service.replica.memory.retries
            pauses = {attempts: [retries.pause(attempts) for _ in range(500)] for attempts in (1, 2, 3, 4, 80)}
            for attempts, most in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (80, 5.0)):
                assert 0.95 * most < max(pauses[attempts]) <= most and min(pauses[attempts]) < 0.05 * most
            [only] = await registered(service, "x1")
            await submit(service, "b")
            for _ in range(2):
                [lease] = await service.lease(LOCAL, [only], 0.0)
                assert await end(service, lease, "no") == "queued"
            await service.cancel(LOCAL, lease.job.id)
            await submit(service, "a")
            [lease] = await service.lease(LOCAL, [only], 0.0)
            assert await end(service, lease, "no") == "queued"
            assert await service.lease(LOCAL, [only], 0.0) == []
            await asyncio.sleep(1.05)
            assert len(await service.lease(LOCAL, [only], 0.0)) == 1

    run(work())


def test_pauses_of_a_class_of_its_own_decide_when_its_jobs_are_dead(sqlite_url: str) -> None:
    """Class b is retried at once and anywhere, so its attempts do not double while another server could serve it."""

    async def work() -> None:
        async with serving(sqlite_url, retry_longest=60.0, max_attempts=2, **CLASSES) as service:
            first, second = await registered(service, "x1", "x2")
            await submit(service, "a")
            await service.lease(LOCAL, [second], 0.0)
            await submit(service, "b")
            for wanted in ("queued", "dead"):
                [lease] = await service.lease(LOCAL, [first], 0.0)
                assert await end(service, lease, "no") == wanted

    run(work())


def test_a_failed_job_waits_on_and_avoids_its_server_after_a_restart(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bilinq.live.service.retries.random.uniform", lambda low, high: high)

    async def work() -> None:
        options: dict[str, Any] = {"retry_first": 1.0, "retry_longest": 60.0} | CLASSES
        async with serving(database_url, **options) as service:
            first, second = await registered(service, "x1", "x2")
            job = await submit(service)
            [lease] = await service.lease(LOCAL, [first], 0.0)
            assert await end(service, lease, "no") == "queued"
        async with serving(database_url, **options) as service:
            found = service.replica.memory.jobs[int(job[1:])]
            assert (found.held, set(found.failed_on), found.avoid) == (True, {int(first[1:])}, int(first[1:]))
            assert await service.lease(LOCAL, [second], 0.0) == []
            await asyncio.sleep(1.05)
            both = asyncio.ensure_future(service.lease(LOCAL, [first, second], 5.0))
            await asyncio.sleep(0.01)
            service.slots.try_slot()
            [lease] = await both
            assert (lease.job.id, lease.server) == (job, second)

    run(work())


@pytest.mark.parametrize("named", [True, False])
def test_a_server_that_is_held_comes_back_held_under_its_name(named: bool, database_url: str) -> None:
    """As a worker does that ends with SIGTERM and starts again: it unregisters its server, and registers it."""

    async def work() -> None:
        new = NewServer("x", "gpu-1" if named else None)
        async with serving(database_url, **CLASSES) as service:
            server = (await service.register(LOCAL, new)).id
            await service.hold(LOCAL, server, "quarantined")
            await service.unregister(LOCAL, server)
            assert len(await service.servers(LOCAL)) == (1 if named else 0)
        async with serving(database_url, **CLASSES) as service:
            again = await service.register(LOCAL, new)
            assert again.held == ("quarantined" if named else None)
            await submit(service)
            assert len(await service.lease(LOCAL, [again.id], 0.0)) == (0 if named else 1)
            await service.hold(LOCAL, again.id, None)
            await service.unregister(LOCAL, again.id)
            assert await service.servers(LOCAL) == []

    run(work())


@pytest.mark.parametrize(("how", "held"), [("drain", "draining"), ("quarantine", "quarantined")])
def test_an_operator_holds_and_releases_a_server(how: str, held: Any, database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, **CLASSES) as service:
            [only] = await registered(service, "x1")
            await submit(service)
            [lease] = await service.lease(LOCAL, [only], 0.0)
            shown = await service.hold(LOCAL, only, held)
            assert (shown.held, shown.reason, shown.state) == (held, "an operator holds it", "busy")
            assert await end(service, lease) == "done", "it finishes its job"
            await submit(service)
            assert await service.lease(LOCAL, [only], 0.0) == []
            assert f'bilinq_servers_held{{server_class="x",held="{held}"}} 1' in await service.metrics()
        async with serving(database_url, **CLASSES) as service:
            poll = asyncio.ensure_future(service.lease(LOCAL, [only], 5.0))
            await asyncio.sleep(0.05)
            assert [one.held for one in await service.servers(LOCAL)] == [held]
            assert (await service.register(LOCAL, NewServer("x", "x1"))).held == held
            assert (await service.hold(LOCAL, only, None)).held is None
            service.slots.try_slot()
            assert len(await poll) == 1
            assert [entry.what for entry in (await service.audit(LOCAL, 2)).entries] == ["release", how]

    run(work())


def test_failures_are_learnt_and_replay_bit_for_bit(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, lease=0.05, max_attempts=50, **CLASSES) as service:
            [only] = await registered(service, "x1")
            await submit(service, features=[1.0, 2.0])
            for k in range(12):
                [lease] = await service.lease(LOCAL, [only], 0.0)
                if k % 3 == 2:
                    await asyncio.sleep(0.06)
                    service.slots.try_slot()
                else:
                    await end(service, lease, "no")
            memory, settings = service.replica.memory, service.replica.settings
            assert memory.scheduler is not None
            beliefs = memory.scheduler.beliefs()
            assert learnt(memory.scheduler) == await service.replica.store.write(lambda tx: from_log(tx, settings))
            assert beliefs is not None and beliefs.mean[0, 0] < 0.3, "a failure counts as the lowest reward"

    run(work())
    [log] = stored(database_url, lambda tx: observations_since(tx, 0))
    assert [(row.failed, row.value, row.duration, row.features) for row in log] == [(1, None, None, "[1.0,2.0]")] * 12
