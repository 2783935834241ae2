"""PostgreSQL is lost, comes back, or has another leader: no write is acknowledged that is not stored."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest
from databases import Postgres, leading, queued_job

from bilinq.errors import Unavailable
from bilinq.live.store import Store, Transaction, open_store
from bilinq.live.store.admin_tables import get_meta
from bilinq.live.store.job_tables import insert_jobs, queued_jobs

pytest_plugins = ("databases",)


def insert(*ids: int) -> Callable[[Transaction], None]:
    rows = [queued_job(id) for id in ids]
    return lambda tx: insert_jobs(tx, rows)


async def stored_ids(store: Store) -> list[int]:
    return [row.id for row in await store.read(queued_jobs)]


async def lost_within(store: Store, seconds: float) -> None:
    await asyncio.wait_for(store.lost.wait(), seconds)


def test_a_cut_connection_is_noticed_and_reconnected(postgres: Postgres, postgres_url: str) -> None:
    async def run() -> None:
        async with leading(postgres_url) as store:
            await store.write(insert(1))
            assert await stored_ids(store) == [1]
            postgres.cut()
            writes = [store.write(insert(id)) for id in (2, 3, 4)]
            results = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(result) for result in results] == [Unavailable, Unavailable, Unavailable]
            await lost_within(store, 1.0)
            with pytest.raises(Unavailable, match="connection to the database was lost"):
                await store.write(insert(5))
            assert await stored_ids(store) == [1]  # reading reconnects by itself
            assert await store.reconnect() is False
            assert not store.lost.is_set()
            await store.write(insert(6))
            assert await stored_ids(store) == [1, 6]
            assert store.epoch == 2

    asyncio.run(run())


def test_a_loss_is_noticed_without_any_work(postgres: Postgres, postgres_url: str) -> None:
    async def run() -> None:
        async with leading(postgres_url) as store:
            postgres.cut()
            await lost_within(store, 3.0)

    asyncio.run(run())


def test_a_server_that_is_down_for_a_while(postgres: Postgres, postgres_url: str) -> None:
    async def run() -> None:
        async with leading(postgres_url) as store:
            await store.write(insert(1))
            await asyncio.to_thread(postgres.stop)
            try:
                with pytest.raises(Unavailable):
                    await store.write(insert(2))
                with pytest.raises(Unavailable, match="cannot be reached"):
                    await store.read(queued_jobs)
                with pytest.raises(Unavailable, match="cannot be reached"):
                    await open_store(postgres_url).start()
                back = asyncio.create_task(store.reconnect())
                await asyncio.sleep(0.7)
                assert not back.done()
            finally:
                await asyncio.to_thread(postgres.start)
            assert await asyncio.wait_for(back, 5.0) is False
            await store.write(insert(3))
            assert await stored_ids(store) == [1, 3]

    asyncio.run(run())


SYNC, READY = b"S\x00\x00\x00\x04", b"Z\x00\x00\x00\x05I"
"""The end of a transaction, and the end of its response."""


class Proxy:
    """A proxy between bilinq and PostgreSQL; once `armed`, it forwards a commit and disconnects before the response."""

    def __init__(self, socket: str) -> None:
        self.armed = False
        self.tasks: set[asyncio.Task[None] | None] = set()
        self._socket = socket

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        self.tasks.add(asyncio.current_task())
        responses, requests = await asyncio.open_unix_connection(self._socket)
        backward = asyncio.create_task(self._backward(responses, writer))
        while data := await reader.read(65536):
            requests.write(data)
            if self.armed and data.endswith(SYNC):
                backward.cancel()
                await asyncio.wait([backward])
                await responses.readuntil(READY)  # the server has committed
                break
        for stream in (requests, writer):
            stream.close()
            await stream.wait_closed()

    async def _backward(self, responses: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await responses.read(65536):
            writer.write(data)


@asynccontextmanager
async def proxied(postgres: Postgres, url: str) -> AsyncIterator[tuple[Proxy, str]]:
    proxy = Proxy(postgres.socket)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options = url.partition("&")[2]
    try:
        yield proxy, f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable&{options}"
    finally:
        server.close()
        await asyncio.gather(*filter(None, proxy.tasks))


def test_a_commit_whose_response_is_lost_may_have_been_stored(postgres: Postgres, postgres_url: str) -> None:
    async def run() -> None:
        async with proxied(postgres, postgres_url) as (proxy, url), leading(url) as store:
            await store.write(insert(1))
            proxy.armed = True
            with pytest.raises(Unavailable, match="not known whether this was stored"):
                await store.write(insert(2))
            proxy.armed = False
            await lost_within(store, 1.0)
            assert await store.reconnect() is False
            assert await stored_ids(store) == [1, 2]
            await store.write(insert(3))

    asyncio.run(run())


def test_a_commit_in_which_the_server_fails_may_not_have_been_stored(postgres: Postgres, postgres_url: str) -> None:
    def kill_own_session(tx: Transaction) -> None:
        tx.run(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(1); RETURN NULL; END $$"
        )
        tx.run(
            "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON job DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION die()"
        )

    async def run() -> None:
        async with leading(postgres_url) as store:
            await store.write(kill_own_session)
            await store.write(insert(1))
            deadly_one, with_it_or_after = await asyncio.gather(
                *(store.write(insert(id)) for id in (2, 3)), return_exceptions=True
            )
            assert isinstance(deadly_one, Unavailable) and "not known" in str(deadly_one)
            assert isinstance(with_it_or_after, Unavailable)
            await lost_within(store, 1.0)
            assert await store.reconnect() is False
            assert await stored_ids(store) == [1]

    asyncio.run(run())


def test_a_failing_server_is_unavailable_until_it_recovers(postgres_url: str) -> None:
    def full(tx: Transaction) -> None:
        tx.run("DO $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$")

    async def run() -> None:
        async with leading(postgres_url) as store:
            with pytest.raises(Unavailable, match="no space left on device"):
                await store.write(full)
            await lost_within(store, 1.0)
            assert await store.reconnect() is False
            await store.write(insert(1))

    asyncio.run(run())


def test_a_second_leader_waits_and_takes_over(postgres: Postgres, postgres_url: str) -> None:
    async def run() -> None:
        async with leading(postgres_url) as first:
            with pytest.raises(Unavailable, match="another process leads"):
                await open_store(postgres_url).start(wait=False)
            second = open_store(postgres_url, lead=False)
            await second.start()
            await first.write(insert(1))
            assert await stored_ids(second) == [1]
            waiting = asyncio.create_task(second.lead())
            await asyncio.sleep(0.7)
            assert not waiting.done()
            with pytest.raises(Unavailable, match="does not lead"):
                await second.write(insert(9))

            postgres.run("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")
            await asyncio.wait_for(waiting, 5.0)
            await second.write(insert(2))
            with pytest.raises(Unavailable):
                await first.write(insert(3))
            back = asyncio.create_task(first.reconnect())
            await asyncio.sleep(0.7)
            assert not back.done()
            await second.stop()
            assert await asyncio.wait_for(back, 5.0) is True
            await first.write(insert(4))
            assert await stored_ids(first) == [1, 2, 4]
            assert (first.epoch, second.epoch) == (3, 2)

    asyncio.run(run())


def test_a_store_that_stops_waiting_keeps_no_lock(postgres: Postgres, postgres_url: str) -> None:
    async def run() -> None:
        async with leading(postgres_url):
            for delay in (0.0, 0.001, 0.01, 0.03, 0.1, 0.3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(open_store(postgres_url).start(), delay)
        for delay in (0.0, 0.001, 0.01, 0.03):
            store = open_store(postgres_url)
            try:
                await asyncio.wait_for(store.start(), delay)
            except TimeoutError:
                continue
            await store.stop()
        async with asyncio.timeout(5.0), leading(postgres_url) as store:
            await store.write(insert(1))

    asyncio.run(run())
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bilinq'"
    end = time.monotonic() + 5.0
    while postgres.run(sessions) != [(0,)]:
        assert time.monotonic() < end, "sessions are left over"
        time.sleep(0.1)


FREEZE = """
import asyncio, sys
from bilinq.errors import Unavailable
from bilinq.live.store import open_store
from bilinq.live.store.admin_tables import put_meta

