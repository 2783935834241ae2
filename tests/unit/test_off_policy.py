"""Estimates of another policy: by hand, and the same as `bilinq.evaluate` makes."""

import numpy as np
import pytest

import bilinq
from bilinq.live.service.comparison import FEW, Comparison, among
from bilinq.off_policy import Scores, interval

XY = ("x", "y")


def test_an_interval_by_hand() -> None:
    """Mean 2, standard deviation 1, five values: half a width is 2.776 / sqrt(5), by a table of Student's t."""
    found = interval(np.array([1.0, 1.5, 2.0, 2.5, 3.0]) * 1.2649110640673518 - 0.5298221281347035, 5.0)
    assert found.mean == pytest.approx(2.0) and found.high - found.mean == pytest.approx(2.776445 / 5**0.5, rel=1e-6)


def test_scores_by_hand() -> None:
    """Two jobs: 0.5 + 2 * (1 - 0.4) = 1.7 and 0.5 + 0 = 0.5 have mean 1.1; the weights 2 and 0 are worth one job."""
    weight, earned, expected, predicted = np.array([[2.0, 0.0], [1.0, 0.2], [0.5, 0.5], [0.4, 0.4]])
    two = Scores(weight=weight, earned=earned, expected=expected, predicted=predicted)
    assert two.doubly_robust.mean == pytest.approx(1.1) and two.inverse_propensity.mean == pytest.approx(1.0)
    assert (two.effective_jobs, two.enough, two.mean_weight) == (1.0, False, 1.0)
    assert two.gain.mean == pytest.approx(1.1 - 0.6) and two.self_normalised.mean == pytest.approx(1.0)
    wrong = Scores(weight=2.0 * weight, earned=earned, expected=expected, predicted=predicted)
    assert wrong.doubly_robust.mean != pytest.approx(1.1)


def test_evaluate_has_the_same_scores() -> None:
    """With the chances of all servers and one class, inverse propensity by hand is what `evaluate` returns."""
    rng = np.random.default_rng(2)
    chance = rng.uniform(0.2, 0.8, 300)
    on_y = rng.random(300) < chance
    log = {
        "server": np.where(on_y, "y", "x"), "reward": rng.normal(on_y, 0.3), "probability": np.c_[1 - chance, chance],
    }  # fmt: skip
    scores = Scores(weight=on_y / chance, earned=log["reward"], expected=np.zeros(300), predicted=np.zeros(300))
    found = bilinq.evaluate(log, "y")
    assert repr(found.inverse_propensity) == repr(scores.inverse_propensity)
    assert (found.effective_jobs, found.tail) == (scores.effective_jobs, scores.tail)


def filled(
    counts: dict[tuple[str, str], tuple[int, float]], policy: dict[str, list[float]], size: int = 5000
) -> Comparison:
    """Return decisions: how often a group was served by a server class, and its rewards, 0.1 around a mean."""
    made, lease = Comparison(XY, size), 0
    for (group, server), (many, mean) in counts.items():
        for k in range(many):
            lease += 1
            made.add(lease, XY.index(server), np.array(policy[group]), group=group)
            made.reward(lease, mean + (0.1 if k % 2 else -0.1))
    return made


def test_the_estimate_of_groups_in_closed_form() -> None:
    """Group a is half of the jobs and gets y: 0.9; b gets x and y alike: (0.6 + 0.2) / 2. Together 0.65, earned 0.45."""
    counts = {("a", "x"): (60, 0.3), ("a", "y"): (40, 0.9), ("b", "x"): (50, 0.6), ("b", "y"): (50, 0.2)}
    scores = filled(counts, {"a": [0.0, 1.0], "b": [0.5, 0.5]}).scores()
    assert scores is not None and scores.mean_weight == pytest.approx(1.0)
    assert scores.doubly_robust.mean == pytest.approx(0.65) and scores.logged.mean == pytest.approx(0.47)
    assert scores.gain.mean == pytest.approx(0.18) and scores.gain.low < 0.18 < scores.gain.high < 0.25
    unweighted = np.mean([0.9, 0.3, 0.6, 0.2])
    assert not scores.doubly_robust.low < unweighted < scores.doubly_robust.high, (
        "what a plain mean would say is rejected"
    )


def test_groups_that_the_first_policy_never_serves_as_the_shadow_would_are_left_out() -> None:
    counts = {("a", "x"): (100, 0.3), ("a", "y"): (FEW - 1, 0.9), ("b", "x"): (50, 0.6), ("b", "y"): (50, 0.2)}
    told = filled(counts, {"a": [0.0, 1.0], "b": [0.0, 1.0]}).info("sabr", "on")
    assert (told.choices, told.compared) == (204, 100)
    assert told.estimate is not None and told.estimate.mean == pytest.approx(0.2)
    assert "Compared are 49% of the rewarded choices" in told.notes[1]
    none = filled({("a", "x"): (100, 0.3)}, {"a": [0.0, 1.0]}).info("sabr", "on")
    assert none.gain is None and none.compared == 0 and none.agreement == 0.0
    assert none.notes[1] == "No estimate: the decisions are worth 0 jobs of the shadow, and 30 are needed."


def test_known_chances_of_single_decisions() -> None:
    """The shadow takes y, which the first policy chose with chance 0.25: weight 4, prediction 0.5, residual 0.3 or -0.1."""
    made = Comparison(XY)
    policy, value, chance = np.array([0.0, 1.0]), np.array([0.2, 0.5]), np.array([0.75, 0.25])
    for lease, (chosen, reward) in enumerate([(1, 0.8), (1, 0.4), (0, 0.9), (0, 0.1)], 1):
        made.add(lease, chosen, policy, value=value, chance=chance)
        made.reward(lease, reward)
    made.add(5, 1, policy, value=value, chance=np.array([0.999, 0.001]))  # too rare to be compared
    made.add(6, 1, policy, value=value)  # not known
    made.reward(5, 1.0)
    made.reward(6, 1.0)
    scores = made.scores()
    assert scores is not None and scores.weight.tolist() == [4.0, 4.0, 0.0, 0.0]
    assert scores.robust == pytest.approx([1.7, 0.1, 0.5, 0.5])
    assert made.info("sabr", "on").predicted_gain == pytest.approx((2 * 0.3) / 6)


def test_a_reward_is_corrected_and_old_decisions_are_dropped() -> None:
    made = filled({("a", "x"): (8, 0.5), ("a", "y"): (8, 0.5)}, {"a": [0.5, 0.5]}, size=12)
    made.reward(16, 0.9)  # the last one again
    made.reward(1, 99.0)  # one that was dropped
    scores = made.scores()
    assert scores is None, "four of x are too few"
    assert made.choices == 12 and made.info("sabr", "on").agreement == 0.5
    grown = filled({("a", "x"): (8, 0.5), ("a", "y"): (8, 0.5)}, {"a": [0.5, 0.5]})
    grown.reward(16, 0.9)
    found = grown.scores()
    assert found is not None and found.logged.mean == pytest.approx((16 * 0.5 - 0.6 + 0.9) / 16)


def test_chances_among_allowed_servers() -> None:
    some, chance = np.array([True, False, True]), np.array([0.2, 0.5, 0.3])
    assert among(some, chance).tolist() == pytest.approx([0.4, 0.0, 0.6])  # type: ignore[union-attr]
    assert among(some, np.array([0.0, 1.0, 0.0])) is None and among(some, None) is None
    assert among(some, chance, 0.25).tolist() == [0.0, 0.0, 1.0]  # type: ignore[union-attr]
