"""When something inside the service breaks: memory is loaded again, and nobody hangs."""

import asyncio
import threading
import time
from typing import Any

import pytest
from databases import leading, stored
from learnt import from_log, learnt
from slotless import ready, run, serve_job, serving

from bilinq.errors import Unavailable
from bilinq.live.keys import LOCAL
from bilinq.live.service import recovery
from bilinq.live.service.outbox import Changes
from bilinq.live.store import Transaction
from bilinq.live.store.class_tables import all_servers, newest_checkpoints
from bilinq.live.store.job_tables import JobRow, active_leases, insert_jobs
from bilinq.live.wire.messages import NewJob, NewServer, WorkFinish

pytest_plugins = ["databases"]


def test_the_database_changes_in_the_order_of_memory(sqlite_url: str) -> None:
    """A job that is cancelled right after its lease was granted stays cancelled, also after a kill."""

    async def work() -> None:
        async with serving(sqlite_url) as service:
            id = (await service.submit(LOCAL, [NewJob("a")])).jobs[0].id
            server = await service.register(LOCAL, NewServer("x"))
            poll = asyncio.ensure_future(service.lease(LOCAL, [server.id], 0.5))
            await asyncio.sleep(0)
            memory, changes = service.replica.memory, Changes()
            service.slots.run_slot()
            assert memory.leased["a"] == 1
            memory.cancel(int(id[1:]), time.time(), changes)
            await service.replica.write(changes.write)
            assert await poll == []
            assert (await service.job(LOCAL, id)).state == "cancelled"
            assert await service.replica.store.read(active_leases) == []

    run(work())


def test_what_was_acknowledged_is_seen_at_once(database_url: str) -> None:
    """A reader sees everything that was acknowledged, and states never go back."""

    async def work() -> None:
        async with serving(database_url) as service:
            server = await service.register(LOCAL, NewServer("x", "s"))
            for _ in range(20):
                made = (await service.submit(LOCAL, [NewJob("a")] * 3)).jobs
                told = await asyncio.gather(*(service.job(LOCAL, one.id) for one in made))
                assert [one.state for one in told] == ["queued"] * 3
                lease = (await service.lease(LOCAL, [server.id], 0.0))[0]
                assert (await service.job(LOCAL, lease.job.id)).state == "leased"
                await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, 0.5))
                assert (await service.job(LOCAL, lease.job.id)).state == "done"
                rest = [one.id for one in told if one.id != lease.job.id]
                if rest:
                    assert (await service.cancel(LOCAL, rest[0])).state == "cancelled"

    run(work())


def test_a_lease_that_cannot_be_written_ends_the_call_that_waits(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tx: Transaction, rows: Any) -> dict[int, str]:
        raise RuntimeError("made up")

    async def work() -> None:
        async with serving(sqlite_url) as service:
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x"))
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.store.job_tables.grant_leases", fail)
                assert await service.lease(LOCAL, [server.id], 30.0) == []
            await ready(service)
            assert len(await service.lease(LOCAL, [server.id], 0.0)) == 1

    run(work())


