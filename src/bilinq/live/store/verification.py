"""Checks of a SQLite file from elsewhere before it is used: tables, pages, and the kinds and ranges of values."""

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct, structs

from bilinq.errors import BadInput
from bilinq.live.settings import SETTINGS, ServiceSettings
from bilinq.live.store.admin_tables import all_keys
from bilinq.live.store.class_tables import all_classes, all_namespaces, stored_settings
from bilinq.live.store.job_tables import open_options
from bilinq.live.store.schema import META, check_version, statements
from bilinq.live.store.transaction import Transaction
from bilinq.live.wire.access import NamespaceInfo
from bilinq.live.wire.messages import Positive
from bilinq.live.wire.queries import convert

SECONDS, SLOWEST = 60.0, 1e6  # how long the checks of a file may take, and one more second for so many of its bytes
STEPS = 10_000  # of SQLite's machine between two looks at the clock
KINDS = {"INTEGER": "integer", "BIGINT": "integer", "TEXT": "text", "DOUBLE PRECISION": "real", "BLOB": "blob"}
"""What values are, by the type of their column."""
LARGEST = {"integer": str(2**62), "real": "1e300"}
STATISTICS = "sqlite_stat1"  # a table of SQLite's own, which ANALYZE makes

Schema = dict[tuple[str, str], tuple[str, str]]
"""The table and the SQL of each table, index, trigger and view, by kind and name."""


def time_for(path: Path) -> float:
    """Return the seconds that checks of a file may take."""
    return SECONDS + path.stat().st_size / SLOWEST


def verify(path: Path, called: Path, *, values: bool = True) -> None:
    """Raise `BadInput` unless a file is an undamaged database of bilinq with nothing else in it; errors name it `called`.

    With `values`, each one must also be of its kind.
    """
    allowed = time_for(path)
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            limit(db, allowed)
            for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
                db.execute(f"PRAGMA {pragma}")
            _check_schema(db, called)
            found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                raise BadInput(f"a backup must be undamaged; {called}: {' '.join(found.split())}")
            if values:
                _check_kinds(db, called)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # names in messages of SQLite may be damaged, too
        raise BadInput(f"a backup must be a database of bilinq; {called}: {reason(error, allowed)}") from None


def limit(db: sqlite3.Connection, seconds: float) -> None:
    """Let what a connection does end with an error after some seconds."""
    end = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > end, STEPS)


def reason(error: Exception, allowed: float) -> str:
    """Return what an error of SQLite means."""
    slow = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
    return f"its checks must end within {allowed:.0f} s" if slow else str(error)


# Tables


def _check_schema(db: sqlite3.Connection, called: Path) -> None:
    """Raise unless there are exactly the tables, indexes and triggers of a version; no other object is ever evaluated."""
    found = _schema(db)
    found.pop(("table", STATISTICS), None)
    if found.get(("table", "meta")) != ("meta", _tidy(META)):
        raise BadInput(f"a backup must be a database of bilinq; {called}: no such table: meta")
    row = db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    if row is None or not re.fullmatch(r"[1-9]\d{0,8}", str(row[0])):
        raise BadInput(f"a backup must be a database of bilinq; {called} has no version")
    check_version(int(row[0]))
    right = _expected(int(row[0]))
    for kind, name in sorted(found.keys() | right.keys()):
        if found.get((kind, name)) != right.get((kind, name)):
            fault = (
                "is missing" if (kind, name) not in found else "is another" if (kind, name) in right else "is foreign"
            )
            rule = f"a backup must have the tables, indexes and triggers of version {row[0]} and nothing else"
            raise BadInput(f"{rule}; {called}: {kind} {name[:60]!r} {fault}")


@cache
def _expected(version: int) -> Schema:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        for statement in (META, *statements("sqlite", 0, version)):
            db.execute(statement)
        return _schema(db)


def _schema(db: sqlite3.Connection) -> Schema:
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    return {(str(kind), str(name)): (str(table), _tidy(str(sql))) for kind, name, table, sql in rows}


def _tidy(sql: str) -> str:
    """Return a statement without spaces that mean nothing: versions wrote them differently."""
    return re.sub(r" ?([(),]) ?", r"\1", " ".join(sql.split()))


