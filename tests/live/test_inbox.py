"""Jobs that an application enqueues with SQL, in its own transaction, on PostgreSQL."""

import asyncio
import time
from typing import Any

import psycopg
import pytest
from databases import Postgres, stored
from slotless import run, serving

from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.store.inbox_tables import inbox_parts
from bilinq.live.wire.access import NamespaceInfo, NewKey
from bilinq.live.wire.messages import Job, NewJob, NewServer

pytest_plugins = ("databases",)

ENQUEUE = "SELECT bilinq_enqueue('a', %s::jsonb, key => %s)"


async def jobs(service: Service) -> list[Job]:
    """Return all jobs, oldest first."""
    return (await service.jobs(LOCAL, None, None, None, 1000)).jobs[::-1]


async def see(service: Service, number: int, seconds: float = 5.0) -> list[Job]:
    """Return the jobs once there are so many."""
    async with asyncio.timeout(seconds):
        while len(found := await jobs(service)) < number:
            await asyncio.sleep(0.005)
    return found


async def emptied(service: Service) -> None:
    """Return when the inbox is empty."""
    async with asyncio.timeout(5.0):
        while await service.replica.store.read(inbox_parts):
            await asyncio.sleep(0.005)


async def prepared(service: Service) -> None:
    """Make namespace default known, which has no key yet."""
    await service.create_key(LOCAL, NewKey(["read"]))


