"""Small calls that share statements: each still gets its own answer, and the disk sees changes in their order."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from databases import leading

from bilinq.errors import Conflict, Unavailable
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.entities import Poll
from bilinq.live.service.outbox import Changes, Outbox
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Store, Transaction, open_store
from bilinq.live.store.class_tables import ClassRow, ServerRow, put_class, put_server
from bilinq.live.store.job_tables import (
    JobEnd,
    JobRow,
    LeaseEnd,
    LeaseRow,
    ObservationRow,
    RequeuedJob,
    active_leases,
    get_job,
    insert_jobs,
    leases_of_job,
)
from bilinq.live.wire.messages import JobClassInfo, Lease, LeasedJob, NewJob, NewServer, ServerClassInfo, Submitted

pytest_plugins = ("databases",)

JOBS = range(1, 101)


def prepare(tx: Transaction) -> None:
    put_class(tx, ClassRow(1, "job", "a", (1.0,), 1.0, 1.0, None))
    put_class(tx, ClassRow(2, "server", "x", (1.0,)))
    put_server(tx, ServerRow(1, "x", None, "key", 0.0, 0.0))
    insert_jobs(tx, [row(id) for id in JOBS])


def row(id: int) -> JobRow:
    return JobRow(id, "default", "a", "queued", None, None, f'"{id}"', 1, 1, 0, 1.0)


def grant(lease: int, job: int) -> LeaseRow:
    return LeaseRow(lease, job, 1, 1, 2, 1.0, 2.0)


def finish(lease: int, job: int) -> Changes:
    end = LeaseEnd(lease, "finished", 3.0, 0.5, "digest")
    return Changes([end], [], [JobEnd(job, "done", 3.0, 0, 0, None, 0.5)], [ObservationRow(lease, lease, 0, 1, 2, 0.5)])


def requeue(lease: int, job: int) -> Changes:
    return Changes([LeaseEnd(lease, "failed", 3.0)], [RequeuedJob(job, 1, 1, "failed")], [], [])


async def states(store: Store, *ids: int) -> list[Any]:
    def look(tx: Transaction) -> list[Any]:
        return [[getattr(get_job(tx, id), "state", None), *(row.state for row in leases_of_job(tx, id))] for id in ids]

    return await store.write(look)


def counted(store: Store, operations: list[Any], slot_is_due: Callable[[], bool] = lambda: False) -> Outbox:
    def noting(operation: Any) -> Any:
        operations.append(operation)
        return store.submit(operation)

    return Outbox(noting, slot_is_due)


def test_changes_at_the_same_time_share_an_operation(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            await store.write(prepare)
            operations: list[Any] = []
            outbox = counted(store, operations)
            found = await asyncio.gather(*(outbox.put(Changes(), [grant(id, id)]) for id in JOBS))
            assert all(payloads[id] == f'"{id}"' for id, payloads in zip(JOBS, found, strict=True))
            await asyncio.gather(*(outbox.put(finish(id, id)) for id in JOBS))
            assert len(operations) <= 20  # the number depends on the speed of the writer
            assert await states(store, *JOBS) == [["done", "finished"]] * len(JOBS)

    asyncio.run(run())


def test_a_new_job_and_its_lease_share_a_commit(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            await store.write(prepare)
            operations: list[Any] = []
            outbox, before = counted(store, operations), store.commits
            put = [outbox.put(Changes(new=[row(id)])) for id in (201, 202)] + [outbox.put(Changes(), [grant(1, 202)])]
            assert not operations  # they wait for others
            outbox.flush()
            assert len(operations) == 1
            assert (await asyncio.gather(*put))[2] == {202: '"202"'}
            assert store.commits == before + 1
            assert await states(store, 201, 202) == [["queued"], ["leased", "active"]]

    asyncio.run(run())


def test_a_group_has_a_largest_size(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinq.live.service.outbox.LARGEST", 1000)

    async def run() -> None:
        async with leading(sqlite_url) as store:
            await store.write(prepare)
            operations: list[Any] = []
            outbox = counted(store, operations)
            large = [Changes(new=[row(id)._replace(payload='"' + "x" * 398 + '"')]) for id in range(201, 206)]
            ended = [Changes(ended=[JobEnd(id, "done", 3.0, 0, 0, '"' + "x" * 2000 + '"', 0.5)]) for id in (1, 2)]
            await asyncio.gather(*map(outbox.put, large + ended))
            assert len(operations) == 5  # two, two and one of 400; each of 2,000 alone
            assert await states(store, 201, 205, 1, 2) == [["queued"], ["queued"], ["done"], ["done"]]

    asyncio.run(run())


def test_changes_wait_for_others_but_not_for_long(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first goes after a millisecond, what comes right after it only when PAUSE has passed, both without help."""
    monkeypatch.setattr("bilinq.live.service.outbox.PAUSE", 0.2)

    async def run() -> None:
        async with leading(sqlite_url) as store:
            await store.write(prepare)
            operations: list[Any] = []
            outbox = counted(store, operations)
            await outbox.put(Changes(new=[row(201)]))
            later = [outbox.put(Changes(new=[row(202)]))]
            await asyncio.sleep(0.05)
            later.append(outbox.put(Changes(new=[row(203)])))
            assert len(operations) == 1
            await asyncio.gather(*later)
            assert len(operations) == 2

    asyncio.run(run())


