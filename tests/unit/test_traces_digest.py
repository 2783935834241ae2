"""Digests of a small trace whose figures can be worked out by hand, their files, and the commands."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from bilinq.commands import app as cli
from bilinq.errors import BadInput
from bilinq.traces import Digest
from bilinq.traces.digest import CollectionPoint, MachineClass, Pair, TraceJobClass
from bilinq.traces.digest_files import document
from bilinq.traces.passes import Moments

A, B, C, LATE, EMPTY, OTHER = (2**60 + k for k in range(6))
"""Collections; as floats they would all be one."""
S = 1_000_000
AFTER = 2**63 - 1

Row = dict[str, Any]
TABLES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "machine_events": (
        "time machine_id type capacity.cpus capacity.memory",
        [
            (0, 11, 1, 0.5, 0.25), (0, 12, 1, 1.0, 0.5), (0, 13, 1, 0.5, 0.25), (0, 14, 1, None, None),
            (0, 15, 1, 0.0, 0.5), (0, 16, 2, 1.0, 0.5), (700 * S, 17, 1, 1.0, 0.5), (0, 11, 1, 0.5, 0.25),
        ],
    ),
    "collection_events": (
        "time type collection_id",
        [
            (700 * S, 0, A), (701 * S + 5, 1, A), (650 * S, 1, A), (800 * S, 1, B), (900 * S, 1, C),
            (910 * S, 1, EMPTY), (2000 * S, 1, LATE), (0, 1, OTHER), (AFTER, 1, OTHER),
        ],
    ),
    "instance_events": (
        "time type collection_id instance_index resource_request.cpus resource_request.memory",
        [
            (700 * S, 0, A, 0, 0.1, 0.2), (710 * S, 0, A, 0, 0.1, 0.2), (700 * S, 0, A, 1, 0.3, 0.4),
            (720 * S, 3, A, 0, 0.1, 0.2), (800 * S, 0, B, 0, 0.1, 0.1), (900 * S, 0, C, 0, 0.8, 0.1),
            (900 * S, 0, C, 1, None, None), (900 * S, 0, OTHER, 0, 0.1, 0.1), (2000 * S, 6, A, 0, 0.1, 0.2),
        ],
    ),
    "instance_usage": (
        "start_time collection_id machine_id cycles_per_instruction",
        [
            (700 * S, A, 11, 2.0), (750 * S, A, 13, 1.0), (760 * S, B, 12, 0.5), (760 * S, B, 12, None),
            (800 * S, B, 12, 0.0), (800 * S, B, 12, -1.0), (800 * S, B, 99, 1.0), (800 * S, OTHER, 12, 1.0),
            (2000 * S, B, 12, 1.0), (800 * S, C, 0, 1.0), (800 * S, EMPTY, 12, 1.0),
        ],
    ),
}  # fmt: skip
LEFT_OUT = {
    "machine events without capacity": 2,
    "machine events after the trace began": 1,
    "machine events other than add": 1,
    "machine events that repeat a machine": 1,
    "collection events other than queue": 1,
    "collections queued outside the window": 3,
    "collection events that repeat a collection": 1,
    "instance events of collections not queued in the window": 1,
    "instance events outside the window": 1,
    "instance events without a request": 1,
    "queued collections without instances": 1,
    "usage rows of collections not in the digest": 2,
    "usage rows outside the window": 1,
    "usage rows without CPI": 1,
    "usage rows with a CPI that is not positive": 2,
    "usage rows on machines not there when the trace began": 2,
}


def records(table: str) -> list[Row]:
    """Return the rows of a table as nested records."""
    names, values = TABLES[table]
    found = []
    for row in values:
        record: Row = {}
        for name, value in zip(names.split(), row, strict=True):
            outer, dot, inner = name.partition(".")
            if dot and value is not None:
                record.setdefault(outer, {})[inner] = value
            elif not dot:
                record[name] = value
        found.append(record)
    return found


def write_csv(folder: Path, table: str) -> None:
    names, values = TABLES[table]
    lines = [",".join("" if value is None else str(value) for value in row) for row in values]
    (folder / f"{table}-000.csv").write_text("\n".join([names.replace(" ", ","), *lines, ""]))


def write_json(folder: Path, table: str) -> None:
    """Two shards, compressed, whole numbers as text, nulls left out."""
    lines = []
    for row in records(table):
        texts = {key: str(value) if isinstance(value, int) else value for key, value in row.items()}
        lines.append(json.dumps({key: value for key, value in texts.items() if value is not None}) + "\n")
    for k, part in enumerate((lines[:3], lines[3:])):
        (folder / f"{table}-00{k}.json.gz").write_bytes(gzip.compress("".join(part).encode()))


def write_parquet(folder: Path, table: str) -> None:
    """In a folder named after the table."""
    (folder / table).mkdir()
    pq.write_table(pa.Table.from_pylist(records(table)), folder / table / "part-0.parquet")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    for table in TABLES:
        write_csv(tmp_path, table)
    return tmp_path


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> Digest:
    folder = tmp_path_factory.mktemp("trace")
    for table in TABLES:
        write_csv(folder, table)
    return small(folder)


def small(path: Path, **options: Any) -> Digest:
    return Digest.of(path, **({"until": 1000.0, "classes": 2} | options))


def left_out(digest: Digest) -> dict[str, int]:
    return {entry.what: entry.count for entry in digest.left_out}


@pytest.mark.parametrize("write", [write_csv, write_json, write_parquet])
def test_figures_are_those_worked_out_by_hand(tmp_path: Path, write: Any) -> None:
    """A asks for (0.15, 0.25) on average over four rows, B for (0.1, 0.1), C for (0.8, 0.1): C is alone."""
    for table in TABLES:
        write(tmp_path, table)
    digest = small(tmp_path)
    assert digest.machine_classes == (MachineClass(0.5, 0.25, 2), MachineClass(1.0, 0.5, 1))
    assert [(kind.collections, kind.units) for kind in digest.job_classes] == [(2, 5), (1, 1)]
    assert [kind.cpus for kind in digest.job_classes] == pytest.approx([0.7 / 5, 0.8])
    assert [kind.memory for kind in digest.job_classes] == pytest.approx([1.1 / 5, 0.1])
    assert [(c.second, c.job_class, c.units) for c in digest.collections] == [(650, 0, 4), (800, 0, 1), (900, 1, 1)]
    assert digest.collections[0].cpus == pytest.approx(0.15)
    assert digest.pairs == (Pair(0, 0, 2, 0.75, 0.125), Pair(0, 1, 1, 2.0, None))
    assert left_out(digest) == LEFT_OUT


def test_unique_instances_replace_rows(trace: Path) -> None:
    digest = small(trace, units="instances")
    assert [(c.second, c.units) for c in digest.collections] == [(650, 2), (800, 1), (900, 1)]
    assert digest.collections[0].cpus == pytest.approx(0.2)
    changed = {"instance events other than submit": 1, "submit events that repeat an instance": 1}
    assert left_out(digest) == LEFT_OUT | changed


def test_unique_instances_need_their_columns(trace: Path) -> None:
    text = "time,collection_id,cpus,memory\n" + f"{700 * S},{A},0.1,0.2\n"
    (trace / "instance_events-000.csv").write_text(text)
    with pytest.raises(BadInput, match=r"units must be 'rows' .*instance_events-000.csv; got 'instances'"):
        small(trace, units="instances", classes=1)
    assert small(trace, classes=1).collections[0].units == 1


def test_a_joined_file_stands_for_three_tables(tmp_path: Path) -> None:
    """Rows of another cell are counted; without a cell several are refused."""
    write_csv(tmp_path, "machine_events")
    header = "time,instance_events_type,collection_id,instance_index,machine_id,resource_request,"
    header += "collections_events_type,start_time,average_usage,cycles_per_instruction,cluster"
    lines = [header]
    for cluster, collection in ((2, A), (2, B), (3, C)):
        record = "{'cpus': 0.1, 'memory': 0.2}"
        row = f'{700 * S},1,{collection},0,11,"{record}",1,{700 * S},"[1\n2]",2.0,{cluster}'
        lines.append(row)
    (tmp_path / "borg_traces_data.csv").write_text("\n".join([*lines, ""]))
    with pytest.raises(BadInput, match=r"cell must be given .*borg_traces_data.csv contains b, c"):
        small(tmp_path, classes=1)
    digest = small(tmp_path, classes=1, cell="b")
    assert digest.source.endswith(", cell b")
    assert digest.pairs == (Pair(0, 0, 2, 0.5, 0.0),)
    assert left_out(digest)["rows of other cells"] == 3


def test_files_of_no_table_are_counted(trace: Path) -> None:
    (trace / "README.md").write_text("about")
    (trace / "machine_attributes-000.csv").write_text("time,machine_id\n")
    assert left_out(small(trace))["files that belong to no table"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": 600.0}, r"until must be late enough for a collection to be queued in .*; got 600"),
        ({"until": 0.0}, "until must be positive"),
        ({"classes": 0}, "classes must be a whole number of at least 1; got 0"),
        ({"classes": 4}, "classes must be at most 3, the number of different collections; got 4"),
        ({"units": "events"}, "units must be one of 'rows', 'instances'; got 'events'"),
        ({"seed": -1}, "seed must be"),
        ({"cell": "z"}, "cell must be one of 'a'"),
    ],
)
def test_bad_options_are_explained(trace: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        small(trace, **options)


def test_incomplete_traces_are_explained(trace: Path) -> None:
    (trace / "instance_events-000.csv").write_text(f"time,collection_id,cpus,memory\n{700 * S},{OTHER},1,1\n")
    with pytest.raises(BadInput, match="instance_events must have instances of queued collections; got none of 4"):
        small(trace)
    (trace / "machine_events-000.csv").write_text(f"time,machine_id,cpus,memory\n{700 * S},1,1,1\n")
    with pytest.raises(BadInput, match="machine_events must add a machine with a capacity at time 0; got none"):
        small(trace)
    (trace / "instance_usage-000.csv").unlink()
    with pytest.raises(
        BadInput, match=r"must contain a file of instance_usage; got 1 of machine_events, 1 of coll.* 0 of"
    ):
        small(trace)
    with pytest.raises(
        BadInput, match="must contain a file of machine_events; got 0 of machine_events, 1 of collection_e"
    ):
        small(trace / "collection_events-000.csv")
    with pytest.raises(BadInput, match="nothing: cannot be read"):
        small(trace / "nothing")


def test_rows_without_ids_are_counted(trace: Path) -> None:
    for table, row in (("machine_events", "0,,1,1,1"), ("collection_events", f"{700 * S},1,"),
                       ("instance_events", f",0,{A},0,1,1"), ("instance_usage", f"{700 * S},{A},,1")):  # fmt: skip
        with (trace / f"{table}-000.csv").open("a") as file:
            file.write(row + "\n")
    fresh = {
        "machine events without machine_id": 1,
        "collection events without collection_id": 1,
        "instance events without time": 1,
        "usage rows without machine_id": 1,
    }
    assert left_out(small(trace)) == LEFT_OUT | fresh


def test_progress_counts_files(trace: Path) -> None:
    told: list[tuple[int, int]] = []
    small(trace, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_moments_agree_with_numpy_however_values_are_split() -> None:
    rng = np.random.default_rng(1)
    value, group = 1e6 + rng.standard_normal(1000), rng.integers(0, 4, 1000)
    moments = Moments(5)
    for part in np.split(np.arange(1000), [0, 1, 10, 500, 999]):
        moments.add(group[part], value[part])
    for k in range(4):
        assert moments.mean[k] == pytest.approx(value[group == k].mean(), rel=1e-14)
        assert moments.variance[k] == pytest.approx(value[group == k].var(ddof=1), rel=1e-9)
    assert np.isnan(moments.variance[4])


def test_round_trip_is_exact(digest: Digest, tmp_path: Path) -> None:
    for one in (digest, Digest.shipped()):
        one.save(tmp_path / "digest.json")
        assert Digest.load(tmp_path / "digest.json") == one


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema", 2, "schema must be 1, the version of a digest that is known here; got 2"),
        ("extra", 1, "unknown key 'extra'; known are source, licence"),
        ("until", ..., "missing key 'until'"),
        ("until", "5500", "until must be a number; got '5500'"),
        ("units", "jobs", "units must be one of 'rows', 'instances'; got 'jobs'"),
        ("seed", 1.5, "seed must be a whole number; got 1.5"),
        ("source", 1, "source must be text; got 1"),
        ("pairs", {}, r"pairs must be a list; got \{\}"),
        ("pairs", [1], r"pairs\[0\] must be an object; got 1"),
        ("pairs", [{"job_class": 0}], r"missing key 'pairs\[0\].machine_class'"),
        ("pairs", [{"job_class": 0, "machine_class": 2, "count": 1, "mean": 1, "variance": None}],
         r"pairs\[0\].machine_class must be below 2; got 2"),
        ("pairs", [{"job_class": 0, "machine_class": 1, "count": 2, "mean": 1, "variance": None}],
         r"pairs\[0\]: variance must be null where count is 1 and only there; got None"),
        ("pairs", [{"job_class": 0, "machine_class": 1, "count": 1, "mean": 1, "variance": None}] * 2,
         "pairs must be listed once each; got one twice"),
        ("pairs", [{"job_class": 0, "machine_class": 1, "count": 1, "mean": -1, "variance": None}],
         r"pairs\[0\]: mean must be positive; got mean = -1"),
        ("machine_classes", [], "machine_classes must have at least one entry; got none"),
        ("machine_classes", [{"cpus": 0, "memory": 1, "machines": 1}], r"machine_classes\[0\]: cpus must be positive"),
        ("collections", [{"second": 1, "job_class": 7, "units": 1, "cpus": 1, "memory": 1}],
         r"job_classes\[0\].collections must be what the list of collections adds up to, 0; got 2"),
        ("until", 100.0, r"collections\[0\].second must be at most until = 100; got 650"),
    ],
)  # fmt: skip
def test_bad_files_are_explained(digest: Digest, tmp_path: Path, key: str, value: Any, message: str) -> None:
    values = document(digest) | {key: value}
    path = tmp_path / "digest.json"
    path.write_text(json.dumps({name: entry for name, entry in values.items() if entry is not ...}))
    with pytest.raises(BadInput, match=f"digest.json: {message}"):
        Digest.load(path)


def test_files_that_are_no_digests_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "digest.json"
    for data, message in (
        (b"{", "is not valid JSON"),
        (b"[1]", r"schema must be 1.*; got \[1\]"),
        (b"\xff", "is not UTF-8"),
    ):
        path.write_bytes(data)
        with pytest.raises(BadInput, match=f"digest.json: {message}"):
            Digest.load(path)
    with pytest.raises(BadInput, match=r"nothing\.json: cannot be read; No such file"):
        Digest.load(tmp_path / "nothing.json")
    with pytest.raises(BadInput, match="cannot be written"):
        Digest.shipped().save(tmp_path / "no" / "digest.json")


def test_classes_must_be_known_to_collections() -> None:
    point, kind = CollectionPoint(1, 1, 1, 0.1, 0.1), TraceJobClass(0.1, 0.1, 1, 1)
    with pytest.raises(BadInput, match=r"job_classes\[0\].collections must be .* 0; got 1"):
        Digest("s", "l", 10.0, "rows", 0, (MachineClass(1.0, 1.0, 1),), (kind,), (point,), (), ())


def test_the_shipped_digest_names_its_source_and_contains_no_ids() -> None:
    digest = Digest.shipped()
    assert "cluster-data-2019" in digest.source
    assert digest.source.endswith("cell a")
    assert digest.licence == "CC-BY 4.0"
    numbers = [value for row in document(digest)["collections"] for value in row.values()]
    assert max(numbers) < 1e4  # ids are above 1e11
    keys = Counter(key for name in ("collections", "machine_classes", "pairs") for key in document(digest)[name][0])
    assert not [key for key in keys if "id" in key.split("_")]


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, words)


def test_command_writes_a_digest_and_shows_it(digest: Digest, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["trace", "digest", str(trace), "--until", "1000", "--classes", "2", "--out", str(out)]
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert Digest.load(out) == digest
    assert f"written to {out}" in result.stderr
    for part in ("usage rows without CPI", "0.750 (2)", "CC-BY 4.0"):
        assert part in result.stdout
    out.unlink()
    again = run(*words, "--source", "here", "--licence", "mine", "--cell", "c", "--json")
    printed = json.loads(again.stdout)
    assert printed == json.loads(out.read_text())
    assert (printed["source"], printed["licence"]) == ("here, cell c", "mine")


def test_command_shows_digests(digest: Digest, tmp_path: Path) -> None:
    assert "0.885" in run("trace", "show").stdout
    assert json.loads(run("trace", "show", "--json").stdout) == document(Digest.shipped())
    digest.save(tmp_path / "digest.json")
    assert "queued collections without instances" in run("trace", "show", str(tmp_path / "digest.json")).stdout


def test_command_explains_what_is_wrong(trace: Path) -> None:
    for words, part in ((["digest", str(trace / "no")], "cannot be read"), (["show", str(trace)], "cannot be read"),
                        (["digest", str(trace), "--units", "x"], "units must be one of")):  # fmt: skip
        result = run("trace", *words)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert part in result.stderr
