"""Over HTTP the service earns more than first come, first served, at the same mean wait; and not more than itself."""

from collections.abc import Callable
from pathlib import Path

import changing_fleet as changing
import numpy as np
import pytest
from fleet import FIRST_COME, MAY_IDLE, SABR, Fleet, Run, compare, difference, draw, gpus, mean, paper

FALSE_ALARM = 1e-3
"""How often a policy seems to differ from itself."""


def earns_more(sabr: list[Run], first: list[Run]) -> tuple[bool, str]:
    """Return whether SABR earns more with 95 % confidence, and what was found."""
    reward = difference(sabr, first, "reward", confidence=0.9)
    jobs = sum(len(run.wait) for run in sabr)
    told = f"{jobs} jobs: reward {mean(first, 'reward'):.4f} first come, SABR {reward} (two-sided 90 % interval)"
    return reward.low > 0.0, told


def waits(runs: list[Run]) -> list[float]:
    """Return the mean wait of each run, which is the same, not only nearly, if no server idles while a job waits."""
    return [float(run.wait.mean()) for run in runs]


def test_the_paper_s_instance(tmp_path: Path) -> None:
    """Also with a second SABR on another seed, which must seem neither better nor worse than the first."""
    sabr, first, again = compare(paper(), tmp_path, [SABR, FIRST_COME, SABR], replications=2, rounds=300)
    more, told = earns_more(sabr, first)
    assert more, told
    assert waits(sabr) == waits(first) == waits(again)
    assert not earns_more(first, sabr)[0], "the contrary claim must fail"
    same = difference(again, sabr, "reward", confidence=1.0 - FALSE_ALARM)
    assert same.low < 0.0 < same.high, f"SABR differs from itself: {same}"


def test_the_gpu_table(tmp_path: Path) -> None:
    """Also with a SABR that lets servers idle for a better match: there jobs must be seen to wait longer."""
    sabr, first, idling = compare(gpus(), tmp_path, [SABR, FIRST_COME, MAY_IDLE], replications=2, rounds=200)
    more, told = earns_more(sabr, first)
    assert more, told
    assert waits(sabr) == waits(first)
    assert min(waits(idling)) > max(waits(first))


@pytest.mark.parametrize("fleet", [paper, gpus])
def test_jobs_are_those_of_the_problem(fleet: Callable[[], Fleet]) -> None:
    """Arrivals, service times and rewards have the means of the problem: five standard errors."""
    one = fleet()
    jobs, problem = draw(one, 2000, seed=5), one.problem
    expected = 2000 * problem.arrival_rate.sum()
    assert abs(len(jobs.at) - expected) < 5.0 * expected**0.5
    rate = problem.service_rate[0]
    spread = (1.0 - rate) ** 0.5 / rate
    assert abs(jobs.rounds.mean() - 1.0 / rate) < 5.0 * spread / len(jobs.at) ** 0.5
    error = (jobs.reward - problem.mean_reward[jobs.job_class])[:, -1]
    assert abs(error.mean()) < 5.0 * error.std() / len(jobs.at) ** 0.5
    assert (jobs.reward >= one.low).all() and (jobs.reward <= one.high).all()


def test_a_fleet_that_changes(tmp_path: Path) -> None:
    """Features and durations matter, a server fails, a class is replaced, rewards come late: the look-ahead earns more than
    first come, first served and than the policy sabr, with 95 % confidence, and jobs wait no longer.
    """
    first, sabr, own = changing.compare(changing.POLICIES, range(4), 240, tmp_path)
    for other in (first, sabr):
        more = changing.paired(own, other, "reward", confidence=0.9)
        assert more.low > 0.0, f"reward {changing.mean(other, 'reward'):.3f}, look-ahead {more}"
        assert changing.mean(own, "wait") <= changing.mean(other, "wait")
        assert changing.paired(other, own, "reward", confidence=0.9).low < 0.0, "the contrary claim must fail"
    assert [run.dead for run in (*first, *sabr, *own)] == [0] * 12


def test_features_and_durations_matter_in_that_fleet() -> None:
    """The best server class of a job differs from that of its job class for many, in reward and in duration."""
    jobs = changing.draw(2000, seed=5)
    for best in (jobs.reward[0].argmax(axis=1), jobs.rounds.argmin(axis=1), jobs.reward[1].argmax(axis=1)):
        usual = [np.bincount(best[jobs.job_class == k], minlength=3).argmax() for k in range(3)]
        assert 0.2 < (best != np.array(usual)[jobs.job_class]).mean() < 0.8
    assert (jobs.reward[0].argmax(axis=1) != jobs.reward[1].argmax(axis=1)).mean() > 0.2, "the replacement matters"
    assert abs((jobs.late < 0).mean() - changing.NEVER) < 5.0 * (changing.NEVER / len(jobs.late)) ** 0.5
