"""Group commit: many writes, few commits, and only the operation that fails is affected."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from databases import leading, queued_job

from bilinq.errors import BadInput, Conflict, NotFound, Unavailable
from bilinq.live.store import Store, Transaction, open_store
from bilinq.live.store.admin_tables import get_meta, put_meta
from bilinq.live.store.job_tables import JobEnd, end_jobs, insert_jobs, list_jobs, queued_jobs
from bilinq.live.store.postgres import PostgresConnection
from bilinq.live.store.threads import Batcher

pytest_plugins = ("databases",)


def insert(id: int) -> Callable[[Transaction], int]:
    def operation(tx: Transaction) -> int:
        insert_jobs(tx, [queued_job(id)])
        return id

    return operation


async def stored_ids(store: Store) -> list[int]:
    return [row.id for row in await store.read(queued_jobs)]


def test_many_writes_need_few_commits(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            before = store.commits
            results = await asyncio.gather(*(store.write(insert(id)) for id in range(1, 1001)))
            assert results == list(range(1, 1001))
            assert await stored_ids(store) == results
            assert 1 <= store.commits - before <= 100

    asyncio.run(run())


def test_one_write_needs_one_commit(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            before = store.commits
            for id in range(1, 21):
                await store.write(insert(id))
            assert store.commits - before == 20

    asyncio.run(run())


def test_long_texts_are_sent_in_every_way(database_url: str) -> None:
    """Far more than a socket accepts at once: as a row among others, as a parameter, and in a response."""
    text = '"' + "x" * 5_000_000 + '"'

    def long(tx: Transaction) -> tuple[list[str], str | None]:
        insert_jobs(tx, [queued_job(id)._replace(payload=text) for id in (1, 2)])
        put_meta(tx, "long", text)
        return [row.payload for row in list_jobs(tx, None, None, None, None, 10)], get_meta(tx, "long")

    async def run() -> None:
        async with leading(database_url) as store, asyncio.timeout(60.0):
            back, _ = await asyncio.gather(store.write(long), store.write(insert(3)))
            assert back == ([text, text], text)

    asyncio.run(run())


def test_many_large_rows_are_sent_in_several_statements(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL refuses 256 MiB of JSON; here 10 kB stand for the most in a statement, and a larger row is sent alone."""
    monkeypatch.setattr("bilinq.live.store.postgres.LARGEST", 10_000)
    sent: list[int] = []
    send = PostgresConnection._send

    def noting(self: Any, sql: bytes, params: Any = None, keep_plan: bool = True) -> Any:
        sent.append(len((params or {}).get("rows", "")))
        return send(self, sql, params, keep_plan)

    monkeypatch.setattr(PostgresConnection, "_send", noting)
    rows = [
        queued_job(id, payload='"' + "x" * size + '"', key=f"k{id}") for id, size in enumerate([3000] * 40 + [20_000])
    ]
    ends = [JobEnd(row.id, "done", 2.0, 0, 0, row.payload, 0.5) for row in rows]

    async def run() -> None:
        async with leading(postgres_url) as store:
            await store.write(lambda tx: insert_jobs(tx, rows))
            await store.write(lambda tx: end_jobs(tx, ends))
            found = {row.id: row for row in await store.read(lambda tx: list_jobs(tx, None, None, None, None, 100))}
            for row, end in zip(rows, ends, strict=True):
                assert found[row.id] == row._replace(
                    **{name: value for name, value in end._asdict().items() if name != "number"}
                )

    asyncio.run(run())
    assert 3000 < max(sent) <= 10_000


def test_writes_keep_their_order(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            numbers = range(300)
            writes = [store.write(lambda tx, n=n: put_meta(tx, "last", str(n))) for n in numbers]  # type: ignore[misc]
            await asyncio.gather(*writes)
            assert await store.read(lambda tx: get_meta(tx, "last")) == "299"

    asyncio.run(run())


def refuse(tx: Transaction) -> None:
    raise Conflict("used before")


def refuse_late(tx: Transaction) -> None:
    insert_jobs(tx, [queued_job(1000)])
    raise BadInput("thought of it too late")


def twice(tx: Transaction) -> None:
    insert_jobs(tx, [queued_job(5)])


def nonsense(tx: Transaction) -> None:
    tx.run("INSERT INTO nowhere (id) VALUES (1)")


def bug(tx: Transaction) -> None:
    insert_jobs(tx, [queued_job(1001)])
    raise ZeroDivisionError("bug")


def stop_iteration(tx: Transaction) -> None:
    next(iter(()))


def hide(tx: Transaction) -> None:
    insert_jobs(tx, [queued_job(1002)])
    try:
        nonsense(tx)
    except Exception:
        raise BadInput("hidden") from None


FAULTY = [refuse, refuse_late, twice, nonsense, bug, stop_iteration, hide]


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda operation: operation.__name__)
def test_only_the_faulty_operation_fails(database_url: str, faulty: Callable[[Transaction], None]) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            await store.write(insert(5))
            writes = [store.write(insert(id)) for id in range(10, 30)] + [store.write(faulty)]
            writes += [store.write(insert(id)) for id in range(30, 50)] + [store.write(faulty), store.write(insert(50))]
            results = await asyncio.gather(*writes, return_exceptions=True)
            failed = [index for index, result in enumerate(results) if isinstance(result, BaseException)]
            assert failed == [20, 41]
            assert await stored_ids(store) == [5, *range(10, 51)]
            assert not store.lost.is_set()

    asyncio.run(run())


