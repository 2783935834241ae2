"""Shards: every format yields the same batches, and errors of a bad file name it and the row."""

import doctest
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bilinq.errors import BadInput
from bilinq.traces import batches, digest, formats, json_lines, passes, shards

BIG = 2**60 + 1
"""An id that a float cannot represent."""
ROWS: list[dict[str, Any]] = [
    {"time": 0, "machine_id": BIG, "type": 1, "cpus": 0.5, "memory": 0.25},
    {"time": 2**63 - 1, "machine_id": -1, "type": 2, "cpus": None, "memory": None},
    {"time": 600_000_001, "machine_id": BIG + 1, "type": 3, "cpus": 1.0, "memory": None},
]
HEADER = "time,machine_id,type,capacity.cpus,capacity.memory"


def rows(path: Path | str, table: str = "machine_events") -> list[dict[str, Any]]:
    return [row for batch in batches(path, table) for row in batch.to_pylist()]


def flat_csv(records: list[dict[str, Any]] = ROWS) -> bytes:
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in records]
    return "\n".join([HEADER, *lines, ""]).encode()


def dictionary_csv(records: list[dict[str, Any]] = ROWS) -> bytes:
    """As pandas writes records: a text of a dictionary, with other columns that go over lines."""
    lines = [",time,machine_id,type,note,capacity"]
    for k, row in enumerate(records):
        record = "{'cpus': " + str(row["cpus"]) + ", 'memory': " + str(row["memory"]) + "}"
        lines.append(f'{k},{row["time"]},{row["machine_id"]},{row["type"]},"[1 2\n 3]","{record}"')
    return "\n".join([*lines, ""]).encode()


def bigquery_lines(records: list[dict[str, Any]] = ROWS, number: Callable[[int], Any] = str) -> bytes:
    """As BigQuery writes them: whole numbers as text, nulls left out."""
    texts = []
    for row in records:
        values: dict[str, Any] = {key: number(row[key]) for key in ("time", "machine_id", "type")}
        capacity = {key: row[key] for key in ("cpus", "memory") if row[key] is not None}
        texts.append(json.dumps(values | ({"capacity": capacity} if capacity else {}) | {"switch_id": "x"}))
    return "\n".join([*texts, ""]).encode()


def parquet(records: list[dict[str, Any]] = ROWS) -> bytes:
    nested = [
        {key: row[key] for key in ("time", "machine_id", "type")}
        | {
            "capacity": None if row["cpus"] is None else {"cpus": row["cpus"], "memory": row["memory"]},
            "switch_id": "x",
        }
        for row in records
    ]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(nested), stream)
    return stream.getvalue()


def numbered_lines() -> bytes:
    return bigquery_lines(number=int)


def mixed_lines() -> bytes:
    return bigquery_lines(ROWS[:2], number=int) + b"\n" + bigquery_lines(ROWS[2:])


FORMATS = [flat_csv, dictionary_csv, bigquery_lines, numbered_lines, mixed_lines, parquet]


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("wrap", [bytes, gzip.compress, lambda data: b"\xef\xbb\xbf" + data], ids=["", "gzip", "mark"])
def test_every_format_yields_the_same_rows(tmp_path: Path, write: Any, wrap: Any) -> None:
    """The content decides, not the name. Whole numbers are exact, beyond the precision of floats."""
    if write is parquet and wrap is not bytes:
        wrap = bytes
    path = tmp_path / "shard.parquet.gz"
    path.write_bytes(wrap(write()))
    assert rows(path) == ROWS


@pytest.mark.parametrize("write", FORMATS)
def test_small_blocks_yield_the_same_rows(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "BLOCK", 120)
    monkeypatch.setattr(json_lines, "BLOCK", 7)
    monkeypatch.setattr(formats, "PARQUET_ROWS", 1)
    (tmp_path / "shard").write_bytes(write())
    found = list(batches(tmp_path / "shard", "machine_events"))
    assert [row for batch in found for row in batch.to_pylist()] == ROWS
    assert len(found) > 1


