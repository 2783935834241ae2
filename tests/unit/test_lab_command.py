"""`bilinq paper`: what it prints, one clear line for each error, and continuing after Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bilinq.commands import app as cli

SMALL = ["--quick", "--replications", "2", "--workers", "1"]


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["paper", *words])


def test_command_prints_a_table_and_json(tmp_path: Path) -> None:
    result = run("comparison", "--out", str(tmp_path), *SMALL)
    assert result.exit_code == 0, result.output
    assert "SABR ends with a lower regret" in result.stdout
    assert f"report: {tmp_path / 'report.html'}" in result.stdout
    printed = json.loads(run("comparison", "--out", str(tmp_path), "--json", *SMALL).stdout)
    assert printed["figures"] == ["comparison"]
    assert printed["claims"] == json.loads((tmp_path / "claims.json").read_text())["claims"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["nothing"], ["figure must be one of", "'comparison', ", "got 'nothing'"]),
        (["--preset", "best"], ["preset must be one of", "got 'best'"]),
        (["--replications", "0"], ["replications must be", "got 0"]),
        (["--seed", "-1"], ["seed must be", "got -1"]),
        (["--workers", "0"], ["workers must be", "got 0"]),
        (["--engine", "dask"], ["engine must be one of 'processes', 'ray'", "got 'dask'"]),
    ],
)
def test_bad_options_are_explained(words: list[str], parts: list[str], tmp_path: Path) -> None:
    result = run(*words, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr
    assert not list(tmp_path.iterdir())


def test_help_does_not_load_the_lab() -> None:
    code = "import sys, bilinq.commands.app; sys.exit('matplotlib' in sys.modules or 'bilinq.lab' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="signals differ elsewhere")
def test_ctrl_c_ends_at_once_and_keeps_finished_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "bilinq.commands.app", "paper", "comparison", "--out", str(out), "--replications"]
    job = subprocess.Popen(
        [*command, "400", "--workers", "2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while not list(out.glob("runs/*.npz")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(job.pid, signal.SIGINT)
        _, printed = job.communicate(timeout=15)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    assert job.returncode == cli.INTERRUPTED
    assert printed == f"interrupted; finished runs are in {out}, run the same command to continue\n"
    assert [path.name for path in out.iterdir()] == ["runs"]
