"""The writing process is killed or runs out of space at any time: what was acknowledged is stored."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from databases import leading, queued_job

from bilinq.errors import Unavailable
from bilinq.live.store import Transaction, open_store
from bilinq.live.store.job_tables import JobRow, active_leases, insert_jobs, list_jobs, observations_since, queued_jobs

pytest_plugins = ("databases",)

WRITE = """
import asyncio, itertools, os, sys
from bilinq.live.store import open_store
from bilinq.live.store.admin_tables import largest_ids
from bilinq.live.store.job_tables import (
    JobEnd, JobRow, LeaseEnd, LeaseRow, ObservationRow, add_observations, end_jobs, end_leases, get_lease, grant_leases,
    insert_jobs
)

async def main(url):
    store = open_store(url)
    await store.start()
    ids = itertools.count((await store.read(largest_ids)).job + 1)

    def submit(tx, id):
        insert_jobs(tx, [JobRow(
            id=id, namespace="default", job_class="short", state="queued", key=f"key {id}", digest="digest",
            payload="[1, 2]", units=1, units_left=1, attempts=0, submitted=1.0,
        )])

    def finish(tx, id):
        assert get_lease(tx, id).state == "active"
        end_leases(tx, [LeaseEnd(id, "finished", 3.0, 0.5)])
        end_jobs(tx, [JobEnd(
            id=id, state="done", ended=3.0, units_left=0, attempts=0, result="[3]", reward=0.5
        )])
        add_observations(tx, [ObservationRow(id, id, 0, 1, 1, id / 7)])

    async def live():
        for id in ids:
            await store.write(lambda tx: submit(tx, id))
            os.write(1, b"submitted %d\\n" % id)
            await store.write(lambda tx: grant_leases(tx, [LeaseRow(
                id=id, job=id, server=1, job_class_id=1, server_class_id=1, granted=2.0, deadline=32.0
            )]))
            os.write(1, b"leased %d\\n" % id)
            await store.write(lambda tx: finish(tx, id))
            os.write(1, b"finished %d\\n" % id)

    await asyncio.gather(*(live() for _ in range(20)))

