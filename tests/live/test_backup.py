"""`bilinq backup` and `bilinq restore`: under load, with wrong arguments, and without using any id twice."""

import contextlib
import re
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from databases import PROGRAMS, Postgres, queued_job, stored
from process import CONFIG, Process, make_key, wait_for
from typer.testing import CliRunner

from bilinq.client import Client
from bilinq.commands import app as cli
from bilinq.errors import Stale
from bilinq.live.service.entities import number
from bilinq.live.service.recovery import load_scheduler
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Transaction, verification
from bilinq.live.store.admin_tables import RESTORE_GAP
from bilinq.live.store.class_tables import ClassRow, put_class
from bilinq.live.store.job_tables import insert_jobs, observations_since
from bilinq.live.store.schema import META, MIGRATIONS, statements

pytest_plugins = ("databases",)


def bilinq(*words: object) -> str:
    """Return the output of a command, which runs in this process because that is quicker."""
    done = CliRunner().invoke(cli.app, list(map(str, words)))
    if done.exit_code:
        raise RuntimeError(done.stderr)
    return done.stdout


def refused(*words: object) -> str:
    """Return the line that a command prints before it ends with code 2."""
    with pytest.raises(RuntimeError, match=r"^error: [^\n]+\n$") as caught:
        bilinq(*words)
    return str(caught.value)


class Traffic:
    """A client that submits and a worker that serves until the block ends; `known` are the jobs that were acknowledged."""

    def __init__(self, address: str, key: str) -> None:
        self.address, self.key, self.known, self.over = address, key, list[str](), threading.Event()
        self.threads = [threading.Thread(target=work) for work in (self.submit, self.work)]

    def __enter__(self) -> "Traffic":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def submit(self) -> None:
        with Client(self.address, self.key) as client:
            while not self.over.is_set():
                self.known.append(client.submit("short", {"number": len(self.known)}).id)

    def work(self) -> None:
        rng = np.random.default_rng(0)
        with Client(self.address, self.key) as client:
            server = client.register("gpu").id
            while not self.over.is_set():
                lease = client.lease(server, wait=0.2)
                if lease is not None:
                    client.finish(lease.lease, lease.fence, float(rng.uniform()))


def serve_some(client: Client, many: int) -> None:
    """Submit and serve jobs with different rewards."""
    server = client.register("gpu", name="some").id
    for k in range(many):
        client.submit("short", {"number": k})
        lease = client.lease(server)
        assert lease is not None
        client.finish(lease.lease, lease.fence, k / many)
    client.put_job_class(client.classes().job_classes[0])  # so that it learns from the last one too


def test_a_backup_under_load_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    key = make_key(first, "admin")
    with Process(tmp_path, first) as process, Traffic(process.address, key) as load:
        wait_for(lambda: len(load.known) > 100)
        before = list(load.known)
        printed = bilinq("backup", "--database", first, "--out", tmp_path / "copy.db")
        assert printed.endswith("and is complete\n")
        wait_for(lambda: len(load.known) > len(before) + 20)  # the service continued meanwhile
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    bilinq("restore", tmp_path / "copy.db", "--database", second)
    ids, seen, learnt, again = stored(second, _ids, lambda tx: observations_since(tx, 0), _learnt, _learnt_from_all)
    assert {number("j", id) for id in before} <= set(ids)
    assert len(seen) > 10
    np.testing.assert_allclose(learnt, again, rtol=1e-9)
    with Process(tmp_path / "b", second) as process, Client(process.address, key) as client:
        assert len({client.job(id).state for id in before[:20]} & {"queued", "leased", "done"}) >= 1
        np.testing.assert_allclose(client.state().mean, learnt, rtol=1e-9)
        assert process.stop() == 0


def _ids(tx: Transaction) -> list[int]:
    return [row[0] for row in tx.rows("SELECT id FROM job")]


def _learnt(tx: Transaction) -> list[list[float]]:
    scheduler = load_scheduler(tx, ServiceSettings())
    assert scheduler is not None
    known = scheduler.beliefs()
    assert known is not None
    means: list[list[float]] = known.mean.tolist()
    return means


