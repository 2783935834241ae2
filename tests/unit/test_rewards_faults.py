"""Whatever is wrong with a table of observations is one clear error that names file, row and value."""

import gzip
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bilinq import BadInput
from bilinq.traces import reward_rows, reward_table

HEAD = "job,server,reward\n"


def read(path: Path, **options: Any) -> None:
    reward_table(path, **({"servers": 2, "arrival_rate": 0.5, "noise": 0.1} | options))


BAD_TEXT: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "t.csv: must contain a header and rows; got an empty file"),
    ("job,server,reward", {}, "t.csv: must contain a header and rows; got no rows"),
    (HEAD, {}, "t.csv: must contain at least one row of the wanted classes; got none"),
    ("job,server\na,x\n", {}, "t.csv: must have one column 'reward'; got only 'job, server'"),
    ("job;server;reward\na;x;1\n", {}, "t.csv: must have one column 'job'; got only 'job;server;reward'"),
    ("job,server,reward,job\na,x,1,b\n", {}, "t.csv: must have one column 'job'; got twice"),
    (HEAD + "a,x,1\na,x,fast\n", {}, "t.csv: row 2: reward must be a finite number; got 'fast'"),
    (HEAD + "a,x,1\n\na,x,NaN\n", {}, "t.csv: row 2: reward must be a finite number; got 'NaN'"),
    (HEAD + "a,x,inf\n", {}, "t.csv: row 1: reward must be a finite number; got 'inf'"),
    (HEAD + "a,x,\n", {}, "t.csv: row 1: reward must be a finite number; got ''"),
    (HEAD + 'a,x,"1,5"\n', {}, "t.csv: row 1: reward must be a finite number; got '1,5'"),
    (HEAD + "a,x,1\na,,1\n", {}, "t.csv: row 2: server must be a printable name; got ''"),
    (HEAD + "a,x,1\nb\x07,x,1\n", {}, r"t.csv: row 2: job must be a printable name; got 'b\\x07'"),
    (HEAD + "a,x,1\n" * 40 + "a,x\n", {}, "t.csv: row 41: must have 3 fields; got 2"),
    (HEAD + "a,x,1\na,x,1,2\n", {}, "t.csv: row 2: must have 3 fields; got 4"),
    (HEAD + "a,x,1\na,x,5\n", {"reward_range": (0, 2)}, "row 2: reward must lie in reward_range, 0 to 2; got 5"),
    ("job,server,reward,u\na,x,1,2\na,y,1,2\na,x,1,2.5\n", {"job_features": ["u"]},
     "t.csv: row 3: u must be the same in all rows of job 'a', 2 so far; got 2.5"),
    ("job,server,reward,v\na,x,1,2\na,y,1,4\nb,y,1,3\n", {"server_features": ["v"]},
     "t.csv: row 3: v must be the same in all rows of server 'y', 4 so far; got 3"),
    ("job,server,reward,u\na,x,1,big\n", {"job_features": ["u"]}, "t.csv: row 1: u must be a finite number; got 'big'"),
    (HEAD + "a,x,1\nb,y,1\n", {}, "t.csv: must contain a row of job 'a' on server 'y', or set unseen = 'predicted'"),
    (HEAD + "a,x,1\n", {"noise": None}, "t.csv: must contain some pair twice, or set noise; got every pair at most"),
    (HEAD + "a,x,1\n", {"servers": {"x": 1, "z": 1}}, "t.csv: must contain a row of server 'z'; got none"),
    (HEAD + "a,x,1\n", {"arrival_rate": {"b": 1}}, "t.csv: must contain at least one row of the wanted classes"),
    (HEAD + "a,x,1\n", {"service_rate": {"b": 1}}, "service_rate must have a number for every class; got none for 'a'"),
    (HEAD + "a,x,1\n", {"arrival_rate": {"a": -1}}, r"arrival_rate must be non-negative; got arrival_rate\[0\] = -1"),
    (HEAD + "a,x,1\n", {"servers": 1.5}, r"servers must be whole numbers below 2\*\*53; got servers\[0\] = 1.5"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "message"), BAD_TEXT, ids=range(len(BAD_TEXT)))