def test_errors_arrive_as_they_were_raised(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            with pytest.raises(Conflict, match="used before"):
                await store.write(refuse)
            with pytest.raises(BadInput, match="too late"):
                await store.write(refuse_late)
            with pytest.raises(ZeroDivisionError, match="bug"):
                await store.write(bug)
            with pytest.raises(RuntimeError, match="StopIteration"):
                await store.write(stop_iteration)
            with pytest.raises(RuntimeError, match="StopIteration"):
                await store.read(stop_iteration)
            with pytest.raises(Conflict, match="used before"):
                await store.read(refuse)

    asyncio.run(run())


def test_an_error_that_an_operation_hides_undoes_it_on_postgresql(postgres_url: str) -> None:
    """PostgreSQL would roll back the transaction and report a successful commit."""

    def careless(tx: Transaction) -> None:
        insert_jobs(tx, [queued_job(1)])
        try:
            nonsense(tx)
        except Exception:
            return

    async def run() -> None:
        async with leading(postgres_url) as store:
            results = await asyncio.gather(
                store.write(insert(2)), store.write(careless), store.write(insert(3)), return_exceptions=True
            )
            assert [type(result) for result in results] == [int, RuntimeError, int]
            assert await stored_ids(store) == [2, 3]

    asyncio.run(run())


def test_a_cancelled_caller_does_not_stop_the_others(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            tasks = [asyncio.create_task(store.write(insert(id))) for id in range(1, 11)]
            await asyncio.sleep(0)
            tasks[3].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[3], asyncio.CancelledError)
            await store.write(insert(11))
            assert await stored_ids(store) == list(range(1, 12))

    asyncio.run(run())


def test_stop_finishes_queued_operations(database_url: str) -> None:
    async def run() -> None:
        store = open_store(database_url)
        await store.start()
        tasks = [asyncio.create_task(store.write(insert(id))) for id in range(1, 101)]
        await asyncio.sleep(0)
        await store.stop()
        assert await asyncio.gather(*tasks) == list(range(1, 101))
        with pytest.raises(Unavailable, match="stopped"):
            await store.write(insert(101))
        with pytest.raises(Unavailable, match="stopped"):
            await store.read(queued_jobs)
        async with leading(database_url) as again:
            assert await stored_ids(again) == list(range(1, 101))

    asyncio.run(run())


def test_reading_never_writes(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            await store.write(insert(1))
            for sql in ("DELETE FROM job", "UPDATE job SET state = 'done'", "CREATE TABLE other (id BIGINT)"):
                with pytest.raises(Exception, match=r"(?i)read-?only"):
                    await store.read(lambda tx, sql=sql: tx.run(sql))  # type: ignore[misc]
            assert await stored_ids(store) == [1]

    asyncio.run(run())


def test_reading_before_there_are_tables(sqlite_url: str, postgres_url: str, tmp_path: Path) -> None:
    async def run(url: str) -> None:
        store = open_store(url, lead=False)
        await store.start()
        with pytest.raises(Unavailable, match="no tables yet"):
            await store.read(queued_jobs)
        await store.stop()
        await store.stop()  # may be called twice

    (tmp_path / "live.db").touch()
    asyncio.run(run(sqlite_url))
    asyncio.run(run(postgres_url))


def test_a_read_sees_one_snapshot(database_url: str) -> None:
    async def run() -> None:
        async with leading(database_url) as store:
            loop = asyncio.get_running_loop()
            await store.write(insert(1))

            def twice(tx: Transaction) -> tuple[int, int]:
                before = len(queued_jobs(tx))
                asyncio.run_coroutine_threadsafe(store.write(insert(2)), loop).result()
                return before, len(queued_jobs(tx))

            assert await store.read(twice) == (1, 1)
            assert await stored_ids(store) == [1, 2]

    asyncio.run(run())


def test_batched_calls_share_operations(database_url: str) -> None:
    calls: list[int] = []

    def submit(tx: Transaction, ids: list[int]) -> list[int | NotFound]:
        calls.append(len(ids))
        if 13 in ids:
            raise ZeroDivisionError("bug")
        insert_jobs(tx, [queued_job(id) for id in ids if id % 10])
        return [id if id % 10 else NotFound(f"no {id}") for id in ids]

    async def run() -> None:
        async with leading(database_url) as store:
            batcher = Batcher(store.write, submit)
            results = await asyncio.gather(*(batcher(id) for id in range(20, 220)), return_exceptions=True)
            assert len(calls) <= 2
            assert [str(result) for result in results] == [str(id) if id % 10 else f"no {id}" for id in range(20, 220)]
            mixed = await asyncio.gather(*(batcher(id) for id in (11, 12, 13, 14)), return_exceptions=True)
            assert mixed[:2] + mixed[3:] == [11, 12, 14]
            assert isinstance(mixed[2], ZeroDivisionError)
            assert await stored_ids(store) == [11, 12, 14, *(id for id in range(20, 220) if id % 10)]

    asyncio.run(run())


def test_batched_calls_must_have_a_result_each(sqlite_url: str) -> None:
    def short(tx: Transaction, ids: list[int]) -> list[int]:
        insert_jobs(tx, [queued_job(id) for id in ids])
        return []

    async def run() -> None:
        async with leading(sqlite_url) as store:
            with pytest.raises(RuntimeError, match="must return 1 results; got 0"):
                await Batcher(store.write, short)(1)
            assert await stored_ids(store) == []

    asyncio.run(run())
