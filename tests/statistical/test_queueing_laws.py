"""The simulator against known laws: one queue in closed form, the rule of thumb for queues, and the inputs."""

import itertools
from typing import Any

import numpy as np
import pytest

from agreement import agrees, relative_error
from bilinq import KnownRewards, Problem, simulate
from bilinq.arrays import Array, IntArray
from bilinq.learning import Outcome
from bilinq.policies import Policy
from bilinq.problem.instances import Instances, stack
from bilinq.simulation import Arrivals, Bernoulli, Breakdowns, MarkovModulated, Poisson

ALARM = 1e-4
"""Chance that a true law is rejected, in each assertion."""


class Busy(Policy):
    """One server, never idle while a job waits."""

    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        return np.minimum(capacity[:, None, :], queue[:, :, None] > 0.0)

    def learn(self, state: Any, outcome: Outcome) -> Any:
        return state


def geometric_queue(lam: float, mu: float, largest: int) -> Array:
    """Return the chances of 0, 1, ..., `largest` jobs after arrivals and before service, in the long run.

    From x > 0 the queue goes up with chance lam (1 - mu) and down with mu (1 - lam); from 0 up with lam. Flow up and
    down balance, so p(1) = p(0) lam / (mu (1 - lam)) and then p(x + 1) = r p(x) with r = lam (1 - mu) / (mu (1 - lam)).
    The sum is one for p(0) = 1 - lam / mu.
    """
    r = lam * (1.0 - mu) / (mu * (1.0 - lam))
    first = (1.0 - lam / mu) * lam / (mu * (1.0 - lam))
    return np.array([1.0 - lam / mu, *(first * r**k for k in range(largest))])


@pytest.mark.parametrize(("lam", "mu"), [(0.3, 0.5), (0.2, 0.6), (0.6, 0.75)])
def test_one_server_queue_in_closed_form(lam: float, mu: float) -> None:
    """Mean lam (1 - lam) / (mu - lam), its distribution, and by Little's law the time in the system.

    Means 7 % off are noticed, as are those of the queue counted after service, lam (1 - mu) / (mu - lam).
    """
    problem = Problem(arrival_rate=[lam], servers=[1], mean_reward=[[0.5]], service_rate=mu)
    warm, slots, replications = 500, 6500, 200
    runs = simulate(problem, Busy(), slots=slots, replications=replications, seed=11)
    queue = runs.queue[:, warm:, 0]
    mean = lam * (1.0 - lam) / (mu - lam)
    assert agrees(queue.mean(axis=1), mean, false_alarm=ALARM)
    assert not agrees(queue.mean(axis=1), 1.07 * mean, false_alarm=ALARM)
    assert not agrees(queue.mean(axis=1), lam * (1.0 - mu) / (mu - lam), false_alarm=ALARM)
    chances = geometric_queue(lam, mu, 3)
    seen = np.stack([(queue == k).mean(axis=1) for k in range(4)], axis=1)
    assert agrees(seen, chances, false_alarm=ALARM)
    assert not agrees(seen, geometric_queue(lam, 1.02 * mu, 3), false_alarm=ALARM)
    jobs = runs.jobs
    assert jobs is not None
    late = jobs.arrived > warm
    sojourn = np.bincount(jobs.replication[late], jobs.sojourn[late]) / np.bincount(jobs.replication[late])
    assert agrees(sojourn, mean / lam, false_alarm=ALARM)
    assert not agrees(sojourn, 1.07 * mean / lam, false_alarm=ALARM)


def test_mean_of_the_closed_form_is_that_of_its_distribution() -> None:
    chances = geometric_queue(0.3, 0.5, 200)
    assert chances.sum() == pytest.approx(1.0) and chances @ np.arange(201) == pytest.approx(0.3 * 0.7 / 0.2)


WEIGHTS = np.array([1.0, 2.0, 0.5])


def thumb_system() -> Problem:
    """Return three classes on two server classes with ample capacity; best rewards 0.9, 0.5 and 0.2."""
    return Problem(arrival_rate=[0.3, 0.2, 0.12], servers=[8, 8], mean_reward=[[0.1, 0.9], [0.5, 0.4], [-0.3, 0.2]],
                   service_rate=0.6)  # fmt: skip


