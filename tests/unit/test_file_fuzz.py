"""Mutated files for the command line: a short run of `file_fuzz.py`, that it finds what is planted, and what it found."""

import copy
import random
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from file_fuzz import KINDS, outcome, run, to_toml

from bilinq import allocate
from bilinq.errors import BadInput
from bilinq.experiments import sweep
from bilinq.problem import files

PATIENCE = 60.0  # seconds for a file where the machine is busy; `make fuzz` allows one


def test_mutated_files_are_accepted_or_refused() -> None:
    found = run(400, seed=1, limit=PATIENCE)
    assert found["wrong"] == 0
    assert found["refused"] > 150 and found["accepted"] > 10
    assert found["left out"] < 20


def test_an_exception_that_is_not_of_bilinq_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_check_keys", lambda values: None)
    assert run(100, seed=1, limit=PATIENCE)["wrong"] > 0


def test_a_file_that_takes_too_long_is_found(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{}")
    assert outcome("problem", path, limit=0.0).startswith("wrong: refused after ")
    assert outcome("problem", path, limit=PATIENCE) == "refused"


@pytest.mark.parametrize("number", [10**10, 2**53 + 1, 2**63, 10**30])
def test_huge_sizes_are_refused_at_once(number: int, tmp_path: Path) -> None:
    """The mutated files have such numbers, too; it is one that is refused because it is too large, not as a whole number."""
    path = tmp_path / "s.toml"
    sizes = ("slots", "replications", "problem.job_classes", "problem.server_classes")
    for changed in sizes:
        value = copy.deepcopy(KINDS["sweep"].value)
        value["grid"] = {}
        place, _, key = changed.rpartition(".")
        (value[place] if place else value)[key] = number
        path.write_bytes(tomli_w.dumps(value).encode() if number < 2**63 else to_toml(random.Random(1), value))
        assert outcome("sweep", path, PATIENCE) == "refused", changed


@pytest.mark.parametrize("depth", [300, 600, 900, 2000, 50_000])
def test_deep_nesting_of_numbers_is_refused(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"arrival_rate": ' + "[" * depth + "1" + "]" * depth + ', "servers": [1], "mean_reward": [[1]]}')
    with pytest.raises(BadInput, match=r"deep\.json: "):
        files.load(path)


def test_deep_nesting_in_a_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text("slots = " + "[" * 5000)
    with pytest.raises(BadInput, match=r"deep\.toml: is not valid TOML; "):
        sweep.load(path)


def test_eligible_pairs_in_rows_of_different_length_are_refused() -> None:
    with pytest.raises(BadInput, match=r"eligible must have rows of equal length; got \[\[True\], \[True, False\]\]"):
        allocate(np.ones(2), np.zeros((2, 2)), np.ones(2), V=1.0, gamma=1.2, eligible=[[True], [True, False]])
