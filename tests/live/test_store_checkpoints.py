"""The write-ahead log of SQLite is copied to the file beside the commits, stays short, and nothing is lost."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from databases import leading, queued_job

from bilinq.live.store import Transaction, checkpoints
from bilinq.live.store.checkpoints import Checkpoints
from bilinq.live.store.job_tables import JobRow, insert_jobs

pytest_plugins = ("databases",)

WAIT = 10.0


class Gate:
    """Counts checkpoints and holds up those of the thread, each until `open` is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.open = threading.Semaphore(0), threading.Semaphore(0)
        self.by_writer = 0
        real = Checkpoints._copy

        def copy(one: Checkpoints, connection: sqlite3.Connection) -> int:
            if threading.current_thread() is one._thread:
                self.begun.release()
                assert self.open.acquire(timeout=WAIT)
            else:
                self.by_writer += 1
            return real(one, connection)

        monkeypatch.setattr(Checkpoints, "_copy", copy)


class Writer:
    """A connection that writes a row with each commit, and its checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self.db = self.connect()
        for line in ("PRAGMA journal_mode = WAL", "PRAGMA wal_autocheckpoint = 0", "CREATE TABLE t (text)"):
            self.db.execute(line)
        self.checkpoints = Checkpoints(self.connect)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)

    def commit(self, times: int = 1) -> None:
        for _ in range(times):
            self.db.execute("INSERT INTO t VALUES (?)", ("x" * 4000,))
            self.rows += 1
            self.checkpoints.after_commit(self.rows, self.db)

    @property
    def runs(self) -> bool:
        """Whether a checkpoint runs."""
        return self.checkpoints._running

    def until_ended(self) -> None:
        """Wait until the checkpoint that runs has ended."""
        for _ in range(1000):
            if not self.runs:
                return
            threading.Event().wait(WAIT / 1000)
        raise AssertionError("the checkpoint does not end")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    one = Writer(tmp_path / "log.db")
    yield one
    one.checkpoints.stop()
    one.db.close()


def insert(rows: list[JobRow]) -> Callable[[Transaction], None]:
    return lambda tx: insert_jobs(tx, rows)


def test_no_commit_waits_for_a_checkpoint(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    async def run() -> None:
        async with leading(sqlite_url) as store:
            await store.write(insert([queued_job(id) for id in range(checkpoints.EVERY)]))
            assert await asyncio.to_thread(gate.begun.acquire, timeout=WAIT)
            for id in range(1000, 1020):
                await store.write(insert([queued_job(id)]))
            gate.open.release(1)

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT))


def test_a_checkpoint_begins_only_after_a_commit_that_followed_the_last_one(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the writer could begin the log anew while a checkpoint starts, which SQLite 3.40 does not survive."""
    monkeypatch.setattr(checkpoints, "EVERY", 1)
    gate = Gate(monkeypatch)
    writer.commit()
    assert writer.runs
    writer.commit(3)
    gate.open.release()
    writer.until_ended()
    writer.checkpoints.after_commit(writer.rows, writer.db)
    writer.checkpoints.after_commit(writer.rows, writer.db)
    assert not writer.runs, "all commits came before its end"
    writer.commit()
    assert writer.runs
    gate.open.release()


def test_the_writer_completes_the_copy_of_a_long_log(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits come during each checkpoint; the log begins anew although none of them reaches its end."""
    for name, value in (("EVERY", 10), ("LONG", 40), ("FEW", 5)):
        monkeypatch.setattr(checkpoints, name, value)
    gate, log = Gate(monkeypatch), Path(f"{writer.path}-wal")

    def checkpoint(meanwhile: int) -> None:
        while not writer.runs:
            writer.commit()
        writer.commit(meanwhile)
        gate.open.release()
        writer.until_ended()

    sizes = []
    for _ in range(12):
        checkpoint(meanwhile=3)
        sizes.append(log.stat().st_size)
    assert gate.by_writer >= 2
    assert max(sizes[-4:]) == max(sizes[:8]), "the log is used again from its beginning"
    before = gate.by_writer
    for _ in range(8):
        checkpoint(meanwhile=8)
    assert gate.by_writer == before, "much is left to the thread"
    assert log.stat().st_size > max(sizes)


@pytest.mark.parametrize("every", [1, 20])
def test_nothing_is_lost_or_damaged_while_both_write(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    for name, value in (("EVERY", every), ("LONG", 30), ("FEW", 40)):
        monkeypatch.setattr(checkpoints, name, value)

    def some(first: int) -> list[JobRow]:
        return [queued_job(id, key=f"{id * 7919 % 2000}") for id in range(first, first + 5)]

    async def run() -> None:
        async with leading(sqlite_url) as store:
            for first in range(0, 2000, 20):
                await asyncio.gather(*(store.write(insert(some(first + k))) for k in range(0, 20, 5)))
        async with leading(sqlite_url) as store:
            assert await store.read(lambda tx: tx.rows("SELECT count(DISTINCT key) FROM job")) == [(2000,)]
            assert await store.read(lambda tx: tx.rows("PRAGMA integrity_check")) == [("ok",)]

    asyncio.run(run())
