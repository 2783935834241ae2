"""The bounds and the rules for V, against numbers worked by hand from the paper's formulas."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bilinq import theory
from bilinq.errors import BadInput, UnstableLoad
from bilinq.problem import Problem

PAPER = Problem.synthetic(seed=0)
HALVES = np.repeat([7 / 4, 1 / 4], 5)


def test_order_of_v() -> None:
    """sqrt(10 * 500)."""
    assert theory.V_order(PAPER, 500) == pytest.approx(70.7107, abs=1e-4)


def test_minimiser_with_either_constants() -> None:
    """alpha3 = 8 (1 + 121) 10 + 5 = 9765; alpha1 = 1.2 * 2.2 * 4 = 10.56 in the appendix, 4 in the theorem."""
    assert theory.V_minimiser(PAPER, 500) == pytest.approx(np.sqrt(9765 * 500 / 10.56))
    assert theory.V_minimiser(PAPER, 500, constants="theorem") == pytest.approx(np.sqrt(9765 * 500 / 4))


@pytest.mark.parametrize(("weight", "expected"), [(None, 57.99), (HALVES, 38.35)])
def test_published_v(weight: Any, expected: float) -> None:
    """What the authors' public code computes for its two policies."""
    assert theory.V_published(PAPER, weight=weight) == pytest.approx(expected, abs=0.005)


def test_regret_bound_by_hand() -> None:
    """n = 4, rho = 1, gamma = 1.2 so c = 11, slack = 3, d = 2: alpha2 = 1.2 (5 + 22 * 64), alpha4 = 4 * 2 + 2 * 4."""
    bound = theory.regret_bound(PAPER, V=50.0, horizon=400)
    assert bound.alpha1 == pytest.approx(10.56) and bound.alpha2 == pytest.approx(1.2 * 1413)
    assert bound.alpha3 == pytest.approx(9765) and bound.alpha4 == pytest.approx(16)
    assert bound.queue_term == pytest.approx(528) and bound.slack_term == pytest.approx(1.2 * 471)
    assert bound.service_term == pytest.approx(9765 * 8) and bound.learning_term == pytest.approx(320)
    assert bound.total == pytest.approx(528 + 1.2 * 471 + 9765 * 8 + 320)


def test_theorem_constants_leave_gamma_out() -> None:
    theorem = theory.regret_bound(PAPER, 50.0, 400, constants="theorem")
    assert theorem.alpha1 == pytest.approx(4) and theorem.alpha2 == pytest.approx(1413)
    assert theorem.constants == "theorem"


def test_minimiser_minimises_the_bound() -> None:
    options: dict[str, Any] = {"gamma": 1.5, "weight": HALVES}
    best = theory.V_minimiser(PAPER, 500, **options)
    least = theory.regret_bound(PAPER, best, 500, **options).total
    assert all(least < theory.regret_bound(PAPER, best * k, 500, **options).total for k in (0.9, 1.1))


def test_rectangular_dimension_in_the_learning_term() -> None:
    """d1 d2 = 6, n = 4: alpha4 = 6 * 2 + sqrt(6) * 4."""
    bound = theory.regret_bound(Problem.synthetic(dimension=(2, 3)), 50.0, 400)
    assert bound.alpha4 == pytest.approx(12 + 4 * np.sqrt(6))


@pytest.mark.parametrize(("V", "expected"), [(58.0, 5 / 3 + 2.2 * 58 * 4 + 1), (10.0, 5 / 3 + 22 * 64 / 3 + 1)])
def test_queue_bound_by_hand(V: float, expected: float) -> None:
    assert theory.queue_bound(PAPER, V) == pytest.approx(expected)


def test_holding_cost_bound_by_hand() -> None:
    """Drift 9765 + 2.5 * 4 * 2.2 * 58 over rate 1.5; the cost-weight mismatch is 7."""
    expected = (9765 + 22 * 58) / 1.5
    assert theory.holding_cost_bound(PAPER, 58.0) == pytest.approx(expected)
    assert theory.holding_cost_bound(PAPER, 58.0, cost=7.0) == pytest.approx(7 * expected)
    assert theory.holding_cost_bound(PAPER.replace(holding_cost=7.0), 58.0) == pytest.approx(7 * expected)


def test_matching_weights_help_the_holding_cost_bound() -> None:
    problem = PAPER.replace(holding_cost=HALVES)
    scale = theory.holding_cost_bound(problem, 58.0, weight=HALVES) / theory.holding_cost_bound(problem, 58.0)
    # alpha3 grows with max w / rho by 7/4 while the mismatch falls from 7/4 to 1: (17085 + 1276) / (1.75 * 11041)
    assert scale == pytest.approx((8 * 122 * 17.5 + 5 + 1276) / (1.75 * 11041))


def test_stationary_queue_by_hand() -> None:
    problem = Problem(
        arrival_rate=[0.2, 0.1], servers=[1, 1, 0], mean_reward=[[0.2, 0.7, 1], [0.4, 0.1, 1]], service_rate=[1.0, 0.5]
    )
    assert theory.stationary_queue(problem, 10.0, weight=[1.0, 2.0]) == pytest.approx([0.2 * 10 * 0.5, 0.2 * 5 * 0.8])


def test_stationary_queue_is_about_the_known_size() -> None:
    """About 27 at V = 70.7 over random instances of the paper's set-up."""
    totals = [theory.stationary_queue(Problem.synthetic(seed=k), 70.7).sum() for k in range(200)]
    assert 25 < np.mean(totals) < 31


