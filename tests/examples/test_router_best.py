"""The router comes within 5 % of the best fixed routing without being told it; least-busy and random routing do not."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from llm_router.compare import LEARNING, best_reward, interval, learning, mean_reward, request, rivals, simulate_all
from llm_router.fakes import FAKES, SHARE
from llm_router.kind import KINDS
from router_stand import Stand

from bilinq.arrays import Array

README = Path(__file__).parents[2] / "examples" / "llm_router" / "README.md"
SEEDS = range(1, 4)


def comes_within(part: float, earned: Array) -> bool:
    """Tell whether runs surely come within `part` of the best: the lower end of the 95 % interval of the mean does."""
    mean, half = interval(earned)
    return mean - half >= 1.0 - part


def readme(row: str) -> float:
    """Return the first number of a row of the README's tables."""
    found = re.search(rf"^\| {row} \| ([\d.]+) ±", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, row
    return float(found[1]) / 100.0


def test_the_router_comes_within_five_per_cent() -> None:
    """From nothing, on 400 requests; and the README tells the same of each stage, within two points and the interval."""
    runs = simulate_all(LEARNING, 400, SEEDS)
    stages = learning(runs, LEARNING)
    assert comes_within(0.05, stages["201 to 400"]), stages
    assert not comes_within(0.05, stages["1 to 50"]), "at first it cannot know"
    for stage, earned in stages.items():
        mean, half = interval(earned)
        assert mean == pytest.approx(readme(stage), abs=0.02 + half), stage


@pytest.mark.parametrize("name", ["least busy", "random"])
def test_routing_that_learns_nothing_does_not(name: str) -> None:
    """Nor does it come within a fifth; the README's number is right within two points and the interval."""
    runs = simulate_all(LEARNING, 200, SEEDS, rivals()[name])
    earned = learning(runs, LEARNING)["101 to 200"]
    assert not comes_within(0.2, earned)
    mean, half = interval(earned)
    assert mean == pytest.approx(readme(rf"5 \| {name}"), abs=0.02 + half)


def test_the_same_seed_gives_the_same_run() -> None:
    first, again = (simulate_all(LEARNING, 60, [7])[0] for _ in range(2))
    assert (first.backend == again.backend).all() and (first.wait == again.wait).all()


def test_the_best_fixed_routing_is_a_bound() -> None:
    """It earns no more than if each kind had its favourite to itself, and as much where nobody else is there."""
    favourite = mean_reward().max(axis=1)
    assert np.allclose(best_reward(0.1), favourite)
    share = np.array(list(SHARE.values()))
    assert share @ best_reward(10.0) < share @ best_reward(5.0) < share @ favourite


def test_it_learns_over_http() -> None:
    """With openai's client and slots for all: the last 120 of 240 requests earn 90 % of the best, random routing 80 %.

    Fakes take hardly any time here, so that time counts nothing and the best is each kind's favourite. The order in which
    answers come is left to chance, hence the wider margin.
    """
    kinds = np.random.default_rng(3).choice(len(KINDS), 240, p=list(SHARE.values()))
    names = [fake.card.name for fake in FAKES]
    with Stand(cards={name: {"slots": 50} for name in names}, scale=0.001) as stand, ThreadPoolExecutor(4) as pool:
        client = stand.client()

        def ask(i: int) -> int:
            raw = client.chat.completions.with_raw_response.create(**request(KINDS[i]))
            return names.index(raw.headers["x-router-backend"])

        served = np.array(list(pool.map(ask, kinds.tolist())))
    score = np.array([[fake.score(kind) - fake.price(kind) for fake in FAKES] for kind in KINDS])
    last, best = slice(120, None), score.max(axis=1)
    assert score[kinds[last], served[last]].sum() >= 0.9 * best[kinds[last]].sum()
    assert score[kinds[last]].mean(axis=1).sum() < 0.8 * best[kinds[last]].sum()
