"""A slot whose scheduler fails: another serves the jobs meanwhile, and what was learnt is back afterwards."""

import asyncio
import contextlib
import sys
import time
from typing import Any

import pytest
from learnt import from_log, learnt
from slotless import ready, run, serve_job, serving

from bilinq.errors import Unavailable
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.recovery import load_scheduler
from bilinq.live.wire.messages import NewJob, NewReward, NewServer, ServerClassInfo, WorkFinish
from bilinq.live.wire.queries import BadField
from bilinq.scheduler.scheduler import Scheduler

pytest_plugins = ["databases"]


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
