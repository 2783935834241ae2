"""Damage to snapshots and to databases, drawn from a generator of random numbers."""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 7, -(2**63), 2**31, 2**53, 2**63, 10**30, 0.5, -0.5, 1e-300, 1e300, -1e300, float("nan"),
    float("inf"), "", "text", "1", [], [1], {}, [[]], "x" * 1000,
)  # fmt: skip
NUMBERS = (np.nan, np.inf, -np.inf, 0.0, -1.0, 1.0, 1e300, -1e300, 1e-300, 1e18, 5e-324, 3.0)
WHOLE = (-1, 0, 1, 2, 3, 17, 255, 10**6, -(10**6), 2**31, 2**62, -(2**62), 2**63 - 1)
HUGE = 2**40


class SnapshotDamage:
    """Changes a snapshot in some places and seals it again, so that its checksum is right; or changes its bytes."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def __call__(self, data: bytes) -> bytes:
        if self._rng.random() < 0.1:
            return self._bytes(data)
        _, _, body = data.partition(b"\n")
        document = json.loads(body)
        for _ in range(self._rng.geometric(0.6)):
            self._change(document)
        body = json.dumps(document).encode()
        if self._rng.random() < 0.05:
            body = self._bytes(body)
        return f"bilinq snapshot 2 {hashlib.sha256(body).hexdigest()}\n".encode() + body

    def _bytes(self, data: bytes) -> bytes:
        """Flip bits, or cut off the end."""
        if self._rng.random() < 0.3:
            return data[: self._rng.integers(len(data))]
        bad = bytearray(data)
        for place in self._rng.integers(len(bad), size=self._rng.geometric(0.3)):
            bad[place] ^= 1 << int(self._rng.integers(8))
        return bytes(bad)

    def _change(self, document: Any) -> None:
        places = list(_places(document))
        arrays = [place for place in places if _is_array(place[0][place[1]])]
        some = arrays if arrays and self._rng.random() < 0.6 else places
        holder, key = some[self._rng.integers(len(some))]
        value = holder[key]
        if _is_array(value) and self._rng.random() < 0.95:
            self._change_array(value)
        elif isinstance(value, dict | list) and value and self._rng.random() < 0.8:
            self._change_holder(value)
        elif isinstance(holder, dict) and self._rng.random() < 0.1:
            del holder[key]
        else:
            holder[key] = self._pick(VALUES)

    def _pick(self, values: Sequence[Any]) -> Any:
        return copy.deepcopy(values[int(self._rng.integers(len(values)))])

    def _change_holder(self, holder: Any) -> None:
        """Drop, duplicate, move or add an entry."""
        rng = self._rng
        if isinstance(holder, dict):
            key = self._pick(list(holder))
            value = holder.pop(key)
            if rng.random() < 0.5:
                holder[self._pick(["", "x", "a", "other", key])] = value
            return
        place, how = int(rng.integers(len(holder))), rng.integers(5)
        if how == 0:
            del holder[place]
        elif how == 1:
            holder.insert(place, json.loads(json.dumps(holder[place])))
        elif how == 2:
            holder.append(self._pick(VALUES))
        elif how == 3:
            rng.shuffle(holder)
        else:
            holder[place] = holder[rng.integers(len(holder))]

    def _change_array(self, value: dict[str, Any]) -> None:
        """Change values, bits, the shape, the type, or only what is said of them."""
        rng, how = self._rng, self._rng.integers(9)
        try:
            array = np.frombuffer(base64.b64decode(value["data"]), value["dtype"]).reshape(value["shape"]).copy()
        except (ValueError, TypeError):
            return
        if how <= 2 and array.size:
            some = rng.integers(array.size, size=1 if how else array.size)
            array.reshape(-1)[some] = self._pick(WHOLE if array.dtype.kind == "i" else NUMBERS)
        elif how == 3 and array.nbytes:
            raw = bytearray(array.tobytes())
            raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
            array = np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
        elif how == 4:
            array = self._resized(array)
        elif how == 5:
            number = array.astype("<f8") if array.dtype == np.bool_ else array
            array = self._pick([array.T, array[None], array.reshape(-1), number * 2, -number, array.astype("<f4")])
        elif how == 6:
            value["shape"] = self._pick(
                [[], [0], [HUGE], [-1], [*array.shape, 1], [1, *array.shape], [HUGE] * array.ndim]
            )
            return
        elif how == 7:
            value["dtype"] = self._pick(["<f8", "<i8", "|b1", "<f4", "|O", "", None, 3])
            return
        else:
            value["data"] = self._pick(["", value["data"][:-4], value["data"][4:], "=", None, 5])
            return
        value |= {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
        }

    def _resized(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the array with another size along one axis, or along all."""
        if not array.ndim:
            return array
        axis, size = int(self._rng.integers(array.ndim)), self._pick([0, 1, 2, 5, 40])
        shape = [size if k == axis or self._rng.random() < 0.2 else old for k, old in enumerate(array.shape)]
        return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


