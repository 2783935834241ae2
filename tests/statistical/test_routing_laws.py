"""The replay against Erlang C, Erlang B, Pollaczek and Khinchine, and the slotted simulator; arrivals in bursts."""

from math import factorial

import numpy as np

from agreement import agrees
from bilinq import FirstCome, Problem, Workload, replay, simulate
from bilinq.arrays import Array
from bilinq.routing.arrivals import bursty, dispersion, poisson
from bilinq.routing.routers import LeastBusy, RandomChoice

ALARM = 1e-4
"""Chance that a true law is rejected, in each assertion."""
WARM = 500  # jobs before a queue is measured


def erlang_b(servers: int, load: float) -> float:
    """Return the part of jobs that is lost if none may wait."""
    terms = [load**k / factorial(k) for k in range(servers + 1)]
    return terms[-1] / sum(terms)


def erlang_c(servers: int, load: float) -> float:
    """Return the chance that a job must wait."""
    lost = erlang_b(servers, load)
    return lost / (1.0 - load / servers * (1.0 - lost))


def mean_waits(servers: int, rate: float, exponential: bool, runs: int = 24, jobs: int = 6000) -> Array:
    """Return the mean wait of each run (runs,), services of mean one."""
    found = []
    for seed in range(runs):
        rng = np.random.default_rng((1, seed))
        duration = rng.exponential(1.0, (jobs, 1)) if exponential else 1.0
        work = Workload(
            arrival=poisson(rate, jobs, rng), reward=np.zeros((jobs, 1)), duration=duration, servers={"a": servers}
        )
        found.append(replay(work, LeastBusy()).wait[WARM:].mean())
    return np.array(found)


def test_waits_of_exponential_services() -> None:
    """M/M/3 at load 0.7: C / (c - a); 15 % off is rejected, and so is the wait of three separate queues.

    The mean wait of a run of 8,000 jobs varies by about 10 %, so that of 40 runs by 1.6 %, and 4.4 times this is noticed.
    """
    waits, expected = mean_waits(3, 2.1, exponential=True, runs=40, jobs=8000), erlang_c(3, 2.1) / (3 - 2.1)
    assert agrees(waits, expected, false_alarm=ALARM)
    for factor in (0.85, 1.15):
        assert not agrees(waits, factor * expected, false_alarm=ALARM)
    assert not agrees(waits, 0.7 / 0.3, false_alarm=ALARM)


def test_waits_of_equal_services() -> None:
    """M/D/1 at load 0.6: rho / (2 (1 - rho)); 10 % off is rejected, and so is twice as much, that of M/M/1."""
    waits, expected = mean_waits(1, 0.6, exponential=False), 0.6 / (2 * 0.4)
    assert agrees(waits, expected, false_alarm=ALARM)
    for factor in (0.9, 1.1, 2.0):
        assert not agrees(waits, factor * expected, false_alarm=ALARM)


def test_split_arrivals_are_separate_queues() -> None:
    """Random choice among three equal server classes makes three M/M/1 queues: rho / (1 - rho)."""
    found = []
    for seed in range(24):
        rng = np.random.default_rng((2, seed))
        duration = rng.exponential(1.0, (6000, 3))
        work = Workload(arrival=poisson(1.5, 6000, rng), reward=np.zeros((6000, 3)), duration=duration,
                        servers={"a": 1, "b": 1, "c": 1})  # fmt: skip
        found.append(replay(work, RandomChoice(), seed).wait[WARM:].mean())
    assert agrees(found, 1.0, false_alarm=ALARM)
    assert not agrees(found, 1.1, false_alarm=ALARM)
    assert not agrees(found, erlang_c(3, 1.5) / 1.5, false_alarm=ALARM)


def losses(seed: int, jobs: int = 6000) -> list[float]:
    """Return the lost part of two classes and the mean number of busy servers; no job may wait."""
    rng = np.random.default_rng((3, seed))
    kind = rng.random(jobs) < 0.4
    duration = np.where(kind, rng.exponential(3.0, jobs), 1.0)[:, None]
    work = Workload(arrival=poisson(2.0, jobs, rng), reward=np.zeros((jobs, 1)), duration=duration, servers={"a": 5},
                    job_class=kind.astype(int), deadline=0.0)  # fmt: skip
    run = replay(work, LeastBusy())
    lost = run.expired[WARM:]
    return [lost[kind[WARM:]].mean(), lost[~kind[WARM:]].mean(), run.busy[100:, 0].mean()]


def test_a_loss_system_of_two_classes_has_erlang_s_product_form() -> None:
    """Load 0.8 * 3 + 1.2 * 1 = 3.6 on five servers, whatever the law of durations; 10 % off is rejected."""
    lost = erlang_b(5, 3.6)
    found, expected = np.array([losses(seed) for seed in range(24)]), np.array([lost, lost, 3.6 * (1.0 - lost)])
    assert agrees(found, expected, false_alarm=ALARM)
    for k in range(3):
        assert not agrees(found[:, k], 1.1 * expected[k], false_alarm=ALARM)
    assert not agrees(found[:, 0], erlang_b(5, 2.0 * 3.0), false_alarm=ALARM)


def test_bursty_arrivals_have_their_rate_and_dispersion() -> None:
    """Counts in windows of 100 correlation times: mean and index of dispersion as in closed form, a tenth off is noticed."""
    law = {"burst": 5.0, "share": 0.2, "length": 1.0}
    window, rate = 80.0, 3.0  # the chain forgets at rate 1 + 0.25
    means, squares = [], []
    for seed in range(40):
        times = bursty(rate, 16_000, np.random.default_rng((4, seed)), **law)
        count = np.bincount((times / window).astype(int))[:60]
        means.append(count.mean() / window)
        squares.append(((count - rate * window) ** 2).mean() / (rate * window))
    edge = (dispersion(rate, **law) - 1.0) / (1.25 * window)  # what a finite window lacks
    assert agrees(means, rate, false_alarm=ALARM) and not agrees(means, 1.1 * rate, false_alarm=ALARM)
    expected = dispersion(rate, **law) - edge
    assert agrees(squares, expected, false_alarm=ALARM)
    assert not agrees(squares, 1.3 * expected, false_alarm=ALARM) and not agrees(squares, 1.0, false_alarm=ALARM)
    assert dispersion(rate, burst=1.0) == 1.0


def test_a_problem_replayed_agrees_with_the_slotted_simulator() -> None:
    """First come, first served on two servers: time in the system, its mean and its distribution; 8 % off is noticed."""
    problem = Problem(arrival_rate=[0.3, 0.3], servers=[2], mean_reward=[[0.5], [0.2]], service_rate=[0.4, 0.5])
    slots, replications = 5000, 40
    runs = simulate(problem, FirstCome(), slots=slots, replications=replications, seed=3)
    assert runs.jobs is not None
    slotted, replayed = [], []
    for k in range(replications):
        mine = runs.jobs.sojourn[(runs.jobs.replication == k) & (runs.jobs.arrived > 200)]
        slotted.append([mine.mean(), (mine <= 2).mean()])
        work = Workload.from_problem(problem, 3000, seed=k)
        sojourn = replay(work, LeastBusy()).sojourn[100:]
        replayed.append([sojourn.mean(), (sojourn <= 2).mean()])
    gap, size = np.array(slotted) - np.array(replayed), np.array(replayed).mean(axis=0)
    assert agrees(gap, [0.0, 0.0], false_alarm=ALARM)
    for k in range(2):
        assert not agrees(gap[:, k], 0.08 * size[k], false_alarm=ALARM)