def enqueue(url: str, sql: str, *values: Any, commit: bool = True) -> Any:
    """Run SQL in a transaction that also changes a table of the application; commit it or not."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (number BIGINT)")
        connection.execute("INSERT INTO orders VALUES (77)")
        found = connection.execute(sql.encode(), values).fetchone()
        if not commit:
            connection.rollback()
    assert found is not None
    return found[0]


def test_a_committed_job_is_taken_at_once_and_a_rolled_back_one_never(postgres_url: str) -> None:
    async def work() -> None:
        async with serving(postgres_url) as service:
            await prepared(service)
            await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, '{"n": 0}', "undone", commit=False)
            began = time.monotonic()
            key = await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, '{"n": 1}', None)
            [job] = await see(service, 1)
            assert time.monotonic() - began < 0.9, "it waits for the notification, not for the next look"
            assert (job.payload, job.key, job.namespace, job.units) == ({"n": 1}, key, "default", 1)
            server = await service.register(LOCAL, NewServer("x"))
            [lease] = await service.lease(LOCAL, [server.id], 0.0)
            assert lease.job.payload == {"n": 1}
            await asyncio.sleep(1.2)
            assert len(await jobs(service)) == 1

    run(work())
    assert stored(postgres_url, inbox_parts) == [[]]


def test_a_transaction_that_is_open_hides_its_jobs(postgres_url: str) -> None:
    async def work() -> None:
        async with serving(postgres_url) as service:
            await prepared(service)
            with psycopg.connect(postgres_url) as connection:
                for k in range(1500):
                    connection.execute(ENQUEUE.encode(), (str(k), f"order {k}"))
                await asyncio.sleep(1.2)
                assert await jobs(service) == []
                connection.commit()
            async with asyncio.timeout(10.0):
                while (found := await jobs(service))[-1:] == [] or found[-1].payload < 1499:
                    await asyncio.sleep(0.01)
            assert [job.payload for job in found] == list(range(500, 1500))

    run(work())


def test_jobs_wait_for_a_service_that_is_down(postgres_url: str) -> None:
    async def work() -> None:
        async with serving(postgres_url) as service:
            await prepared(service)
        for k in range(3):
            await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, str(k), None)
        async with serving(postgres_url) as service:
            assert [job.payload for job in await see(service, 3)] == [0, 1, 2]

    run(work())


def test_a_key_enqueues_once_by_sql_and_http(postgres_url: str) -> None:
    """Also if the leader died after it had submitted the job and before it deleted it from the inbox."""

    async def work() -> None:
        async with serving(postgres_url) as service:
            await prepared(service)
            for _ in range(2):
                assert await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, '{"a": [1, 2.5]}', "k") == "k"
            [job] = await see(service, 1)
            again = await service.submit(LOCAL, [NewJob("a", {"a": [1, 2.5]}, "k")])
            assert again.jobs[0].id == job.id
            await emptied(service)
            columns = "(namespace, class, key, payload, units)"
            sql = f"INSERT INTO inbox {columns} VALUES ('default', 'a', 'k', %s, 1) RETURNING id"
            await asyncio.to_thread(enqueue, postgres_url, sql, '{"a": [1, 2.5]}')
            await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, "1", "last")
            await see(service, 2)
            await emptied(service)
            assert [job.key for job in await jobs(service)] == ["k", "last"]

    run(work())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("bilinq_enqueue('nothing')", "there is no job class 'nothing'"),
        ("bilinq_enqueue(NULL)", "there is no job class NULL"),
        (
            "bilinq_enqueue('a', namespace => 'typo')",
            "there is no namespace 'typo'; create a key or settings for it first",
        ),
        ("bilinq_enqueue('a', units => 0)", "units must be from 1 to 1000000; got 0"),
        ("bilinq_enqueue('a', key => '')", "key must have 1 to 200 printable characters"),
        ("bilinq_enqueue('a', key => E'a\\nb')", "key must have 1 to 200 printable characters"),
    ],
)
def test_what_is_wrong_is_refused_in_the_transaction(call: str, error: str, postgres_url: str) -> None:
    async def work() -> None:
        async with serving(postgres_url) as service:
            await prepared(service)
            with pytest.raises(psycopg.Error, match=error):
                await asyncio.to_thread(enqueue, postgres_url, f"SELECT {call}")

    run(work())


def test_namespaces_and_their_limits_hold(postgres_url: str) -> None:
    """A job beyond the backlog stays in the inbox until there is room; another namespace does not wait for it."""

    async def work() -> None:
        async with serving(postgres_url) as service:
            for name in ("small", "large"):
                await service.put_namespace(LOCAL, NamespaceInfo(name, backlog=2 if name == "small" else None))
            with psycopg.connect(postgres_url) as connection:
                for k in range(4):
                    for name in ("small", "large"):
                        connection.execute("SELECT bilinq_enqueue('a', to_jsonb(%s::int), %s)", (k, name))
            found = await see(service, 6)
            assert [(job.namespace, job.payload) for job in found if job.namespace == "small"] == [
                ("small", 0),
                ("small", 1),
            ]
            await service.cancel(LOCAL, next(job.id for job in found if job.namespace == "small"))
            found = await see(service, 7)
            assert [job.payload for job in found if job.namespace == "small"] == [0, 1, 2]

    run(work())


def test_it_listens_again_after_its_connection_was_lost(postgres: Postgres) -> None:
    url = postgres.fresh()

    async def work() -> None:
        async with serving(url) as service:
            await prepared(service)
            await asyncio.to_thread(postgres.cut)
            async with asyncio.timeout(10.0):
                while not service.ready:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(enqueue, url, ENQUEUE, "1", None)
            assert [job.payload for job in await see(service, 1, 10.0)] == [1]

    run(work())


def test_only_roles_with_the_grant_can_enqueue(postgres: Postgres) -> None:
    url = postgres.fresh()

    async def work() -> None:
        async with serving(url) as service:
            await prepared(service)
            schema = await service.replica.store.read(lambda tx: tx.rows("SELECT current_schema()")[0][0])
            postgres.run("DROP ROLE IF EXISTS shop")
            postgres.run("CREATE ROLE shop")
            postgres.run(f"GRANT USAGE ON SCHEMA {schema} TO shop")
            ask = "SELECT bilinq_enqueue('a')"
            with psycopg.connect(url) as connection:
                connection.execute("SET ROLE shop")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(ask)
            postgres.run(f"GRANT EXECUTE ON FUNCTION {schema}.bilinq_enqueue TO shop")
            with psycopg.connect(url) as connection:
                connection.execute("SET ROLE shop")
                connection.execute(ask)
            await see(service, 1)
            postgres.run("DROP OWNED BY shop; DROP ROLE shop")

    run(work())


def test_temporary_tables_of_a_caller_are_not_used(postgres: Postgres) -> None:
    """A role that may only enqueue makes tables of the same names, one with a trigger that would have the owner's rights."""
    url = postgres.fresh()

    async def work() -> None:
        async with serving(url) as service:
            await prepared(service)
            schema = await service.replica.store.read(lambda tx: tx.rows("SELECT current_schema()")[0][0])
            postgres.run("DROP ROLE IF EXISTS thief")
            postgres.run("CREATE ROLE thief")
            postgres.run(f"GRANT USAGE ON SCHEMA {schema} TO thief")
            postgres.run(f"GRANT EXECUTE ON FUNCTION {schema}.bilinq_enqueue TO thief")
            with psycopg.connect(url) as connection:
                connection.execute("SET ROLE thief")
                for name in ("inbox", "class", "api_key", "namespace", "job"):
                    like = "(id BIGINT, namespace TEXT, class TEXT, key TEXT, payload TEXT, units BIGINT, kind TEXT, "
                    like += "current BIGINT, name TEXT, UNIQUE (namespace, key))"
                    connection.execute(f"CREATE TEMP TABLE {name} {like}".encode())
                connection.execute("INSERT INTO pg_temp.class (kind, current, name) VALUES ('job', 1, 'forged')")
                connection.execute("INSERT INTO pg_temp.namespace (name) VALUES ('default')")
                connection.execute("CREATE TEMP TABLE stolen (who TEXT)")
                connection.execute("GRANT ALL ON stolen TO PUBLIC")
                connection.execute("""CREATE FUNCTION pg_temp.steal() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN INSERT INTO pg_temp.stolen VALUES (current_user); RETURN NEW; END $$""")
                connection.execute(
                    "CREATE TRIGGER steal BEFORE INSERT ON pg_temp.inbox FOR EACH ROW EXECUTE FUNCTION pg_temp.steal()"
                )
                connection.execute(f"SELECT {schema}.bilinq_enqueue('a', '1', key => 'honest')".encode())
                assert connection.execute("SELECT who FROM pg_temp.stolen").fetchall() == []
                assert connection.execute("SELECT key FROM pg_temp.inbox").fetchall() == []
                connection.commit()
                with pytest.raises(psycopg.errors.ForeignKeyViolation, match="no job class 'forged'"):
                    connection.execute(f"SELECT {schema}.bilinq_enqueue('forged')".encode())
            assert [job.key for job in await see(service, 1)] == ["honest"]
            postgres.run("DROP OWNED BY thief; DROP ROLE thief")

    run(work())