def _is_array(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"dtype", "shape", "data"}


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each list or dictionary with each of its keys, but not those inside of arrays."""
    items = list(document.items()) if isinstance(document, dict) else list(enumerate(document))
    for key, value in items:
        yield document, key
        if isinstance(value, dict | list) and not _is_array(value):
            yield from _places(value)


FOREIGN = (
    "CREATE TRIGGER foreign_one AFTER INSERT ON job BEGIN DELETE FROM lease; END",
    "CREATE TRIGGER foreign_two BEFORE UPDATE ON meta BEGIN SELECT RAISE(IGNORE); END",
    "CREATE TRIGGER foreign_three AFTER UPDATE ON server BEGIN INSERT INTO job SELECT * FROM job; END",
    "CREATE VIEW foreign_view AS SELECT * FROM api_key",
    "CREATE VIEW foreign_endless AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
    "CREATE TABLE foreign_table (x)",
    "CREATE TABLE foreign_generated (x, y AS (randomblob(x)))",
    "CREATE INDEX foreign_index ON job (payload)",
    "CREATE VIRTUAL TABLE foreign_text USING fts5(x)",
    "ALTER TABLE job ADD COLUMN foreign_column TEXT",
    "ALTER TABLE meta ADD COLUMN foreign_column AS (hex(zeroblob(500000000)))",
)
OTHER = (
    """DROP TABLE meta; CREATE VIEW meta AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
        SELECT 'schema' AS name, '11' AS value FROM n WHERE x < 0""",
    """DROP TABLE class; CREATE VIEW class AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
        SELECT x AS id, 'job' AS kind, 'a' AS name FROM n""",
    "DROP INDEX job_open", "DROP TRIGGER audit_update", "DROP TABLE lease", "DROP TABLE checkpoint", "DELETE FROM class",
    "DELETE FROM server", "DELETE FROM meta", "DELETE FROM lease", "DELETE FROM job", "DELETE FROM knob", "ANALYZE",
    "UPDATE meta SET value = '1' WHERE name = 'schema'", "UPDATE meta SET value = '99' WHERE name = 'schema'",
    "UPDATE job SET class = 'none'", "UPDATE job SET state = 'queued'", "UPDATE job SET state = 'leased'",
    "UPDATE lease SET ended = NULL, state = 'active'", "UPDATE server SET class = 'none'", "UPDATE lease SET job = 1",
    "UPDATE class SET features = '[1.0]' WHERE id = 1", "UPDATE class SET kind = 'server'",
    "INSERT INTO knob VALUES ('V', '1.0')",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, 'TEXT', 'BLOB')",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 2 WHERE name = 'job'",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET name = 'job_open' WHERE name = 'job_dead'",
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    None, "", "x", "[]", "[1.0, null]", "[1e999]", "{}", '{"features": [1, 2, 3]}', '{"weight": -1}', "9" * 400, "-1",
    b"\xff\xfe", "\0", -1, 0, 1, 2**62, -(2**63), 1e308, -1e308, float("inf"), 0.5, "[" * 5000, "queued", "leased", "null",
)  # fmt: skip


class DatabaseDamage:
    """Changes the bytes of a database, its schema or its values; `snapshots` are those that checkpoints get, damaged."""

    def __init__(self, base: Path, snapshots: Sequence[bytes]) -> None:
        self._snapshots = snapshots
        self._known = set(_objects(base))
        with contextlib.closing(sqlite3.connect(base)) as db:
            tables = [name for kind, name in self._known if kind == "table"]
            rows = {table: db.execute(f"PRAGMA table_info({table})").fetchall() for table in sorted(tables)}
        self._columns = [(table, row[1]) for table, own in rows.items() for row in own]

    def __call__(self, rng: np.random.Generator, base: bytes, path: Path) -> None:
        if rng.random() < 0.4:
            path.write_bytes(self._bytes(rng, base))
            return
        path.write_bytes(base)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = MEMORY")
            for _ in range(rng.geometric(0.6)):
                with contextlib.suppress(sqlite3.Error):
                    self._change(rng, db)

    def foreign(self, path: Path) -> bool:
        """Tell whether a database has an object that the undamaged one does not have."""
        return not {one for one in _objects(path) if one[1] != "sqlite_stat1"} <= self._known

    def _bytes(self, rng: np.random.Generator, base: bytes) -> bytes:
        """Flip bits anywhere or in the first page, clear, copy or swap pages, cut off the end, or add to it."""
        bad, page, how = bytearray(base), 4096, rng.integers(7)
        if how <= 2:
            for place in rng.integers(len(bad) if how else 4096, size=rng.geometric(0.2)):
                bad[place] ^= 1 << int(rng.integers(8))
            return bytes(bad)
        if how == 3:
            return base[: rng.integers(len(base))]
        if how == 4:
            return base + rng.bytes(int(rng.integers(1, 3 * page)))
        one, other = (page * int(rng.integers(len(base) // page)) for _ in range(2))
        bad[one : one + page] = bytes(page) if how == 5 else base[other : other + page]
        return bytes(bad)

    def _change(self, rng: np.random.Generator, db: sqlite3.Connection) -> None:
        how = rng.random()
        if how < 0.25:
            db.execute(FOREIGN[rng.integers(len(FOREIGN))])
        elif how < 0.5:
            db.executescript(OTHER[rng.integers(len(OTHER))])
        elif how < 0.6:
            state = SnapshotDamage(rng)(self._snapshots[int(rng.integers(len(self._snapshots)))])
            checksum = hashlib.sha256(state).hexdigest()
            db.execute(
                "UPDATE checkpoint SET state = ?, checksum = ?, seq = ?", (state, checksum, int(rng.integers(20)))
            )
        else:
            table, column = self._columns[rng.integers(len(self._columns))]
            few = "" if rng.random() < 0.5 else f"WHERE rowid = (SELECT max(rowid) FROM {table})"
            db.execute(f"UPDATE {table} SET {column} = ? {few}", (TEXTS[rng.integers(len(TEXTS))],))


def _objects(path: Path) -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT type, name FROM sqlite_master").fetchall()