def test_changes_wait_for_a_slot_that_is_due_but_not_for_long(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with leading(sqlite_url) as store:
            await store.write(prepare)
            due, operations = asyncio.Event(), list[Any]()
            due.set()
            outbox = counted(store, operations, due.is_set)
            monkeypatch.setattr("bilinq.live.service.outbox.MOST", 60.0)
            put = [outbox.put(Changes(new=[row(201)]))]
            await asyncio.sleep(0.05)
            assert not operations
            due.clear()
            put.append(outbox.put(Changes(), [grant(1, 201)]))
            outbox.flush()  # as a slot does
            await asyncio.gather(*put)
            assert len(operations) == 1
            due.set()
            monkeypatch.setattr("bilinq.live.service.outbox.MOST", 0.01)
            await asyncio.wait_for(outbox.put(Changes(new=[row(202)])), 5.0)
            assert await states(store, 201, 202) == [["leased", "active"], ["queued"]]

    asyncio.run(run())


def test_a_job_that_changes_twice_at_once_ends_in_its_last_state(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            await store.write(prepare)
            outbox = Outbox(store.submit)
            put = [
                outbox.put(Changes(), [grant(1, 7)]),
                outbox.put(requeue(1, 7)),
                outbox.put(Changes(), [grant(2, 7)]),
            ]
            put += [outbox.put(Changes(), [grant(3, 8)]), outbox.put(finish(2, 7)), outbox.put(requeue(3, 8))]
            await asyncio.gather(*put)
            assert await states(store, 7, 8) == [["done", "failed", "finished"], ["queued", "failed"]]

    asyncio.run(run())


def test_what_is_written_in_between_keeps_its_place(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            await store.write(prepare)
            outbox = Outbox(store.submit)
            for id in JOBS:
                outbox.put(Changes(), [grant(id, id)])
                outbox.close()
                seen = store.submit(lambda tx: len(active_leases(tx)))
                outbox.put(finish(id, id))
                assert await seen == 1

    asyncio.run(run())


def test_after_a_failure_changes_start_again(sqlite_url: str) -> None:
    async def run() -> None:
        async with leading(sqlite_url) as store:
            await store.write(prepare)
            outbox = Outbox(store.submit)
            with pytest.raises(sqlite3.IntegrityError):
                await outbox.put(Changes(), [grant(1, 1), grant(1, 2)])
            await outbox.put(Changes(), [grant(1, 1)])
            assert await states(store, 1, 2) == [["leased", "active"], ["queued"]]

    asyncio.run(run())


@asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncIterator[Service]:
    classes = {"job_class": (JobClassInfo("a", [1.0]),), "server_class": (ServerClassInfo("x", [1.0]),)}
    service = Service(ServiceSettings(database=url, **(classes | options)), open_store(url))
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


def test_submits_at_once_are_all_or_none_each(database_url: str) -> None:
    """Of two calls that use a key for different jobs one is refused completely; small and large calls alike."""

    async def run() -> None:
        async with serving(database_url, slot=60.0) as service:
            calls = [[NewJob("a", 0, key="k"), NewJob("a", n, key=f"own{n}")] for n in range(9)]
            calls[4] = [NewJob("a", 4, key="own4"), NewJob("a", "other", key="k")]
            calls += [[NewJob("a", key="k", payload=0)] * 200, [NewJob("a")] * 60 + [NewJob("a", 5, key="k")]]
            told = await asyncio.gather(*(service.submit(LOCAL, call) for call in calls), return_exceptions=True)
            refused = [k for k, one in enumerate(told) if isinstance(one, Conflict)]
            fine = [one for one in told if isinstance(one, Submitted)]
            assert refused == [4, 10] and len(fine) == 9
            assert len({one.jobs[0].id for one in fine}) == 1
            listed = (await service.jobs(LOCAL, None, None, None, 1000)).jobs
            assert {one.key for one in listed} == {"k"} | {f"own{n}" for n in range(9) if n != 4}
            assert service.replica.memory.queued["a"] == len(listed) == 9

    asyncio.run(run())


def test_a_submit_and_its_lease_wait_for_one_commit(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nothing else makes it hurry: the pause between two groups is made longer than a slot takes."""
    monkeypatch.setattr("bilinq.live.service.outbox.LEAST", 0.5)

    async def run() -> None:
        async with serving(database_url, work_conserving=True) as service:
            server = await service.register(LOCAL, NewServer("x"))
            asked = asyncio.create_task(service.lease(LOCAL, [server.id], 5.0))
            await asyncio.sleep(0.1)
            before = service.replica.store.commits
            submitted = await service.submit(LOCAL, [NewJob("a", {"n": 1})])
            [lease] = await asked
            assert (lease.job.id, lease.job.payload) == (submitted.jobs[0].id, {"n": 1})
            assert service.replica.store.commits == before + 1

    asyncio.run(run())


def test_a_key_stays_taken_until_its_job_is_stored(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hangs up early and asks again gets the job of the first call: the second waits for what becomes of the first."""
    monkeypatch.setattr("bilinq.live.service.outbox.LEAST", 0.3)

    async def run() -> None:
        async with serving(database_url, slot=60.0) as service:
            first = asyncio.create_task(service.submit(LOCAL, [NewJob("a", key="k")]))
            await asyncio.sleep(0.1)
            first.cancel()
            again = await service.submit(LOCAL, [NewJob("a", key="k"), NewJob("a", key="other")])
            with pytest.raises(Conflict, match="key 'k' was used"):
                await service.submit(LOCAL, [NewJob("a", "other payload", key="k")])
            assert [one.id for one in again.jobs] == ["j1", "j3"]
            assert (service.replica.memory.queued["a"], service.replica.meters.recoveries) == (2, 0)

    asyncio.run(run())


@pytest.mark.parametrize("early", [True, False])
def test_what_memory_changed_before_it_was_lost_is_not_written_after_it_was_loaded_again(
    database_url: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that waits is handed over when memory is given up, and so is all that comes until memory is there again."""
    monkeypatch.setattr("bilinq.live.service.outbox.LEAST", 1.0)

    async def run() -> None:
        async with serving(database_url, slot=60.0) as service:
            replica = service.replica
            saved = [replica.save(Changes(new=[row(500)]))] if early else []
            replica.fail("a test")
            saved += [] if early else [replica.save(Changes(new=[row(500)]))]
            while not replica.ready:
                await asyncio.sleep(0.01)
            [told] = await asyncio.gather(*saved, return_exceptions=True)
            assert set(replica.memory.jobs) == (set() if isinstance(told, Unavailable) else {500})

    asyncio.run(run())


def test_a_poll_takes_what_is_granted_until_it_is_noticed_to_be_over() -> None:
    def lease(id: int) -> Lease:
        return Lease(f"l{id}", id, "s1", 0.0, 0.0, LeasedJob(f"j{id}", "a", None, 1, 0))

    async def run() -> None:
        poll = Poll()
        waiting = asyncio.ensure_future(poll.wait(10.0))
        await asyncio.sleep(0)
        poll.expect()
        poll.deliver(lease(1))
        poll.expect()  # a slot that ran before the waiting call woke up
        await asyncio.sleep(0.01)
        assert not waiting.done()
        poll.deliver(lease(2))
        await waiting
        assert [one.fence for one in poll.leases] == [1, 2]

    asyncio.run(run())


def test_a_call_with_a_lease_on_its_way_gets_no_more_from_further_slots(database_url: str) -> None:
    """Otherwise it would wait for those, slot after slot, with jobs that could have started."""

    async def run() -> None:
        async with serving(database_url, work_conserving=True) as service:
            ids = [(await service.register(LOCAL, NewServer("x", name))).id for name in ("one", "two")]
            call = asyncio.ensure_future(service.lease(LOCAL, ids, 10.0))
            await asyncio.sleep(0.01)
            slow = service.replica.store.submit(lambda tx: time.sleep(0.3))  # so that leases are on their way for long
            jobs = []
            for _ in range(2):
                jobs.append(asyncio.ensure_future(service.submit(LOCAL, [NewJob("a")])))
                await asyncio.sleep(0.1)
            assert (service.replica.memory.queued["a"], service.replica.memory.leased["a"]) == (1, 1)
            [first] = await call
            other = [id for id in ids if id != first.server]
            [second] = await service.lease(LOCAL, other, 10.0)
            assert {first.job.id, second.job.id} == {
                ref.id for told in await asyncio.gather(*jobs) for ref in told.jobs
            }
            await slow

    asyncio.run(run())


def test_a_poll_that_was_ended_is_over_whatever_comes_later() -> None:
    """Ended while leases are being written, it must not wait for the rest, nor count below zero."""

    async def run() -> None:
        poll = Poll()
        poll.expect()
        poll.expect()
        poll.end()
        poll.miss()
        poll.miss()
        assert poll.pending == 0
        await poll.wait(0.0)

    asyncio.run(run())


def test_a_poll_that_is_closed_still_takes_what_is_being_written() -> None:
    async def run() -> None:
        poll = Poll()
        waiting = asyncio.ensure_future(poll.wait(10.0))
        poll.expect()
        poll.expect()
        poll.close()
        poll.miss()
        await asyncio.sleep(0.01)
        assert not waiting.done()
        poll.miss()
        await waiting
        idle = Poll()
        idle.close()
        await idle.wait(10.0)

    asyncio.run(asyncio.wait_for(run(), 5.0))
