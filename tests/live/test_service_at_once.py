"""Concurrent calls: none undoes another, and the next start finds all that was acknowledged."""

import asyncio

import pytest
from slotless import run, serving

from bilinq.errors import BadInput, Busy, NotFound
from bilinq.live.keys import LOCAL
from bilinq.live.wire.messages import JobClassInfo, NewJob, NewServer, SettingsUpdate, Work, WorkFinish

pytest_plugins = ("databases",)


def test_a_server_holds_one_lease_however_many_calls_ask_for_it(database_url: str) -> None:
    """The second call frees what the server held; while that is written, the third must not be overlooked."""

    async def work() -> None:
        async with serving(database_url) as service:
            await service.submit(LOCAL, [NewJob("a")] * 5)
            server = await service.register(LOCAL, NewServer("x"))
            for _ in range(3):
                await asyncio.gather(*(service.lease(LOCAL, [server.id], wait) for wait in (0.0, 0.05, 0.0, 0.05)))
                service.slots.try_slot()
                memory = service.replica.memory
                assert sum(lease.row.server == 1 for lease in memory.leases.values()) <= 1
                assert sum(memory.queued.values()) + len(memory.leases) + memory.dead == 5

    run(work())


def test_ends_and_the_next_leases_share_a_commit(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url) as service:
            await service.submit(LOCAL, [NewJob("a")] * 2)
            server = await service.register(LOCAL, NewServer("x"))
            [first] = await service.lease(LOCAL, [server.id], 0.0)
            before = service.replica.store.commits
            told = await service.work(LOCAL, Work([WorkFinish(first.lease, first.fence, 0.5)], [server.id], 5.0))
            assert ([one.state for one in told.finished], len(told.leases)) == (["done"], 1)
            assert service.replica.store.commits == before + 1

    run(work())


def test_a_call_for_an_unknown_server_ends_no_lease(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            await service.submit(LOCAL, [NewJob("a")])
            server = await service.register(LOCAL, NewServer("x"))
            [held] = await service.lease(LOCAL, [server.id], 0.0)
            ends = [WorkFinish(held.lease, held.fence, 0.5)]
            with pytest.raises(NotFound, match="there is no server 's9'"):
                await service.work(LOCAL, Work(ends, [server.id, "s9"]))
            assert [lease.row.id for lease in service.replica.memory.leases.values()] == [held.fence]
            told = await service.work(LOCAL, Work(ends, [server.id]))
            assert [(one.state, one.repeated) for one in told.finished] == [("done", False)]

    run(work())


def test_settings_that_change_at_the_same_time_all_change(database_url: str) -> None:
    async def work() -> None:
        turns = (SettingsUpdate(target_wait=7.0), SettingsUpdate(exploration="ucb"), SettingsUpdate(weight={"a": 3.0}))
        async with serving(database_url) as service:
            await asyncio.gather(*(service.update_settings(LOCAL, turn) for turn in turns))
            at_once = await service.policy_settings()
        async with serving(database_url) as service:
            assert await service.policy_settings() == at_once
            assert (at_once.target_wait, at_once.exploration) == (7.0, "ucb")
            assert service.replica.memory.classes["job", "a"].weight == 3.0

    run(work())


def test_classes_that_do_not_fit_together_are_refused_also_if_they_come_together(database_url: str) -> None:
    """Stored both, they would keep the service from ever starting again."""

    async def work() -> None:
        nothing: dict[str, tuple[()]] = {"job_class": (), "server_class": ()}
        wanted = [JobClassInfo("a", [1.0]), JobClassInfo("b", [1.0, 2.0]), JobClassInfo("c", [1.0])]
        async with serving(database_url, **nothing) as service:
            told = await asyncio.gather(*(service.put_class(LOCAL, one) for one in wanted), return_exceptions=True)
            assert [isinstance(one, BadInput) for one in told] == [False, True, False]
        async with serving(database_url, **nothing) as service:
            assert [one.name for one in (await service.classes()).job_classes] == ["a", "c"]

    run(work())


def test_a_stored_job_is_returned_again_although_its_queue_is_full(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, backlog=1) as service:
            [first] = (await service.submit(LOCAL, [NewJob("a", key="k")])).jobs
            assert (await service.submit(LOCAL, [NewJob("a", key="k")])).jobs == [first]
            for jobs in ([NewJob("a")], [NewJob("a", key="other")], [NewJob("a", key="k"), NewJob("a", key="other")]):
                with pytest.raises(Busy, match="room for 0 more jobs; got 1"):
                    await service.submit(LOCAL, jobs)
            assert service.replica.memory.queued["a"] == 1

    run(work())
