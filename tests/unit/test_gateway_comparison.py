"""The comparison of docs/gateway-comparison.md, small: LiteLLM's strategies in virtual time, settings, tables and figure."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from bench import gateway_comparison as page
from bench.gateway_comparison import BASELINES, USUAL, Measured, Point, matched, run
from bench.gateway_page import differences, draw, label, measures, read
from bench.litellm_strategies import LiteLlmAdaptive, LiteLlmStrategy, kind_of

from bilinq import Workload, replay
from workloads import random_fleet

DATA = Path(__file__).parents[2].parent / "shared" / "data"
PRICES = (3.0, 1.0, 2.0)
pytestmark = pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class")


@pytest.fixture(autouse=True)
def nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def test_least_busy_sends_each_request_where_the_fewest_are() -> None:
    work = random_fleet(150, seed=1, load=0.9)
    run = replay(work, LiteLlmStrategy("least-busy", PRICES), seed=1)
    for k in range(work.N):
        there = (run.end[:k] > work.arrival[k]).astype(int)
        counts = np.bincount(run.server[:k], there, minlength=3)
        assert counts[run.server[k]] == counts.min()


def test_cost_takes_the_cheapest_and_latency_leaves_the_slow_one() -> None:
    work = random_fleet(150, seed=1, load=0.3)
    assert (replay(work, LiteLlmStrategy("cost-based-routing", PRICES), seed=1).server == 1).all()
    slow = Workload(**(work.arguments() | {"duration": np.tile([0.1, 5.0, 0.2], (150, 1))}))
    number = np.bincount(replay(slow, LiteLlmStrategy("latency-based-routing", PRICES), seed=1).server, minlength=3)
    assert number[0] > 120 and number[1] < 15


def test_the_adaptive_rule_learns_a_model_that_is_better_and_not_dearer() -> None:
    work = random_fleet(300, seed=1, classes=1, load=0.3)
    work = Workload(**(work.arguments() | {"job_class": np.zeros(300, int), "job_classes": ("general",)}))
    quality = np.tile([0.9, 0.2, 0.2], (300, 1))
    run = replay(work, LiteLlmAdaptive((1.0, 1.0, 1.0), quality), seed=1)
    assert (run.server[-100:] == 0).mean() > 0.9
    assert kind_of("Write a python function to copy a list.") == "code_generation"


def test_settings_are_matched_to_what_costs_and_takes_no_more() -> None:
    base = Measured(quality=0.8, cost=1.0, mean=5.0, p50=4.0, p99=9.0, goodput=0.9)
    points = {
        Point(1.0, 0.0, 1.0): replace(base, quality=0.85),
        Point(2.0, 0.0, 1.0): replace(base, quality=0.9, mean=4.0),
        Point(3.0, 0.0, 1.0): replace(base, quality=0.99, cost=1.04),
        Point(4.0, 0.0, 1.0): replace(base, quality=0.99, mean=5.2),
    }
    assert matched(points, base) == Point(2.0, 0.0, 1.0)
    assert matched(points, replace(base, cost=0.5)) is None


@pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data with routing, llm_speed and llm_arrivals")
def test_a_short_comparison_gives_tables_and_a_figure(tmp_path: Path) -> None:
    """300 requests at load 0.8, two seeds: even so, least busy earns less at the same price and latency or more."""
    mine = Point(30.0, 0.0, 0.05)
    routers: list[str | Point] = [*BASELINES, USUAL, mine]
    found = {who: [run(DATA, "paretobandit", 300, (0.8, seed, who)) for seed in (1, 2)] for who in routers}
    records = [
        {
            "load": 0.8, "who": who if isinstance(who, str) else who._asdict(),
            "matched": ["least-busy"] if who == mine else [], "runs": [asdict(one) for one in got],
        }
        for who, got in found.items()
    ]  # fmt: skip
    (tmp_path / "gateway-paretobandit-0.8.json").write_text(json.dumps(records), encoding="utf-8")
    standings = read(tmp_path)
    assert len(measures(standings, 0.8).splitlines()) == 2 + len(BASELINES) + 1
    rows = differences(standings).splitlines()[2:]
    assert len(rows) == len(BASELINES) and "none is as cheap" in rows[0] and label(mine._asdict())[8:] in rows[1]
    assert {one.table for one in standings} == {"paretobandit"}
    draw(standings, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    usual, least = (page.mean_of(found[one]) for one in (USUAL, "least-busy"))
    assert usual.quality > least.quality and usual.cost < least.cost and usual.goodput > 0.8
    assert page.mean_of(found["cost-based-routing"]).cost == min(page.mean_of(one).cost for one in found.values())


@pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data with routing, llm_speed and llm_arrivals")
def test_questions_of_mmlu_have_prices_by_their_tokens() -> None:
    found = page.world(DATA, "mmlu", 0.8, 50, seed=1)
    assert found.work.J == 2 and (found.price[:, 1] > 10.0 * found.price[:, 0]).all()
    assert set(found.work.reward.ravel().tolist()) == {0.0, 1.0}


@pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data with routing, llm_speed and llm_arrivals")
@pytest.mark.parametrize("table", ["paretobandit", "mmlu"])
def test_settings_are_the_same_multiples_for_all_tables(table: str) -> None:
    """At a multiple of one, price differs between back ends as much as quality, and so does a mean duration of waiting."""
    found = page.world(DATA, table, 0.8, 50, seed=1)
    [free, one] = page.settings(found, money=(0.0, 1.0), wait=(1.0,))
    quality = np.ptp(found.work.reward.mean(axis=0))
    assert free.dollar == 0.0 and free.wait == one.wait
    assert one.dollar * np.ptp(found.price.mean(axis=0)) == pytest.approx(quality, rel=0.05)
    assert one.wait * found.work.duration.mean() == pytest.approx(quality, rel=0.05)
