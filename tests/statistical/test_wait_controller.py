"""Waits follow their target: at constant load, after a step of the load, for a percentile, and where they cannot, Eq. (67).

Runs have fixed seeds and repeat themselves. Over eight seeds the mean waits of second halves were 0.98 to 1.17 targets.
"""

from collections import deque
from collections.abc import Hashable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from bilinq import JobClass, Scheduler, ServerClass, Workload
from bilinq.arrays import Array
from bilinq.live.settings import ServiceSettings
from bilinq.live.watch.load import ObservedLoad
from bilinq.live.watch.prediction import predict_ahead
from bilinq.routing.replay import Playback
from bilinq.routing.router import WaitingJob
from bilinq.routing.scheduler_router import SchedulerRouter
from bilinq.scheduler.classes import RewardRange
from bilinq.scheduler.look_ahead import LookAhead
from bilinq.scheduler.waits import WaitController, Waits

JOBS = 4000
MEAN = np.array([[0.7, 0.2], [0.4, 0.2]])  # of the rewards of two job classes on two server classes


def jobs_at(load: float, seed: int, *, after: float | None = None, jobs: int = JOBS, servers: int = 5) -> Workload:
    """Return jobs of mean duration one for two server classes; the load changes to `after` half-way."""
    rng = np.random.default_rng(seed)
    rate = np.full(jobs, 2.0 * servers * load)
    if after is not None:
        rate[jobs // 2 :] = 2.0 * servers * after
    kind = rng.integers(2, size=jobs)
    return Workload(
        arrival=np.cumsum(rng.exponential(1.0 / rate)), reward=MEAN[kind] + 0.1 * rng.normal(size=(jobs, 2)),
        duration=rng.gamma(4.0, 0.25, (jobs, 2)), servers={"good": servers, "plain": servers}, job_class=kind,
        reward_range=(-0.5, 1.5),
    )  # fmt: skip


class Watched(SchedulerRouter):
    """A router that asks the scheduler about its waits at every arrival."""

    def arrive(self, job: WaitingJob) -> None:
        super().arrive(job)
        self.log: list[Waits] = [*getattr(self, "log", []), self.status] if job.number % 20 == 0 else self.log

    @property
    def status(self) -> Waits:
        found = self.scheduler.waits
        assert found is not None
        return found


class Run(NamedTuple):
    """The waits of all jobs (N,), and every twentieth status."""

    wait: Array
    log: list[Waits]

    @property
    def late(self) -> Array:
        """Waits of the second half of the jobs."""
        return self.wait[len(self.wait) // 2 :]

    @property
    def late_log(self) -> list[Waits]:
        return self.log[len(self.log) // 2 :]


@cache
def run(load: float, seed: int, target: float, percentile: float | None = None) -> Run:
    return follow(jobs_at(load, seed), target, percentile=percentile)


def follow(work: Workload, target: float, **settings: Any) -> Run:
    run = Playback(work, Watched(target, **{k: v for k, v in settings.items() if v is not None}), 1)
    run.go(None)
    assert isinstance(run.router, Watched)
    return Run(run.record("", 0.0).wait, run.router.log)


@pytest.mark.parametrize("target", [0.5, 1.0, 3.0, 10.0])
def test_mean_wait_is_the_target(target: float) -> None:
    """Load 0.8: the mean wait of the second half is within 20 % of targets of 0.5, 1, 3 and 10 mean durations."""
    assert abs(run(0.8, 1, target).late.mean() / target - 1.0) < 0.2


def test_another_target_is_another_wait() -> None:
    """What the test above must reject: a target of 1 does not give waits within 20 % of 0.5 or 3."""
    wait = run(0.8, 1, 1.0).late.mean()
    assert abs(wait / 0.5 - 1.0) > 0.2 and abs(wait / 3.0 - 1.0) > 0.2


def test_step_of_the_load_is_followed_without_oscillation() -> None:
    """From load 0.5 to 0.9: no window of 500 jobs waits more than twice the target, and the last quarter is within 30 %.

    Over six seeds the largest window was 1.39 to 1.79 targets, the smallest 0.88 to 1.01, and the last quarter 1.04 to 1.14.
    """
    target = 2.0
    wait = follow(jobs_at(0.5, 3, after=0.9, jobs=6000), target).wait
    assert abs(wait[4500:].mean() / target - 1.0) < 0.3
    windows = np.convolve(wait[3000:], np.full(500, 1.0 / 500), "valid")
    assert windows.max() < 2.0 * target and windows.min() > 0.4 * target


def test_target_below_what_the_load_allows_is_said_not_to_be_met() -> None:
    """Load 0.97 on four servers makes jobs wait for several mean durations; V is then as low as it gets."""
    found = follow(jobs_at(0.97, 3, jobs=3000, servers=2), 0.02)
    assert found.late.mean() > 0.2
    late = found.late_log
    unmet = [status for status in late if status.met is False]
    assert len(unmet) > 0.9 * len(late)
    told = [status.note.startswith("the load does not allow it") for status in unmet]
    assert np.mean(told) > 0.9


def test_longer_waits_that_would_earn_no_more_are_said_to() -> None:
    """At load 0.3 nearly all jobs can have their best server at once, so nothing makes them wait for 20 mean durations."""
    found = follow(jobs_at(0.3, 3), 20.0)
    assert found.late.mean() < 5.0
    late = found.late_log
    assert np.mean([status.met is False for status in late]) > 0.95
    assert np.mean([status.note.startswith("longer waits would earn no more") for status in late]) > 0.8
    assert not any("no more" in status.note for status in run(0.8, 1, 1.0).late_log)


def test_percentile_below_what_the_load_allows_is_said_not_to_be_met() -> None:
    """The same for 90 % of the jobs: more than 10 % wait longer, whatever V is."""
    found = follow(jobs_at(0.97, 3, jobs=3000, servers=2), 0.02, percentile=0.9)
    assert (found.late > 0.02).mean() > 0.5
    late = found.late_log
    assert np.mean([status.met is False for status in late]) > 0.9
    assert np.mean([status.note.startswith("the load does not allow it") for status in late]) > 0.8


def test_percentile_of_the_waits_is_the_target() -> None:
    """A target for 90 % of the jobs: 5 to 15 % of those of the second half wait longer, and not half of them."""
    late = run(0.8, 4, 2.0, 0.9).late
    assert abs((late > 2.0).mean() - 0.1) < 0.05
    assert abs((run(0.8, 4, 1.0, 0.5).late > 1.0).mean() - 0.5) < 0.1


def test_measured_wait_is_that_of_the_jobs() -> None:
    """The average over about 200 jobs, averaged over 2,000 of them, is their mean wait, within 15 %."""
    for target in (1.0, 3.0):
        found = run(0.8, 1, target)
        measured = float(np.mean([status.measured for status in found.late_log]))
        assert abs(measured / found.late.mean() - 1.0) < 0.15


def test_target_that_is_met_is_said_to_be_met() -> None:
    """Waits of 200 jobs vary, but in most of the second half of a run whose mean wait is the target they are within 20 %."""
    late = run(0.8, 1, 3.0).late_log
    assert np.mean([status.met is True for status in late]) > 0.5


def test_the_dashboard_predicts_the_waits_of_another_target() -> None:
    """From a run with target 1, wait and queue with target 3 are predicted within 20 %; those with target 1 are not they."""
    met = next(status for status in reversed(run(0.8, 1, 1.0).late_log) if status.met)
    rate = np.full(2, 0.5 * 2.0 * 5 * 0.8)
    load = ObservedLoad(rate, np.ones(2), np.array([5.0, 5.0]), MEAN, RewardRange(-0.5, 1.5), earned=0.0)
    found = predict_ahead(["0", "1"], [None, None], load, met, ServiceSettings(target_wait=3.0))
    wait = float(run(0.8, 1, 3.0).late.mean())
    queue = wait * float(rate.sum())  # Little's law
    for measured, now, then in ((wait, found.wait_now, found.wait_then), (queue, found.queue_now, found.queue_then)):
        assert then is not None and abs(measured / then - 1.0) < 0.2
        assert now is not None and abs(measured / now - 1.0) > 0.5


class Counting(WaitController):
    """A controller that adds up what it is given."""

    waited, jobs = 0.0, 0

    def update(self, elapsed: float, waited: float, late: int, arrivals: int, duration: float) -> None:
        super().update(elapsed, waited, late, arrivals, duration)
        self.waited, self.jobs = self.waited + waited, self.jobs + arrivals


class Counted(NamedTuple):
    """What the controller counted over a run: slots waited and jobs, its mean wait at each arrival; and the true waits."""

    waited: float
    jobs: int
    measured: float
    wait: Array


def one_server(pattern: str, units: int = 1, fails: float = 0.0, jobs: int = 4000, seed: int = 2) -> Counted:
    """Serve jobs of one class on one server at load 0.7, in the order of arrival; all waits end.

    The clock is moved by `assign` ("assign"), or by `advance` before each event, with a decision at each event ("advance")
    or only where the server is idle ("idle"). Services fail with probability `fails`, and are repeated.
    """
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0 / (0.7 * (1.0 - fails) / units), jobs))
    one = Scheduler([JobClass("job")], [ServerClass("server")], work_conserving=True, longest_pause=0.0)
    assert isinstance(one._engine, LookAhead)
    controller = one._engine.learnt.waits = Counting(3.0, None)
    now, end, running, k = 0.0, np.inf, -1, 0
    wait, since, measured = np.zeros(jobs), arrival.copy(), list[float]()
    while k < jobs or end < np.inf:
        before, now = now, min(end, arrival[k] if k < jobs else np.inf)
        if pattern != "assign":
            one.advance(now - before)
        if end == now:
            failed, end = bool(rng.random() < fails), np.inf
            gone = one.report(running, None if failed else 0.5, failed=failed)
            since[running] = now
            assert gone or units > 1 or failed
        else:
            one.submit("job", units, job=k)
            k += 1
        if pattern == "idle" and end < np.inf:
            continue
        elapsed = now - before if pattern == "assign" else 0.0
        for task in one.assign({"server": int(end == np.inf)}, elapsed):
            assert isinstance(task.job, int)
            running, end = task.job, now + rng.exponential()
            wait[running] += now - since[running]
        measured.append(controller.wait)
    return Counted(controller.waited, controller.jobs, float(np.mean(measured[len(measured) // 2 :])), wait)


PATTERNS = ("assign", "advance", "idle")


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("units", "fails"), [(1, 0.0), (2, 0.0), (1, 0.3)])
def test_controller_counts_the_time_that_jobs_wait(pattern: str, units: int, fails: float) -> None:
    """The sum of the counted waits is the sum of the waits, to rounding, however the clock moves; Eq. (67)."""
    found = one_server(pattern, units, fails, jobs=500)
    assert found.jobs == 500
    assert found.waited == pytest.approx(found.wait.sum(), rel=1e-9)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_measured_wait_of_one_server_is_that_of_the_queue(pattern: str) -> None:
    """M/M/1 at load 0.7: a mean wait of 0.7 / 0.3, and what is measured is within 3 % of the mean of this run.

    The standard error of the mean of 12,000 waits is 0.17 (the asymptotic variance is 336): 4.5 of them are allowed.
    """
    found = one_server(pattern, jobs=12_000)
    mean = found.wait.mean()
    assert abs(mean - 0.7 / 0.3) < 4.5 * 0.17
    assert abs(found.waited / found.jobs / mean - 1.0) < 1e-9
    late = found.wait[6000:].mean()
    assert abs(found.measured / late - 1.0) < 0.03
    assert abs(0.9 * found.measured / late - 1.0) > 0.03


def with_absent_class(stuck: int, slots: int = 2400) -> tuple[Scheduler, Array]:
    """Serve a job a slot on four servers with a target of three slots; half-way come `stuck` jobs for a class without any.

    Return the scheduler, and the waits of the other jobs of the second half.
    """
    rng = np.random.default_rng(1)
    one = Scheduler([JobClass("chat", servers=["p", "q"]), JobClass("train", servers=["gpu"])],
                    [ServerClass("p"), ServerClass("q"), ServerClass("gpu")], target_wait=3.0)  # fmt: skip
    free, ends, came, waits = {"p": 2, "q": 2}, deque[tuple[int, Hashable, str]](), dict[Hashable, int](), list[int]()
    for t in range(slots):
        while ends and ends[0][0] <= t:
            _, job, name = ends.popleft()
            free[name] += 1
            one.report(job, float(0.6 * (name == "p") + np.clip(0.1 * rng.normal(), -0.4, 0.4)), duration=2.0)
        for _ in range(rng.poisson(1.0)):
            came[one.submit("chat")] = t
        for _ in range(stuck if t == slots // 2 else 0):
            one.submit("train")
        for task in one.assign(free):
            free[task.server_class] -= 1
            ends.append((t + 2, task.job, task.server_class))
            waits += [t - came[task.job]] * (t > slots // 2)
    return one, np.array(waits, float)


def test_jobs_that_no_server_may_serve_do_not_change_the_price_for_others() -> None:
    """A hundred jobs whose server class is offline: the others wait for the target as before, and the note says why.

    With the hundred in the queue V falls by a factor of 4,000 in 1,200 slots, and nobody waits for the better class.
    """
    alone, wait = with_absent_class(0)
    assert abs(wait.mean() / 3.0 - 1.0) < 0.2
    one, found = with_absent_class(100)
    assert abs(found.mean() / 3.0 - 1.0) < 0.2 and 0.5 < one.V / alone.V < 2.0
    assert one.waits is not None and alone.waits is not None
    assert alone.waits.note == "as wanted"
    assert one.waits.note == "as wanted; 100 jobs wait for servers that are not there"


def test_jobs_count_as_arrivals_once_when_their_servers_come() -> None:
    """Five jobs wait for a class; they are counted when it has servers, also after a restart, and not again."""
    one = Scheduler([JobClass("train", servers=["gpu"])], [ServerClass("cpu"), ServerClass("gpu")], target_wait=3.0)
    for _ in range(5):
        one.submit("train")
    for _ in range(10):
        assert one.assign({"cpu": 1}) == []
    again = Scheduler.restore(one.snapshot())
    again.set_job_class(JobClass("train", weight=2.0, servers=["gpu"]))  # the board is made anew
    for each in (one, again):
        assert isinstance(each._engine, LookAhead)
        controller = each._engine.learnt.waits
        assert controller.seen == 0 and controller.wait == 0.0
        for _ in range(3):
            each.assign({"cpu": 1, "gpu": 1})
            assert controller.seen == 5
        assert each.waits is not None and each.waits.note == "too few jobs so far"


def test_measured_wait_is_little_s_law_for_any_pattern_of_decisions() -> None:
    """One job always waits and one arrives every two slots: each waits for two slots, however often there is a decision."""
    often, seldom = WaitController(1.0, None), WaitController(1.0, None)
    for _ in range(1000):
        often.update(0.01, 0.01, 0, 1, 1.0)
        often.update(1.99, 1.99, 0, 0, 1.0)
        seldom.update(2.0, 2.0, 0, 1, 1.0)
    for one in (seldom, often):
        assert abs(one.rate / 0.5 - 1.0) < 0.1
        assert abs(one.wait / 2.0 - 1.0) < 0.1


def test_unanswered_status_before_there_are_jobs() -> None:
    one = WaitController(2.0, None)
    one.update(1.0, 0.0, 0, 1, 1.0)
    assert one.status(1.0).met is None and one.status(1.0).note == "too few jobs so far"
    fixed = WaitController(None, 7.0)
    fixed.update(1.0, 0.0, 0, 1, 1.0)
    assert fixed.V == 7.0 and fixed.status(3.0).met is None and fixed.status(3.0).target == 3.0


def test_price_follows_the_queue_relative_to_that_at_the_target() -> None:
    """Two jobs a slot and a target of three slots are a queue of six, on four servers; Eq. (65) by hand."""
    one = WaitController(3.0, None)
    one.update(10.0, 60.0, 0, 20, 1.0)
    assert abs(one.price(6, 4.0, 1.0) - (1.0 + 6.0 / 4.0) / one.V) < 1e-12
    assert abs(one.price(12, 4.0, 1.0) / one.price(6, 4.0, 1.0) - ((12.0 + 2.5) / (6.0 + 2.5)) ** 2) < 1e-12
    fixed = WaitController(None, 7.0)
    fixed.update(10.0, 60.0, 0, 20, 1.0)
    assert abs(fixed.price(6, 4.0, 1.0) - (1.0 + 6.0 / 4.0) / 7.0) < 1e-12


def test_v_follows_in_closed_form() -> None:
    """No wait at all for a job raises log V by 1 / (100 + jobs / 10 + rate target / 2), no bound is near, Eq. (67)."""
    one = WaitController(2.0, None)
    one.update(1.0, 2.0, 0, 1, 1.0)
    before = one.V
    for _ in range(10):
        one.update(1.0, 0.0, 0, 1, 1.0)
    steps = [1.0 / (100.0 + 0.1 * seen + 1.0 * 2.0 / 2.0) for seen in range(2, 12)]
    assert abs(np.log(one.V / before) - sum(steps)) < 1e-12


def test_price_above_the_target_is_at_least_that_without_one() -> None:
    """For queues of at least that at the target, the second price of Eq. (65) is at least the first: docs/guarantees.md."""
    for target, servers in ((0.5, 1.0), (3.0, 4.0), (50.0, 2.0), (50.0, 500.0)):
        one = WaitController(target, None)
        one.update(10.0, 20.0 * target, 0, 20, 1.0)
        wanted = int(np.ceil(2.0 * target))
        for queue in range(wanted, 40 * wanted + 40, wanted):
            assert one.price(queue, servers, 1.0) >= (1.0 - 1e-12) * (1.0 + queue / servers) / one.V
        assert one.price(0, servers, 1.0) < 1.0 / one.V * (1.0 + wanted / servers)
