"""Upgrades: databases of earlier versions are served with all their rows, and a failed upgrade changes nothing."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import version1
from databases import leading, stored
from process import make_key

from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Store, Transaction, open_store, schema, store
from bilinq.live.store.admin_tables import get_meta
from bilinq.live.store.job_tables import ended_jobs
from bilinq.live.store.schema import MIGRATIONS, Migration
from bilinq.live.wire import messages as m

pytest_plugins = ("databases",)

NEXT = Migration(
    both=(
        "ALTER TABLE job ADD COLUMN urgent BIGINT NOT NULL DEFAULT 0",
        "CREATE TABLE note (id {id}, text TEXT NOT NULL, raw {bytes})",
    )
)
"""A step that a later version might take."""
BROKEN = Migration(both=(*NEXT.both, "UPDATE job SET state = 'queued'", "INSERT INTO nowhere VALUES (1)"))
SETTINGS = ServiceSettings(
    job_class=(m.JobClassInfo("short", [1.0, 0.2]),),
    server_class=(m.ServerClassInfo("gpu", [1.0, 0.5]),),
    work_conserving=True,
)


def in_service(url: str, use: Callable[[Service], Any], settings: ServiceSettings = SETTINGS) -> Any:
    """Return the result of `use` in a running service."""

    async def run() -> Any:
        service = Service(settings, open_store(url))
        try:
            await service.start()
            return await use(service)
        finally:
            await service.stop()

    return asyncio.run(run())


def use_steps(monkeypatch: pytest.MonkeyPatch, *steps: Migration) -> None:
    """Let stores be of a version with further steps."""
    monkeypatch.setattr(store, "migrate", lambda tx: schema.migrate(tx, (*MIGRATIONS, *steps)))


def build_version(url: str, version: int, own: bool = False) -> None:
    """Fill a database as version 1 did, and bring its tables to another version; with rows of its `own`, too."""
    raw = open_store(url)
    connection = raw._connect_writer()
    assert connection is not None
    connection.begin()
    version1.build(connection)
    schema.migrate(connection, MIGRATIONS[:version])
    if own:
        version1.add(connection, version)
    connection.commit()
    connection.close()
    raw._release()


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_a_database_of_an_earlier_version_is_served(database_url: str, version: int) -> None:
    """Also its log: what was learnt is the same as before, since rewards without durations count as they did."""
    build_version(database_url, version)

    async def use(service: Service) -> None:
        who = service.identify(version1.KEY)
        assert [job.state for job in (await service.jobs(who, None, None, None, 10)).jobs] == [
            "cancelled", "dead", "queued", "leased", "done",
        ]  # fmt: skip
        done = await service.job(who, "j1")
        assert (done.payload, done.result, done.reward, done.key) == ({"a": 1}, [1], 0.5, "first")
        assert [event.what for event in done.history] == ["submitted", "leased", "finished", "done"]
        assert (await service.policy_settings()).target_wait == 3.5
        assert [(one.name, one.weight, one.backlog) for one in (await service.classes()).job_classes] == [
            ("short", 2.0, 50)
        ]
        observed = service.replica.memory.scheduler
        assert observed is not None
        health = observed.health()
        assert health is not None
        assert health.observations == 1  # with the features that the class had at that time
        ended = await service.finish_one(who, m.WorkFinish("l2", 2, reward=0.75))
        assert (ended.job, ended.state) == ("j2", "done")
        [lease] = await service.lease(who, ["s4"], 5.0)
        assert (lease.job.id, lease.job.payload, lease.fence) == ("j3", "x", 3)
        await service.retry(who, "j4")
        assert [entry.what for entry in (await service.audit(who, 10)).entries] == ["retry", "create key"]

    in_service(database_url, use, ServiceSettings(work_conserving=True))
    assert stored(database_url, lambda tx: get_meta(tx, "schema")) == [str(len(MIGRATIONS))]


@pytest.mark.parametrize("version", range(3, len(MIGRATIONS) + 1))
def test_what_a_version_has_new_is_kept_by_later_ones(database_url: str, version: int) -> None:
    """Each with rows in the columns and tables that it and earlier ones have added."""
    build_version(database_url, version, own=True)

    async def use(service: Service) -> None:
        who, memory = service.identify(version1.KEY), service.replica.memory
        if version >= 4:
            waiting = await service.job(who, "j3")
            own = waiting.features, waiting.weight, waiting.max_attempts, waiting.tags, waiting.attempts
            assert own == ([0.5, 0.25], 2.0, 7, ["night"], 1)
            assert [job.id for job in (await service.jobs(who, None, None, None, 9, tag="night")).jobs] == ["j3"]
            assert memory.own_features == 2
        failed = memory.jobs[3]
        assert (set(failed.failed_on), failed.avoid) == ({4}, 4)
        if version >= 5:
            assert [one.held for one in await service.servers(who)] == ["quarantined"]
            assert [(one.retry_first, one.retry_longest) for one in (await service.classes()).job_classes] == [
                (0.5, 9.0)
            ]
        rewarded = (await service.job(who, "j1")).reward
        assert rewarded == (0.75 if version >= 6 else 0.5)
        if version >= 6:
            assert (await service.reward(who, "j1", m.NewReward(0.75, "late"))).repeated
        if version >= 7:
            decision = await service.decision(who, "j1")
            assert (decision.chosen, decision.options[0].duration) == ("gpu", 1.5)
        if version >= 8:
            assert who.reach is None, "a key with scope admin of an earlier version has scope fleet"
            [research] = [one for one in (await service.namespaces(who)).namespaces if one.name == "research"]
            assert (research.weight, research.rate, research.backlog, research.running) == (2.0, 9.0, 100, 3)
            assert ("cancel", "j5") in {(one.what, one.detail) for one in (await service.audit(who, 9)).entries}
        if version >= 9 and database_url.startswith("postgresql"):
            async with asyncio.timeout(10.0):
                while not (found := (await service.jobs(who, None, None, None, 9, key="by sql")).jobs):
                    await asyncio.sleep(0.01)
            assert (found[0].payload, found[0].units, found[0].namespace) == (1, 2, "default")
        if version >= 10:
            [change] = (await service.settings_history(9)).changes
            assert (change.before, change.after) == ({"target_wait": 2.0}, {"target_wait": 3.5})
        if version >= 11:
            [end] = await service.replica.store.read(lambda tx: ended_jobs(tx, [1]))
            assert (end.number, end.reward) == (1, 0.75)
        health = memory.scheduler.health() if memory.scheduler is not None else None
        assert health is not None and health.observations == 2, "a reward and a failure"

    in_service(database_url, use, ServiceSettings(work_conserving=True))


def test_version_1_is_what_its_first_step_makes(tmp_path: Path) -> None:
    """Released steps never change: the first step makes the same tables as are written down for this test."""
    frozen, made = (f"sqlite:///{tmp_path}/{name}.db" for name in ("frozen", "made"))
    build_version(frozen, 1)

    async def columns(url: str, lead: bool) -> list[tuple[Any, ...]]:
        one: Store = open_store(url, lead=lead)
        await one.start()
        try:
            return await one.read(_columns)
        finally:
            await one.stop()

    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(store, "migrate", lambda tx: schema.migrate(tx, MIGRATIONS[:1]))
        assert asyncio.run(columns(made, lead=True)) == asyncio.run(columns(frozen, lead=False))


def _columns(tx: Transaction) -> list[tuple[Any, ...]]:
    """Return table, name, type, whether it may be null and whether it is the key of each column, and all indexes."""
    tables = [row[0] for row in tx.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    found = [(table, *row[1:4], row[5]) for table in tables for row in tx.rows(f"PRAGMA table_info({table})")]
    return found + tx.rows("SELECT name, tbl_name FROM sqlite_master WHERE type = 'index' ORDER BY name")


async def _fill(service: Service) -> tuple[Any, ...]:
    """Submit, serve, and learn; return what an upgrade must keep."""
    server = (await service.register(LOCAL, m.NewServer("gpu", "a"))).id
    await service.submit(LOCAL, [m.NewJob("short", {"number": k}) for k in range(6)])
    for k in range(4):
        [lease] = await service.lease(LOCAL, [server], 5.0)
        await service.finish_one(LOCAL, m.WorkFinish(lease.lease, lease.fence, reward=0.2 * k))
    await service.put_class(LOCAL, m.JobClassInfo("short", [1.0, 0.2]))
    return await _shown(service)


async def _shown(service: Service) -> tuple[Any, ...]:
    state, jobs = await service.state(), await service.jobs(LOCAL, None, None, None, 100)
    servers = [(one.id, one.server_class, one.name) for one in await service.servers(LOCAL)]
    return jobs, np.round(state.mean, 12).tolist(), np.round(state.width, 12).tolist(), servers


def _rows(tx: Transaction) -> dict[str, list[Any]]:
    """Return every row of the tables that must not change."""
    return {
        table: sorted(map(repr, tx.rows(f"SELECT * FROM {table}")))
        for table in ("job", "lease", "observation", "class")
    }


def test_an_upgrade_keeps_jobs_and_what_was_learnt(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = in_service(database_url, _fill)
    use_steps(monkeypatch, NEXT)
    assert in_service(database_url, _shown) == before
    assert stored(database_url, lambda tx: get_meta(tx, "schema")) == [str(len(MIGRATIONS) + 1)]


def test_an_upgrade_that_fails_leaves_everything_as_it_was(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = in_service(database_url, _fill)
    (rows,) = stored(database_url, _rows)
    with monkeypatch.context() as patch:
        use_steps(patch, BROKEN)
        for _ in range(2):
            with pytest.raises(Exception, match="nowhere"):
                in_service(database_url, _shown)
    assert stored(database_url, _rows, lambda tx: get_meta(tx, "schema")) == [rows, str(len(MIGRATIONS))]
    assert in_service(database_url, _shown) == before


def test_the_command_line_says_that_a_database_is_newer(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_key(sqlite_url, "admin")
    with monkeypatch.context() as patch:
        use_steps(patch, NEXT)
        asyncio.run(_started(sqlite_url))
    for words in (["serve", "--port", "0"], ["keys", "create", "--scope", "read"]):
        command = [sys.executable, "-m", "bilinq.commands.app", *words, "--database", sqlite_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert "made by a newer bilinq: upgrade bilinq" in done.stderr
        assert done.stderr.count("\n") == 1


async def _started(url: str) -> None:
    async with leading(url):
        pass