def test_names_of_an_extract_are_understood(tmp_path: Path) -> None:
    (tmp_path / "cpi.csv").write_text(f",collection_id,machine_id,CPI\n0,{BIG},7,1.5\n")
    assert rows(tmp_path / "cpi.csv", "instance_usage") == [
        {"start_time": None, "collection_id": BIG, "machine_id": 7, "cycles_per_instruction": 1.5, "cluster": None}
    ]


def test_a_folder_or_a_pattern_is_read_in_order(tmp_path: Path) -> None:
    for k, row in enumerate(ROWS):
        (tmp_path / f"machine_events-{k}.json.gz").write_bytes(gzip.compress(bigquery_lines([row])))
    (tmp_path / ".hidden").write_text("x")
    assert rows(tmp_path) == rows(str(tmp_path / "machine_events-*")) == ROWS


def test_one_shard_in_two_formats_is_refused(tmp_path: Path) -> None:
    for suffix in ("csv", "json"):
        (tmp_path / f"machine_events-0.{suffix}").write_bytes(flat_csv())
    with pytest.raises(BadInput, match=r"machine_events-0.json: must not be the same shard.*machine_events-0.csv"):
        rows(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(flat_csv(ROWS * 4000), mtime=0)[:-900], r"is cut off or damaged, somewhere after row \d+"),
        (gzip.compress(bigquery_lines(ROWS * 4000), mtime=0)[:-900], r"is cut off or damaged, somewhere after row \d+"),
        (gzip.compress(flat_csv(), mtime=0)[:-4], "is cut off or damaged, somewhere after row 0"),
        (gzip.compress(flat_csv(), mtime=0) + b"rubbish at the end", "is cut off or damaged"),
        (gzip.compress(flat_csv(), mtime=0)[:11], "must contain rows; it is empty|cut off"),
        (b"\x1f\x8b\x08\x00rubbish that is no gzip", "is damaged gzip before its first row"),
        (bigquery_lines()[:-25], "row 3: must be a JSON object; "),
        (parquet()[:-20], "is cut off or damaged, somewhere after row 0; .*footer"),
        (gzip.compress(parquet(), mtime=0), "is Parquet inside gzip.*unpack it first"),
        (flat_csv()[:-8], "row 3: must have 5 fields; got 2"),
        (flat_csv(ROWS * 5000) + b"1,2,3\n", "row 15001: must have 5 fields; got 3"),
        (b"", "must contain rows; it is empty"),
        (b"time,machine_id,type,cpus\n0,1,1,0.5\n", "missing column 'capacity.memory' or 'memory'; it has time, mach"),
        (b"time,time,machine_id,cpus,memory\n0,0,1,1,1\n", "columns must have names of their own; got 'time' twice"),
        (b'{"time": "1", "type": "1"}\n', "missing key 'machine_id'; no row has it"),
        (flat_csv().decode().encode("utf-16"), "row 1: must be UTF-8 text or Parquet"),
        (b"t\xefme,machine_id,type,cpus,memory\n0,1,1,1,1\n", "header must be UTF-8"),
        (flat_csv() + b"0,\xe9,1,1,1\n", "row 4: must be UTF-8 text"),
        (bigquery_lines() + b'{"time": "\xe9"}\n', "row 4: must be UTF-8 text; .* byte 10"),
        (flat_csv() + b"0,1.5e9,1,1,1\n", "row 4: machine_id must be whole numbers; .*1.5e9"),
        (flat_csv() + b"0,9223372036854775808,1,1,1\n", "row 4: machine_id must be whole numbers"),
        (flat_csv() + b"0,1,1,half,1\n", "row 4: cpus must be numbers; .*half"),
        (dictionary_csv() + b"3,0,1,1,x,[0.5 0.25]\n", r"row 4: records must read \{'cpus': number"),
        (dictionary_csv() + b"3,0,1,1,x,\"{'cpus': half, 'memory': 1}\"\n", "row 4: cpus must be numbers"),
        (bigquery_lines() + b'{"time": 1.0}\n', "row 4: time must be a whole number of 64 bits; got 1.0"),
        (bigquery_lines() + b'{"time": "9223372036854775808"}\n', "row 4: time must be a whole number of 64 bits"),
        (bigquery_lines() + b'{"time": true}\n', "row 4: time must be a whole number of 64 bits; got True"),
        (bigquery_lines() + b'{"capacity": {"cpus": "half"}}\n', "row 4: cpus must be a number; got 'half'"),
        (bigquery_lines() + b"[1]\n", r"row 4: must be a JSON object; got \[1\]"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_the_row(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "shard-0"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=f"shard-0: ({message})"):
        rows(path)


def test_parquet_with_the_wrong_types_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    good = {"time": [0, 0], "machine_id": [1, 2], "cpus": [1.0, 1.0], "memory": [1.0, 1.0]}
    for change, message in (
        ({"machine_id": [1.0, 2.0]}, "machine_id must be whole numbers, since floats lose digits; got double"),
        ({"machine_id": ["1", "x"]}, "row 2: machine_id must be whole numbers"),
        ({"capacity": [{"cpus": 1.0}] * 2}, "row 1: records must have the entry 'memory'"),
    ):
        pq.write_table(pa.table(good | change), path)
        with pytest.raises(BadInput, match=message):
            rows(path)


def test_a_damaged_page_is_refused_with_the_row_before_it(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    whole = pq.write_table
    table = pa.table({name: list(range(1, 5001)) for name in ("time", "machine_id", "cpus", "memory")})
    whole(table, path, row_group_size=1000, compression="gzip", use_dictionary=False)
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(3).column(0).data_page_offset
    data[start : start + 400] = b"\xff" * 400
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"is cut off or damaged, somewhere after row \d+"):
        rows(path)


def test_unreadable_paths_are_explained(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing: cannot be read; No such file"):
        rows(tmp_path / "nothing")
    with pytest.raises(BadInput, match="must match at least one file; got none"):
        rows(tmp_path)
    with pytest.raises(BadInput, match=r"\*: must match at least one file"):
        rows(tmp_path / "x*")
    with pytest.raises(BadInput, match=r"table must be one of 'machine_events'.*; got 'machines'"):
        next(batches(__file__, "machines"))


def many(write: Any, times: int) -> bytes:
    """Return a file with all rows many times over."""
    if write is parquet:
        stream, table = io.BytesIO(), pq.read_table(io.BytesIO(parquet()))
        pq.write_table(table.take(list(range(len(ROWS))) * times), stream)
        return stream.getvalue()
    first = len(HEADER) + 1 if write is flat_csv else 0
    data: bytes = write()
    return data[:first] + data[first:] * times


@pytest.mark.parametrize("write", [flat_csv, bigquery_lines, parquet])
def test_memory_does_not_grow_with_the_table(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows at once would be 36 megabytes; Arrow reads some thirty blocks of 64 kB ahead, however long the file is."""
    monkeypatch.setattr(formats, "BLOCK", 1 << 16)
    monkeypatch.setattr(json_lines, "BLOCK", 1 << 16)
    monkeypatch.setattr(formats, "PARQUET_ROWS", 1 << 12)
    path = tmp_path / "shard"
    path.write_bytes(many(write, 300_000))
    pool = pa.default_memory_pool()
    before, total, largest = pool.bytes_allocated(), 0, 0
    for batch in batches(path, "machine_events"):
        total += batch.nbytes
        largest = max(largest, pool.bytes_allocated() - before)
    assert total > 36e6
    assert largest < 5e6


def test_importing_traces_needs_no_arrow() -> None:
    """The shipped digest works where PyArrow is not installed."""
    code = "import sys; sys.modules['pyarrow'] = None; from bilinq.traces import Digest; Digest.shipped().problem()"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("module", [digest, passes, shards], ids=lambda module: module.__name__)
def test_docstring_examples_run(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed
