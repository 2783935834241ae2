"""The replay against Ciw on one queue with several servers: event by event, and mean waits over independent seeds."""

import importlib
from typing import Any

import numpy as np
import pytest

from agreement import agrees
from bilinq import Workload, replay
from bilinq.arrays import Array
from bilinq.routing.arrivals import poisson
from bilinq.routing.routers import LeastBusy

ciw: Any = importlib.import_module("ciw")
ALARM = 1e-4
"""Chance that two simulators of the same queue are told apart."""
JOBS, WARM, RUNS = 3000, 400, 24
MORE = 100  # jobs that Ciw ends after those that count: some end before others that arrived earlier
RATE, SERVERS = 1.5, 3  # services of mean one: load 0.5


def jobs_in_ciw(arrivals: Any, services: Any, servers: int, jobs: int, seed: int = 0) -> list[Any]:
    """Return Ciw's records of the first jobs, in the order of arrival."""
    ciw.seed(seed)
    network = ciw.create_network(
        arrival_distributions=[arrivals], service_distributions=[services], number_of_servers=[servers]
    )
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(jobs + MORE, method="Finish")
    return sorted(simulation.get_all_records(), key=lambda record: record.id_number)[:jobs]


def waits_in_ciw(seed: int, rate: float = RATE) -> float:
    exponential = ciw.dists.Exponential
    records = jobs_in_ciw(exponential(rate), exponential(1.0), SERVERS, JOBS, seed)
    return float(np.mean([record.waiting_time for record in records[WARM:]]))


def waits_in_replay(seed: int) -> float:
    rng = np.random.default_rng((5, seed))
    work = one_queue(poisson(RATE, JOBS, rng), rng.exponential(1.0, JOBS), SERVERS)
    return float(replay(work, LeastBusy()).wait[WARM:].mean())


def one_queue(arrival: Array, duration: Array, servers: int) -> Workload:
    return Workload(
        arrival=arrival, reward=np.zeros((arrival.size, 1)), duration=duration[:, None], servers={"a": servers}
    )


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_jobs_start_and_end_at_the_same_times(servers: int) -> None:
    """Both get the same arrivals and durations, at load 0.9."""
    rng = np.random.default_rng(servers)
    gaps, duration = rng.exponential(1.0 / (0.9 * servers), 500), rng.exponential(1.0, 500)
    run = replay(one_queue(np.cumsum(gaps), duration, servers), LeastBusy())
    listed = ciw.dists.Sequential
    records = jobs_in_ciw(listed(gaps.tolist()), listed(duration.tolist()), servers, 500)
    np.testing.assert_allclose(run.start, [record.service_start_date for record in records], rtol=1e-9)
    np.testing.assert_allclose(run.end, [record.service_end_date for record in records], rtol=1e-9)
    assert (run.wait > 0.0).mean() > 0.2


def test_mean_waits_agree() -> None:
    """M/M/3 at load 0.5, each simulator with draws of its own; arrivals that are 10 % faster in one of them are noticed."""
    ours = np.array([waits_in_replay(seed) for seed in range(RUNS)])
    same, faster = (np.array([waits_in_ciw(seed, rate) for seed in range(RUNS)]) for rate in (RATE, 1.1 * RATE))
    assert agrees(ours - same, 0.0, false_alarm=ALARM)
    assert not agrees(ours - faster, 0.0, false_alarm=ALARM)