def test_an_end_that_cannot_be_written_is_undone_in_memory(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(tx: Transaction, rows: Any) -> None:
        raise RuntimeError("made up")

    async def work() -> None:
        async with serving(sqlite_url) as service:
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x"))
            lease = (await service.lease(LOCAL, [server.id], 0.0))[0]
            end = WorkFinish(lease.lease, lease.fence, 0.5)
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.store.job_tables.end_jobs", fail)
                with pytest.raises(RuntimeError, match="made up"):
                    await service.finish_one(LOCAL, end)
            await ready(service)
            told = await service.finish_one(LOCAL, end)
            assert (told.state, told.repeated) == ("done", False)

    run(work())


def test_a_service_that_stops_after_a_failed_write_saves_no_checkpoint_of_what_was_lost(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator found it: the end of a lease could not be written, and was repeated after the restart."""

    tried = threading.Event()

    def fail(*_: object) -> None:
        tried.set()
        raise RuntimeError("made up")

    async def work() -> None:
        async with serving(sqlite_url) as service:
            await serve_job(service, 0.25)
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x"))
            lease = (await service.lease(LOCAL, [server.id], 0.0))[0]
            end = WorkFinish(lease.lease, lease.fence, 0.5)
            with monkeypatch.context() as patch, monkeypatch.context() as ends:
                patch.setattr("bilinq.live.service.recovery.load_memory", fail)
                ends.setattr("bilinq.live.store.job_tables.end_jobs", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    await service.finish_one(LOCAL, end)
                ends.undo()
                assert await asyncio.to_thread(tried.wait, 10.0)
                await service.stop()
        async with serving(sqlite_url) as service:
            await service.finish_one(LOCAL, end)
            settings = service.replica.settings
            known = learnt(service.replica.memory.scheduler)
            assert known == await service.replica.store.write(lambda tx: from_log(tx, settings))

    run(work())


def test_a_write_that_fails_is_noticed_although_nobody_waits_for_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            id = (await service.submit(LOCAL, [NewJob("a")])).jobs[0].id
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.store.job_tables.end_jobs", lambda *_: 1 / 0)
                memory, changes = service.replica.memory, Changes()
                memory.cancel(int(id[1:]), time.time(), changes)
                service.replica.save(changes).cancel()  # the caller is gone
                async with asyncio.timeout(10.0):
                    while not service.replica.meters.recoveries:
                        await asyncio.sleep(0.01)
            await ready(service)
            assert list(service.replica.memory.jobs) == [int(id[1:])]
        assert "never retrieved" not in caplog.text

    run(work())


def test_memory_drops_the_deadlines_of_leases_that_have_ended(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinq.live.service.memory.SPARE", 3)

    async def work() -> None:
        async with serving(sqlite_url, lease=3600.0) as service:
            for _ in range(20):
                await serve_job(service)
            memory = service.replica.memory
            assert len(memory._deadlines) <= 5  # twice the leases and three to spare
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x", "s"))
            lease = (await service.lease(LOCAL, [server.id], 0.0))[0]
            for seconds in (7200.0, 1.0, 9000.0, 5000.0):
                memory.extend(memory.leases[lease.fence], seconds)
            assert [one.row.id for one in memory.expired(4999.0)] == []
            assert [one.row.id for one in memory.expired(5000.0)] == [lease.fence]

    run(work())


def test_memory_drops_the_times_of_jobs_that_have_ended(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines far away of jobs that were cancelled or done; those of the others still count."""
    monkeypatch.setattr("bilinq.live.service.memory.SPARE", 3)

    async def work() -> None:
        async with serving(sqlite_url) as service:
            [kept] = (await service.submit(LOCAL, [NewJob("b", deadline=5e5, not_before=1000.0)])).jobs
            for _ in range(30):
                [job] = (await service.submit(LOCAL, [NewJob("a", deadline=1e6)])).jobs
                await service.cancel(LOCAL, job.id)
            memory = service.replica.memory
            assert len(memory.agenda) <= 4 * 2 + 3 + 1
            now = memory.jobs[int(kept.id[1:])].came
            assert int(kept.id[1:]) in memory.agenda.due(now + 1001.0)
            assert int(kept.id[1:]) in memory.agenda.due(now + 500_001.0)

    run(work())


def test_loading_is_tried_again_whatever_went_wrong(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            id = await serve_job(service)
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.store.job_tables.queued_jobs", lambda tx: 1 / 0)
                service.replica.fail("made up")
                await asyncio.sleep(0.2)
                assert not service.ready
            await ready(service)
            assert (await service.job(LOCAL, id)).state == "done"

    run(work())


@pytest.mark.parametrize(("led", "pauses"), [(True, 0.0), (False, 0.25 + 0.5)])
def test_only_who_has_followed_for_a_while_recovers_without_longer_pauses(
    led: bool, pauses: float, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three failures at once; `led` says whether another process leads in between, for longer than is asked here."""

    async def reconnect() -> bool:
        await asyncio.sleep(0.05)
        return led

    async def work() -> None:
        async with serving(sqlite_url) as service:
            monkeypatch.setattr(recovery, "LED", 0.04)
            monkeypatch.setattr(service.replica.store, "reconnect", reconnect)
            began = time.monotonic()
            for _ in range(3):
                service.replica.fail("a test")
                await ready(service)
            assert pauses <= time.monotonic() - began < pauses + 0.6

    run(work())


def test_a_job_that_is_only_being_stored_cannot_be_cancelled_yet(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            row = JobRow(7, "default", "a", "queued", None, None, "1", 1, 1, 0, 1.0)
            await service.replica.write(lambda tx: insert_jobs(tx, [row]))  # on disk, and memory does not know yet
            with pytest.raises(Unavailable, match="still being stored"):
                await service.cancel(LOCAL, "j7")

    run(work())


def test_a_service_that_is_not_ready_does_not_refuse_ends_but_says_so(sqlite_url: str) -> None:
    """A worker drops what was refused; what could not be answered it sends again."""

    async def work() -> None:
        async with serving(sqlite_url) as service:
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x"))
            [held] = await service.lease(LOCAL, [server.id], 0.0)
            service.replica.ready = False
            with pytest.raises(Unavailable):
                await service.finish(LOCAL, [WorkFinish(held.lease, held.fence, 0.5)])
            service.replica.ready = True
            [told] = await service.finish(LOCAL, [WorkFinish(held.lease, held.fence, 0.5)])
            assert told.state == "done"

    run(work())


def test_checkpoints_continue_after_one_that_failed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with serving(sqlite_url, checkpoint_every=0.05) as service:
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.store.class_tables.save_checkpoint", lambda *_: 1 / 0)
                await asyncio.sleep(0.2)
            async with asyncio.timeout(10.0):
                while not await service.replica.store.read(newest_checkpoints):
                    await asyncio.sleep(0.01)
            await ready(service)
            await serve_job(service)

    run(work())


def test_a_server_is_on_disk_before_it_is_acknowledged(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            calls = [asyncio.ensure_future(service.register(LOCAL, NewServer("x", "s"))) for _ in range(2)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert len(await service.replica.store.read(all_servers)) == 1
            first, second = await asyncio.gather(*calls)
            assert first.id == second.id

    run(work())


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), Unavailable("the database is gone")])
def test_a_follower_whose_first_load_fails_runs_slots_all_the_same(
    error: Exception, postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that is lost again is no bug, and logged as such."""

    def fail(tx: Transaction) -> None:
        raise error

    async def work() -> None:
        async with leading(postgres_url) as other, serving(postgres_url, slot=0.02) as service:
            assert service.following
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.store.job_tables.queued_jobs", fail)
                await other.stop()
                await asyncio.sleep(1.0)
                assert not service.ready
            await ready(service)
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x"))
            assert len(await service.lease(LOCAL, [server.id], 10.0)) == 1

    run(work())
    assert ("a background task failed" in caplog.text) == isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize("jump", [-(10.0**8), 10.0**8])
def test_the_wall_clock_may_jump(jump: float, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases neither expire nor last for ever, and waits are never negative."""
    true, offset = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: true() + offset[0])

    async def work() -> None:
        async with serving(sqlite_url, slot=0.02, lease=0.5, max_attempts=3) as service:
            id = (await service.submit(LOCAL, [NewJob("a")])).jobs[0].id
            server = await service.register(LOCAL, NewServer("x", "s"))
            offset[0] = jump
            lease = (await service.lease(LOCAL, [server.id], 5.0))[0]
            assert 0.0 < lease.seconds <= 0.5
            offset[0] = 0.0
            await asyncio.sleep(0.2)
            assert (await service.job(LOCAL, id)).state == "leased"
            await asyncio.sleep(0.6)
            assert (await service.job(LOCAL, id)).attempts == 1
            lease = (await service.lease(LOCAL, [server.id], 5.0))[0]
            offset[0] = -jump
            told = await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, 0.5))
            assert told.state == "done"
            waits = (await service.state()).job_classes[0].wait
            assert waits.mean is not None and waits.mean >= 0.0

    run(work())


def test_active_leases_get_a_full_time_after_a_restart_whatever_the_clock_says(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    async def grant() -> None:
        async with serving(sqlite_url) as service:
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x", "s"))
            held.extend(await service.lease(LOCAL, [server.id], 0.0))

    async def finish() -> None:
        async with serving(sqlite_url, slot=0.02) as service:
            await asyncio.sleep(0.1)
            told = await service.finish_one(LOCAL, WorkFinish(held[0].lease, held[0].fence, 0.5))
            assert told.state == "done"

    run(grant())
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + 10.0**8)
    run(finish())


def test_a_hundred_thousand_waiting_jobs_are_loaded_quickly(database_url: str) -> None:
    rows = [JobRow(id, "default", "ab"[id % 2], "queued", None, None, "1", 1, 1, 0, 1.0) for id in range(1, 100_001)]

    async def work() -> None:
        began = time.process_time()
        async with serving(database_url) as service:
            assert time.process_time() - began < 8.0  # about 1 s, and 2 s for kernels if this test is the first
            assert sum(one.queued for one in (await service.state()).job_classes) == 100_000
            server = await service.register(LOCAL, NewServer("x"))
            assert len(await service.lease(LOCAL, [server.id], 0.0)) == 1

    stored(database_url, lambda tx: insert_jobs(tx, rows))
    run(work())
