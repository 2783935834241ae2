"""Driven job by job with the simulator's random numbers, the scheduler repeats the simulator's run, bit for bit."""

from collections.abc import Sequence

import numpy as np
import pytest

from bilinq import Greedy, JobClass, MaxWeight, Policy, Problem, Sabr, Scheduler, ServerClass, simulate
from bilinq.arrays import Array, IntArray
from bilinq.assignment.kernels import draw_distinct
from bilinq.problem.instances import stack
from bilinq.scheduler import slots as module
from bilinq.simulation import Bernoulli
from bilinq.simulation.world import Tape

SLOTS, SEED = 400, 11
POLICIES = [
    Sabr(V=20.0, assignment="distinct", limit="queue"),
    Sabr(V=20.0, assignment="distinct", limit="queue", work_conserving=True, noise="estimate"),
    Sabr(target_wait=15.0, assignment="distinct", limit="queue", radius="calibrated"),
    MaxWeight(V=5.0),
    Greedy(),
]


def problem() -> Problem:
    drawn = Problem.synthetic(job_classes=5, server_classes=3, servers=3, traffic=0.9, seed=4)
    assert drawn.theta is not None
    return drawn.replace(theta=0.4 * drawn.theta)


class Drawn:
    """Rounding with the numbers that the simulator would use, which also spends one on the choice of each job."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.tape = Tape([rng], lambda rng, count: rng.random(count))

    def __call__(self, y: Array, queue: Array, capacity: Array, rng: np.random.Generator, method: str) -> IntArray:
        picks = np.empty((1, *y.shape), np.int64)
        self.tape.provide(1000, int(self.tape.cursor[0]))
        assert draw_distinct(y[None], queue[None], self.tape.numbers, self.tape.cursor, picks) >= 0
        self.tape.cursor += picks.sum()
        return np.asarray(picks[0])


def drive(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> tuple[IntArray, Array]:
    """Return queues (slots, I) and observed rewards (slots,) of a run through `Scheduler`."""
    instances = stack([problem()])
    arrival, _, service, reward, own = map(np.random.default_rng, np.random.SeedSequence((SEED, 0)).spawn(5))
    monkeypatch.setattr(module, "draw", Drawn(service))
    jobs, servers = _classes(problem())
    scheduler = Scheduler(jobs, servers, policy=policy)
    assert isinstance(scheduler._engine, module.SlotEngine)
    scheduler._engine.learnt = policy.start(instances, SLOTS, [own])
    blocks, queues, observed = Bernoulli().blocks(instances, 256, [arrival]), [], []
    for slot in range(SLOTS):
        if slot % 256 == 0:
            block = next(blocks)
        some = block.job_class[0, block.start[0, slot % 256] : block.start[0, slot % 256 + 1]]
        for row in some:
            scheduler.submit(jobs[row].name)
        queues.append(list(scheduler.queue.values()))
        total = 0.0
        for task in scheduler.assign({one.name: 1 for one in servers}):
            i, j = int(task.job_class), int(task.server_class)
            paid = instances.mean_reward[0, i, j] + instances.noise[0, i, j] * reward.standard_normal()
            total += paid
            scheduler.report(task.job, reward=paid)
        observed.append(total)
    return np.array(queues), np.array(observed)


def _classes(one: Problem) -> tuple[Sequence[JobClass], Sequence[ServerClass]]:
    jobs = [JobClass(str(k), features) for k, features in enumerate(one.job_features)]
    return jobs, [ServerClass(str(k), features) for k, features in enumerate(one.server_features)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: repr(policy)[:60])
def test_the_scheduler_repeats_the_simulator(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = simulate(problem(), policy, slots=SLOTS, seed=SEED, service="units")
    queue, observed = drive(policy, monkeypatch)
    assert np.array_equal(queue, runs.queue[0])
    assert np.array_equal(observed, runs.observed[0])
    assert runs.queue[0].sum() > 100  # there was something to schedule