# Values


def _check_kinds(db: sqlite3.Connection, called: Path) -> None:
    """Raise unless each value is of the type of its column, numbers are finite, and texts are UTF-8 and valid."""
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if table == STATISTICS:
            continue
        columns = db.execute(f"PRAGMA table_info({table})").fetchall()
        wrong = {name: _wrong(name, KINDS[kind], bool(needed or key)) for _, name, kind, needed, _, key in columns}
        if db.execute(f"SELECT 1 FROM {table} WHERE {' OR '.join(wrong.values())} LIMIT 1").fetchone():
            for _, name, kind, *_ in columns:
                found = db.execute(f"SELECT typeof({name}) FROM {table} WHERE {wrong[name]} LIMIT 1").fetchone()
                if found:
                    rule = f"{table}.{name} of a backup must be {KINDS[kind]} and of possible size"
                    raise BadInput(f"{rule}; {called} has {found[0]}")
        _check_texts(db, table, [name for _, name, kind, *_ in columns if kind == "TEXT"], called)


def _check_texts(db: sqlite3.Connection, table: str, columns: list[str], called: Path) -> None:
    """Read all texts: SQLite does not check that they are UTF-8, and reading them does; raise unless JSON is as expected."""
    decoders = {k: msgspec.json.Decoder(TEXTS[table, name]) for k, name in enumerate(columns) if (table, name) in TEXTS}
    for row in db.execute(f"SELECT {', '.join(columns)} FROM {table}") if columns else ():
        for k, decoder in decoders.items():
            if row[k] is not None:
                with _refusing(f"{table}.{columns[k]}", called):
                    decoder.decode(row[k])


def _wrong(name: str, kind: str, needed: bool) -> str:
    """Return the condition that a value is not of its kind."""
    size = f" OR {name} NOT BETWEEN -{LARGEST[kind]} AND {LARGEST[kind]}" if kind in LARGEST else ""
    wrong = f"(typeof({name}) <> '{kind}'{size})"
    return wrong if needed else f"({name} IS NOT NULL AND {wrong})"


class _Options(Struct):
    """Options of a job as they are stored."""

    features: Annotated[list[float], Meta(min_length=1)] | None = None
    servers: Annotated[list[str], Meta(min_length=1)] | None = None
    weight: Positive | None = None
    max_attempts: Annotated[int, Meta(ge=1)] | None = None
    deadline: float | None = None
    not_before: float | None = None
    tags: list[str] = []


class _Given(Struct):
    """The settings of the last start as they are stored."""

    knobs: dict[str, Any]
    job: dict[str, dict[str, Any]] = {}
    server: dict[str, dict[str, Any]] = {}
    namespace: dict[str, dict[str, Any]] = {}


TEXTS: dict[tuple[str, str], Any] = {
    ("job", "payload"): Raw, ("job", "result"): Raw, ("job", "options"): _Options, ("observation", "features"): list[float],
    ("settings_change", "before"): dict[str, Any], ("settings_change", "after"): dict[str, Any], ("knob", "value"): Raw,
    ("class", "features"): list[float], ("api_key", "scopes"): list[str], ("api_key", "namespaces"): list[str],
}  # fmt: skip
"""Columns with JSON, and what it is."""