def _learnt_from_all(tx: Transaction) -> list[list[float]]:
    tx.run("DELETE FROM checkpoint")
    return _learnt(tx)


def test_learnt_state_is_restored(tmp_path: Path) -> None:
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    key = make_key(first, "admin")
    with Process(tmp_path, first) as process, Client(process.address, key) as client:
        serve_some(client, 10)
        bilinq("backup", "--database", first, "--out", tmp_path / "copy.db")
        before = client.state()
    bilinq("restore", tmp_path / "copy.db", "--database", second)
    with Process(tmp_path / "b", second) as process, Client(process.address, key) as client:
        after = client.state()
        np.testing.assert_allclose(after.mean, before.mean, rtol=1e-9)
        np.testing.assert_allclose(after.width, before.width, rtol=1e-9)
        assert client.audit()[0].what == "restore"


def test_no_id_is_used_again(tmp_path: Path) -> None:
    """A worker frozen with a lease from after the backup must not end the lease of another after the restore."""
    url = f"sqlite:///{tmp_path}/live.db"
    key = make_key(url, "admin")
    with Process(tmp_path, url) as process, Client(process.address, key) as client:
        serve_some(client, 3)
        bilinq("backup", "--database", url, "--out", tmp_path / "copy.db")
        server = client.register("gpu", name="frozen").id
        client.submit("short")
        frozen = client.lease(server)
        assert frozen is not None
        client.cancel(client.submit("short").id)
        assert process.stop() == 0
    bilinq("restore", tmp_path / "copy.db", "--database", url, "--force")
    with Process(tmp_path, url) as process, Client(process.address, key) as client:
        other = client.register("gpu", name="other").id
        job = client.submit("short").id
        lease = client.lease(other)
        assert lease is not None
        assert min(number("s", other) or 0, number("j", job) or 0, lease.fence) > RESTORE_GAP
        with pytest.raises(Stale):
            client.finish(frozen.lease, frozen.fence, 1.0)
        assert client.finish(lease.lease, lease.fence, 1.0).state == "done"
        [end] = client.ended(after="e4", seconds=0.0)  # of a job that ended after the backup
        assert end.id == job and (number("e", end.event) or 0) > RESTORE_GAP


def test_a_database_that_exists_or_is_in_use_is_not_replaced(tmp_path: Path) -> None:
    url, key = f"sqlite:///{tmp_path}/live.db", ""
    key = make_key(url, "admin")
    bilinq("backup", "--database", url, "--out", tmp_path / "copy.db")
    assert "use --force to replace it" in refused("restore", tmp_path / "copy.db", "--database", url)
    with Process(tmp_path, url) as process, Client(process.address, key) as client:
        job = client.submit("short").id
        assert "in use by process" in refused("restore", tmp_path / "copy.db", "--database", url, "--force")
        assert client.job(job).state == "queued"
        assert process.stop() == 0


def test_files_of_a_killed_service_do_not_affect_a_restore(tmp_path: Path) -> None:
    """The WAL of a killed service contains pages of the old database, which must not get into the new one."""
    url = f"sqlite:///{tmp_path}/live.db"
    key = make_key(url, "admin")
    bilinq("backup", "--database", url, "--out", tmp_path / "copy.db")
    with Process(tmp_path, url) as process, Client(process.address, key) as client:
        client.submit("short")
        process.child.kill()
        process.child.wait()
    assert (tmp_path / "live.db-wal").stat().st_size > 0
    bilinq("restore", tmp_path / "copy.db", "--database", url, "--force")
    assert not (tmp_path / "live.db-wal").exists()
    assert stored(url, _ids) == [[]]


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """A backup with some jobs in it."""
    url = f"sqlite:///{tmp_path}/live.db"
    rows = [queued_job(id, payload=f'"{"x" * 1000}"') for id in range(1, 200)]
    stored(url, lambda tx: put_class(tx, ClassRow(1, "job", rows[0].job_class, ())), lambda tx: insert_jobs(tx, rows))
    bilinq("backup", "--database", url, "--out", tmp_path / "copy.db")
    yield tmp_path / "copy.db"


