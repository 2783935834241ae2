"""The replay against SimPy, event by event, on random small cases with several server classes."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bilinq import Workload, replay
from bilinq.arrays import Array
from bilinq.routing.routers import LeastBusy, RoundRobin

simpy: Any = importlib.import_module("simpy")
CASES = range(30)


def random_case(seed: int) -> Workload:
    """Return up to 60 jobs in continuous time, some pairs not eligible, at loads from light to far too much."""
    rng = np.random.default_rng(seed)
    jobs, J = int(rng.integers(1, 61)), int(rng.integers(1, 5))
    reward = rng.random((jobs, J))
    reward[rng.random((jobs, J)) < 0.2] = np.nan
    reward[np.arange(jobs), rng.integers(J, size=jobs)] = 1.0
    return Workload(
        arrival=np.cumsum(rng.exponential(rng.uniform(0.05, 2.0), jobs)), reward=reward,
        duration=rng.exponential(1.0, (jobs, J)) + 0.01, servers={f"s{j}": int(rng.integers(1, 4)) for j in range(J)},
    )  # fmt: skip


def queues_in_simpy(work: Workload, choose: Callable[[int], int]) -> tuple[Array, Array]:
    """Return starts and ends (N,) where each job joins the queue of a resource on arrival."""
    env = simpy.Environment()
    fleet = [simpy.Resource(env, int(n)) for n in work.capacity]
    start, end = np.full(work.N, np.nan), np.full(work.N, np.nan)

    def job(k: int) -> Iterator[Any]:
        yield env.timeout(work.arrival[k])
        j = choose(k)
        with fleet[j].request() as turn:
            yield turn
            start[k] = env.now
            yield env.timeout(work.duration[k, j])
            end[k] = env.now

    for k in range(work.N):
        env.process(job(k))
    env.run()
    return start, end


def in_turn(work: Workload) -> Callable[[int], int]:
    """Return the rule of round robin: fewest jobs so far for each server, among eligible classes."""
    sent = np.zeros(work.J)

    def choose(k: int) -> int:
        share = np.where(work.eligible[k], (sent + 1) / work.capacity, np.inf)
        sent[j := int(np.argmin(share))] += 1
        return j

    return choose


@pytest.mark.parametrize("seed", CASES)
def test_queues_by_server_class(seed: int) -> None:
    work = random_case(seed)
    run = replay(work, RoundRobin())
    start, end = queues_in_simpy(work, in_turn(work))
    np.testing.assert_allclose(run.start, start, rtol=1e-12)
    np.testing.assert_allclose(run.end, end, rtol=1e-12)


def one_queue_in_simpy(work: Workload) -> tuple[Array, Array]:
    """Return starts (N,) and columns (N,) where jobs wait in one queue for the class with the largest idle part."""
    env = simpy.Environment()
    free, waiting = work.capacity.astype(float), list[int]()
    start, column = np.full(work.N, np.nan), np.full(work.N, -1.0)

    def dispatch() -> None:
        for k in list(waiting):
            part = np.where(work.eligible[k], free / work.capacity, -1.0)
            j = int(np.argmax(part))
            if part[j] > 0.0:
                waiting.remove(k)
                free[j] -= 1
                start[k], column[k] = env.now, j
                env.process(serve(k, j))

    def serve(k: int, j: int) -> Iterator[Any]:
        yield env.timeout(work.duration[k, j])
        free[j] += 1
        dispatch()

    def arrive(k: int) -> Iterator[Any]:
        yield env.timeout(work.arrival[k])
        waiting.append(k)
        dispatch()

    for k in range(work.N):
        env.process(arrive(k))
    env.run()
    return start, column


@pytest.mark.parametrize("seed", CASES)
def test_one_queue_for_all_servers(seed: int) -> None:
    work = random_case(seed)
    run = replay(work, LeastBusy())
    start, column = one_queue_in_simpy(work)
    np.testing.assert_array_equal(run.server, column)
    np.testing.assert_allclose(run.start, start, rtol=1e-12)
