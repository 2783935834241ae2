"""When something inside the service breaks: memory is loaded again, and nobody hangs."""

import asyncio
import contextlib
import sys
import threading
import time
from typing import Any

import pytest
from databases import leading, stored
from learnt import from_log, learnt
from slotless import ready, run, serve_job, serving

from bilinq.errors import Unavailable
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.outbox import Changes
from bilinq.live.service.recovery import load_scheduler
from bilinq.live.store import Transaction
from bilinq.live.store.class_tables import all_servers, newest_checkpoints
from bilinq.live.store.job_tables import JobRow, active_leases, insert_jobs
from bilinq.live.wire.messages import NewJob, NewReward, NewServer, ServerClassInfo, WorkFinish
from bilinq.live.wire.queries import BadField
from bilinq.scheduler.scheduler import Scheduler

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


async def works_again(service: Service) -> Scheduler:
    """Return the scheduler once it is no stand-in any more."""
    async with asyncio.timeout(20.0):
        while service.replica.memory.missed is not None:
            await asyncio.sleep(0.01)
    assert service.replica.memory.scheduler is not None
    return service.replica.memory.scheduler


def spoil_assign(scheduler: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduler, "assign", lambda *_: 1 / 0)


def spoil_numbers(scheduler: Any, patch: pytest.MonkeyPatch) -> None:
    scheduler._engine.learnt.value.long.theta[:] = float("nan")


