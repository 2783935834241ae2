"""Mutated files for the command line: a short run of `file_fuzz.py`, that it finds what is planted, and what it found."""

from pathlib import Path

import numpy as np
import pytest
from file_fuzz import KINDS, huge, outcome, run

from bilinq import allocate
from bilinq.errors import BadInput
from bilinq.experiments import sweep
from bilinq.problem import files

PATIENCE = 60.0  # seconds for a file where the machine is busy; `make fuzz` allows one


def test_mutated_files_are_accepted_or_refused() -> None:
    found = run(400, seed=1, limit=PATIENCE)
    assert found["wrong"] == 0
    assert found["refused"] > 150 and found["accepted"] > 10
    assert found["left out"] < 150


def test_an_exception_that_is_not_of_bilinq_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_check_keys", lambda values: None)
    assert run(100, seed=1, limit=PATIENCE)["wrong"] > 0


def test_a_file_that_takes_too_long_is_found(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{}")
    assert outcome("problem", path, limit=0.0).startswith("wrong: refused after ")
    assert outcome("problem", path, limit=PATIENCE) == "refused"


def test_only_files_with_huge_numbers_are_left_out() -> None:
    assert huge(b"slots = 1_000_000") and huge(b"[10001]") and huge(b"9" * 5000)
    assert not huge(b"slots = 10_000\nx = 0.5e3") and not any(
        huge(repr(kind.value).encode()) for kind in KINDS.values() if kind.sizes
    )


def test_deep_nesting_in_a_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text("slots = " + "[" * 5000)
    with pytest.raises(BadInput, match=r"deep\.toml: is not valid TOML; "):
        sweep.load(path)


def test_eligible_pairs_in_rows_of_different_length_are_refused() -> None:
    with pytest.raises(BadInput, match=r"eligible must have rows of equal length; got \[\[True\], \[True, False\]\]"):
        allocate(np.ones(2), np.zeros((2, 2)), np.ones(2), V=1.0, gamma=1.2, eligible=[[True], [True, False]])
