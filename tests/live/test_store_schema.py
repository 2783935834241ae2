"""Versions of the tables: upgrades happen completely or not at all, and newer versions are refused."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest
from databases import leading, queued_job

from bilinq.errors import BadInput
from bilinq.live.store import Transaction, open_store
from bilinq.live.store.admin_tables import get_meta
from bilinq.live.store.class_tables import store_settings, stored_settings
from bilinq.live.store.job_tables import get_job, insert_jobs
from bilinq.live.store.schema import MIGRATIONS, Migration, migrate

pytest_plugins = ("databases",)
T = TypeVar("T")

SECOND = Migration(
    both=(
        "CREATE TABLE note (id {id}, text TEXT NOT NULL, raw {bytes})",
        "ALTER TABLE job ADD COLUMN urgent BIGINT NOT NULL DEFAULT 0",
        "UPDATE job SET urgent = 1 WHERE attempts > 2",
    ),
    sqlite=("INSERT INTO note VALUES (1, 'sqlite', x'00')",),
    postgresql=("INSERT INTO note VALUES (1, 'postgresql', '\\x00')",),
)
BROKEN = Migration(both=("CREATE TABLE half (id {id})", "INSERT INTO nowhere VALUES (1)"))


def written(url: str, operation: Callable[[Transaction], T]) -> T:
    async def run() -> T:
        async with leading(url) as store:
            return await store.write(operation)

    return asyncio.run(run())


def upgrade(*steps: Migration) -> Callable[[Transaction], None]:
    return lambda tx: migrate(tx, (*MIGRATIONS, *steps))


def test_an_upgrade_keeps_what_is_stored(database_url: str) -> None:
    rows = [queued_job(id, attempts=id) for id in (1, 2, 3)]

    async def run() -> None:
        async with leading(database_url) as store:
            await store.write(lambda tx: insert_jobs(tx, rows))
            await store.write(upgrade(SECOND))
            await store.write(upgrade(SECOND))  # there is nothing left to do
            assert await store.read(lambda tx: get_meta(tx, "schema")) == str(len(MIGRATIONS) + 1)
            assert await store.read(lambda tx: tx.rows("SELECT id, urgent FROM job ORDER BY id")) == [
                (1, 0),
                (2, 0),
                (3, 1),
            ]
            assert await store.read(lambda tx: tx.rows("SELECT text, raw FROM note")) == [
                (database_url.partition(":")[0], b"\0")
            ]
            assert await store.read(lambda tx: get_job(tx, 2)) == rows[1]

    asyncio.run(run())


def test_a_newer_database_is_refused_and_left_alone(database_url: str) -> None:
    written(database_url, upgrade(SECOND))
    newer = rf"version {len(MIGRATIONS)} or older; got version {len(MIGRATIONS) + 1}, .*upgrade bilinq"
    for _ in range(2):  # the lock is free again after the first refusal
        with pytest.raises(BadInput, match=newer):
            asyncio.run(open_store(database_url).start())

    async def follow() -> str | None:
        store = open_store(database_url, lead=False)
        await store.start()
        try:
            return await store.read(lambda tx: get_meta(tx, "epoch"))
        finally:
            await store.stop()

    assert asyncio.run(follow()) == "1"


def test_a_failed_upgrade_leaves_the_old_version(database_url: str) -> None:
    written(database_url, lambda tx: store_settings(tx, {"V": 1.0}))
    with pytest.raises(Exception, match="nowhere"):
        written(database_url, upgrade(SECOND, BROKEN))
    assert written(database_url, stored_settings) == {"V": 1.0}
    assert written(database_url, lambda tx: get_meta(tx, "schema")) == str(len(MIGRATIONS))
    written(database_url, upgrade(SECOND))


def test_every_leader_raises_the_epoch(database_url: str) -> None:
    async def epoch() -> int:
        async with leading(database_url) as store:
            assert await store.read(lambda tx: get_meta(tx, "epoch")) == str(store.epoch)
            return store.epoch

    assert [asyncio.run(epoch()) for _ in range(3)] == [1, 2, 3]