def write(tx):
    if sys.argv[2] == "in a transaction":
        put_meta(tx, "who", "began")
        print("wrote", flush=True)
    sys.stdin.readline()
    put_meta(tx, "who", "frozen")

async def main(url):
    store = open_store(url)
    await store.start()
    print("leads", flush=True)
    if sys.argv[2] == "idle":
        await asyncio.to_thread(sys.stdin.readline)
    try:
        await store.write(write)
    except Unavailable as error:
        print("unavailable", flush=True)
    await store.stop()

asyncio.run(main(sys.argv[1]))
"""


def test_a_leader_that_stops_releases_the_lock_at_once(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is released, and does not stay until the database notices that the connection is lost."""
    kept: list[psycopg.Connection] = []

    async def run() -> None:
        first = open_store(postgres_url)
        await first.start(wait=False)
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "close", lambda connection: kept.append(connection))
            await first.stop()
        async with leading(postgres_url) as second:
            await second.write(insert(1))
        assert any(not connection.closed for connection in kept)

    asyncio.run(asyncio.wait_for(run(), 4.0))
    for connection in kept:
        connection.close()


@pytest.mark.parametrize("when", ["idle", "in a transaction"])
def test_a_frozen_leader_loses_the_lead_and_cannot_write_when_it_wakes(postgres_url: str, when: str) -> None:
    """In the middle of a transaction no timeout of PostgreSQL runs: the process that waits for the lead ends the session."""
    frozen = subprocess.Popen(
        [sys.executable, "-c", FREEZE, postgres_url, when], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    async def run() -> None:
        start = time.monotonic()
        async with asyncio.timeout(20.0), leading(postgres_url) as store:
            assert time.monotonic() - start < 5.0
            await store.write(insert(1))
            frozen.send_signal(signal.SIGCONT)
            out, _ = await asyncio.to_thread(frozen.communicate, "go\ngo\n", 20.0)
            assert out == "unavailable\n"
            assert await store.read(lambda tx: get_meta(tx, "who")) is None

    try:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "leads\n"
        if when == "in a transaction":
            assert frozen.stdout.readline() == "wrote\n"
        frozen.send_signal(signal.SIGSTOP)
        asyncio.run(run())
    finally:
        frozen.kill()
        frozen.wait()


def test_a_leader_whose_statement_takes_long_keeps_the_lead(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinq.live.store.postgres.FROZEN", 6)  # 1.5 s

    def slow(tx: Transaction) -> None:
        insert_jobs(tx, [queued_job(1)])
        tx.run("SELECT pg_sleep(2.5)")

    async def run() -> None:
        async with leading(postgres_url) as store:
            other = open_store(postgres_url, lead=False)
            waiting = asyncio.create_task(other.lead())
            await store.write(slow)
            assert not waiting.done()
            assert await stored_ids(store) == [1]
            waiting.cancel()
            await asyncio.wait([waiting])
            await other.stop()

    asyncio.run(run())
