"""Verdicts on made-up effects, and intervals that cover what they should."""

import doctest
import math
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import norm as normal
from scipy.stats import t as student

from bilinq import style
from bilinq.display import MINUS, number
from bilinq.experiments import run
from bilinq.lab import claims, effects, figure
from bilinq.lab.claims import (
    Claim,
    ClaimedRange,
    Finding,
    Verdict,
    above,
    below,
    between,
    corrected,
    judged,
    over_seeds,
    overall,
)  # fmt: skip
from bilinq.lab.effects import Effect
from bilinq.lab.report import verdicts, whisker

HOLDS, CONDITIONAL, UNDECIDED, CONTRADICTED = Verdict


@pytest.mark.parametrize(
    ("low", "high", "claimed", "verdict"),
    [
        (-3.0, -1.0, below(0.0), HOLDS),
        (-3.0, 1.0, below(0.0), UNDECIDED),
        (1.0, 3.0, below(0.0), CONTRADICTED),
        (1.0, 3.0, above(0.0), HOLDS),
        (-1.0, 3.0, above(0.0), UNDECIDED),
        (-3.0, -1.0, above(0.0), CONTRADICTED),
        (0.9, 1.1, between(0.8, 1.25), HOLDS),
        (0.7, 1.1, between(0.8, 1.25), UNDECIDED),
        (0.5, 2.0, between(0.8, 1.25), UNDECIDED),
        (0.5, 0.7, between(0.8, 1.25), CONTRADICTED),
        (1.3, 2.0, between(0.8, 1.25), CONTRADICTED),
        (-1.0, 0.0, below(0.0), HOLDS),
        (math.nan, math.nan, below(0.0), UNDECIDED),
    ],
)
def test_verdict_follows_from_the_interval(low: float, high: float, claimed: ClaimedRange, verdict: Verdict) -> None:
    """One test alone: decided if the whole 95 % interval is on one side."""
    assert Finding("", Effect((low + high) / 2, low, high), claimed).verdict is verdict


@pytest.mark.parametrize("freedom", [3.0, 24.0, math.inf])
def test_doubt_is_the_level_at_which_an_interval_reaches_the_end(freedom: float) -> None:
    """Compared with quantiles of Student's t computed by another routine."""
    effect = Effect(1.0, 0.5, 2.0, freedom=freedom)
    law = student(freedom) if math.isfinite(freedom) else normal()
    for end, half in ((0.25, 0.5), (4.0, 1.0)):
        assert effect.doubt(end) == pytest.approx(2 * law.sf(abs(end - 1.0) / half * law.ppf(0.975)), rel=1e-6)
    assert effect.doubt(1.0) == 1.0 and effects.exact(3.0).doubt(2.0) == 0.0


def test_holm_keeps_the_family_wise_error() -> None:
    """150 reports of 40 true null hypotheses: any wrong verdict in 5 % of them; without the correction in 87 %."""
    rng = np.random.default_rng(5)
    wrong = plain = 0
    for _ in range(150):
        found = {str(k): effects.mean(rng.normal(0.0, 1.0, 30)) for k in range(40)}
        claim = Claim("id", "", "", test="", findings=judged(found, below(0.0)))
        wrong += any(one.verdict is not UNDECIDED for one in corrected([claim])[0].findings)
        plain += any(one.verdict is not UNDECIDED for one in claim.findings)
    assert wrong <= 15  # 7.5 + 3 standard deviations
    assert plain > 110


def test_counted_numbers_are_no_tests() -> None:
    sampled = Finding("sampled", Effect(-2.0, -3.9, -0.1), below(0.0))
    counted = [Finding(f"counted {k}", effects.exact(-1.0), below(0.0)) for k in range(50)]
    claim = Claim("id", "", "", test="", findings=(sampled, *counted))
    assert corrected([claim])[0].verdict is HOLDS
    assert corrected([claim, replace(claim, id="other")])[0].findings[0].verdict is UNDECIDED  # two tests, p = 0.04


def claim_with(*values: float) -> Claim:
    """Return a claim whose effects are far from zero."""
    found = {f"condition {k}": Effect(value, value - 0.1, value + 0.1) for k, value in enumerate(values)}
    return Claim("id", "", "", test="", findings=judged(found, below(0.0)))


