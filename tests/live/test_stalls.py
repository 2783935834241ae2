"""A database that hangs: callers get 503 in time, the service says so, and goes on by itself when the database answers."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from databases import Postgres, leading, queued_job
from process import make_key, wait_for
from slotless import ready, run, serving
from template import Template
from test_faults import live

from bilinq.errors import Unavailable
from bilinq.live.keys import LOCAL
from bilinq.live.store import Transaction, open_store
from bilinq.live.store.job_tables import insert_jobs, queued_jobs
from bilinq.live.store.sqlite import SqliteConnection
from bilinq.live.wire.messages import NewJob

pytest_plugins = ["databases"]

SHORT = 1.0  # seconds that the database may be silent in these tests


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    with Template(tmp_path_factory.mktemp("services") / "log.txt") as template:
        yield template


def test_calls_end_while_the_database_hangs_and_all_goes_on_afterwards(
    template: Template, postgres: Postgres, postgres_url: str
) -> None:
    """Every PostgreSQL process is stopped: it accepts connections, and answers nothing."""
    key = make_key(postgres_url, "admin")
    with live(template, postgres_url, key, database_timeout=SHORT) as service, ThreadPoolExecutor() as pool:
        known = service.submit(key="before").json()["jobs"][0]["id"]
        lease = service.lease()
        poll = pool.submit(service.client.post, f"/v1/servers/{service.server('two')}/lease", params={"wait": 25})
        time.sleep(0.2)
        log = template.log.read_text()
        with postgres.frozen():
            began = time.monotonic()
            calls = [
                pool.submit(service.submit, key="during"), pool.submit(service.finish, lease, 0.75),
                pool.submit(service.client.get, f"/v1/jobs/{known}"), pool.submit(service.client.get, "/v1/audit"),
            ]  # fmt: skip
            for call in calls:
                answer = call.result(10.0)
                assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1, answer.text
            assert poll.result(10.0).status_code in (204, 503)
            wait_for(lambda: not service.ready(), 5.0)
            assert time.monotonic() - began < 4.0 * SHORT
            assert service.client.get("/healthz").status_code == 200
            page = service.client.get("/metrics").text
            assert "\nbilinq_database_stalls_total 1\n" in page and "\nbilinq_ready 0\n" in page
            time.sleep(2.0 * SHORT)
        wait_for(service.ready, 15.0)
        told = template.log.read_text().removeprefix(log)
        assert told.count("the database is unavailable: ") == 1 and told.count("no answer for 1 s") == 1, told
        assert service.finish(lease, 0.75).json()["state"] == "done"  # the same again, whether or not it was stored
        during = {service.submit(key="during").json()["jobs"][0]["id"] for _ in range(2)}
        assert len(during) == 1 and service.state(known) == "done"
        assert [job["key"] for job in service.client.get("/v1/jobs").json()["jobs"]] == ["during", "before"]
        schema = postgres_url.partition("search_path%3D")[2]
        assert postgres.run(f"SELECT count(*), sum(value) FROM {schema}.observation") == [(1, 0.75)]


def test_a_short_stall_of_the_database_changes_nothing(postgres: Postgres, postgres_url: str) -> None:
    """Calls wait, and a process that waits for the lead does not mistake the stall for a frozen leader."""

    async def work() -> None:
        async with leading(postgres_url) as store:
            other = open_store(postgres_url, lead=False)
            waiting = asyncio.create_task(other.lead())
            await asyncio.sleep(0.6)
            with postgres.frozen():
                write = asyncio.create_task(store.write(lambda tx: insert_jobs(tx, [queued_job(1)])))
                await asyncio.sleep(4.0)
            await asyncio.wait_for(write, 5.0)
            await asyncio.sleep(0.6)
            assert not waiting.done() and not store.lost.is_set()
            waiting.cancel()
            await asyncio.wait([waiting])
            await other.stop()

    asyncio.run(work())


def test_a_service_stops_while_its_database_hangs(template: Template, postgres: Postgres, postgres_url: str) -> None:
    key = make_key(postgres_url, "admin")
    with live(template, postgres_url, key, database_timeout=SHORT) as service, postgres.frozen():
        service.process.end(15, 15.0)


class Disk:
    """Commits of SQLite that hang, as in a file system that does not answer; `works` is cleared meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works, self.hung = threading.Event(), threading.Event()
        self.works.set()
        commit = SqliteConnection.commit

        def wait(connection: SqliteConnection) -> None:
            if not self.works.is_set():
                self.hung.set()
                self.works.wait(20.0)
            commit(connection)

        monkeypatch.setattr(SqliteConnection, "commit", wait)


