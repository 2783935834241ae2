"""`bilinq contest`: tables by name, files, results in a folder, and errors."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bilinq import Contest
from bilinq.commands.app import app
from workloads import random_fleet

ONLY = ("--only", "least busy; queue price, Beta by class", "--seeds", "2", "--tuning-seeds", "1", "--jobs", "1")
DATA = Path(__file__).parents[2].parent / "shared" / "data" / "routing"


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["contest", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_a_table_by_name_gives_a_table_for_people() -> None:
    shown = run("mmlu", "--number", "300", *ONLY)
    assert "2 contestants, mean wait 5, 2 seeds" in shown and "as it is, no number to tune" in shown
    assert "whole run counts" in shown


def test_other_libraries_compete_with_a_price_and_without() -> None:
    only = ("--only", "least busy; queue price, LiteLLM; no price, LiteLLM", *ONLY[2:])
    found = json.loads(run("mmlu", "--number", "300", "--peers", *only, "--json"))
    names = {one["contestant"]: one["number"] for one in found["contestants"]}
    assert names == {"least busy": None, "queue price, LiteLLM": "price", "no price, LiteLLM": None}
    assert "only must be one of" in run("mmlu", *only, code=2)


def test_a_folder_gets_all_results_and_is_used_again(tmp_path: Path) -> None:
    random_fleet(200).save(tmp_path / "work.npz")
    out = tmp_path / "out"
    arguments = (str(tmp_path / "work.npz"), "--load", "0.7", "--wait", "2", *ONLY, "--out", str(out))
    first = json.loads(run(*arguments, "--json"))
    names = {"contest.json", "contest.csv", "summary.json", "contest.png", "report.html", "runs"}
    assert {file.name for file in out.iterdir()} == names
    assert first == json.loads((out / "summary.json").read_text()) and first["about"]["load"] == 0.7
    assert Contest.load(out / "contest.json").to_csv() == (out / "contest.csv").read_text()
    stamps = {file: file.stat().st_mtime_ns for file in (out / "runs").iterdir()}
    assert json.loads(run(*arguments, "--json")) == first
    assert {file: file.stat().st_mtime_ns for file in (out / "runs").iterdir()} == stamps


def test_a_csv_file_needs_its_servers(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    rows = [f"{k},{k % 3 / 2},{k % 2}" for k in range(60)]
    file.write_text("\n".join(["arrival,large,small", *rows]))
    assert "least busy" in run(str(file), "--servers", "large=1,small=1", "--wait", "0.5", *ONLY)
    assert "servers must be given for a table" in run(str(file), *ONLY, code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mmlu", "--wait", "0"), "wait must be positive"),
        (("mmlu", "--seeds", "1"), "seeds must be a whole number of at least 2"),
        (("mmlu", "--load", "0"), "load must be positive"),
        (("mmlu", "--only", "nobody"), "only must be one of"),
        (("mmlu", "--servers", "a100=4"), "servers must be among"),
        (("gsm8k",), "source must be paretobandit, mmlu or a file"),
        (("none.npz",), "none.npz: cannot be read"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    shown = run(*arguments, code=2)
    assert shown.startswith("error: ") and message in shown


@pytest.mark.skipif(not (DATA / "mmlu").exists(), reason=f"the real tables are not at {DATA}")
def test_the_real_table_has_features_of_its_texts() -> None:
    pytest.importorskip("sklearn", reason="bilinq[text] is not installed")
    only = ("--only", "least busy; best single", "--seeds", "2", "--jobs", "1", "--json")
    found = json.loads(run("paretobandit", "--data", str(DATA / "paretobandit"), "--number", "200", *only))
    assert found["about"]["features"] == 16