def test_a_damaged_backup_is_refused(copy: Path) -> None:
    target = f"sqlite:///{copy.parent}/new.db"
    intact = copy.read_bytes()
    torn = bytearray(intact)
    torn[40_960:45_056] = bytes(4096)
    for content, message in (
        (bytes(torn), "must be undamaged"),
        (b"a letter" * 1000, "not a database"),
        (b"", "no such table"),
    ):
        copy.write_bytes(content)
        assert message in refused("restore", copy, "--database", target)
    copy.unlink()
    assert "unable to open" in refused("restore", copy, "--database", target)
    assert [
        path.name for path in copy.parent.iterdir() if path.name.startswith("new.db") and path.suffix != ".lock"
    ] == []


def test_a_backup_of_a_newer_version_is_refused(copy: Path) -> None:
    with sqlite3.connect(copy) as db:
        db.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (str(len(MIGRATIONS) + 1),))
    db.close()
    target = f"sqlite:///{copy.parent}/new.db"
    assert "made by a newer bilinq: upgrade bilinq" in refused("restore", copy, "--database", target)
    assert not (copy.parent / "new.db").exists()


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON job BEGIN DELETE FROM lease; END", "trigger 't' is foreign"),
        ("CREATE VIEW v AS SELECT * FROM api_key", "view 'v' is foreign"),
        ("CREATE TABLE t (x)", "table 't' is foreign"),
        ("CREATE INDEX i ON job (payload)", "index 'i' is foreign"),
        ("ALTER TABLE job ADD COLUMN more TEXT", "table 'job' is another"),
        ("DROP INDEX job_open", "index 'job_open' is missing"),
        ("DROP TRIGGER audit_update", "trigger 'audit_update' is missing"),
        (
            f"DROP TABLE meta; CREATE VIEW meta AS {ENDLESS} SELECT '' AS name, '' AS value FROM n WHERE x < 0",
            "no such table",
        ),
        ("DELETE FROM meta WHERE name = 'schema'", "has no version"),
        ("UPDATE meta SET value = 'one' WHERE name = 'schema'", "has no version"),
        (
            "UPDATE job SET units = 'many' WHERE id = 7",
            "job.units of a backup must be integer and of possible size; .* has text",
        ),
        (
            "UPDATE job SET submitted = 9e999 WHERE id = 7",
            "job.submitted of a backup must be real and of possible size",
        ),
        ("UPDATE job SET class = x'ff' WHERE id = 7", "job.class of a backup must be text"),
        ("UPDATE job SET class = CAST(x'ff' AS TEXT) WHERE id = 7", "Could not decode to UTF-8"),
        ("UPDATE job SET payload = '{' WHERE id = 7", "job.payload of a backup must be as bilinq writes it"),
        (
            "UPDATE job SET options = '{\"weight\": -1.0}' WHERE id = 7",
            "job.options of a backup must be as bilinq writes it",
        ),
        ("UPDATE job SET state = 'lost' WHERE id = 7", "job.state of a backup must be a state of jobs; .* has 'lost'"),
        ("UPDATE job SET class = 'none' WHERE id = 7", "job.class of a backup must be a job class; .* has 'none'"),
        ("INSERT INTO knob VALUES ('V', '-1.0')", "knob of a backup must be as bilinq writes it"),
        ("UPDATE class SET features = '[1.0, null]'", "class.features of a backup must be as bilinq writes it"),
        ("UPDATE meta SET value = '-1' WHERE name = 'epoch'", "meta.value of a backup must be a whole number"),
    ],
)
def test_a_backup_with_foreign_objects_or_wrong_values_is_refused(copy: Path, sql: str, message: str) -> None:
    """An endless view in place of a table once hung the command, and triggers of others were restored."""
    target, names = copy.parent / "live.db", {path.name for path in copy.parent.iterdir()}
    before = target.read_bytes()
    with contextlib.closing(sqlite3.connect(copy)) as db:
        db.executescript(sql)
    assert re.search(message, refused("restore", copy, "--database", f"sqlite:///{target}", "--force"))
    assert target.read_bytes() == before
    assert {path.name for path in copy.parent.iterdir()} <= names | {"live.db.lock"}