def thumb_queues(assignment: str, V: float) -> Array:
    """Return time averages of the queues (R, I) after ten times the longest time that a queue needs to settle."""
    policy = KnownRewards(V=V, weight=WEIGHTS, assignment=assignment)
    runs = simulate(thumb_system(), policy, slots=14_000, replications=40, seed=5, record_jobs=False)
    return np.asarray(runs.queue[:, 7_000:].mean(axis=1))


def rule_of_thumb(V: float) -> Array:
    """Return Q_i = rho_i V (gamma - r_i) / w_i, Eq. (21)."""
    return np.asarray(np.array([0.5, 1 / 3, 0.2]) * V * (1.2 - np.array([0.9, 0.5, 0.2])) / WEIGHTS)


def test_rule_of_thumb() -> None:
    """Eq. (21) is exact where servers pick distinct jobs and no class is ever full or short of jobs: then the mean
    departures mu w Q / (V (gamma - r)) of a slot are linear in Q and equal the arrivals. Five per cent off is noticed.
    """
    queue = thumb_queues("distinct", 200.0)
    expected = rule_of_thumb(200.0)
    assert agrees(queue, expected, false_alarm=ALARM)
    for i in range(3):
        assert not agrees(queue[:, i], 1.05 * expected[i], false_alarm=ALARM)
        assert not agrees(queue[:, i], 0.95 * expected[i], false_alarm=ALARM)


def test_rule_of_thumb_with_independent_picks() -> None:
    """Servers that pick the same job lose a service now and then, so queues are longer: by 0 to 3 % at V = 200.

    A pick meets another of the same slot with a chance of about s_i / Q_i = w_i / (V (gamma - r_i)) < 2 %.
    """
    error = relative_error(thumb_queues("independent", 200.0), rule_of_thumb(200.0))
    assert (np.abs(error) < 0.03).all()


def blocks_of(law: Arrivals, instances: Instances, slots: int, blocks: int, seed: int) -> IntArray:
    """Return the jobs (R, blocks * slots, I) that come in each slot."""
    rngs = [np.random.default_rng((seed, k)) for k in range(instances.count)]
    table = np.zeros((instances.count, blocks * slots, instances.arrival_rate.shape[1]), np.int64)
    for number, block in enumerate(itertools.islice(law.blocks(instances, slots, rngs), blocks)):
        for r in range(instances.count):
            when = np.repeat(np.arange(slots), np.diff(block.start[r])) + number * slots
            np.add.at(table[r], (when, block.job_class[r, : when.size]), 1)
            assert (block.units[r, : when.size] == 1).all()
    return table


RATES = np.array([0.3, 0.05, 0.0, 0.5])


def arrival_counts(law: Arrivals) -> IntArray:
    problem = Problem(arrival_rate=RATES, servers=[2], mean_reward=np.full((4, 1), 0.5))
    return blocks_of(law, stack([problem] * 100), slots=256, blocks=8, seed=3)


@pytest.mark.parametrize("law", [Bernoulli(), Poisson(), MarkovModulated()], ids=repr)
def test_mean_arrivals(law: Arrivals) -> None:
    """Every law brings lambda_i jobs a slot; 10 % off in any class is noticed."""
    rate = arrival_counts(law).mean(axis=1)
    assert agrees(rate, RATES, false_alarm=ALARM)
    for i in (0, 1, 3):
        assert not agrees(rate[:, i], 1.1 * RATES[i], false_alarm=ALARM)


def test_variances_of_arrivals() -> None:
    """Of all jobs of a slot, with rate m = 0.85: m (1 - m), m, and m + m^2 / 2.

    The default chain spends two thirds of its time at 0.5 and one third at 2: mean one, variance one half.
    """
    m = RATES.sum()
    expected = {Bernoulli(): m * (1.0 - m), Poisson(): m, MarkovModulated(): m + 0.5 * m * m}
    for law, variance in expected.items():
        squares = ((arrival_counts(law).sum(axis=2) - m) ** 2).mean(axis=1)
        assert agrees(squares, variance, false_alarm=ALARM), law
        assert not agrees(squares, 1.1 * variance, false_alarm=ALARM), law
        assert law == Poisson() or not agrees(squares, m, false_alarm=ALARM), law


