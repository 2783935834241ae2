"""Verdicts on made-up effects, and intervals that cover what they should."""

import doctest
import math
from types import ModuleType

import numpy as np
import pytest

from bilinq.experiments import run
from bilinq.lab import effects, figure, style
from bilinq.lab.claims import Claim, ClaimedRange, Finding, Verdict, above, below, between, overall
from bilinq.lab.effects import MINUS, Effect
from bilinq.lab.report import whisker

HOLDS, CONDITIONAL, UNSUPPORTED, CONTRADICTED = Verdict


@pytest.mark.parametrize(
    ("low", "high", "claimed", "verdict"),
    [
        (-3.0, -1.0, below(0.0), HOLDS),
        (-3.0, 1.0, below(0.0), UNSUPPORTED),
        (1.0, 3.0, below(0.0), CONTRADICTED),
        (1.0, 3.0, above(0.0), HOLDS),
        (-1.0, 3.0, above(0.0), UNSUPPORTED),
        (-3.0, -1.0, above(0.0), CONTRADICTED),
        (0.9, 1.1, between(0.8, 1.25), HOLDS),
        (0.7, 1.1, between(0.8, 1.25), UNSUPPORTED),
        (0.5, 2.0, between(0.8, 1.25), UNSUPPORTED),
        (0.5, 0.7, between(0.8, 1.25), CONTRADICTED),
        (1.3, 2.0, between(0.8, 1.25), CONTRADICTED),
        (-1.0, 0.0, below(0.0), HOLDS),
        (math.nan, math.nan, below(0.0), UNSUPPORTED),
    ],
)
def test_verdict_follows_from_the_interval(low: float, high: float, claimed: ClaimedRange, verdict: Verdict) -> None:
    assert claimed.judge(Effect((low + high) / 2, low, high)) is verdict


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, UNSUPPORTED], CONDITIONAL),
        ([HOLDS, CONTRADICTED], CONDITIONAL),
        ([UNSUPPORTED, CONTRADICTED], UNSUPPORTED),
        ([CONTRADICTED, CONTRADICTED], CONTRADICTED),
        ([UNSUPPORTED], UNSUPPORTED),
        ([], UNSUPPORTED),
    ],
)
def test_verdicts_of_conditions_are_combined(verdicts: list[Verdict], expected: Verdict) -> None:
    assert overall(verdicts) is expected


def test_claim_documents_its_findings() -> None:
    findings = (
        Finding("here", Effect(-2.0, -3.0, -1.0, "regret"), below(0.0)),
        Finding("there", Effect(1.0, 0.5, 2.0), below(0.0)),
    )
    document = Claim("id", "Section 1", statement="It is so.", test="A test.", findings=findings).document()
    assert document["verdict"] == "holds only under stated conditions"
    assert document["findings"][0] == {
        "condition": "here", "effect": {"value": -2.0, "low": -3.0, "high": -1.0}, "unit": "regret", "claimed": "below 0",
        "verdict": "holds",
    }  # fmt: skip
    assert document["findings"][1]["verdict"] == "contradicted"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (57.99, "58"),
        (0.4567, "0.457"),
        (-12.34, f"{MINUS}12.3"),
        (84181.2, "84,181"),
        (3e7, "3.00e+07"),
        (math.nan, "?"),
    ],
)
def test_numbers_are_written_for_people(value: float, text: str) -> None:
    assert effects.number(value) == text


def test_effect_shows_the_digits_that_its_interval_supports() -> None:
    assert str(Effect(0.9531, 0.9043, 1.0019)) == "0.953 [0.904, 1.002]"
    assert str(Effect(-11.96, -17.94, -5.98)) == f"{MINUS}12 [{MINUS}18, {MINUS}6]"
    assert str(Effect(3.14159, math.nan, math.nan)) == "3.14"
    assert str(Effect(0.995412844, 0.995412844 - 1e-15, 0.995412844 + 1e-15)) == "0.995"  # rounding is no interval


def test_whisker_draws_interval_and_range() -> None:
    drawn = whisker(Finding("", Effect(1.0, 0.0, 2.0), above(1.0)))
    assert 'd="M6.0 8H114.0"' in drawn
    assert '<rect x="60.0" width="60.0"' in drawn
    assert whisker(Finding("", Effect(1.0, math.nan, math.nan), above(1.0))) == ""


def test_jackknife_interval_covers_a_ratio() -> None:
    """Ratio of means of correlated normal pairs, 60 pairs, 1,000 times: 95 % cover it; half the width does not."""
    rng = np.random.default_rng(3)
    hits = half_hits = 0
    for _ in range(1000):
        other = rng.normal(10.0, 3.0, 60)
        found = effects.ratio(0.5 * other + rng.normal(2.0, 1.0, 60), other)  # true ratio 0.7
        half = (found.high - found.low) / 2
        hits += abs(found.value - 0.7) <= half
        half_hits += abs(found.value - 0.7) <= half / 2
    assert 930 <= hits <= 970  # 950 +- 3 standard deviations
    assert half_hits < 800


def test_difference_is_paired() -> None:
    """Pairs that differ by 1 +- 0.1 under a common swing of 100: only pairing sees the difference."""
    rng = np.random.default_rng(1)
    swing = rng.normal(0.0, 100.0, 50)
    found = effects.difference(swing + 1.0 + rng.normal(0.0, 0.1, 50), swing)
    assert 0.9 < found.low < 1.0 < found.high < 1.1


def test_one_replication_has_no_interval() -> None:
    assert math.isnan(effects.ratio(np.array([1.0]), np.array([2.0])).low)
    assert math.isnan(effects.mean(np.array([1.0])).high)


@pytest.mark.parametrize("module", [effects, run, figure, style])
def test_examples_run(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed


def test_slope_and_level() -> None:
    x = np.array([1.0, 2.0, 4.0])
    assert effects.slope(x, 3.0 * x**0.5) == pytest.approx(0.5)
    assert math.isnan(effects.slope(x, x - 1.0))
    assert effects.at_level(3.0, np.array([4.0, 2.0]), np.array([10.0, 20.0])) == 15.0
    assert math.isnan(effects.at_level(5.0, np.array([4.0, 2.0]), np.array([10.0, 20.0])))