def insert(url: str, key: str, payload: str) -> None:
    """Put a row into the inbox, past the function."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO inbox (namespace, class, key, payload, units) VALUES ('default', 'a', %s, %s, 1)",
            (key, payload),
        )


def test_a_bad_row_is_refused_and_the_others_are_submitted(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """JSON that is too deep to be read, or to be sent, and text that is no JSON; each is refused with a line in the log."""

    async def work() -> None:
        async with serving(postgres_url) as service:
            await prepared(service)
            deep = "[" * 2000 + "]" * 2000
            await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, deep, "deep")
            await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, "[" * 101 + "]" * 101, "level 101")
            await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, "[" * 100 + "]" * 100, "level 100")
            await asyncio.to_thread(insert, postgres_url, "broken", '{"a')
            await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, f'"{"x" * 2_000_000}"', "large")
            await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, "1", "good")
            assert [job.key for job in await see(service, 2)] == ["level 100", "good"]
            await emptied(service)

    run(work())
    for key in ("deep", "level 101", "broken", "large"):
        assert f"a job that SQL enqueued is refused: namespace=default key={key}: payload must" in caplog.text


def test_a_row_that_makes_the_service_fail_is_set_aside(
    postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with serving(postgres_url) as service:
            await prepared(service)
            submit = service.submit

            async def fails(who: Any, new: Any) -> Any:
                if any(job.key == "bad" for job in new):
                    raise ZeroDivisionError("a bug")
                return await submit(who, new)

            with monkeypatch.context() as patch:
                patch.setattr(service, "submit", fails)
                for key in ("first", "bad", "last"):
                    await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, "1", key)
                assert [job.key for job in await see(service, 2)] == ["first", "last"]
                await asyncio.sleep(1.2)
        async with serving(postgres_url) as service:
            assert [job.key for job in await see(service, 3)] == ["first", "last", "bad"]

    run(work())
    assert caplog.text.count("is set aside: namespace=default key=bad: a bug") == 1


def test_the_task_survives_an_error_of_any_kind(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with serving(postgres_url) as service:
            await prepared(service)
            with monkeypatch.context() as patch:
                patch.setattr("bilinq.live.service.inbox.inbox_parts", lambda tx: 1 / 0)
                await asyncio.to_thread(enqueue, postgres_url, ENQUEUE, "1", "k")
                await asyncio.sleep(0.3)
            assert [job.key for job in await see(service, 1)] == ["k"]

    run(work())


def test_a_namespace_that_is_full_does_not_hide_the_jobs_of_others(postgres_url: str) -> None:
    """1,500 rows that wait for room are older than the row of another namespace; one of them will never fit."""

    async def work() -> None:
        async with serving(postgres_url) as service:
            await service.put_namespace(LOCAL, NamespaceInfo("full", backlog=2, payload_bytes=100))
            await service.put_namespace(LOCAL, NamespaceInfo("other"))
            with psycopg.connect(postgres_url) as connection:
                connection.execute("SELECT bilinq_enqueue('a', to_jsonb(repeat('x', 200)), 'full')")
                connection.execute(
                    "SELECT bilinq_enqueue('a', to_jsonb(k), 'full') FROM generate_series(1, 1500) AS s (k)"
                )
                connection.execute("SELECT bilinq_enqueue('a', '0', 'other')")
            found = await see(service, 3)
            assert [(job.namespace, job.payload) for job in found] == [("full", 1), ("full", 2), ("other", 0)]

    run(work())
