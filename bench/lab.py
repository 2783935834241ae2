"""The lab: seconds of `bilinq paper --quick` and of the full report, after compilation."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.report import Report
from bilinq.lab.figures import FIGURES


def seconds(*words: str) -> float:
    """Return the seconds of `bilinq paper` in an empty folder, after a check that all figures exist."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-m", "bilinq.commands.app", "paper", "--out", folder, *words]
        subprocess.run(command, check=True, capture_output=True)
        spent = time.perf_counter() - began
        made = {file.stem for file in (Path(folder) / "figures").glob("*.svg")}
        if made != {figure.name for figure in FIGURES}:
            raise AssertionError(f"figures are missing: {sorted(made)}")
    return spent


def run() -> Report:
    """Measure the quick and the full report."""
    report = Report("lab", ("command", "seconds"))
    for words, most in ((("--quick",), 20.0), ((), 300.0)):
        text = " ".join(("bilinq paper", *words))
        spent = seconds(*words)
        report.row(text, spent)
        report.at_most(f"{text}, seconds on two cores", spent, most)
    return report
