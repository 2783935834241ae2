"""The replay: no job twice, eligible pairs only, no more services than servers, and the same seed gives the same run."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bilinq import Outage, Router, SchedulerRouter, Workload, replay
from bilinq.routing.routers import ROUTERS, CMu, LeastBusy, MaxWeightRouter
from workloads import Logged, Start

THOROUGH = settings(max_examples=60, deadline=None, derandomize=True)
CONSERVING: list[Router] = [LeastBusy(), MaxWeightRouter(), CMu()]
ANY: list[Router] = [family() for name, family in ROUTERS.items() if name != "scheduler"]


@st.composite
def workloads(draw: st.DrawFn, all_eligible: bool = False) -> Workload:
    """Draw up to 25 jobs at whole times, so that much happens at once, with all that can go wrong."""
    N, J = draw(st.integers(1, 25)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    reward = rng.random((N, J))
    if not all_eligible:
        reward[rng.random((N, J)) < 0.3] = np.nan
        reward[np.arange(N), rng.integers(J, size=N)] = 0.5
    servers = {f"s{j}": int(rng.integers(1, 3)) for j in range(J)}
    outages = [Outage(f"s{rng.integers(J)}", a, a + b, 1) for a, b in rng.integers(1, 9, (draw(st.integers(0, 2)), 2))]
    return Workload(
        arrival=np.sort(rng.integers(0, 10, N)), reward=reward, duration=rng.integers(1, 4, (N, J)), servers=servers,
        job_class=rng.integers(2, size=N), features=rng.normal(size=(N, 2)), outages=outages,
        deadline=draw(st.sampled_from([None, 0.0, 3.0])), units=rng.integers(1, 3, N),
        failure=draw(st.sampled_from([0.0, 0.3])), max_attempts=2, reward_delay=draw(st.sampled_from([0.0, 2.5])),
        reward_missing=draw(st.sampled_from([0.0, 0.5])),
    )  # fmt: skip


def check(work: Workload, starts: list[Start], run: Any) -> None:
    """Check that services are eligible, do not overlap for a job, and never exceed the servers."""
    number = np.bincount([one.job for one in starts], minlength=work.N)
    np.testing.assert_array_equal(number, run.attempts)
    ends = [one.time + work.duration[one.job, one.column] for one in starts]
    for k, one in enumerate(starts):
        assert work.eligible[one.job, one.column] and one.time >= work.arrival[one.job]
        others = [j for j, other in enumerate(starts) if j != k and other.time <= one.time < ends[j]]
        assert all(starts[j].job != one.job for j in others)
        out = sum(
            o.servers for o in work.outages if work.column(o.server_class) == one.column and o.start <= one.time < o.end
        )
        busy = [j for j in others if starts[j].column == one.column]
        assert len(busy) + 1 <= work.capacity[one.column]
        earlier = sum(starts[j].time < one.time or j < k for j in busy)
        assert earlier + 1 <= work.capacity[one.column] - out


@THOROUGH
@given(workloads(), st.sampled_from(ANY), st.integers(0, 99))
def test_services_are_sound_and_repeatable(work: Workload, router: Router, seed: int) -> None:
    starts: list[Start] = []
    run = replay(work, Logged(router, starts), seed)
    check(work, starts, run)
    assert (run.complete | run.expired | (run.attempts >= 2)).all()  # all jobs leave
    assert not (run.expired & (run.attempts > 0)).any()
    assert (run.busy <= work.capacity).all() and (run.queue >= 0).all()
    again = replay(work, router, seed)
    for name in ("server", "start", "end", "reward", "earned", "attempts", "expired", "queue", "busy"):
        np.testing.assert_array_equal(getattr(run, name), getattr(again, name))


@THOROUGH
@given(workloads(), st.sampled_from(CONSERVING))
def test_work_conserving_routers_never_idle_with_work(work: Workload, router: Router) -> None:
    idle: list[tuple[float, int, int]] = []
    replay(work, Logged(router, [], idle))
    assert idle == []


@settings(max_examples=15, deadline=None, derandomize=True)
@given(workloads(all_eligible=True))
def test_the_scheduler_is_sound_and_repeatable(work: Workload) -> None:
    starts: list[Start] = []
    run = replay(work, Logged(SchedulerRouter(target_wait=1.0), starts))
    check(work, starts, run)
    np.testing.assert_array_equal(run.start, replay(work, SchedulerRouter(target_wait=1.0)).start)
