"""Jobs, leases and rewards are read as they were written, from SQLite and from PostgreSQL."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from databases import Postgres, leading, queued_job, stored
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bilinq.errors import BadInput
from bilinq.live.store import Transaction, open_store
from bilinq.live.store import store as store_module
from bilinq.live.store.admin_tables import largest_ids
from bilinq.live.store.job_tables import (
    Extension,
    JobEnd,
    JobRow,
    KnownJob,
    LeaseEnd,
    LeaseRow,
    ObservationRow,
    QueuedJob,
    RequeuedJob,
    active_leases,
    add_observations,
    count_rewards,
    end_jobs,
    end_leases,
    ends_after,
    extend_leases,
    get_job,
    get_lease,
    grant_leases,
    insert_jobs,
    known_jobs,
    leases_of_job,
    list_jobs,
    observations_since,
    purge_jobs,
    queued_jobs,
    requeue_jobs,
)

pytest_plugins = ("databases",)


def job(id: int, **changes: Any) -> JobRow:
    row = queued_job(id, key=f"key {id}", digest=f"digest {id}", units=2, units_left=2, submitted=100.0 + id)
    return row._replace(**changes)


def lease(id: int, job: int, **changes: Any) -> LeaseRow:
    row = LeaseRow(id=id, job=job, server=7, job_class_id=1, server_class_id=2, granted=200.0 + id, deadline=230.0 + id)
    return row._replace(**changes)


def test_jobs_are_read_as_they_were_submitted(database_url: str) -> None:
    rows = [job(1), job(2, key=None, digest=None, payload='{"a": "é\\u0000"}', namespace="other")]
    *_, one, none, two, found, elsewhere = stored(
        database_url,
        lambda tx: insert_jobs(tx, rows),
        lambda tx: insert_jobs(tx, []),
        lambda tx: get_job(tx, 1),
        lambda tx: get_job(tx, 3),
        lambda tx: get_job(tx, 2),
        lambda tx: known_jobs(tx, "default", ["key 1", "key 2"]),
        lambda tx: known_jobs(tx, "other", ["key 1"]),
    )
    assert one == rows[0]
    assert none is None
    assert two == rows[1]
    assert found == {"key 1": KnownJob(1, "queued", "digest 1")}
    assert elsewhere == {}


def test_pages_are_newest_first_and_filtered(database_url: str) -> None:
    def fill(tx: Transaction) -> None:
        insert_jobs(tx, [job(id, namespace="ab"[id % 2], job_class="xy"[id % 3 == 0]) for id in range(1, 13)])
        end_jobs(tx, [JobEnd(id, "dead", 9.0, 1, 5) for id in (3, 4, 9)])

    def ids(*wanted: Any) -> Callable[[Transaction], list[int]]:
        return lambda tx: [row.id for row in list_jobs(tx, *wanted)]

    _, everything, newest, below, space, dead, kind, all_of_them = stored(
        database_url,
        fill,
        ids(None, None, None, None, 100),
        ids(None, None, None, None, 3),
        ids(None, None, None, 10, 3),
        ids("b", None, None, None, 100),
        ids(None, "dead", None, None, 100),
        ids(None, None, "y", None, 100),
        ids("b", "dead", "y", 9, 100),
    )
    assert everything == list(range(12, 0, -1))
    assert newest == [12, 11, 10]
    assert below == [9, 8, 7]
    assert space == [11, 9, 7, 5, 3, 1]
    assert dead == [9, 4, 3]
    assert kind == [12, 9, 6, 3]
    assert all_of_them == [3]


def test_a_job_end_to_end(database_url: str) -> None:
    def finish(tx: Transaction) -> None:
        end_jobs(tx, [JobEnd(2, "done", 300.0, 0, 1, result="[1]", reward=0.1 + 0.2)])
        add_observations(tx, [ObservationRow(1, 5, 0, 1, 2, 0.1 + 0.2)])
        end_leases(tx, [LeaseEnd(5, "finished", 300.0, 0.1 + 0.2, "d", None)])

    _, before, payloads, waiting, active, _, _, _, _, _, after, done, history = stored(
        database_url,
        lambda tx: insert_jobs(tx, [job(3), job(2, payload="[2]"), job(1)]),
        queued_jobs,
        lambda tx: grant_leases(tx, [lease(5, 2), lease(4, 3)]),
        queued_jobs,
        active_leases,
        lambda tx: extend_leases(tx, [Extension(5, 999.0), Extension(6, 999.0)]),
        lambda tx: requeue_jobs(tx, [RequeuedJob(3, 1, 1, "oh")]),
        finish,
        lambda tx: end_leases(tx, [LeaseEnd(5, "expired", 301.0)]),
        lambda tx: extend_leases(tx, [Extension(5, 1999.0)]),
        lambda tx: get_lease(tx, 5),
        lambda tx: get_job(tx, 2),
        lambda tx: leases_of_job(tx, 2),
    )
    assert before == [
        QueuedJob(id, "short", "default", 2, 0, 100.0 + id, size) for id, size in ((1, 2), (2, 3), (3, 2))
    ]
    assert payloads == {2: "[2]", 3: "{}"}
    assert waiting == [QueuedJob(1, "short", "default", 2, 0, 101.0, 2)]
    assert active == [lease(4, 3), lease(5, 2)]
    ending = {"state": "finished", "ended": 300.0, "reward": 0.1 + 0.2, "digest": "d"}
    assert after == lease(5, 2, deadline=999.0, **ending)
    assert history == [after]
    change = {"state": "done", "units_left": 0, "attempts": 1, "result": "[1]", "reward": 0.1 + 0.2}
    assert done == job(2, payload="[2]", started=205.0, ended=300.0, **change)


def test_a_job_keeps_its_first_start_and_loses_its_end_when_requeued(database_url: str) -> None:
    *_, row = stored(
        database_url,
        lambda tx: insert_jobs(tx, [job(1)]),
        lambda tx: grant_leases(tx, [lease(1, 1)]),
        lambda tx: end_jobs(tx, [JobEnd(1, "dead", 300.0, 2, 5, error="no")]),
        lambda tx: requeue_jobs(tx, [RequeuedJob(1, 2, 0)]),
        lambda tx: grant_leases(tx, [lease(2, 1)]),
        lambda tx: get_job(tx, 1),
    )
    assert row == job(1, state="leased", started=201.0)


def test_a_lease_is_rewarded_only_once(database_url: str) -> None:
    with pytest.raises(Exception, match=r"(?i)unique"):
        stored(
            database_url,
            lambda tx: add_observations(tx, [ObservationRow(1, 5, 0, 1, 2, 0.5)]),
            lambda tx: add_observations(tx, [ObservationRow(2, 6, 0, 1, 2, 0.5), ObservationRow(3, 5, 0, 1, 2, 0.5)]),
        )
    since, rewards = stored(database_url, lambda tx: observations_since(tx, 0), count_rewards)
    assert since == [ObservationRow(1, 5, 0, 1, 2, 0.5)]
    assert rewards == 1


def test_purged_jobs_leave_their_rewards_and_their_ids(database_url: str) -> None:
    def fill(tx: Transaction) -> None:
        insert_jobs(tx, [job(id) for id in range(1, 7)])
        grant_leases(tx, [lease(10 + id, id) for id in range(1, 7)])
        states = [(1, "done", 10.0), (2, "dead", 10.0), (4, "cancelled", 11.0), (5, "done", 99.0), (6, "done", 12.0)]
        end_jobs(tx, [JobEnd(id, state, at, 0, 0) for id, state, at in states])
        add_observations(tx, [ObservationRow(id, 10 + id, 0, 1, 2, 0.5) for id in range(1, 7)])

    def left(tx: Transaction) -> tuple[list[int], list[int]]:
        kept = [id for id in range(11, 17) if get_lease(tx, id) is not None]
        return [row.id for row in list_jobs(tx, None, None, None, None, 9)], kept

    _, two, after_two, one, none, after, log, ids = stored(
        database_url,
        fill,
        lambda tx: purge_jobs(tx, 50.0, 2),
        left,
        lambda tx: purge_jobs(tx, 50.0, 2),
        lambda tx: purge_jobs(tx, 50.0, 2),
        left,
        lambda tx: observations_since(tx, 4)[:1],
        largest_ids,
    )
    assert (two, one, none) == (2, 1, 0)
    assert after_two == ([6, 5, 3, 2], [12, 13, 15, 16])
    assert after == ([5, 3, 2], [12, 13, 15])
    assert log == [ObservationRow(5, 15, 0, 1, 2, 0.5)]
    assert ids == (6, 16, 0, 6, 0, 0)


def test_extreme_values_are_read_as_they_were_written(database_url: str) -> None:
    times = [1e308, 5e-324, -1e308, 0.1 + 0.2, 1.7976931348623157e308, 2.0**53 + 2, 1e-7, 0.0]
    texts = [
        "",
        "null",
        '"\\ud800"',
        '"\\u0000"',
        "\u2028 \U0001f600 \\ \" '",
        "%s :id {rows} $1",
        "x" * 100_000,
        "\x7f\t\n",
    ]
    numbers = [0, 1, -1, 2**31, 2**53 + 1, 2**62, -(2**62), 2**63 - 1]
    rows = [
        job(
            id,
            payload=text,
            error=text,
            key=f"{id}{text[:99]}",
            submitted=time,
            reward=time,
            units=number,
            attempts=number,
        )
        for id, (time, text, number) in enumerate(zip(times, texts, numbers, strict=True), 2**40)
    ]
    single = [row._replace(id=row.id - 2**40, key=None) for row in rows]

    def insert_one_by_one(tx: Transaction) -> None:
        for row in single:
            insert_jobs(tx, [row])

    *_, together, alone = stored(
        database_url,
        lambda tx: insert_jobs(tx, rows),
        insert_one_by_one,
        lambda tx: [get_job(tx, row.id) for row in rows],
        lambda tx: [get_job(tx, row.id) for row in single],
    )
    assert together == rows
    assert alone == single


@pytest.mark.parametrize("number", [1, 2, 3, 63, 64, 65, 200])
def test_many_rows_at_once_equal_one_by_one(database_url: str, number: int) -> None:
    ids = range(1, number + 1)
    ends = [
        JobEnd(
            id,
            "done" if id % 3 else "dead",
            0.1 * id,
            units_left=id,
            attempts=2 * id,
            reward=id / 7,
            error=f"e{id}",
            number=1000 - id,
        )
        for id in ids
    ]
    over = [LeaseEnd(id, "finished", 0.3 * id, id / 7, f"d{id}") for id in ids[::2]]
    *_, found, past, log, numbers = stored(
        database_url,
        lambda tx: insert_jobs(tx, [job(id, started=id / 3) for id in ids]),
        lambda tx: grant_leases(tx, [lease(id, id) for id in ids], ids),
        lambda tx: end_jobs(tx, ends),
        lambda tx: end_leases(tx, over),
        lambda tx: add_observations(tx, [ObservationRow(id, id, 0, 1, 2, id / 7) for id in ids]),
        lambda tx: [get_job(tx, id) for id in ids],
        lambda tx: [get_lease(tx, id) for id in ids],
        lambda tx: observations_since(tx, 0),
        lambda tx: ends_after(tx, 0, 1000),
    )
    made = [{name: value for name, value in one._asdict().items() if name != "number"} for one in ends]
    assert found == [job(one["id"], started=one["id"] / 3)._replace(**one) for one in made]
    assert [(end.number, end.id) for end in numbers] == [(1000 - id, id) for id in reversed(ids)]
    ended = {one.id: one._asdict() for one in over}
    assert past == [lease(id, id)._replace(**ended.get(id, {})) for id in ids]
    assert log == [ObservationRow(id, id, 0, 1, 2, id / 7) for id in ids]


def test_a_plan_made_for_a_small_table_does_not_scan_a_large_one(postgres_url: str) -> None:
    """PostgreSQL caches the plan of the sixth run; it must not be one that scans all rows."""
    rounds, rows = 60, 20

    def live(ids: range) -> Callable[[Transaction], None]:
        def write(tx: Transaction) -> None:
            insert_jobs(tx, [job(id) for id in ids])
            grant_leases(tx, [lease(id, id) for id in ids])
            extend_leases(tx, [Extension(id, 500.0) for id in ids])
            end_leases(tx, [LeaseEnd(id, "finished", 300.0) for id in ids])
            requeue_jobs(tx, [RequeuedJob(id, 1, 0) for id in ids])
            end_jobs(tx, [JobEnd(id, "done", 300.0, 0, 0) for id in ids])

        return write

    def read(tx: Transaction) -> list[tuple[str, int]]:
        sql = """SELECT relname, sum(idx_tup_read) FROM pg_stat_user_indexes
            WHERE schemaname = current_schema() AND relname IN ('job', 'lease') GROUP BY 1 ORDER BY 1"""
        return [(name, int(number)) for name, number in tx.rows(sql)]

    starts = range(1, rounds * rows, rows)
    lives = [live(range(start, start + rows)) for start in starts]
    *_, found = stored(postgres_url, *lives, lambda tx: tx.rows("SELECT pg_stat_force_next_flush()"), read)
    assert [name for name, _ in found] == ["job", "lease"]
    for _, number in found:
        assert rounds * rows <= number <= 10 * rounds * rows  # a scan in each round would read 30 times as many


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUE = st.floats(allow_nan=False, allow_infinity=False).map(
    lambda value: value + 0.0
)  # SQLite does not store the sign of -0.0


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.tuples(TEXT, TEXT, TEXT.map(repr)), min_size=1, max_size=20),
    values=st.lists(VALUE, max_size=50),
)
def test_every_text_and_every_bit_of_a_reward_are_kept(
    database_url: str, texts: list[tuple[str, str, str]], values: list[float]
) -> None:
    rows = [
        job(id, namespace=f"{space}{id}", key=key, payload=payload, error=key, reward=0.1)
        for id, (space, key, payload) in enumerate(texts, 1)
    ]
    log = [ObservationRow(seq, seq, 0, 1, 2, value) for seq, value in enumerate(values, 1)]

    def clear(tx: Transaction) -> None:
        tx.run("DELETE FROM job")
        tx.run("DELETE FROM observation")

    *_, page, found, read = stored(
        database_url,
        clear,
        lambda tx: insert_jobs(tx, rows),
        lambda tx: add_observations(tx, log),
        lambda tx: list_jobs(tx, None, None, None, None, 99),
        lambda tx: [known_jobs(tx, row.namespace, [str(row.key)]) for row in rows],
        lambda tx: observations_since(tx, 0),
    )
    assert page == rows[::-1]
    assert found == [{row.key: KnownJob(row.id, row.state, row.digest)} for row in rows]
    assert [row.value.hex() for row in read] == [value.hex() for value in values]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "live.db",
        "sqlite://live.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "mysql://me:secret@host/x",
        "postgresql:secret",
    ],
)
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(BadInput, match="database must be sqlite:///FILE or postgresql://") as caught:
        open_store(url)
    assert "secret@" not in str(caught.value)


def test_a_bad_postgresql_url_is_refused_without_showing_it() -> None:
    with pytest.raises(BadInput, match="database must be like postgresql://") as caught:
        open_store("postgresql://me:sec%zzret@host/x?nonsense=1")
    assert "zzret" not in str(caught.value)


def test_the_folder_of_a_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"folder that exists; got .*nowhere"):
        open_store(f"sqlite:///{tmp_path}/nowhere/live.db")


def test_relative_files_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored("sqlite:///live.db", largest_ids)
    assert (tmp_path / "live.db").exists()


def test_durable_commits_are_configured(sqlite_url: str, postgres_url: str) -> None:
    found = stored(
        sqlite_url, lambda tx: tx.rows("PRAGMA journal_mode"), lambda tx: tx.rows("PRAGMA synchronous")
    ) + stored(postgres_url, lambda tx: tx.rows("SHOW synchronous_commit"), lambda tx: tx.rows("SHOW fsync"))
    assert found == [[("wal",)], [(2,)], [("on",)], [("on",)]]


def test_two_schemas_of_one_database_have_a_leader_each(postgres: Postgres) -> None:
    async def run() -> None:
        async with leading(postgres.fresh()) as first, leading(postgres.fresh()) as second:
            await first.write(lambda tx: insert_jobs(tx, [job(1)]))
            assert await second.read(lambda tx: get_job(tx, 1)) is None

    asyncio.run(run())


def test_attempts_to_lead_begin_at_equal_times_unless_they_take_long(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine attempts are slow; if pauses came on top, a frozen leader would be replaced later."""
    now, began, take = 0.0, list[float](), iter([0.0, 0.1, 0.2, 0.4, 3.0, 0.0])

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def attempt() -> Any:
        nonlocal now
        began.append(now)
        now += next(take)
        return True if len(began) == 6 else None

    monkeypatch.setattr(store_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    monkeypatch.setattr(store_module, "time", SimpleNamespace(monotonic=lambda: now))
    store = open_store(sqlite_url)
    monkeypatch.setattr(store, "_attempt", attempt)
    asyncio.run(store._win(wait=True, retry=False))
    assert began == pytest.approx([0.0, 0.25, 0.5, 0.8, 1.3, 4.4])
