"""The shipped sweep against the numbers of an independent prototype (shared/paper/findings.md, 400 instances)."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from bilinq.experiments import sweep
from bilinq.experiments.sweep import Result

FILE = Path(__file__).parents[2] / "examples" / "findings.toml"
REPLICATIONS = 100
WIDTH = 4.0
"""Combined standard errors allowed: with 13 comparisons a false alarm in about a thousand seeds."""

PROTOTYPE = [
    ("no learning", "regret", 24.7, 1.7),
    ("no learning", "queue", 11.73, 0.02),
    ("paper's radius", "regret", 24.3, 1.6),
    ("paper's radius", "queue", 11.74, 0.02),
    ("published radius", "regret", 11.9, 0.8),
    ("published radius", "queue", 14.9, 0.2),
    ("published radius", "holding_cost", 15.0, 0.2),
    ("rewards known", "regret", 12.3, 0.7),
    ("rewards known", "queue", 22.2, 0.3),
    ("W-SABR, published radius", "regret", 13.0, 0.8),
    ("W-SABR, published radius", "holding_cost", 9.8, 0.1),
    ("paper's radius, V 70.71", "regret", 29.1, 1.6),
    ("rewards known, V 70.71", "regret", 16.2, 0.7),
]
"""Policy, measure, mean and standard error."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    plan = sweep.load(FILE)
    small = dataclasses.replace(plan, common=plan.common | {"replications": REPLICATIONS})
    return {result.cell.policy: result for result in sweep.run(small, tmp_path_factory.mktemp("out"), workers=1)}


def distance(result: Result, measure: str, mean: float, error: float) -> float:
    """Return how many combined standard errors the result is away."""
    values = result.samples[measure]
    own = values.std(ddof=1) / math.sqrt(values.size)
    return float(abs(values.mean() - mean) / math.hypot(own, error))


@pytest.mark.parametrize(("policy", "measure", "mean", "error"), PROTOTYPE)
def test_agrees_with_the_prototype(
    results: dict[str, Result], policy: str, measure: str, mean: float, error: float
) -> None:
    assert distance(results[policy], measure, mean, error) < WIDTH


def test_a_wrong_policy_would_be_noticed(results: dict[str, Result]) -> None:
    assert distance(results["rewards known"], "queue", 11.73, 0.02) > WIDTH
    assert distance(results["paper's radius"], "regret", 11.9, 0.8) > WIDTH
    assert distance(results["published radius"], "holding_cost", 9.8, 0.1) > WIDTH


def test_papers_radius_learns_next_to_nothing_and_the_published_one_helps(results: dict[str, Result]) -> None:
    regret = {name: result.samples["regret"] for name, result in results.items()}
    lost = regret["paper's radius"] - regret["published radius"]
    assert abs(np.mean(regret["no learning"] - regret["paper's radius"])) < 2.0
    assert lost.mean() / (lost.std(ddof=1) / math.sqrt(lost.size)) > WIDTH
