"""The default scheduler of the tests: two classes of jobs and two of servers, and what it has learnt."""

from typing import Any

from bilinq import JobClass, Scheduler, ServerClass

JOBS = [JobClass("chat"), JobClass("code")]
SERVERS = [ServerClass("p"), ServerClass("q")]


def scheduler(**options: Any) -> Scheduler:
    return Scheduler(JOBS, SERVERS, **{"seed": 3, **options})


def mean(one: Scheduler, job_class: str, server_class: str) -> float:
    """Return the learnt mean reward of a pair."""
    known = one.beliefs()
    assert known is not None
    row = [each.name for each in one.job_classes].index(job_class)
    return float(known.mean[row, [each.name for each in one.server_classes].index(server_class)])


def settle(one: Scheduler, services: int = 20, server_class: str = "q", reward: float = 0.5) -> None:
    """Let a server class succeed, so that failures of another are unusual."""
    for k in range(services):
        one.place("chat", server_class, f"settled {k}")
        one.report(f"settled {k}", reward)


def fail_until_paused(one: Scheduler, server: object) -> None:
    """Let a server of p fail until it is paused, after five failures in a row at most."""
    for k in range(5):
        if ("p", server) in one.paused:
            return
        one.place("chat", "p", f"failed {k}", server=server)
        one.report(f"failed {k}", failed=True, done=True)
    assert ("p", server) in one.paused
