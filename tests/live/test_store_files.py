"""The SQLite file: permissions, files that are refused, and backups."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from databases import leading, queued_job

from bilinq.errors import BadInput, Unavailable
from bilinq.live.store import Store, Transaction, open_store
from bilinq.live.store.job_tables import insert_jobs, queued_jobs

pytest_plugins = ("databases",)


def insert(id: int) -> Callable[[Transaction], None]:
    return lambda tx: insert_jobs(tx, [queued_job(id)])


async def stored_ids(store: Store) -> list[int]:
    return [row.id for row in await store.read(queued_jobs)]


def test_files_are_for_the_owner_only(sqlite_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with leading(sqlite_url) as store:
            await store.write(insert(1))
            files = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
            assert files == dict.fromkeys(["live.db", "live.db-wal", "live.db-shm", "live.db.lock"], 0o600)
        assert not (tmp_path / "live.db-wal").exists()

    asyncio.run(run())


@pytest.mark.parametrize("tidies", [True, False])
def test_the_log_is_copied_to_the_file_when_nobody_waits(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tidies: bool
) -> None:
    monkeypatch.setattr("bilinq.live.store.checkpoints.EVERY", 10 if tidies else 10**9)
    rows = [queued_job(id, payload='"a mark to look for"') for id in range(20)]

    async def run() -> None:
        async with leading(sqlite_url) as store:
            await store.write(lambda tx: insert_jobs(tx, rows))
            until = time.monotonic() + (10.0 if tidies else 0.3)
            while not (found := b"a mark to look for" in next(tmp_path.glob("*.db")).read_bytes()):
                if time.monotonic() > until:
                    break
                await asyncio.sleep(0.01)
            assert found == tidies

    asyncio.run(run())


def test_a_second_process_cannot_lead_on_the_same_file(sqlite_url: str) -> None:
    async def run() -> None:
        async with leading(sqlite_url):
            start = time.monotonic()
            with pytest.raises(Unavailable, match=rf"live.db is in use by process {os.getpid()}; only one can write"):
                await open_store(sqlite_url).start()
            assert time.monotonic() - start < 1.0
        async with leading(sqlite_url) as store:
            assert store.epoch == 2

    asyncio.run(run())


def test_sqlite_opens_its_file_again_on_demand(sqlite_url: str) -> None:
    async def run() -> None:
        async with leading(sqlite_url) as store:
            await store.write(insert(1))
            assert await store.reconnect() is False
            await store.write(insert(2))
            assert await stored_ids(store) == [1, 2]

    asyncio.run(run())


def test_a_file_without_a_leader_must_exist_to_be_read(sqlite_url: str) -> None:
    with pytest.raises(Unavailable, match=r"live.db cannot be opened: unable to open"):
        asyncio.run(open_store(sqlite_url, lead=False).start())


def test_something_else_than_a_database_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "live.db").write_text("This is a letter, not a database.\n" * 100)
    for _ in range(2):  # the lock is free again after the first refusal
        with pytest.raises(Unavailable, match="not a database"):
            asyncio.run(open_store(sqlite_url).start())


def test_a_backup_is_a_complete_database(sqlite_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with leading(sqlite_url) as store:
            await asyncio.gather(*(store.write(insert(id)) for id in range(1, 101)))
            writes = asyncio.gather(*(store.write(insert(id)) for id in range(101, 1001)))
            await store.backup(tmp_path / "copy.db")
            await writes
            with pytest.raises(BadInput, match="path must be a new file"):
                await store.backup(tmp_path / "copy.db")
            with pytest.raises(Unavailable, match="backup"):
                await store.backup(tmp_path / "nowhere" / "copy.db")
        assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
        async with leading(f"sqlite:///{tmp_path}/copy.db") as copy:
            ids = await stored_ids(copy)
            assert len(ids) >= 100
            assert ids == list(range(1, len(ids) + 1))
            assert await copy.read(lambda tx: tx.rows("PRAGMA integrity_check")) == [("ok",)]

    asyncio.run(run())


def test_postgresql_is_backed_up_by_its_own_tools(postgres_url: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pg_dump"):
        asyncio.run(open_store(postgres_url).backup(tmp_path / "copy.db"))
