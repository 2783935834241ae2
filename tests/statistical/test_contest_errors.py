"""How often a contest reports a difference: at the stated rate where there is none, and where there is one."""

import numpy as np
from scipy import stats

from bilinq import Workload, contest
from bilinq.arrays import Array
from bilinq.routing.comparisons import LEVEL, compare
from bilinq.routing.routers import BestSingle, LeastBusy, RandomChoice, RoundRobin

CONTESTS, SEEDS = 60, 6
FALSE_ALARM = 1e-4  # chance that a test below fails although everything is right


def world(seed: int, bonus: float = 0.0) -> Workload:
    """Return 40 jobs whose rewards are noise, higher by `bonus` on the second server class."""
    rng = np.random.default_rng((seed, 7))
    return Workload(
        arrival=np.cumsum(rng.exponential(1.0, 40)), reward=rng.normal([0.0, bonus], 1.0, (40, 2)), duration=1.0,
        servers={"a": 2, "b": 2}, reward_range=(-9.0, 9.0),
    )  # fmt: skip


def test_routers_that_earn_the_same_are_told_apart_at_the_stated_rate() -> None:
    """Three routers that ignore rewards; a contest raises an alarm if it tells one of two from the reference."""
    routers = {"one": RandomChoice(), "two": LeastBusy(), "three": RoundRobin()}
    alarms = 0
    for k in range(CONTESTS):
        found = contest(world, routers, seeds=SEEDS, seed=1000 * k)
        alarms += any(one.verdict != "no difference shown" for one in found.differences["reward"].values())
    assert alarms <= stats.binom.isf(FALSE_ALARM, CONTESTS, LEVEL)


def alarms(shift: float, repeats: int = 1500, others: int = 5) -> float:
    """Return how often one or more of the others differ from the reference, whose mean is lower by `shift`."""
    rng = np.random.default_rng(1)
    raised = 0
    for _ in range(repeats):
        base: Array = rng.normal(size=SEEDS)
        samples = {str(k): base + rng.normal(size=SEEDS) + (shift if k else 0.0) for k in range(others + 1)}
        raised += any(one.verdict != "no difference shown" for one in compare("reward", samples, "0"))
    return raised / repeats


def test_corrected_tests_keep_their_level_and_notice_a_difference() -> None:
    """Gaussian samples with a common part; comparisons share a reference, so the rate is at most the level."""
    error = np.sqrt(LEVEL * (1.0 - LEVEL) / 1500)
    assert 0.01 < alarms(0.0) <= LEVEL - stats.norm.ppf(FALSE_ALARM) * error
    assert alarms(3.0) > 0.9


def test_a_router_that_learns_earns_more_and_the_contest_says_so() -> None:
    found = contest(lambda seed: world(seed, 2.0), {"random": RandomChoice(), "best": BestSingle(trials=3)}, seeds=8)
    assert found.differences["reward"]["best"].verdict == "more"
    assert found.differences["reward"]["best"].difference.low > 0.2
