"""What changes seldom is stored as well: classes, knobs, servers, checkpoints, keys and the audit log."""

from collections.abc import Callable

import pytest
from databases import stored

from bilinq.live.store import Transaction, audit, checkpoints, classes, keys, knobs, meta, servers
from bilinq.live.store.classes import ClassRow
from bilinq.live.store.keys import KeyRow
from bilinq.live.store.servers import ServerRow

pytest_plugins = ("databases",)


def test_classes_keep_the_features_of_then(database_url: str) -> None:
    first, other = ClassRow(1, "job", "short", (1.0, 0.1)), ClassRow(2, "server", "short", (3.0,))
    heavier = first._replace(weight=2.5, holding_cost=0.0, backlog=7)
    changed = ClassRow(3, "job", "short", (1.0, 0.2))
    *_, before, _, now, ever, gone, unknown, rest, ids = stored(
        database_url,
        lambda tx: classes.put(tx, first),
        lambda tx: classes.put(tx, other),
        lambda tx: classes.put(tx, heavier),
        classes.current,
        lambda tx: classes.put(tx, changed),
        classes.current,
        classes.all,
        lambda tx: classes.retire(tx, "server", "short"),
        lambda tx: classes.retire(tx, "server", "long"),
        classes.current,
        meta.largest_ids,
    )
    assert before == [heavier, other]
    assert now == [other, changed]
    assert ever == [heavier._replace(current=False), other, changed]
    assert (gone, unknown) == (1, 0)
    assert rest == [changed]
    assert ids.class_ == 3


def test_knobs_and_meta_remember_the_newest_value(database_url: str) -> None:
    *_, turned, none, value = stored(
        database_url,
        lambda tx: knobs.put(tx, {"V": 2.5, "work_conserving": True}),
        lambda tx: knobs.put(tx, {"V": None, "exploration": "ucb"}),
        lambda tx: knobs.put(tx, {}),
        lambda tx: meta.put(tx, "leader", "http://127.0.0.1:1"),
        lambda tx: meta.put(tx, "leader", "http://127.0.0.1:2"),
        knobs.all,
        lambda tx: meta.get(tx, "nothing"),
        lambda tx: meta.get(tx, "leader"),
    )
    assert turned == {"V": None, "work_conserving": True, "exploration": "ucb"}
    assert none is None
    assert value == "http://127.0.0.1:2"


def test_servers_have_names_of_their_own_and_ids_for_ever(database_url: str) -> None:
    named, bare = ServerRow(1, "gpu", "a", "owner", 1.0, 1.0), ServerRow(2, "gpu", None, "owner", 1.0, 1.0)
    rows = [named, bare, bare._replace(id=3), named._replace(id=4, owner="other")]
    *_, known, _, _, left, ids = stored(
        database_url,
        *[lambda tx, row=row: servers.put(tx, row) for row in rows],
        lambda tx: servers.put(tx, bare._replace(server_class="cpu")),
        servers.all,
        lambda tx: servers.remove(tx, 4, 7),
        lambda tx: servers.remove(tx, 4),
        servers.all,
        meta.largest_ids,
    )
    expected = [named, bare._replace(server_class="cpu"), rows[2], rows[3]]
    assert known == expected
    assert left == expected[:3]
    assert ids.server == 4
    with pytest.raises(Exception, match=r"(?i)unique"):
        stored(database_url, lambda tx: servers.put(tx, named._replace(id=5)))


def test_only_the_newest_three_checkpoints_are_kept(database_url: str) -> None:
    def save(seq: int) -> Callable[[Transaction], None]:
        return lambda tx: checkpoints.save(tx, seq, float(seq), bytes(range(256)), f"sum {seq}")

    *_, kept = stored(database_url, *map(save, (10, 20, 30, 40, 50)), checkpoints.newest)
    assert [(row.seq, row.at, row.checksum) for row in kept] == [(s, float(s), f"sum {s}") for s in (50, 40, 30)]
    assert all(row.state == bytes(range(256)) for row in kept)


def test_keys_are_found_and_revoked_once(database_url: str) -> None:
    row = KeyRow("abc", "hash", "mine", "default", ("submit", "read"), 5.0, 9.0)
    newer = row._replace(prefix="aaa", created=6.0, expires=None)
    *_, found, none, first, second, everything = stored(
        database_url,
        lambda tx: keys.add(tx, newer),
        lambda tx: keys.add(tx, row),
        lambda tx: keys.find(tx, "abc"),
        lambda tx: keys.find(tx, "abd"),
        lambda tx: keys.revoke(tx, "abc", 7.0),
        lambda tx: keys.revoke(tx, "abc", 8.0),
        keys.all,
    )
    assert found == row
    assert none is None
    assert (first, second) == (1, 0)
    assert everything == [row._replace(revoked=7.0), newer]


def check_append_only(url: str, sql: str) -> None:
    """Assert that a statement on an audit log with two rows is refused and changes nothing."""
    *_, newest = stored(
        url,
        lambda tx: audit.add(tx, 1.0, "abc", "keys.create", "def"),
        lambda tx: audit.add(tx, 2.0, "abc", "keys.revoke", "def"),
        lambda tx: audit.page(tx, 1),
    )
    with pytest.raises(Exception, match="append-only"):
        stored(url, lambda tx: tx.run(sql))
    rows, older = stored(url, lambda tx: audit.page(tx, 9), lambda tx: audit.page(tx, 9, before_id=2))
    assert [(row.id, row.what) for row in rows] == [(2, "keys.revoke"), (1, "keys.create")]
    assert (newest, older) == (rows[:1], rows[1:])


@pytest.mark.parametrize("sql", ["UPDATE audit SET who = 'nobody'", "DELETE FROM audit WHERE id = 1"])
def test_the_audit_log_cannot_be_changed(database_url: str, sql: str) -> None:
    check_append_only(database_url, sql)


def test_the_audit_log_cannot_be_emptied_or_replaced(sqlite_url: str, postgres_url: str) -> None:
    check_append_only(postgres_url, "TRUNCATE audit")
    check_append_only(sqlite_url, "INSERT OR REPLACE INTO audit VALUES (1, 1.0, 'nobody', 'nothing', '')")