@pytest.mark.parametrize("spoil", [spoil_assign, spoil_numbers])
def test_a_slot_whose_scheduler_fails_serves_first_come_first_served_and_recovers(
    spoil: Any, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is observed meanwhile is learnt, bit for bit as in the log; eligible servers, leases and counts stay."""

    async def work() -> None:
        async with serving(database_url) as service:
            await service.put_class(LOCAL, ServerClassInfo("y", [1.0, 0.2]))
            for reward in (0.25, 0.75):
                await serve_job(service, reward)
            held = await service.register(LOCAL, NewServer("x", "held"))
            await service.submit(LOCAL, [NewJob("a", features=[1.0])])
            [before] = await service.lease(LOCAL, [held.id], 0.0)
            ids = [(await service.submit(LOCAL, [job])).jobs[0].id for job in (
                NewJob("a", servers=["y"]), NewJob("b"), NewJob("a", weight=9.0), NewJob("a", not_before=60.0))]  # fmt: skip
            broken = service.replica.memory.scheduler
            spoil(broken, monkeypatch)
            server = await service.register(LOCAL, NewServer("x", "s"))
            leases = await service.lease(LOCAL, [server.id], 0.0)
            assert service.ready and [lease.job.id for lease in leases] == [ids[1]], "the oldest that x may serve"
            assert service.replica.memory.missed is not None
            await service.finish_one(LOCAL, WorkFinish(leases[0].lease, leases[0].fence, 0.5))
            await service.finish_one(LOCAL, WorkFinish(before.lease, before.fence, 1.0))
            again = await works_again(service)
            assert again is not broken and again.learns
            settings = service.replica.settings
            assert learnt(again) == await service.replica.store.write(lambda tx: from_log(tx, settings))
            assert "bilinq_slot_fallbacks_total 1" in await service.metrics()
            [lease] = await service.lease(LOCAL, [server.id], 0.0)
            assert lease.job.id == ids[2]
            assert service.replica.memory.waiting == 1 and service.replica.memory.queued.total() == 2
            assert service.replica.meters.recoveries == 0

    run(work())
    assert caplog.text.count("the scheduler failed, jobs are served first come, first served") == 1
    assert caplog.text.count("the scheduler works again") == 1


def test_an_allocation_that_is_not_certified_is_used_and_counted_in_the_metrics(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = sys.modules["bilinq.allocation.batch"]
    monkeypatch.setattr(batch.tally, "uncertified", 0)

    async def work() -> None:
        async with serving(sqlite_url, policy="sabr") as service:
            await serve_job(service)
            assert "bilinq_uncertified_allocations_total 0" in await service.metrics()
            monkeypatch.setattr(batch, "TOLERANCE", -1.0)
            for _ in range(3):
                await serve_job(service)
            slots = batch.tally.uncertified
            assert slots >= 3 and f"bilinq_uncertified_allocations_total {slots}" in await service.metrics()
            assert "bilinq_slot_fallbacks_total 0" in await service.metrics()

    run(work())
    assert caplog.text.count("an allocation could not be certified") == 1


@pytest.mark.parametrize(("spoil", "better"), [(spoil_assign, "y"), (spoil_numbers, "x")])
def test_while_a_scheduler_is_made_again_jobs_go_where_they_were_worth_most(
    spoil: Any, better: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both classes are idle and y was worth more; if values are not finite, jobs go to the first class, which is x."""

    async def work() -> None:
        async with serving(sqlite_url) as service:
            await service.put_class(LOCAL, ServerClassInfo("y", [1.0, 0.2]))
            scheduler = service.replica.memory.scheduler
            assert scheduler is not None
            scheduler.observe(("a", name, value) for name, value in (("x", 0.1), ("y", 0.9)) for _ in range(50))
            scheduler.assign({})
            monkeypatch.setattr("bilinq.live.service.fallback.load_scheduler", lambda *_: 1 / 0)
            spoil(scheduler, monkeypatch)
            idle = [(await service.register(LOCAL, NewServer(name, name))).id for name in ("x", "y")]
            await service.submit(LOCAL, [NewJob("a")])
            [lease] = await service.lease(LOCAL, idle, 0.0)
            assert lease.server == idle["xy".index(better)]

    run(work())


def test_a_scheduler_that_cannot_be_made_again_is_replaced_until_it_can(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            await serve_job(service)
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.service.fallback.load_scheduler", lambda *_: 1 / 0)
                spoil_assign(service.replica.memory.scheduler, patch)
                for _ in range(5):
                    await serve_job(service)
                await asyncio.sleep(0.5)
                assert service.replica.memory.missed is not None and len(service.replica.memory.missed) == 5
            again = await works_again(service)
            health = again.health()
            assert health is not None and health.observations == 6

    run(work())
    assert caplog.text.count("the scheduler cannot be made again yet: division by zero") == 1


def test_a_slot_that_always_fails_is_retried_less_and_less_often(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Within three seconds pauses of 0, 0.25, 0.5, 1 and 2 s leave room for five times; without, there are hundreds."""

    async def work() -> None:
        async with serving(sqlite_url, slot=0.01) as service:
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x"))
            with monkeypatch.context() as patch:
                patch.setattr(Scheduler, "assign", lambda *_: 1 / 0)
                end = time.monotonic() + 3.0
                while time.monotonic() < end:
                    with contextlib.suppress(Unavailable):
                        assert await service.lease(LOCAL, [server.id], 0.1) == []
                    await asyncio.sleep(0.01)
            await ready(service)
            assert 3 <= caplog.text.count("a slot failed: division by zero") <= 5
            assert len(await service.lease(LOCAL, [server.id], 10.0)) == 1

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


def test_features_of_another_length_are_refused_while_the_scheduler_is_replaced(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            await service.submit(LOCAL, [NewJob("a", features=[1.0, 2.0])])
            server = await service.register(LOCAL, NewServer("x", "s"))
            [lease] = await service.lease(LOCAL, [server.id], 0.0)
            await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, 0.5))
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.service.fallback.load_scheduler", lambda *_: 1 / 0)
                spoil_assign(service.replica.memory.scheduler, patch)
                await service.submit(LOCAL, [NewJob("a")])
                [lease] = await service.lease(LOCAL, [server.id], 0.0)
                assert service.replica.memory.missed is not None
                with pytest.raises(BadField, match="must have length 2, as those of earlier jobs; got 1"):
                    await service.submit(LOCAL, [NewJob("a", features=[1.0])])
                await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, 0.5))
                await service.submit(LOCAL, [NewJob("a", features=[3.0, 4.0])])
            assert (await works_again(service)).own_features == 2

    run(work())


def test_a_reward_that_a_stand_in_took_is_corrected_later(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler has begun anew with the server class before, so that the number of its epoch is not zero."""

    async def work() -> None:
        async with serving(sqlite_url) as service:
            await serve_job(service)
            memory = service.replica.memory
            assert memory.scheduler is not None
            memory.scheduler.mark_new("x")
            await service._leadership._recovery.checkpoint(memory)
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.service.fallback.load_scheduler", lambda *_: 1 / 0)
                spoil_assign(memory.scheduler, patch)
                job = await serve_job(service, 0.25)
                assert memory.missed is not None
            again = await works_again(service)
            assert again.epoch("x") == 1
            settings, before = service.replica.settings, learnt(again)
            await service.reward(LOCAL, job, NewReward(1.0))
            assert learnt(again) != before
            assert learnt(again) == await service.replica.store.write(lambda tx: learnt(load_scheduler(tx, settings)))

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


def test_a_follower_whose_first_load_fails_runs_slots_all_the_same(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with leading(postgres_url) as other, serving(postgres_url, slot=0.02) as service:
            assert service.following
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.store.job_tables.queued_jobs", lambda tx: 1 / 0)
                await other.stop()
                await asyncio.sleep(1.0)
                assert not service.ready
            await ready(service)
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x"))
            assert len(await service.lease(LOCAL, [server.id], 10.0)) == 1

    run(work())


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
