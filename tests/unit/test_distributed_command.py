"""`bilinq distributed`: what it prints, what it draws, and one clear line for every error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from bilinq.commands import app as cli
from bilinq.distributed import System, growth_rate
from bilinq.distributed.stability import settling_rounds, survey
from bilinq.errors import BadInput
from bilinq.lab import stability

SMALL = ["--job-classes", "2", "--server-classes", "2", "--rounds", "300", "--delay", "0,2"]


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["distributed", *SMALL, *words])


def test_prints_what_python_returns() -> None:
    result = run("--json", "--fraction", "0.5,0.9", "--seed", "3", "--nodes", "server", "--rule", "scaled,delayed")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    system = System.synthetic(2, 2, delay=(0, 2), seed=3)
    assert [(trial["rule"], trial["fraction"]) for trial in printed["trials"]] == [
        ("scaled", 0.5), ("scaled", 0.9), ("delayed", 0.5), ("delayed", 0.9),
    ]  # fmt: skip
    first = printed["trials"][0]
    gain = system.safe_gain(0.5, "discrete")
    assert first["margin"] == pytest.approx(float(system.margin(gain).max()))
    assert first["growth"] == pytest.approx(float(growth_rate(system, gain, nodes="server", time="discrete")))
    assert first["rounds"] == settling_rounds(system, gain, nodes="server", rounds=300)
    assert printed["residual"] < 1e-10 and printed["boundary_scaled"] > 1.0 - 1e-6


@pytest.mark.parametrize("penalty", ["power:3", "bounded:2,0.5", "barrier"])
def test_shows_a_table(penalty: str) -> None:
    result = run("--penalty", penalty)
    assert result.exit_code == 0, result.output
    for part in ("System(2 x 2", "theorem's", "printed", "true boundary: scaled rule", "scaled back to capacity"):
        assert part in result.stdout


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--delay", "-1,2"], ["delay must be non-negative", "-1"]),
        (["--delay", "nan,2"], ["delay must be finite"]),
        (["--delay", "1"], ["delay must have 2 numbers", "'1'"]),
        (["--penalty", "steep"], ["penalty must be one of 'power'", "'steep'"]),
        (["--penalty", "power:-1"], ["beta must be positive"]),
        (["--penalty", "bounded:1"], ["penalty must have 2 numbers"]),
        (["--fraction", "0.5,x"], ["fraction must be numbers", "'0.5,x'"]),
        (["--fraction", "0"], ["fraction must be positive"]),
        (["--nodes", "both"], ["nodes must be one of"]),
        (["--rule", "scaled,new"], ["rule must be one of", "'new'"]),
        (["--rounds", "0"], ["rounds must be a whole number"]),
        (["--seed", "-1"], ["seed must be"]),
    ],
)
def test_bad_input_is_one_line(words: list[str], parts: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert all(part in result.stderr for part in parts), result.stderr


def test_draws_the_stability_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stability, "MAPPED", np.array([0.5, 1.5]))
    monkeypatch.setattr(stability, "WRONG", np.array([0.3, 0.6]))
    result = run("--plot", str(tmp_path / "map.png"), "--fraction", "0.5", "--rule", "scaled")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    result = run("--plot", str(tmp_path / "none" / "map.png"), "--fraction", "0.5", "--rule", "scaled")
    assert result.exit_code == 2 and "plot must be a file that can be written" in result.stderr


def test_the_map_shows_both_rules_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """At half the condition the scaled rule shrinks deviations and the printed one lets them grow; at 1.5 both grow."""
    monkeypatch.setattr(stability, "MAPPED", np.array([0.5, 1.5]))
    systems = [System.synthetic(seed=seed) for seed in (0, 1)]
    scaled, printed = (stability.mapped(systems, rule, "job") for rule in ("scaled", "printed"))
    assert (
        (scaled.computed[:, 0] < 0.0).all() and (scaled.computed[:, 1] > 0.0).all() and (printed.computed > 0.0).all()
    )
    for growth in (scaled, printed):
        np.testing.assert_allclose(growth.measured, growth.computed, rtol=0.1, atol=0.01)


def test_a_survey_is_of_one_system() -> None:
    with pytest.raises(BadInput, match="system must be a single one"):
        survey(System([[1.0]], [[0.5]], [1.0], 10.0))


def test_large_systems_have_no_growth_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinq.distributed.stability.LARGEST", 3)
    found: Any = survey(System.synthetic(3, 2), fractions=[0.5], rules=["scaled"], rounds=200)
    assert found[0].growth is None
    with pytest.raises(BadInput, match="fewer used pairs or shorter delays"):
        growth_rate(System.synthetic(3, 2), 0.1)
