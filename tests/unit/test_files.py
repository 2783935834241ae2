"""Problem files: exact round trips, and one clear error for each mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilinq.errors import BadInput, UnstableLoad
from bilinq.problem import Problem, files

GOOD: dict[str, Any] = {"arrival_rate": [0.3, 0.2], "servers": [1, 1], "mean_reward": [[0.2, 0.9], [0.5, 0.4]]}


def write(folder: Path, text: str, name: str = "problem.json") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".json", ".toml", ".JSON"])
def test_round_trip_is_exact(tmp_path: Path, suffix: str) -> None:
    problem = Problem.synthetic(dimension=(2, 3), noise=1 / 3, holding_cost=np.arange(10.0), seed=4)
    problem = problem.replace(job_names=[f'"klasse" \u00e9 {k}' for k in range(10)])
    path = tmp_path / f"problem{suffix}"
    problem.save(path)
    assert Problem.load(str(path)) == problem


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_table_file_omits_one_hot_features(tmp_path: Path, suffix: str) -> None:
    problem, path = Problem(**GOOD), tmp_path / f"table{suffix}"
    files.save(problem, path)
    assert "features" not in path.read_text()
    assert files.load(path) == problem


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_unbounded_tables_are_read_back_and_others_say_nothing_of_it(tmp_path: Path, suffix: str) -> None:
    problem, path = (
        Problem(**(GOOD | {"mean_reward": [[2.0, 0.9], [0.5, 0.4]]}), unbounded=True),
        tmp_path / f"p{suffix}",
    )
    files.save(problem, path)
    assert files.load(path) == problem
    files.save(Problem(**GOOD), path)
    assert "unbounded" not in path.read_text()


def test_hand_written_toml(tmp_path: Path) -> None:
    path = write(tmp_path, 'arrival_rate = [1]\nservers = [2]\nmean_reward = [[0.5]]\njob_names = ["a"]\n', "p.toml")
    problem = files.load(path)
    assert problem.job_names == ("a",) and problem.mean_reward.tolist() == [[0.5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"color": 1}, "unknown key 'color'; known are arrival_rate, "),
        ({"noise": "0.1"}, "noise must be a number or lists of numbers; got '0.1'"),
        ({"noise": None}, "noise must be a number"),
        ({"servers": [True, 1]}, "servers must be a number"),
        ({"servers": {"a": 1}}, "servers must be a number"),
        ({"job_names": "ab"}, "job_names must be a list of names"),
        ({"job_names": [1, 2]}, r"job_names must be printable text; got job_names\[0\] = 1"),
        ({"mean_reward": [[0.1, 0.2], [0.3]]}, "mean_reward must be numeric with rows of equal length"),
        ({"arrival_rate": [0.1, -1]}, r"arrival_rate must be non-negative; got arrival_rate\[1\] = -1"),
        ({"noise": float("nan")}, "noise must be finite"),
        (
            {"service_rate": [[0.5, 5e-324], [0.4, 0.2]]},
            r"service_rate must be at least 1e-12; got service_rate\[0, 1\] = ",
        ),
        (
            {"mean_reward": [[20, 90], [50, 40]]},
            r"mean_reward must be in \[-1, 1\] \(divide mean_reward and noise by 90\)",
        ),
        ({"unbounded": "yes"}, "unbounded must be true or false; got 'yes'"),
    ],
)
def test_bad_values_name_file_and_key(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = write(tmp_path, json.dumps(GOOD | change))
    with pytest.raises(BadInput, match=rf"problem\.json: {message}"):
        files.load(path)


@pytest.mark.parametrize("key", ["arrival_rate", "servers"])
def test_missing_key(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, json.dumps({name: value for name, value in GOOD.items() if name != key}))
    with pytest.raises(BadInput, match=rf"problem\.json: missing key '{key}'"):
        files.load(path)


def test_missing_rewards(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"arrival_rate": [1], "servers": [2]}))
    with pytest.raises(BadInput, match=r"problem\.json: either theta or mean_reward must be given; got neither"):
        files.load(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "is not valid JSON"),
        ("a.toml", "x = ", "is not valid TOML"),
        ("a.json", "[" * 100_000, "is not valid JSON"),
        ("a.json", "[1, 2]", "must contain one table"),
        ("a.yaml", "", "the name must end in .json or .toml; got '.yaml'"),
    ],
)
def test_unreadable_text(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=rf"{name}: {message}"):
        files.load(write(tmp_path, text, name))


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"a\.json: is not valid JSON"):
        files.load(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"absent\.json: cannot be read; No such file"):
        files.load(tmp_path / "absent.json")
    with pytest.raises(BadInput, match=r"x\.toml: cannot be written; No such file"):
        files.save(Problem(**GOOD), tmp_path / "absent" / "x.toml")
    with pytest.raises(BadInput, match="must end in"):
        files.save(Problem(**GOOD), tmp_path / "x")


def test_unstable_problem_loads_with_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(GOOD | {"arrival_rate": [2, 2]}))
    with pytest.warns(UnstableLoad):
        files.load(path)
