"""Replays as runs of the lab: the same jobs with and without preemption, worked out by hand, and their keys."""

from dataclasses import replace

import numpy as np
import pytest

from bilinq import Workload, oracle, replay
from bilinq.experiments import Synthetic
from bilinq.experiments.run import run_chunk
from bilinq.lab.replays import PlannedReplay, ranged, uninterrupted
from bilinq.routing.routers import LeastBusy

RUN = PlannedReplay(
    Synthetic(traffic=2.0, service_rate=0.25, law="poisson"),
    LeastBusy(),
    slots=60,
    preempted=False,
    replications=3,
    seed=4,
)


def test_an_uninterrupted_job_keeps_its_server() -> None:
    """Jobs A of three slots and B of one, one server. Preempted, A goes first again: both start in turn, A first."""
    work = Workload(arrival=[1.0, 1.0], reward=[[0.5], [0.25]], duration=1.0, units=[3, 1], servers={"one": 1})
    parts, whole = replay(work, LeastBusy()), replay(uninterrupted(work), LeastBusy())
    assert parts.attempts.tolist() == [3, 1] and whole.attempts.tolist() == [1, 1]
    assert whole.end.tolist() == [4.0, 5.0] == parts.end.tolist()
    assert parts.earned.tolist() == [1.5, 0.25] and whole.earned.tolist() == [0.5, 0.25]


def test_the_record_is_that_of_the_replays() -> None:
    """Lost and time in the system again, from the replays of the same jobs: earned per slot of service, by length."""
    record = RUN.chunk(0)
    for k, problem in enumerate(RUN.setting.problems(4, range(3))):
        seed = 4 * 1_000_003 + k
        drawn = Workload.from_problem(problem, 30, seed, arrivals="poisson")  # 60 slots at half a job
        run = replay(ranged(uninterrupted(drawn)), LeastBusy(), seed=seed)
        earned = (run.earned * (run.end - run.start)).sum() / (run.end - run.start).sum()
        best = oracle(problem).value / 2.0  # per slot of service: there are two of them per slot on average
        assert record.samples["lost"][k] == pytest.approx(best - earned)
        assert record.samples["sojourn"][k] == pytest.approx((run.end - run.arrival).mean())
        assert record.samples["queue"][k] == pytest.approx(record.samples["sojourn"][k] * 0.5)


def test_chunks_and_keys() -> None:
    """A replication does not depend on the others; whether services are interrupted is part of the key."""
    both = run_chunk(replace(RUN, replications=2), 0)
    np.testing.assert_array_equal(both.samples["lost"], RUN.chunk(0).samples["lost"][:2])
    assert len({RUN.key, replace(RUN, preempted=True).key, replace(RUN, router=LeastBusy()).key}) == 2
