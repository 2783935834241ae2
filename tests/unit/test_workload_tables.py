"""Workloads from tables, and the command `bilinq replay`."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from bilinq import BadInput, BilinqError, Replay, Workload
from bilinq.commands import app as cli
from bilinq.routing.peers import PEERS
from bilinq.routing.routers import ROUTERS
from workloads import random_fleet

SERVERS = {"cpu": 2, "gpu": 1}
WIDE: dict[str, list[Any]] = {
    "when": [0.0, 1.0, 3.0], "cpu": [0.5, 0.25, None], "gpu": [1.0, 0.75, 2.0], "class": ["a", "b", "a"], "size": [1, 2, 3],
}  # fmt: skip
LONG: dict[str, list[Any]] = {
    "job": ["x", "x", "y", "y", "x"], "server": ["cpu", "gpu", "gpu", "cpu", "cpu"], "reward": [1.0, 2.0, 3.0, 4.0, 3.0],
    "class": ["a", "a", "b", "b", "a"], "duration": [1.0, 2.0, 3.0, 4.0, 3.0], "when": [0.0, 0.0, 5.0, 5.0, 0.0],
}  # fmt: skip


class Frame:
    """What is used of a DataFrame."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns

    def to_dict(self, orient: str) -> dict[str, list[Any]]:
        assert orient == "list"
        return self._columns


def as_file(columns: dict[str, list[Any]], path: Path) -> Path:
    table: Any = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        pa.csv.write_csv(table, path)
    return path


@pytest.mark.parametrize("kind", ["mapping", "frame", "arrow", "csv", "parquet"])
def test_wide_tables(kind: str, tmp_path: Path) -> None:
    import pyarrow.csv

    assert pyarrow.csv
    makers: dict[str, Any] = {
        "mapping": lambda: WIDE, "frame": lambda: Frame(WIDE), "arrow": lambda: pa.table(WIDE),
        "csv": lambda: as_file(WIDE, tmp_path / "t.csv"), "parquet": lambda: str(as_file(WIDE, tmp_path / "t.parquet")),
    }  # fmt: skip
    work = Workload.from_table(makers[kind](), servers=SERVERS, arrival="when", duration=2.0, features=["size"])
    np.testing.assert_array_equal(work.reward, [[0.5, 1.0], [0.25, 0.75], [np.nan, 2.0]])
    assert work.arrival.tolist() == [0.0, 1.0, 3.0] and work.job_classes == ("a", "b")
    assert work.features is not None and work.features.tolist() == [[1.0], [2.0], [3.0]]
    assert work.eligible[2].tolist() == [False, True] and (work.duration == 2.0).all()


def test_durations_of_a_wide_table_may_be_a_column() -> None:
    work = Workload.from_table(WIDE, servers=SERVERS, arrival=[0.0, 0.0, 1.0], duration="size", deadline=4.0)
    assert work.duration.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]] and work.deadline.tolist() == [4.0] * 3


def test_long_tables_are_averaged_by_pair() -> None:
    work = Workload.from_table(LONG, servers=SERVERS, arrival="when")
    assert work.reward.tolist() == [[2.0, 2.0], [4.0, 3.0]] and work.duration.tolist() == [[2.0, 2.0], [4.0, 3.0]]
    assert work.arrival.tolist() == [0.0, 5.0] and work.job_class.tolist() == [0, 1]


def test_pairs_that_were_not_observed() -> None:
    table = {"job": [1, 1, 2, 3, 3], "server": ["cpu", "gpu", "cpu", "cpu", "gpu"], "reward": [1.0, 2.0, 3.0, 4.0, 6.0]}
    options: dict[str, Any] = {"servers": SERVERS, "arrival": [0.0, 1.0, 2.0]}
    with pytest.raises(BadInput, match="must have every pair; got none of job 2 and server 'gpu'; set missing"):
        Workload.from_table(table, **options)
    assert Workload.from_table(table, **options, missing="class mean").reward[1].tolist() == [3.0, 4.0]
    assert Workload.from_table(table, **options, missing="ineligible").eligible[1].tolist() == [True, False]
    one_each = table | {"class": ["a", "a", "b", "a", "a"]}
    with pytest.raises(BadInput, match="must have a reward of class 'b' on server 'gpu' for its mean; got none"):
        Workload.from_table(one_each, **options, missing="class mean")


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("t.txt", {}, r"t\.txt: the name must end in \.csv or \.parquet; got '\.txt'"),
        ("none.csv", {}, r"none\.csv: cannot be read"),
        (7, {}, "table must be a DataFrame, a PyArrow table, a mapping of columns or a path; got 7"),
        (WIDE, {"arrival": "never"}, "table must have the column 'never'; got"),
        (WIDE, {"servers": {"tpu": 1}}, "table must have the column 'tpu'"),
        (WIDE, {"missing": "drop"}, "missing must be one of 'refuse', 'class mean', 'ineligible'; got 'drop'"),
        (WIDE | {"when": [0.0, None, 1.0]}, {}, "column 'when' must have no empty cells; got one in row 1"),
        (WIDE | {"cpu": ["x", "y", "z"]}, {}, "column 'cpu' must be numeric"),
    ],
)
def test_bad_tables(table: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Workload.from_table(table, **({"servers": SERVERS, "arrival": "when"} | options))


def test_files_need_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(BilinqError, match=r"bilinq\[lab\] is not installed; run: pip install 'bilinq\[lab\]'"):
        Workload.from_table("t.csv", servers=SERVERS, arrival="when")


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["replay", *words])


def test_command_replays_a_saved_workload(tmp_path: Path) -> None:
    random_fleet(200).save(tmp_path / "work.npz")
    out = tmp_path / "run.npz"
    result = run(str(tmp_path / "work.npz"), "--router", "least-busy", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert (
        "200 jobs at load 0.8" in result.stdout
        and "reward per job" in result.stdout
        and "utilisation, s2" in result.stdout
    )
    shown = json.loads(run(str(tmp_path / "work.npz"), "--router", "least-busy", "--json").stdout)
    assert shown["reward"] == Replay.load(out).summary()["reward"] and shown["router"] == "LeastBusy()"


def test_command_replays_a_table(tmp_path: Path) -> None:
    import pyarrow.csv

    assert pyarrow.csv
    path = str(as_file(WIDE | {"arrival": WIDE["when"]}, tmp_path / "t.csv"))
    result = run(path, "--servers", "cpu=2, gpu=1", "--router", "matching", "--load", "0.5", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["jobs"] == 3
    for words, message in [
        ((path,), "servers must be given for a table"),
        ((path, "--servers", "cpu"), "servers must read name=number, separated by commas; got 'cpu'"),
        (
            (path, "--servers", "cpu=2", "--router", "best"),
            f"router must be one of {', '.join(map(repr, (*ROUTERS, *PEERS)))}; got",
        ),
    ]:
        result = run(*words)
        assert result.exit_code == 2 and result.stderr.startswith(f"error: {message}") and result.stdout == ""