def test_a_file_system_that_hangs_is_reported_and_nothing_is_stored_twice(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        disk = Disk(monkeypatch)
        async with serving(sqlite_url, database_timeout=0.5) as service:
            await service.submit(LOCAL, [NewJob("a", key="before")])
            disk.works.clear()
            calls = [service.submit(LOCAL, [NewJob("a", key="first")])]
            first = [asyncio.ensure_future(call) for call in calls]
            await asyncio.to_thread(disk.hung.wait, 5.0)
            first.append(asyncio.ensure_future(service.submit(LOCAL, [NewJob("a", key="second")])))
            began = time.monotonic()
            told = await asyncio.wait_for(asyncio.gather(*first, return_exceptions=True), 5.0)
            assert [type(one) for one in told] == [Unavailable, Unavailable]
            assert "not known whether this was stored" in str(told[0])
            assert time.monotonic() - began < 2.0 and not service.ready
            with pytest.raises(Unavailable):
                await service.submit(LOCAL, [NewJob("a", key="third")])
            assert service.replica.store.meter.stalls == 1
            await asyncio.sleep(0.5)
            assert not service.ready
            disk.works.set()
            await ready(service)
            keys = ("before", "first", "second")
            refs = [await service.submit(LOCAL, [NewJob("a", key=key)]) for key in keys * 2]
            ids = [ref.jobs[0].id for ref in refs]
            assert ids[:3] == ids[3:] and len(set(ids)) == 3
            assert service.replica.memory.queued["a"] == 3

    run(work())
    assert [one.getMessage() for one in caplog.records if "unavailable" in one.getMessage()] == [
        "the database is unavailable: no answer for 0.5 s; it is not known whether this was stored"
    ]


def test_a_writer_that_hangs_does_not_hang_the_end(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)

    async def work() -> None:
        store = open_store(sqlite_url, timeout=0.3)
        await store.start()
        disk.works.clear()
        with pytest.raises(Unavailable):
            await store.write(lambda tx: insert_jobs(tx, [queued_job(1)]))
        await asyncio.wait_for(store.stop(), 2.0)

    asyncio.run(work())
    disk.works.set()


def test_a_read_that_hangs_ends(postgres: Postgres, postgres_url: str) -> None:
    """Many reads at once, more than there are threads: none waits much longer than the first."""

    async def work() -> None:
        store = open_store(postgres_url, timeout=SHORT)
        await store.start()
        assert await store.read(queued_jobs) == []
        with postgres.frozen():
            began = time.monotonic()
            told: list[Any] = await asyncio.gather(
                *(store.read(lambda tx: queued_jobs(tx)) for _ in range(20)), return_exceptions=True
            )
            assert {type(one) for one in told} == {Unavailable}
            assert time.monotonic() - began < 2.5 * SHORT
        await asyncio.wait_for(store.stop(), 10.0)

    asyncio.run(work())


def test_a_long_upgrade_of_the_tables_is_no_stall(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(tx: Transaction) -> None:
        tx.rows("SELECT pg_sleep(1)")

    monkeypatch.setattr("bilinq.live.store.store.migrate", slow)
    monkeypatch.setattr("bilinq.live.store.store.get_meta", lambda tx, name: "3")
    monkeypatch.setattr("bilinq.live.store.store.put_meta", lambda tx, name, value: None)

    async def work() -> None:
        store = open_store(postgres_url, timeout=0.5)
        await store.start()
        assert store.epoch == 4
        with pytest.raises(Unavailable, match=r"no answer for 0\.5 s"):
            await store.write(slow)
        await store.stop()

    asyncio.run(work())
