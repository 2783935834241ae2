"""Kernels of a scheduler, compiled or loaded before they are needed."""

from collections.abc import Mapping

from bilinq.scheduler.scheduler import Observation, Scheduler

JOBS = 24  # enough for features to be standardised, and for a fit of scales


def warm(scheduler: Scheduler, job_class: str, servers: Mapping[str, int], reward: float, own: bool = True) -> None:
    """Let a scheduler that nobody needs decide, learn and explain, so that the first real slot does not wait for kernels.

    `reward` is one that is possible. With `own` jobs have features of their own, which a policy by classes does not know.
    """
    for k in range(JOBS):
        job = scheduler.submit(job_class, features=[float(k), 1.0] if own else None)
        if own:
            scheduler.explain(job)
        for task in scheduler.assign(servers, 0.5 if own else 1.0):
            scheduler.report(task.job, reward, duration=0.5)
    if own:
        correction = Observation(job_class, next(iter(servers)), reward=reward, features=[1.0, 1.0], before=reward)
        scheduler.replay([correction])
    scheduler.beliefs()
    _ = scheduler.waits
