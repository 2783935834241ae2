"""The scripts of `docs/contest.md`, on small contests."""

from pathlib import Path

import numpy as np
import pytest
from bench import contest as page
from bench import decisions, learners

from bilinq import contest, replay
from bilinq.routing.routers import BestScore, KnownClasses, LeastBusy, QueuePrice
from workloads import random_fleet


def test_tables_and_figure_have_every_contest() -> None:
    known = KnownClasses()
    routers = {"bilinq": QueuePrice(known), "least busy": LeastBusy(), "no price, known": BestScore(known)}
    small = contest(random_fleet(200), routers, 1.0, seeds=2, tuning_seeds=1)
    found = {(name, load): small for name in page.TABLES for load in page.WAITS}
    text = page.markdown(found)
    rows = [line for line in text.splitlines() if line.startswith("| least busy")]
    gap = 100.0 * small.differences["reward"]["least busy"].difference.mean
    assert len(rows) == 2 and rows[0].count(f"{gap:+.1f}") == 3 and rows[0].count(" * |") == 3
    assert "no price" not in text
    rows = [line for line in page.without_price(found).splitlines() if "known" in line]
    growth = f"{small['no price, known'].mean('growth').mean:.2f}"
    assert len(rows) == 2 and rows[1].count(f"| {growth} |") == 3 and "least busy" not in page.without_price(found)
    assert len(page.other_measures(found).splitlines()) == 5
    assert [axes.get_title(loc="left") for axes in page.draw(found).axes][-1] == "MMLU, load 0.95"


def test_made_tables_are_compared_with_every_bandit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"JOBS": 120, "SEEDS": 2, "TUNING_SEEDS": 1, "WORKERS": 1}.items():
        monkeypatch.setattr(page, name, value)
    found = page.made(tmp_path, ["one hot"])
    head, _, row = page.made_tables(found).splitlines()
    assert head.count("queue price") == 4 and head.count("|") == row.count("|") == 8
    assert row.startswith("| one hot | (earns ") and page.made(tmp_path, ["one hot"]).keys() == found.keys()


@pytest.mark.parametrize("change", decisions.CHANGES)
def test_each_part_that_is_left_out_changes_decisions(change: str) -> None:
    work = random_fleet(600, seed=3, load=0.8).swapped(300, 0, 1)
    whole, altered = (replay(work, decisions.Altered(one, 2.0), seed=1) for one in ("", change))
    assert whole.complete.all() and altered.complete.all()
    assert not np.array_equal(whole.server, altered.server)
    np.testing.assert_array_equal(replay(work, decisions.Altered("", 2.0), seed=1).server, whole.server)


def test_slope_of_the_queue_is_that_of_a_queue_that_grows() -> None:
    """Jobs arrive twice as fast as one server serves them: half of them wait at any time."""
    work = random_fleet(400, seed=1, load=2.0)
    run = replay(work, LeastBusy())
    assert decisions.slope(run) > 0.3 * work.rate and decisions.waiting(run).min() >= 0.0


def test_learners_earn_more_than_chance_and_most_with_all_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "JOBS", 600)
    _, worth = learners.table("one feature", "")
    found = {name: learners.earned(("", "one feature", name, 1)) for name in learners.LEARNERS}
    assert (
        100.0 * worth.mean() + 2.0
        < found["bilinq"]
        < found["bilinq, sees all rewards"]
        < 100.0 * worth.max(axis=1).mean()
    )
