"""Rows that change seldom: classes, settings, servers, checkpoints, keys and the audit log."""

from collections.abc import Callable

import pytest
from databases import stored

from bilinq.live.store import Transaction
from bilinq.live.store.admin_tables import (
    KeyRow,
    add_audit,
    add_key,
    all_keys,
    find_key,
    get_meta,
    largest_ids,
    list_audit,
    put_meta,
    revoke_key,
)
from bilinq.live.store.class_tables import (
    ClassRow,
    ServerRow,
    all_classes,
    all_servers,
    current_classes,
    newest_checkpoints,
    put_class,
    put_server,
    remove_servers,
    save_checkpoint,
    store_settings,
    stored_settings,
)

pytest_plugins = ("databases",)


def test_classes_keep_their_earlier_features(database_url: str) -> None:
    first, other = ClassRow(1, "job", "short", (1.0, 0.1)), ClassRow(2, "server", "short", (3.0,))
    heavier = first._replace(weight=2.5, holding_cost=0.0, backlog=7)
    changed = ClassRow(3, "job", "short", (1.0, 0.2))
    *_, before, _, now, ever, _, rest, ids = stored(
        database_url,
        lambda tx: put_class(tx, first),
        lambda tx: put_class(tx, other),
        lambda tx: put_class(tx, heavier),
        current_classes,
        lambda tx: put_class(tx, changed),
        current_classes,
        all_classes,
        lambda tx: put_class(tx, other._replace(current=False)),
        current_classes,
        largest_ids,
    )
    assert before == [heavier, other]
    assert now == [other, changed]
    assert ever == [heavier._replace(current=False), other, changed]
    assert rest == [changed]
    assert ids.class_ == 3


def test_settings_and_meta_keep_the_newest_value(database_url: str) -> None:
    *_, settings, none, value = stored(
        database_url,
        lambda tx: store_settings(tx, {"V": 2.5, "work_conserving": True}),
        lambda tx: store_settings(tx, {"V": None, "exploration": "ucb"}),
        lambda tx: store_settings(tx, {}),
        lambda tx: put_meta(tx, "leader", "http://127.0.0.1:1"),
        lambda tx: put_meta(tx, "leader", "http://127.0.0.1:2"),
        stored_settings,
        lambda tx: get_meta(tx, "nothing"),
        lambda tx: get_meta(tx, "leader"),
    )
    assert settings == {"V": None, "work_conserving": True, "exploration": "ucb"}
    assert none is None
    assert value == "http://127.0.0.1:2"


def test_servers_have_unique_names_and_ids_that_are_not_reused(database_url: str) -> None:
    named, bare = (
        ServerRow(1, "gpu", "a", "owner", registered=1.0, seen=1.0),
        ServerRow(2, "gpu", None, "owner", 1.0, seen=1.0),
    )
    rows = [named, bare, bare._replace(id=3), named._replace(id=4, owner="other")]
    *_, known, _, _, left, ids = stored(
        database_url,
        *[lambda tx, row=row: put_server(tx, row) for row in rows],
        lambda tx: put_server(tx, bare._replace(server_class="cpu")),
        all_servers,
        lambda tx: remove_servers(tx, 4, 7),
        lambda tx: remove_servers(tx, 4),
        all_servers,
        largest_ids,
    )
    expected = [named, bare._replace(server_class="cpu"), rows[2], rows[3]]
    assert known == expected
    assert left == expected[:3]
    assert ids.server == 4
    with pytest.raises(Exception, match=r"(?i)unique"):
        stored(database_url, lambda tx: put_server(tx, named._replace(id=5)))


def test_only_the_newest_three_checkpoints_are_kept(database_url: str) -> None:
    def save(seq: int) -> Callable[[Transaction], None]:
        return lambda tx: save_checkpoint(tx, seq, float(seq), bytes(range(256)), f"sum {seq}")

    *_, kept = stored(database_url, *map(save, (10, 20, 30, 40, 50)), newest_checkpoints)
    assert [(row.seq, row.at, row.checksum) for row in kept] == [(s, float(s), f"sum {s}") for s in (50, 40, 30)]
    assert all(row.state == bytes(range(256)) for row in kept)


def test_keys_are_found_and_revoked_once(database_url: str) -> None:
    row = KeyRow("abc", "hash", "mine", "default", ("submit", "read"), created=5.0, expires=9.0)
    newer = row._replace(prefix="aaa", created=6.0, expires=None)
    *_, found, none, first, second, everything = stored(
        database_url,
        lambda tx: add_key(tx, newer),
        lambda tx: add_key(tx, row),
        lambda tx: find_key(tx, "abc"),
        lambda tx: find_key(tx, "abd"),
        lambda tx: revoke_key(tx, "abc", 7.0),
        lambda tx: revoke_key(tx, "abc", 8.0),
        all_keys,
    )
    assert found == row
    assert none is None
    assert (first, second) == (1, 0)
    assert everything == [row._replace(revoked=7.0), newer]


def check_append_only(url: str, sql: str) -> None:
    """Assert that a statement on an audit log with two rows is refused and changes nothing."""
    *_, newest = stored(
        url,
        lambda tx: add_audit(tx, 1.0, "abc", "keys.create", "def"),
        lambda tx: add_audit(tx, 2.0, "abc", "revoke_key", "def"),
        lambda tx: list_audit(tx, 1),
    )
    with pytest.raises(Exception, match="append-only"):
        stored(url, lambda tx: tx.run(sql))
    (rows,) = stored(url, lambda tx: list_audit(tx, 9))
    assert [(row.id, row.what) for row in rows] == [(2, "revoke_key"), (1, "keys.create")]
    assert newest == rows[:1]


@pytest.mark.parametrize("sql", ["UPDATE audit SET who = 'nobody'", "DELETE FROM audit WHERE id = 1"])
def test_the_audit_log_cannot_be_changed(database_url: str, sql: str) -> None:
    check_append_only(database_url, sql)


def test_the_audit_log_cannot_be_emptied_or_replaced(sqlite_url: str, postgres_url: str) -> None:
    check_append_only(postgres_url, "TRUNCATE audit")
    check_append_only(sqlite_url, "INSERT OR REPLACE INTO audit VALUES (1, 1.0, 'nobody', 'nothing', '', NULL)")
