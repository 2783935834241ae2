"""The examples run, small, as a user would start them."""

import subprocess
import sys
from pathlib import Path

from bilinq.experiments import sweep

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_basic_experiment_prints_a_table_and_draws_a_figure(tmp_path: Path) -> None:
    script = [sys.executable, "-W", "error", str(EXAMPLES / "basic_experiment.py")]
    options = ["--out", str(tmp_path / "new"), "--replications", "2", "--slots", "30", "--seed", "3"]
    done = subprocess.run(script + options, capture_output=True, text=True, check=True)
    assert "UGDA-OL" in done.stdout
    assert "2 random instances, 30 slots" in done.stdout
    assert (tmp_path / "new" / "basic.png").read_bytes().startswith(b"\x89PNG")


def test_every_sweep_file_loads() -> None:
    files = list(EXAMPLES.glob("*.toml"))
    assert files
    for file in files:
        assert sweep.load(file).cells()