def test_bad_csv(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=message):
        read(file, **options)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("job,server,reward\na,x,1\nü,x,1\n".encode("latin-1"), "t.csv: row 2: must be UTF-8 text; got other bytes"),
        ("jöb,job,server,reward\n1,a,x,1\n".encode("latin-1"), r"t.csv: must be UTF-8 text; got b'\\xf6'"),
        ("job,server,reward\na,x,1\n".encode("utf-16"), r"t.csv: must be UTF-8 text or Parquet; got b'\\xff\\xfej"),
    ],
    ids=["row", "header", "utf-16"],
)
def test_wrong_encoding(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(data)
    with pytest.raises(BadInput, match=message):
        read(file)


def test_byte_order_mark_and_quoted_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text('job,note,server,reward\r\n"a, b","two\nlines",x,1\r\n', encoding="utf-8-sig")
    assert reward_table(file, servers=1, arrival_rate=0.1, noise=0.1).problem.job_names == ("a, b",)


@pytest.mark.parametrize("block", [64, 2**20])
def test_rows_are_counted_over_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(reward_rows, "BLOCK", block)
    file = tmp_path / "t.csv"
    file.write_text(HEAD + "a,x,1\n" * 100 + "a,x,?\n")
    with pytest.raises(BadInput, match=r"row 101: reward must be a finite number; got '\?'"):
        read(file)
    file.write_text(HEAD + "a,x,1\n" * 100 + "a,x\n")
    with pytest.raises(BadInput, match="row 101: must have 3 fields; got 2"):
        read(file)


def parquet(file: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({"job": ["a", "b"], "server": ["x", "x"], "reward": [1.0, 0.5]} | columns), file)
    return file


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"reward": [1.0, None]}, "row 2: reward must be a finite number; got None"),
        ({"reward": [1.0, float("nan")]}, "row 2: reward must be a finite number; got nan"),
        ({"reward": ["1", "x"]}, "row 2: reward must be a finite number; got 'x'"),
        ({"reward": [True, False]}, "t.parquet: reward must contain numbers; got bool"),
        ({"job": [1.5, 2.0]}, "t.parquet: job must contain text or whole numbers; got double"),
        ({"job": ["a", None]}, "row 2: job must be a name; got nothing"),
    ],
)
def test_bad_parquet(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read(parquet(tmp_path / "t.parquet", **columns))


@pytest.mark.parametrize("reward", [[1, 0], ["1", "0"], [Decimal("1.0"), Decimal("0.0")]])
def test_parquet_types_that_are_numbers(tmp_path: Path, reward: list[Any]) -> None:
    """Also under another name, and with names as a dictionary."""
    file = parquet(tmp_path / "t.data", reward=reward, server=pa.array([7, 7]).dictionary_encode())
    problem = reward_table(file, servers=1, arrival_rate=0.1, noise=0.1).problem
    assert problem.mean_reward.tolist() == [[1.0], [0.0]] and problem.server_names == ("7",)


def damaged(cut: Callable[[bytes], bytes], folder: Path, name: str) -> Path:
    whole = parquet(folder / "whole.parquet").read_bytes()
    file = folder / name
    file.write_bytes(cut(whole if name.endswith("parquet") else gzip.compress((HEAD + "a,x,1\n" * 9999).encode())))
    return file


@pytest.mark.parametrize("name", ["t.parquet", "t.csv.gz"])
def test_files_cut_off(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=rf"{name}: cannot be read; "):
        read(damaged(lambda data: data[: len(data) // 2], tmp_path, name))


def test_damage_within_a_parquet_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"t.parquet: cannot be read; "):
        read(damaged(lambda data: data[:4] + b"\xff" * 40 + data[44:], tmp_path, "t.parquet"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none.csv: cannot be read; No such file or directory"):
        read(tmp_path / "none.csv")
    with pytest.raises(BadInput, match="cannot be read; Is a directory"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "at", "slot": 1.0}, "either arrival_rate or time and slot must be given; got arrival_rate = 0.5"),
        ({"arrival_rate": None}, "either arrival_rate or time and slot must be given; got arrival_rate = None"),
        ({"arrival_rate": None, "time": "at"}, "either arrival_rate or time and slot must be given"),
        ({"arrival_rate": None, "time": "at", "slot": 0.0}, "slot must be positive; got slot = 0"),
        ({"unseen": "zero"}, "unseen must be one of 'error', 'predicted'; got 'zero'"),
        ({"job_features": "size"}, "job_features must be a list of column names; got 'size'"),
        ({"server_features": []}, r"server_features must be a list of column names; got \[\]"),
        ({"reward_range": (1.0, 1.0)}, r"reward_range must be \(low, high\) with low below high; got \(1.0, 1.0\)"),
        ({"reward_range": 3.0}, r"reward_range must be \(low, high\)"),
        ({"noise": -1.0}, "noise must be non-negative; got noise = -1"),
    ],
)
def test_bad_arguments(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(HEAD + "a,x,1\n")
    with pytest.raises(BadInput, match=message):
        read(file, **options)