asyncio.run(main(sys.argv[1]))
"""


def killed_writer(url: str, lines_wanted: int) -> dict[str, set[int]]:
    """Let a process write until it has printed some lines, kill it, and return what it reported as stored."""
    process = subprocess.Popen([sys.executable, "-c", WRITE, url], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        lines = [process.stdout.readline() for _ in range(lines_wanted)]
        process.kill()
        lines += process.stdout
    assert process.returncode == -signal.SIGKILL
    reported: dict[str, set[int]] = {"submitted": set(), "leased": set(), "finished": set()}
    for line in lines:
        if line.endswith(b"\n"):
            what, id = line.decode().split()
            reported[what].add(int(id))
    return reported


def audited(tx: Transaction, reported: dict[str, set[int]]) -> None:
    """Assert that everything reported is stored, and that the rest is consistent."""
    found = {row.id: row for row in list_jobs(tx, None, None, None, None, 10**6)}
    log = observations_since(tx, 0)
    active = {id for (id,) in tx.rows("SELECT id FROM lease WHERE state = 'active' AND ended IS NULL")}
    assert reported["submitted"] <= found.keys()
    assert all(found[id].state in ("leased", "done") for id in reported["leased"])
    assert all(found[id].state == "done" for id in reported["finished"])
    assert {row.lease for row in log} == {id for id, row in found.items() if row.state == "done"}
    assert active == {id for id, row in found.items() if row.state == "leased"} == {row.id for row in active_leases(tx)}
    assert all(row.value == row.lease / 7 for row in log)


def test_a_kill_loses_nothing_that_was_acknowledged(database_url: str) -> None:
    random.seed(5)
    reported: dict[str, set[int]] = {"submitted": set(), "leased": set(), "finished": set()}

    async def audit() -> float:
        start = time.monotonic()
        async with leading(database_url) as store:
            took = time.monotonic() - start
            await store.read(lambda tx: audited(tx, reported))
        return took

    for _ in range(6):
        for what, ids in killed_writer(database_url, random.randrange(1, 400)).items():
            reported[what] |= ids
        assert asyncio.run(audit()) < 5.0
    assert len(reported["finished"]) > 50


def test_a_reader_never_checkpoints_what_a_killed_writer_left(sqlite_url: str, tmp_path: Path) -> None:
    killed_writer(sqlite_url, 200)
    before = [(tmp_path / name).read_bytes() for name in ("live.db", "live.db-wal")]

    async def follow() -> int:
        store = open_store(sqlite_url, lead=False)
        await store.start()
        count = len(await store.read(lambda tx: list_jobs(tx, None, None, None, None, 10**6)))
        with pytest.raises(Unavailable, match="does not lead"):
            await store.write(queued_jobs)
        await store.stop()
        return count

    assert asyncio.run(follow()) > 0
    assert [(tmp_path / name).read_bytes() for name in ("live.db", "live.db-wal")] == before


def job(id: int) -> JobRow:
    return queued_job(id, payload=f'"{"x" * 2000}"')


def test_a_full_disk_refuses_and_recovers(sqlite_url: str) -> None:
    async def run() -> None:
        async with leading(sqlite_url) as store:
            await store.write(lambda tx: tx.rows("PRAGMA max_page_count = 200"))
            writes = [store.write(lambda tx, id=id: insert_jobs(tx, [job(id)])) for id in range(1000)]  # type: ignore[misc]
            first = await asyncio.gather(*writes, return_exceptions=True)
            kept = [id for id, result in enumerate(first) if result is None]
            assert len(kept) < 1000
            assert all(
                isinstance(result, Unavailable) and "full" in str(result) for result in first if result is not None
            )
            assert [row.id for row in await store.read(queued_jobs)] == kept
            assert await store.reconnect() is False
            await store.write(lambda tx: insert_jobs(tx, [job(2000)]))
            assert [row.id for row in await store.read(queued_jobs)] == [*kept, 2000]

    asyncio.run(run())


LIMITED = """
import asyncio, resource, sys
from bilinq.errors import Unavailable
from bilinq.live.store import open_store
from bilinq.live.store.job_tables import JobRow, insert_jobs

async def main(url):
    store = open_store(url)
    await store.start()

    async def write(ids):
        for id in ids:
            row = JobRow(
                id=id, namespace="default", job_class="short", state="queued", key=None, digest=None,
                payload="x" * 3000, units=1, units_left=1, attempts=0, submitted=1.0,
            )
            try:
                await store.write(lambda tx: insert_jobs(tx, [row]))
            except Unavailable as error:
                assert "disk I/O error" in str(error) or "full" in str(error), error
                print("refused", flush=True)
            else:
                print(id, flush=True)

    await write(range(100))
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
    await asyncio.gather(*(write(range(start, start + 20)) for start in range(1000, 1200, 20)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.reconnect()
    await write(range(2000, 2100))
    await store.stop()

asyncio.run(main(sys.argv[1]))
"""


def test_a_file_that_may_not_grow_refuses_and_recovers(sqlite_url: str) -> None:
    """Real write errors of the system: 3 kB jobs against files of at most 500 kB."""
    result = subprocess.run([sys.executable, "-c", LIMITED, sqlite_url], capture_output=True, text=True, check=True)
    lines = result.stdout.split()
    acknowledged = sorted(int(line) for line in lines if line != "refused")
    assert lines.count("refused") >= 50
    assert set(range(100)) | set(range(2000, 2100)) <= set(acknowledged)

    async def stored() -> list[int]:
        async with leading(sqlite_url) as store:
            return [row.id for row in await store.read(queued_jobs)]

    assert asyncio.run(stored()) == acknowledged