def test_modulated_arrivals_are_scaled_to_mean_one_and_come_in_bursts() -> None:
    """States 1, 3 and 8 in turn: the mean factor is 4, so rates are a quarter, three quarters and twice the nominal.

    With a chain that walks in a circle, slots three apart are in the same state and others are not.
    """
    circle = MarkovModulated(factor=(1.0, 3.0, 8.0), transition=((0, 1, 0), (0, 0, 1), (1, 0, 0)))
    np.testing.assert_allclose(circle.stationary(), np.full(3, 1 / 3))
    problem = Problem(arrival_rate=[4.0], servers=[5], mean_reward=[[0.5]])
    count = blocks_of(circle, stack([problem] * 200), slots=100, blocks=3, seed=4)[:, :, 0]
    assert agrees(count.mean(axis=1), 4.0, false_alarm=ALARM)
    thirds = np.sort(np.stack([count[:, k::3].mean(axis=1) for k in range(3)], axis=1), axis=1)
    assert agrees(thirds, [1.0, 3.0, 8.0], false_alarm=ALARM)
    assert not agrees(thirds, [1.1, 3.0, 8.0], false_alarm=ALARM)


def test_modulated_arrivals_start_in_the_stationary_law() -> None:
    """The first slot has the nominal rate, too, over many replications."""
    problem = Problem(arrival_rate=[1.0], servers=[2], mean_reward=[[0.5]])
    law = MarkovModulated(factor=(0.0, 3.0), transition=((0.99, 0.01), (0.02, 0.98)))
    first = blocks_of(law, stack([problem] * 4000), slots=1, blocks=1, seed=6)[:, 0, 0]
    assert agrees(first, 1.0, false_alarm=ALARM)
    assert not agrees(first, 1.2, false_alarm=ALARM)


def test_breakdowns_leave_their_share_of_servers_up() -> None:
    """n repair / (fail + repair) on average, and variance n p (1 - p) with p = repair / (fail + repair) = 0.75."""
    problem = Problem(arrival_rate=[0.5], servers=[8, 3], mean_reward=[[0.5, 0.5]])
    instances = stack([problem] * 60)
    rngs = [np.random.default_rng((7, k)) for k in range(60)]
    law = Breakdowns(fail=0.1, repair=0.3).blocks(instances, 200, rngs)
    up = np.concatenate([next(law) for _ in range(5)], axis=1)[:, 50:]
    servers = np.array([8.0, 3.0])
    assert agrees(up.mean(axis=1), 0.75 * servers, false_alarm=ALARM)
    assert not agrees(up.mean(axis=1), 0.79 * servers, false_alarm=ALARM)
    squares = ((up - 0.75 * servers) ** 2).mean(axis=1)
    assert agrees(squares, servers * 0.75 * 0.25, false_alarm=ALARM)
    assert not agrees(squares, servers * 0.75, false_alarm=ALARM)


def test_rewards_and_completions_have_their_means() -> None:
    """One job a slot on one server: the observed reward has mean r and variance sigma^2, a service completes with mu."""
    problem = Problem(arrival_rate=[0.2], servers=[1], mean_reward=[[0.3]], noise=0.5, service_rate=0.4)
    runs = simulate(problem, Busy(), slots=4000, replications=50, seed=8)
    assert runs.jobs is not None
    busy = runs.queue[:, :, 0] > 0
    observed = np.where(busy, runs.observed - 0.3, 0.0)
    assert agrees(observed.mean(axis=1), 0.0, false_alarm=ALARM)
    assert not agrees(observed.mean(axis=1), 0.01, false_alarm=ALARM)
    squares = (observed**2).sum(axis=1) / busy.sum(axis=1)
    assert agrees(squares, 0.25, false_alarm=ALARM)
    assert not agrees(squares, 0.26, false_alarm=ALARM)
    completed = np.bincount(runs.jobs.replication, minlength=50) / busy.sum(axis=1)
    assert agrees(completed, 0.4, false_alarm=ALARM)
    assert not agrees(completed, 0.42, false_alarm=ALARM)
