"""What is over ends once: leases after a stall, jobs that ended long ago, and servers that were offline."""

import asyncio
import sys
import time
from collections import Counter

import pytest
from slotless import delete_after, ready, run, serve_job, serving

from bilinq.errors import NotFound, Unavailable
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.bulk import JobFilter
from bilinq.live.wire.messages import Extend, NewJob, NewServer, WorkFinish

pytest_plugins = ("databases",)


def test_offline_servers_are_deleted_and_no_others(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, server_retention=100.0) as service:
            ids = {name: (await service.register(LOCAL, NewServer("x", name))).id for name in ("away", "busy", "idle")}
            await service.submit(LOCAL, [NewJob("a")])
            [held] = await service.lease(LOCAL, [ids["busy"]], 0.0)
            idle = asyncio.ensure_future(service.lease(LOCAL, [ids["idle"]], 20.0))
            await asyncio.sleep(0.01)
            await delete_after(service, 99.0)
            assert {one.name for one in await service.servers(LOCAL)} == {"away", "busy", "idle"}
            await delete_after(service, 101.0)
            assert {one.name for one in await service.servers(LOCAL)} == {"busy", "idle"}
            with pytest.raises(NotFound, match="register it first"):
                await service.lease(LOCAL, [ids["away"]], 0.0)
            service.replica.loaded = service.replica.memory.servers[2].seen = 0.0  # it had its job for long
            told = await service.finish_one(LOCAL, WorkFinish(held.lease, held.fence, 0.5))
            await delete_after(service, 99.0)
            assert {one.name for one in await service.servers(LOCAL)} == {"busy", "idle"}, "it has just ended a lease"
            assert (told.state, idle.done()) == ("done", False)
            idle.cancel()
        async with serving(database_url) as service:
            assert {one.name for one in await service.servers(LOCAL)} == {"busy", "idle"}
            assert (await service.register(LOCAL, NewServer("x", "away"))).id == "s4"  # not a number that was used

    run(work())


def test_a_start_deletes_no_server_that_it_has_not_waited_for(sqlite_url: str) -> None:
    """The last sign of a server is not stored: after a long stop all would seem to have been offline."""

    async def work() -> None:
        async with serving(sqlite_url, server_retention=100.0) as service:
            await service.register(LOCAL, NewServer("x", "away"))
            service.replica.memory.servers[1].seen = 0.0
            await delete_after(service, 0.0)
            assert len(await service.servers(LOCAL)) == 1
            await delete_after(service, 101.0)
            assert not await service.servers(LOCAL)

    run(work())


def test_ended_jobs_are_deleted_after_their_time(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinq.live.service.retention.DELETE_LIMIT", 2)

    async def work() -> None:
        async with serving(database_url, retention=100.0) as service:
            done = [await serve_job(service) for _ in range(5)]
            waiting = (await service.submit(LOCAL, [NewJob("a")])).jobs[0].id
            await delete_after(service, 99.0)
            assert (await service.job(LOCAL, done[0])).state == "done"
            await delete_after(service, 101.0)
            found = await service.jobs(LOCAL, None, None, None, 100)
            assert [one.id for one in found.jobs] == [waiting]

    run(work())


def test_a_stall_longer_than_an_extended_lease_expires_it_once(sqlite_url: str) -> None:
    """Both deadlines of the lease have passed when the next slot runs; memory is not loaded again."""

    async def work() -> None:
        async with serving(sqlite_url, lease=0.1) as service:
            id = (await service.submit(LOCAL, [NewJob("a")])).jobs[0].id
            server = await service.register(LOCAL, NewServer("x"))
            [lease] = await service.lease(LOCAL, [server.id], 0.0)
            await service.extend(LOCAL, lease.lease, Extend(lease.fence))
            memory = service.replica.memory
            time.sleep(0.15)
            service.slots.try_slot()
            assert service.ready and service.replica.memory is memory
            await service.replica.write(lambda tx: None)  # the end of the lease is stored then
            job = await service.job(LOCAL, id)
            assert (job.state, job.attempts, memory.counters["expired"]) == ("queued", 1, 1)

    run(work())


@pytest.mark.parametrize("asks", [False, True])
def test_what_expires_while_the_database_is_lost_is_no_bug_of_the_slot(
    asks: bool, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The simulator found the first (seed 170): a slot went on with memory that it had just lost, and logged a traceback."""

    def gone(operation: object) -> None:
        raise Unavailable("the database has gone")

    async def work() -> None:
        async with serving(sqlite_url, lease=0.1) as service:
            monkeypatch.setattr(service.slots, "hurry", lambda: None)
            server = await service.register(LOCAL, NewServer("x"))
            poll = asyncio.ensure_future(service.lease(LOCAL, [server.id], 5.0))
            await service.submit(LOCAL, [NewJob("a"), NewJob("a")])
            service.slots.run_slot()
            monkeypatch.setattr(service.replica.store, "submit", gone)
            time.sleep(0.15)  # the lease was not stored yet
            if asks:
                with pytest.raises(Unavailable):
                    await service.lease(LOCAL, [server.id], 0.0)
            else:
                service.slots.try_slot()
            assert not service.ready and await poll == []
            monkeypatch.undo()
            await ready(service)

    run(work())
    assert "the database is unavailable: the database has gone" in caplog.text and "a slot failed" not in caplog.text


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_many_leases_expire_at_once_in_steps_that_grow_with_their_number(sqlite_url: str, limit: int) -> None:
    """As after a stall; with a look at all servers for each lease, four times as many took 16 times as long."""

    async def work() -> None:
        async with serving(sqlite_url, lease=600.0, retry_longest=60.0, pause_longest=30.0) as service:
            few, many = [await expire(service, number, limit) for number in (100, 400)]
            assert many < 5 * few, (few, many)

    run(work())


async def expire(service: Service, number: int, limit: int) -> int:
    """Return how many functions are called while so many leases expire, whose jobs may fail `limit` times."""
    memory = service.replica.memory
    servers = [f"s{id}" for id in memory.servers]
    servers += [(await service.register(LOCAL, NewServer("x"))).id for _ in range(number - len(servers))]
    await service.submit(LOCAL, [NewJob("a", max_attempts=limit) for _ in range(number)])
    assert len(await service.lease(LOCAL, servers, 0.0)) == len(memory.leases) == number
    steps: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, argument: steps.update([event]))
    service.slots._expire(memory, time.monotonic() + 601.0)
    sys.setprofile(None)
    assert not memory.leases
    await service.cancel_jobs(LOCAL, JobFilter(job_class="a"))
    return steps["call"]