def test_target_wait_inverts_the_stationary_queue() -> None:
    """Little's law: the wait is queue / arrival rate."""
    problem = Problem(arrival_rate=[0.2], servers=[1], mean_reward=[[0.7]], service_rate=0.5)
    V = theory.V_target_wait(12.0, 0.7, 1.3, 0.5, 2.0)
    queue = theory.stationary_queue(problem, V, 1.3, [2.0])
    assert queue[0] / 0.2 == pytest.approx(12.0)


BOUNDS: list[Callable[[Problem], object]] = [
    lambda problem: theory.regret_bound(problem, 50.0, 500),
    lambda problem: theory.explicit_regret_bound(problem, 50.0, 500),
    lambda problem: theory.queue_bound(problem, 50.0),
    lambda problem: theory.holding_cost_bound(problem, 50.0),
]
RULES: list[Callable[[Problem], object]] = [
    lambda problem: theory.V_minimiser(problem, 500),
    lambda problem: theory.V_published(problem),
]
OTHERS: list[Callable[[Problem], object]] = [
    lambda problem: theory.stationary_queue(problem, 50.0),
    lambda problem: theory.V_order(problem, 500),
    lambda problem: theory.ugda_regret_bound(problem, 50.0, 500),
]


@pytest.mark.parametrize("formula", BOUNDS + RULES)
def test_formulas_refuse_what_the_paper_excludes(formula: Callable[[Problem], object]) -> None:
    with pytest.raises(BadInput, match="service_rate must be equal in all classes"):
        formula(PAPER.replace(service_rate=[1.0] * 9 + [0.5]))
    with pytest.raises(BadInput, match=r"arrival_rate must be positive in every class .* got arrival_rate\[0\] = 0"):
        formula(PAPER.replace(arrival_rate=[0.0] + [0.1] * 9))
    with pytest.warns(UnstableLoad):
        unstable = PAPER.replace(service_rate=0.25)
    with pytest.raises(BadInput, match="load must be below capacity for this formula; got rho = 4, n = 4"):
        formula(unstable)


@pytest.mark.parametrize("formula", [*BOUNDS, *RULES, *OTHERS])
def test_nothing_is_claimed_for_eligible_pairs_or_rates_by_pair(formula: Callable[[Problem], object]) -> None:
    with pytest.raises(BadInput, match="eligible must be None: the paper's results assume that every server class"):
        formula(PAPER.replace(eligible=[[True, False]] + [[True, True]] * 9))
    with pytest.raises(BadInput, match=r"service_rate must not depend on the server class: .* got shape \(10, 2\)"):
        formula(PAPER.replace(service_rate=np.tile([1.0, 0.5], (10, 1))))


@pytest.mark.parametrize("formula", BOUNDS)
def test_bounds_need_at_most_one_arrival_per_slot(formula: Callable[[Problem], object]) -> None:
    with pytest.raises(BadInput, match="arrival_rate must sum to at most 1"):
        formula(Problem.synthetic(traffic=2.0))


@pytest.mark.parametrize("formula", [theory.regret_bound, theory.explicit_regret_bound])
def test_regret_bounds_check_the_norms(formula: Callable[..., object]) -> None:
    """Rewards may be in [-1, 1] although the assumptions on norms fail."""
    long = PAPER.replace(job_features=100.0 * PAPER.job_features, mean_reward=PAPER.mean_reward)
    with pytest.raises(BadInput, match=r"must have \|\|u_i\|\| \|\|v_j\|\| at most 1 for the regret bound; got 100"):
        formula(long, 50.0, 500)
    short = PAPER.replace(job_features=PAPER.job_features / 4.0, mean_reward=PAPER.mean_reward)
    with pytest.raises(BadInput, match=r"the theta that gives mean_reward must have norm at most 1 .* got 4"):
        formula(short, 50.0, 500)
    with pytest.raises(BadInput, match="mean_reward must be bilinear in the features"):
        formula(PAPER.replace(mean_reward=np.random.default_rng(1).uniform(-1, 1, (10, 2))), 50.0, 500)
    formula(PAPER.replace(mean_reward=PAPER.mean_reward), 50.0, 500)


def test_ugda_bound_by_hand() -> None:
    """I = 10, J = 2, slack 3: 50 + 1/3 + 10 * 400 / 50 + 2 * 400."""
    bound = theory.ugda_regret_bound(PAPER, 50.0, 400)
    assert bound.learning_term == 800.0 and bound.total == pytest.approx(50 + 1 / 3 + 80 + 800)
    with pytest.warns(UnstableLoad):
        unstable = PAPER.replace(service_rate=0.25)
    with pytest.raises(BadInput, match="load must be below capacity for this formula; got slack 0"):
        theory.ugda_regret_bound(unstable, 50.0, 400)


def test_other_refusals() -> None:
    with pytest.raises(BadInput, match="gamma must be above 1; got 1"):
        theory.queue_bound(PAPER, 50.0, gamma=1.0)
    with pytest.raises(BadInput, match="V must be positive"):
        theory.queue_bound(PAPER, 0.0)
    with pytest.raises(BadInput, match="weight must be positive"):
        theory.V_published(PAPER, weight=np.zeros(10))
    with pytest.raises(BadInput, match="constants must be one of 'appendix', 'theorem'"):
        theory.V_minimiser(PAPER, 500, constants="paper")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="horizon must be a whole number"):
        theory.V_order(PAPER, 0)
    with pytest.raises(BadInput, match=r"mean_reward must be in \[-1, 1\] for the regret bound"):
        theory.regret_bound(PAPER.replace(mean_reward=np.full((10, 2), 1.4), unbounded=True), 50.0, 500)
    with pytest.raises(BadInput, match="gamma must exceed every best reward"):
        theory.stationary_queue(PAPER, 50.0, gamma=0.1)
    with pytest.raises(BadInput, match="gamma must exceed reward"):
        theory.V_target_wait(1.0, 1.0, gamma=1.0)
