"""First come, first served on one server: the waiting time in closed form."""

import numpy as np
import pytest

from agreement import agrees
from bilinq import FirstCome, Problem, Random, simulate
from bilinq.arrays import Array
from bilinq.policies import Policy

ALARM = 1e-4
"""Chance that a true law is rejected, in each assertion."""


def wait_chances(lam: float, mu: float, largest: int) -> Array:
    """Return the chances that a job waits 0, 1, ..., `largest` slots for its first service, in the long run.

    A job that comes finds N jobs, those left over from the slot before. N goes up with chance lam (1 - mu) and down,
    from N > 0, with mu (1 - lam), so it is geometric: P(N = n) = (1 - r) r^n, r = lam (1 - mu) / (mu (1 - lam)). The
    job waits for N services, each geometric with mu; their sum is zero with chance 1 - r and otherwise geometric with
    q = mu (1 - r).
    """
    r = lam * (1.0 - mu) / (mu * (1.0 - lam))
    q = mu * (1.0 - r)
    return np.array([1.0 - r, *(r * q * (1.0 - q) ** k for k in range(largest))])


def waits(policy: Policy, lam: float, mu: float) -> tuple[Array, Array]:
    """Return the mean wait (R,), and the shares of jobs that waited 0 to 3 slots (R, 4), each replication."""
    problem = Problem(arrival_rate=[lam], servers=[1], mean_reward=[[0.5]], service_rate=mu)
    jobs = simulate(problem, policy, slots=5000, replications=150, seed=13).jobs
    assert jobs is not None
    late = (jobs.arrived > 500) & (jobs.arrived < 4800)
    of, wait = jobs.replication[late], jobs.wait[late]
    number = np.bincount(of)
    shares = np.stack([np.bincount(of, wait == k) / number for k in range(4)], axis=1)
    return np.bincount(of, wait) / number, shares


@pytest.mark.parametrize(("lam", "mu"), [(0.3, 0.5), (0.2, 0.6)])
def test_wait_of_a_one_server_queue(lam: float, mu: float) -> None:
    """Mean lam (1 - mu) / (mu (mu - lam)) and distribution; 10 % off in the mean and 3 % in mu are noticed."""
    mean, shares = waits(FirstCome(), lam, mu)
    expected = lam * (1.0 - mu) / (mu * (mu - lam))
    assert agrees(mean, expected, false_alarm=ALARM)
    assert not agrees(mean, 1.1 * expected, false_alarm=ALARM)
    assert agrees(shares, wait_chances(lam, mu, 3), false_alarm=ALARM)
    assert not agrees(shares, wait_chances(lam, 1.03 * mu, 3), false_alarm=ALARM)


def test_another_order_of_service_has_another_wait() -> None:
    """With the same queue: serving jobs at random starts them sooner and ends them no sooner."""
    lam, mu = 0.3, 0.5
    assert not agrees(waits(Random(), lam, mu)[0], lam * (1.0 - mu) / (mu * (mu - lam)), false_alarm=ALARM)


def test_mean_of_the_closed_form_is_that_of_its_distribution() -> None:
    chances = wait_chances(0.3, 0.5, 400)
    assert chances.sum() == pytest.approx(1.0) and chances @ np.arange(401) == pytest.approx(0.3 * 0.5 / (0.5 * 0.2))
