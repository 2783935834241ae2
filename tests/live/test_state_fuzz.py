"""The short version of `state_fuzz.py`: some hundred damaged snapshots and backups from fixed seeds."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("state_fuzz.py")


@pytest.mark.parametrize("kind", ["snapshots", "databases"])
def test_damaged_states_are_refused_or_work(kind: str) -> None:
    """No crash, no hang, no error after a state was accepted, no foreign object, and no change by what was refused."""
    command = [sys.executable, str(SCRIPT), "--cases", "200", "--seed", "7", "--kinds", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'refused': " in done.stdout and "'sound': " in done.stdout, "some of them must be accepted, others not"