def test_seeds_that_disagree_decide_nothing() -> None:
    """Pooled over five seeds both effects are far below zero; in one seed the second is above."""
    seeds = {seed: [claim_with(-1.0, 0.5 if seed == 3 else -5.0)] for seed in range(1, 6)}
    (claim,) = over_seeds(seeds)
    assert [finding.verdict for finding in claim.findings] == [HOLDS, UNDECIDED]
    assert claim.findings[1].effect.high < 0.0
    assert claim.result == "not decided: 1 of 2 hold, 1 not decided"
    assert dict(claim.seeds) == {s: "holds only under stated conditions: 1 of 2 hold, 1 contradicted" if s == 3 else "holds"
                                 for s in range(1, 6)}  # fmt: skip


def test_one_calculated_counterexample_contradicts() -> None:
    """A theorem's largest growth rate over random systems: negative on four seeds, positive on one; the mean is negative."""
    growth = {1: -0.5, 2: -0.4, 3: 0.2, 4: -0.5, 5: -0.3}
    seeds = {
        seed: [Claim("id", "", "", test="", findings=judged({"": effects.exact(value)}, below(0.0)))]
        for seed, value in growth.items()
    }
    (claim,) = over_seeds(seeds)
    assert claim.verdict is CONTRADICTED and claim.findings[0].effect.value == 0.2
    assert over_seeds({seed: seeds[seed] for seed in (1, 2)})[0].findings[0].effect.value == -0.4


def test_shares_are_tested_exactly() -> None:
    """0.9^30 = 0.042 on one side; the interval of 9 in 10 is 0.5550 to 0.9975 in any table of Clopper and Pearson."""
    some = effects.share(np.arange(10) < 9)
    assert (some.low, some.high) == pytest.approx((0.5550, 0.9975), abs=5e-5)
    assert some.doubt(0.5) == pytest.approx(2 * 11 / 1024)
    every = effects.share(np.ones(30, bool))
    assert every.doubt(0.9) == pytest.approx(2 * 0.9**30) and every.doubt(math.inf) == 0.0
    assert (every.value, every.high, every.exact) == (1.0, 1.0, False)
    assert Finding("", every, above(0.9)).verdict is UNDECIDED
    pooled = effects.pooled([every, every, effects.share(np.arange(30) < 28)])
    assert (pooled.value, pooled.trials) == (88 / 90, 90)


def test_pooled_seeds_decide_more_than_each_alone() -> None:
    """Five seeds at 1.5 standard errors each are 3.4 together."""
    weak = [Claim("id", "", "", test="", findings=judged({"": Effect(-1.5, -3.46, 0.46)}, below(0.0)))]
    (claim,) = over_seeds(dict.fromkeys(range(5), weak))
    assert claim.verdict is HOLDS and {result for _, result in claim.seeds} == {"not decided"}
    assert claim.findings[0].p == pytest.approx(0.00080, rel=0.05)


def test_table_of_verdicts_has_counts() -> None:
    seeds = {1: [claim_with(-1.0, 1.0)], 2: [claim_with(-1.0, -1.0)]}
    text = verdicts(over_seeds(seeds))
    assert text.splitlines()[0] == "| Claim | Seed 1 | Seed 2 | All seeds |"
    assert text.splitlines()[2] == "| `id` | 1 of 2 | holds | not decided: 1 of 2 hold, 1 not decided |"
    alone = verdicts(over_seeds({1: [claim_with(-1.0, 1.0)]}))
    assert alone.splitlines()[2] == "| `id` | 1 of 2 | 1 of 2 hold, 1 contradicted |"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, UNDECIDED], UNDECIDED),
        ([HOLDS, UNDECIDED, CONTRADICTED], CONDITIONAL),
        ([HOLDS, CONTRADICTED], CONDITIONAL),
        ([UNDECIDED, CONTRADICTED], UNDECIDED),
        ([CONTRADICTED, CONTRADICTED], CONTRADICTED),
        ([UNDECIDED], UNDECIDED),
        ([], UNDECIDED),
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
    assert document["result"] == "holds only under stated conditions: 1 of 2 hold, 1 contradicted"
    assert document["findings"][0] == {
        "condition": "here", "effect": {"value": -2.0, "low": -3.0, "high": -1.0}, "unit": "regret", "claimed": "below 0",
        "p": 8.9e-05, "verdict": "holds",
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
    assert number(value) == text


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


@pytest.mark.parametrize("module", [claims, effects, run, figure, style])
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
