"""Replays as runs of the lab: the jobs of a setting by `bilinq.replay`, with services that may be interrupted or not."""

import time
from dataclasses import KW_ONLY, dataclass

import numpy as np

from bilinq.experiments.record import Record
from bilinq.experiments.run import Planned
from bilinq.experiments.settings import SEED_STEP, Synthetic
from bilinq.problem import Problem
from bilinq.problem.oracle import oracle
from bilinq.routing import Router, Workload, replay

RANGE = 1.5  # rewards in [-1, 1] and five standard deviations of the noise


@dataclass(frozen=True)
class PlannedReplay(Planned):
    """A router on the jobs that arrive in `slots` slots, all served to their end.

    A job needs as many slots of service as it has units. If it is `preempted`, it waits again after each of them, as in the
    paper; if not, it keeps its server until it is complete. Both have the same jobs and the same rewards per slot of
    service, with noise that is drawn once for each job and server class.

    A record has, for each replication, `lost`, the best possible reward per slot of service less that of the run; `sojourn`,
    the mean time from the arrival of a job to its end; and `queue`, the jobs in the system, by Little's law.
    """

    setting: Synthetic
    router: Router
    _: KW_ONLY
    preempted: bool

    def chunk(self, number: int) -> Record:
        began, members = time.perf_counter(), self.members(number)
        problems = self.setting.problems(self.seed, members)
        samples = np.array([self._measured(p, k) for p, k in zip(problems, members, strict=True)])
        named = dict(zip(("lost", "sojourn", "queue"), samples.T, strict=True))
        return Record(np.array([self.slots]), {"regret": named["lost"], **named}, {}, time.perf_counter() - began)

    def _measured(self, problem: Problem, replication: int) -> tuple[float, float, float]:
        seed = self.seed * SEED_STEP + replication
        jobs = max(1, round(self.slots * float(problem.arrival_rate.sum())))
        drawn = Workload.from_problem(problem, jobs, seed, arrivals=self.setting.law)
        work = ranged(drawn if self.preempted else uninterrupted(drawn))
        run = replay(work, self.router, seed=seed, progress=_silent)
        earned = run.earned if self.preempted else run.earned * drawn.units
        best, sojourn = oracle(problem).value / float(problem.traffic.sum()), float(run.sojourn.mean())
        return best - float(earned.sum() / drawn.units.sum()), sojourn, sojourn * float(problem.arrival_rate.sum())


def uninterrupted(work: Workload) -> Workload:
    """Return the same jobs with one long service each in place of units; its reward is that of one slot."""
    return Workload(**(work.arguments() | {"units": 1, "duration": work.units[:, None] * work.duration}))


def ranged(work: Workload) -> Workload:
    """Return the same jobs with a range of rewards that does not depend on the noise, which routers scale by."""
    most = max(RANGE, float(np.abs(work.reward).max()))
    return Workload(**(work.arguments() | {"reward_range": (-most, most)}))


def _silent(done: int, total: int) -> None:
    """Show no progress: that of all runs together is shown."""