def test_checks_of_a_backup_end(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "SECONDS", -1e9)
    monkeypatch.setattr(verification, "STEPS", 1)
    assert "its checks must end within" in refused("restore", copy, "--database", f"sqlite:///{copy.parent}/new.db")


def test_what_analyze_leaves_is_no_foreign_table(copy: Path) -> None:
    with contextlib.closing(sqlite3.connect(copy)) as db:
        db.execute("ANALYZE")
    bilinq("restore", copy, "--database", f"sqlite:///{copy.parent}/new.db")


def test_a_backup_of_an_older_version_is_upgraded(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "old.db")) as db:
        for statement in (META, *statements("sqlite", 0, 3)):
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('schema', '3')")
        db.execute("INSERT INTO class VALUES (1, 'job', 'short', '[1.0]', 1.0, 1.0, NULL, 1, 0)")
        db.execute("INSERT INTO audit VALUES (1, 99.0, 'local', 'create key', 'x')")
        db.commit()
    url = f"sqlite:///{tmp_path}/new.db"
    bilinq("restore", tmp_path / "old.db", "--database", url)
    [version] = stored(url, lambda tx: tx.rows("SELECT value FROM meta WHERE name = 'schema'"))
    assert version == [(str(len(MIGRATIONS)),)]


def test_a_backup_stands_alone(copy: Path, tmp_path: Path) -> None:
    """It is one file, and reading it writes no other file: it may be on a read-only disk."""
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.move(copy, alone / "copy.db")
    bilinq("restore", alone / "copy.db", "--database", f"sqlite:///{tmp_path}/new.db")
    assert [path.name for path in alone.iterdir()] == ["copy.db"]


def test_wrong_arguments_are_reported(tmp_path: Path) -> None:
    nothing = f"sqlite:///{tmp_path}/nothing.db"
    assert "database must exist to be copied" in refused("backup", "--database", nothing, "--out", tmp_path / "a.db")
    assert "file must be given" in refused("restore", "--database", nothing)
    make_key(nothing, "admin")
    (tmp_path / "a.db").touch()
    assert "must be a new file" in refused("backup", "--database", nothing, "--out", tmp_path / "a.db")


def test_postgresql_by_its_own_tools(tmp_path: Path, postgres: Postgres) -> None:
    """pg_dump while the service runs, pg_restore into an empty database, and `bilinq restore` for the ids."""
    for name in ("before", "after"):
        postgres.run(f"CREATE DATABASE {name}")
    one, two = (
        postgres.fresh().partition("&options")[0].replace("/postgres?", f"/{name}?") for name in ("before", "after")
    )
    key, dump = make_key(one, "admin"), tmp_path / "bilinq.dump"
    with Process(tmp_path, one) as process, Client(process.address, key) as client:
        serve_some(client, 5)
        waiting = client.submit("short").id
        subprocess.run([PROGRAMS / "pg_dump", "--format=custom", f"--file={dump}", one], check=True)
        before = client.state()
        assert "use pg_dump" in refused("backup", "--database", one, "--out", tmp_path / "copy.db")
        assert "another process leads" in refused("restore", "--database", one)
    subprocess.run([PROGRAMS / "pg_restore", "--no-owner", f"--dbname={two}", dump], check=True)
    assert "pg_restore" in refused("restore", dump, "--database", two)
    bilinq("restore", "--database", two)
    with Process(tmp_path / "b", two, settings=CONFIG) as process, Client(process.address, key) as client:
        assert client.job(waiting).state == "queued"
        np.testing.assert_allclose(client.state().mean, before.mean, rtol=1e-9)
        assert (number("j", client.submit("short").id) or 0) > RESTORE_GAP