STATES = "'queued', 'leased', 'done', 'dead', 'cancelled', 'expired'"
OPEN = "state IN ('queued', 'leased')"
RULES: tuple[tuple[str, str, str, str], ...] = (
    ("job", "state", f"state IN ({STATES})", "a state of jobs"),
    ("job", "units", "units >= 1 AND units_left BETWEEN 0 AND units", "at least one, of which some are left"),
    ("job", "units_left", f"NOT {OPEN} OR units_left >= 1", "at least one while a job is open"),
    ("job", "attempts", "attempts >= 0", "at least zero"),
    ("job", "class", f"NOT {OPEN} OR EXISTS (SELECT 1 FROM class WHERE kind = 'job' AND name = job.class)", "a job class"),
    ("lease", "state", "state IN ('active', 'finished', 'failed', 'expired', 'revoked')", "a state of leases"),
    ("lease", "server", "ended IS NOT NULL OR EXISTS (SELECT 1 FROM server WHERE id = lease.server)", "a server"),
    ("lease", "job", """ended IS NOT NULL OR NOT EXISTS
        (SELECT 1 FROM lease AS other WHERE other.job = lease.job AND other.ended IS NULL AND other.id <> lease.id)""",
     "a job with one active lease"),
    ("server", "class", "EXISTS (SELECT 1 FROM class WHERE kind = 'server' AND name = server.class)", "a server class"),
    ("server", "held", "held IS NULL OR held IN ('draining', 'quarantined')", "null, draining or quarantined"),
    ("class", "kind", "kind IN ('job', 'server')", "job or server"),
    ("class", "weight", "weight > 0 AND holding_cost >= 0", "positive"),
    ("class", "current", "current IN (0, 1)", "0 or 1"),
    ("class", "backlog", "backlog IS NULL OR backlog >= 1", "at least one"),
    ("class", "retry_first", "coalesce(retry_first, 0) >= 0 AND coalesce(retry_longest, 0) >= 0", "at least zero"),
    ("observation", "failed", "failed IN (0, 1)", "0 or 1"),
    ("meta", "value", """name NOT IN ('schema', 'epoch') AND name NOT LIKE 'largest %'
        OR (length(value) BETWEEN 1 AND 18 AND value NOT GLOB '*[^0-9]*')""", "a whole number"),
)  # fmt: skip
"""Table, column, what must hold for each row, and the same in words; in the newest version of the tables."""


def verify_values(tx: Transaction, called: Path) -> None:
    """Raise `BadInput` unless the service can start with the values of a database of the newest version."""
    for table, column, condition, rule in RULES:
        found = tx.rows(f"SELECT {column} FROM {table} WHERE NOT ({condition}) LIMIT 1")
        if found:
            raise BadInput(f"{table}.{column} of a backup must be {rule}; {called} has {str(found[0][0])[:60]!r}")
    _check_small_tables(tx, called)
    _check_features(tx, called)


def _check_small_tables(tx: Transaction, called: Path) -> None:
    """Raise unless settings, namespaces and keys are such as the API accepts."""
    with _refusing("knob", called):
        stored = stored_settings(tx)
        given = {name: convert(value, SETTINGS[name].type) for name, value in stored.items()}
        structs.replace(ServiceSettings(), **given)
    with _refusing("namespace", called):
        for one in all_namespaces(tx).values():
            convert(structs.asdict(one), NamespaceInfo)
    with _refusing("api_key", called):
        all_keys(tx)
    with _refusing("meta.value", called):
        for (text,) in tx.rows("SELECT value FROM meta WHERE name = 'settings'"):
            knobs = msgspec.json.decode(text, type=_Given).knobs
            if not {"target_wait", "V", "work_conserving", "exploration"} <= knobs.keys():
                raise ValueError("the settings of the last start are not complete")


def _check_features(tx: Transaction, called: Path) -> None:
    """Raise unless features have one length: those of current job classes, of server classes, and of single jobs."""
    newest = {(row.kind, row.name): row for row in all_classes(tx)}
    lengths: dict[str, set[int]] = {"job": set(), "server": set(), "single job": set()}
    for row in newest.values():
        lengths[row.kind].add(len(row.features))
        if not row.name or not row.name.isprintable():
            raise BadInput(f"class.name of a backup must be printable text; {called} has {row.name[:60]!r}")
    decoder = msgspec.json.Decoder(_Options)
    for text in open_options(tx):
        features = decoder.decode(text).features
        if features is not None:
            lengths["single job"].add(len(features))
    for kind, some in lengths.items():
        if len(some) > 1:
            raise BadInput(
                f"features of each {kind} class of a backup must have one length; {called} has {sorted(some)}"
            )


@contextlib.contextmanager
def _refusing(name: str, called: Path) -> Iterator[None]:
    """Turn errors of values into `BadInput`."""
    try:
        yield
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadInput(f"{name} of a backup must be as bilinq writes it; {called}: {error}") from None
