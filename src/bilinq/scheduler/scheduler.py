"""The scheduler to embed: submit jobs, get assignments, report rewards. It has no clock, no threads, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, non_negative, positive, scalar, short
from bilinq.errors import BadInput
from bilinq.scheduler.core import Core
from bilinq.scheduler.engine import Service
from bilinq.scheduler.explain import Decision, Explanation, explanation
from bilinq.scheduler.ledger import Entry, Job, Served, job_features, waiting_entry
from bilinq.scheduler.slots import SlotEngine


class Assignment(NamedTuple):
    """A job that a server should serve now; `server` is the caller's name of it, or None."""

    job: Job
    job_class: str
    server_class: str
    server: Hashable


class Observation(NamedTuple):
    """A service in a log, in the caller's units, which `Scheduler.replay` learns from.

    `reward` and `duration` are None where they are not known; a service that `failed` has neither. A correction has the
    reward that it replaces as `before`, and the `epoch` in which that was reported.
    """

    job_class: str
    server_class: str
    reward: float | None = None
    duration: float | None = None
    failed: bool = False
    features: Sequence[float] | None = None
    before: float | None = None
    epoch: int = 0


class Scheduler(Core):
    """A scheduler that learns where each job pays best and keeps every queue short.

    In every slot the caller passes the idle servers and gets jobs for some of them; when a job has been served, the
    caller reports its reward, which counts from the next slot on. Jobs have a class and may have features of their own. A
    job may wait for a better server that is free soon, if that is worth the wait, Eq. (63).

    Parameters
    ----------
    job_classes, server_classes : sequences of JobClass and of ServerClass
        At least one of each.
    target_wait : float, optional
        How long jobs may wait on average, in slots; default: a mean duration, which is learnt. Where longer waits earn
        nothing, jobs wait less.
    percentile : float, optional
        A part of the jobs, such as 0.95, that `target_wait` is meant for, in place of the mean.
    V : float, optional
        The weight of rewards against waiting itself, in place of `target_wait`.
    work_conserving : bool
        Whether no server idles while a job waits that it may serve.
    exploration : "thompson", "ucb" or "none"
        How to try what is not known yet; all use the noise that is measured.
    reward : RewardRange or (low, high)
        The range of rewards in the caller's units.
    failure_reward : float, optional
        What a failed service is worth; default: the low end of the range.
    keep : int
        How many jobs that have left are kept for late and corrected rewards.
    longest_pause : float, optional
        The longest pause of a server that fails, in slots; default: 1,024 mean durations. Zero: servers are never paused.
    policy : Policy, optional
        A policy of the simulator in place of the look-ahead, such as `Sabr`; it has its own settings.
    seed : int

    Examples
    --------
    >>> scheduler = Scheduler(
    ...     [JobClass("chat"), JobClass("code")], [ServerClass("small"), ServerClass("large")], reward=(0.0, 10.0), seed=7
    ... )
    >>> scheduler.submit("code", features=[0.3, 1.2])
    1
    >>> [task] = scheduler.assign({"large": 1})
    >>> task.job, task.job_class, task.server_class
    (1, 'code', 'large')
    >>> scheduler.report(task.job, reward=8.0)
    True
    """

    # Jobs

    def submit(
        self,
        job_class: str,
        units: int = 1,
        job: Job | None = None,
        *,
        features: ArrayLike | None = None,
        servers: Sequence[str] | None = None,
        weight: float | None = None,
        deadline: float | None = None,
        duration: Mapping[str, float] | None = None,
        cost: Mapping[str, float] | None = None,
        avoid: Hashable = None,
        waited: float = 0.0,
        ahead: bool = False,
        pool: str | None = None,
    ) -> Job:
        """Queue a job and return its name: `job` if given, else the next number.

        Parameters
        ----------
        job_class : str
        units : int
            Services that it needs; it waits again in between.
        job : hashable, optional
            Its name.
        features : (d,) array, optional
            Features of this job, beside those of its class; of the same length for all jobs that have some.
        servers : sequence of str, optional
            The server classes that may serve it; default: those of its class.
        weight : float, optional
            Its priority; default: that of its class.
        deadline : float, optional
            Slots after which it leaves if it has not started; `expired` lists such jobs.
        duration : mapping from server class to slots, optional
            Durations that are known; others are learnt.
        cost : mapping from server class to a number, optional
            What a service there costs in units of rewards beside what is learnt, such as a price that changes: it counts in
            the decision, and is no part of the reward that is reported.
        avoid : hashable, optional
            A server that serves it only if no other one of the same class is idle: one that has just failed it.
        waited : float
            Slots that it has waited before, elsewhere or until it was taken back.
        ahead : bool
            Whether it waits ahead of the others of its class, as one that comes back does.
        pool : str, optional
            The pool that it belongs to; see `assign_pools`.
        """
        self._roster.row(job_class)
        age = scalar("waited", waited, non_negative) if waited != 0.0 else 0.0
        name = self._next if job is None else job
        entry = waiting_entry(job_class, units, self._serial + 1, self._now, features=features, servers=servers,
                              weight=weight, deadline=deadline, duration=duration, avoid=avoid, pool=pool,
                              cost=self._scaled(cost))  # fmt: skip
        self._engine.check(entry)
        self._jobs.add(name, entry)
        if age > 0.0 or ahead:
            entry.since -= age
        elif not self._exact:
            self._fresh[name] = entry
        self._engine.add(name, entry, first=ahead)
        self._serial += 1
        if job is None:
            self._next += 1
        return name

    def _scaled(self, cost: Mapping[str, float] | None) -> Mapping[str, float] | None:
        """Return costs on the scale of [-1, 1]; what is no mapping of numbers is refused later."""
        if not isinstance(cost, Mapping):
            return cost
        return {name: scalar(f"cost[{name!r}]", value, non_negative) / self._range.unit for name, value in cost.items()}

    def advance(self, elapsed: float) -> None:
        """Move the clock without a decision, where arrivals between two slots should have their own times.

        Jobs that are submitted or reported after it, and before the next slot, arrive or end at the time that it has set.
        """
        self._move(scalar("elapsed", elapsed, non_negative))
        self._exact = True

    def _move(self, elapsed: float) -> None:
        """Move the clock; jobs that came since the last slot, and not after `advance`, have come at its new time."""
        if elapsed > 0.0:
            self._now += elapsed
            for entry in self._fresh.values():
                entry.deadline += elapsed
                entry.since += elapsed
                entry.queued = self._now
            self._engine.arrived(self._fresh.items())
            self._fresh = {}
            self._exact = False

    def assign(self, idle: Mapping[str, int | Sequence[Hashable]], elapsed: float = 1.0) -> list[Assignment]:
        """Learn from what was reported, and return jobs for some of the idle servers: one slot.

        Parameters
        ----------
        idle : mapping from server class to a number, or to a list of servers
            Servers that can take a job now; classes that are left out have none. A single server is a list, too: ["gpu-7"].
        elapsed : float
            Slots since the last call, where calls are not at equal intervals; zero for a second call at the same time,
            unless there is a `policy`.
        """
        time = self._begin(elapsed)
        return self._decide(self._idle(idle), self._out, time, None)

    def assign_pools(
        self, groups: Sequence[tuple[Collection[str], Mapping[str, int | Sequence[Hashable]]]], elapsed: float = 1.0
    ) -> list[Assignment]:
        """Do the same where not every server may serve every job.

        A job with a pool is served only by servers of a group with that pool, and one without by all.

        Parameters
        ----------
        groups : sequence of (pools, idle)
            Idle servers with equal rights, and the pools whose jobs they may serve. Groups choose one after the other, and
            take turns to be the first.
        elapsed : float
        """
        time, tasks = self._begin(elapsed), list[Assignment]()
        all_idle = [(pools, self._idle(idle)) for pools, idle in groups]
        capacity = np.array([[float(len(some)) for some in servers] for _, servers in all_idle])
        expected = None
        for turn in range(len(all_idle)):
            k = (self._slot + turn) % len(all_idle)  # none is always the first to choose
            pools, servers = all_idle[k]
            others = capacity.sum(axis=0) - capacity[k]  # they are there, though not for these jobs
            tasks += self._decide(servers, self._out + others, time, pools)
            expected = self._engine.expected if expected is None else expected + self._engine.expected
        if expected is not None:
            self._engine.expected = expected
        return tasks

    def _begin(self, elapsed: float) -> float:
        """Begin a slot: move the clock and drop the jobs whose deadline has passed; return the time that has passed."""
        time = scalar("elapsed", elapsed, positive if isinstance(self._engine, SlotEngine) else non_negative)
        self._move(time)
        self._fresh = {}  # a decision sees them now, so they have come
        self._slot += 1
        for job in self._engine.expired(self._now):
            self._drop(job)
            self._expired.append(job)
        return time

    def _decide(
        self, servers: list[Sequence[Hashable]], out: Array, elapsed: float, pools: Collection[str] | None
    ) -> list[Assignment]:
        """Let the engine choose jobs of some pools for idle servers, column by column; `out` are the other servers (J,)."""
        capacity = np.array([float(len(some)) for some in servers])
        tasks, free, names, columns = [], [deque(some) for some in servers], list(self._roster.servers), list[int]()
        for job, column, decision in self._engine.decide(capacity, out, self._now, elapsed, pools):
            entry, name = self._jobs.get(job), names[column]
            entry.out, entry.started, entry.decision = name, self._now, decision
            server = entry.server = _take(free[column], entry.avoid)
            self._pauses.began(name, server)
            columns.append(column)
            tasks.append(Assignment(job, entry.job_class, name, server))
        self._out += np.bincount(columns, minlength=len(names)) if columns else 0.0
        return tasks

    def report(
        self,
        job: Job,
        reward: float | None = None,
        done: bool | None = None,
        duration: float | None = None,
        failed: bool = False,
    ) -> bool:
        """Report that a service has ended; return whether the job has left.

        Parameters
        ----------
        job : hashable
            A job that was assigned to a server.
        reward : float, optional
            In the caller's units; without it the job may be rewarded later, see `late_reward`.
        done : bool, optional
            Whether the job is complete; default: after its last unit. If not, it waits again, ahead of its class.
        duration : float, optional
            Slots that it took; default: from the slot of its assignment to the next one.
        failed : bool
            Whether the service failed. It then counts as one of the lowest reward, the unit is not done, and a server
            that fails more than others gets fewer jobs.
        """
        entry = self._jobs.out(job)
        assert entry.out is not None
        if failed and reward is not None:
            raise BadInput(f"reward must be None for a failed service; got {reward:g}")
        value = self._failure if failed else None if reward is None else self._range.scaled(reward)
        took = None if duration is None else scalar("duration", duration, positive)
        began = None if failed else entry.started
        self._engine.observe(
            Service(job, entry.job_class, entry.out, entry.features, value, None if failed else took, began)
        )
        server_class = entry.out
        self._pauses.note(server_class, entry.server, failed, self._now, self._engine.mean_duration(), job)
        self._end_service(entry)
        if not failed:
            entry.units = max(entry.units - 1, 0 if done is None else 1)
        if done or (done is None and not entry.units):
            self._jobs.remove(job)
            self._engine.leave(job)
            epoch = self._engine.epoch(server_class)
            self._archive.add(job, Served(entry.job_class, server_class, entry.features, value, epoch))
            return True
        entry.since += self._now - entry.started  # only time in the queue counts
        entry.queued, entry.deadline = self._now, inf  # it has started
        if not self._exact:
            self._fresh[job] = entry  # the service ends at the next slot
        self._engine.add(job, entry, first=True)
        return False

    def late_reward(self, job: Job, reward: float) -> None:
        """Reward a job that has left; the same reward again counts once, another one corrects the first.

        Raises
        ------
        BadInput
            If the job is not one of the last `keep` that were served and have left.
        """
        served, value = self._archive.get(job), self._range.scaled(reward)
        if served.job_class not in self._roster.jobs or served.server_class not in self._roster.servers:
            raise BadInput(
                f"job must be of classes that are still there; got {short(job)}, served by {served.server_class!r}"
            )
        service = Service(
            None, served.job_class, served.server_class, served.features, value, None, None, shared=served.shared
        )
        if served.reward is None:
            self._engine.observe(service)
            served.epoch = self._engine.epoch(served.server_class)
        elif served.reward != value:
            self._engine.correct(service, served.reward, served.epoch)
        served.reward = value

    @property
    def awaited(self) -> int:
        """How many jobs have left without a reward so far; at most `keep` of them are kept."""
        return self._archive.awaited

    def place(
        self, job_class: str, server_class: str, job: Job, units: int = 1, *, features: ArrayLike | None = None,
        servers: Sequence[str] | None = None, weight: float | None = None, server: Hashable = None, pool: str | None = None,
    ) -> None:  # fmt: skip
        """Add a job that is at a server already, for example after a restart.

        The arguments are those of `submit`, and `server` is the name of the server. Eligible `servers` and `weight` count
        when the job comes back to the queue.
        """
        self._roster.row(job_class)
        column = self._roster.column(server_class)
        self._serial += 1
        entry = waiting_entry(job_class, units, self._serial, self._now, features=features, servers=servers, weight=weight,
                              pool=pool)  # fmt: skip
        entry.started, entry.out, entry.server = self._now, server_class, server
        self._engine.check(entry)
        self._jobs.add(job, entry)
        self._engine.place(job, entry)
        self._out[column] += 1.0

    def give_back(self, job: Job) -> None:
        """Return a job to its queue, ahead of its class, as if it had not been assigned."""
        entry = self._jobs.out(job)
        assert entry.out is not None
        self._pauses.given_back(entry.out, entry.server)
        self._end_service(entry)
        entry.queued = self._now
        self._engine.give_back(job, entry)

    def cancel(self, job: Job) -> None:
        """Remove a job, whether it waits or is assigned."""
        self._drop(job)

    def expired(self) -> list[Job]:
        """Return the jobs whose deadline has passed since the last call; they have left."""
        found, self._expired = self._expired, []
        return found

    def observe(self, rewards: Iterable[Sequence[Any]]) -> None:
        """Learn from other services: tuples of job class, server class and reward in the caller's units.

        A fourth value is the weight, how many services the reward stands for, as in a table of means; a fifth are the
        features of the job. Both may be left out.
        """
        for job_class, server_class, reward, *more in rewards:
            self._roster.row(job_class), self._roster.column(server_class)
            weight = scalar("weight", more[0], positive) if more else 1.0
            features = job_features(more[1]) if len(more) > 1 else None
            value = self._range.scaled(reward)
            self._engine.observe(Service(None, job_class, server_class, features, value, None, None, weight))

    def replay(self, log: Iterable[Observation]) -> None:
        """Learn from a log of services, in its order, as if each had been reported here.

        The same log gives the same learnt state bit for bit, also in parts, and after a snapshot in between. Rewards that
        were given late, and corrections, are further observations of the same service.
        """
        for one in log:
            self._roster.row(one.job_class), self._roster.column(one.server_class)
            value = self._failure if one.failed else None if one.reward is None else self._range.scaled(one.reward)
            took = None if one.duration is None else scalar("duration", one.duration, positive)
            features = job_features(one.features)
            service = Service(None, one.job_class, one.server_class, features, value, took, None)
            if one.before is None:
                self._engine.observe(service)
            else:
                self._engine.correct(service, self._range.scaled(one.before), one.epoch)

    def epoch(self, server_class: str) -> int:
        """Return a number that changes when earlier rewards of a server class stop to count; corrections need it."""
        return self._engine.epoch(server_class)

    def mark_new(self, server_class: str) -> None:
        """Forget what was learnt of a server class that was replaced; it starts from what all servers share."""
        self._roster.column(server_class)
        self._engine.forget(server_class)
        self._pauses.forget(server_class)

    def trust(self, server_class: str, server: Hashable) -> None:
        """End the pause of a server that was repaired, and forget its failures; what was learnt stays."""
        self._roster.column(server_class)
        self._pauses.trust(server_class, server)

    def explain(self, job: Job) -> Explanation:
        """Return why a job is where it is: value, uncertainty, price and probability of each eligible server class.

        For a job that waits these are estimates of now; for one that is assigned, those of the decision.
        """
        entry = self._jobs.get(job)
        decision = entry.decision
        if entry.out is None:
            decision = self._engine.explain(job, entry, self._out, self._now)
        if decision is None:
            raise BadInput(f"job must have been assigned by this scheduler since it was created; got {short(job)}")
        return explanation(job, entry.job_class, entry.out, decision, self._range.low, self._range.unit)

    def decision(self, job: Job) -> Decision | None:
        """Return the numbers behind the assignment of a job that is at a server, as they are; None if there are none."""
        return self._jobs.out(job).decision

    def _end_service(self, entry: Entry) -> None:
        assert entry.out is not None
        self._out[self._roster.column(entry.out)] -= 1.0
        entry.out = entry.server = entry.decision = None

    def _drop(self, job: Job) -> None:
        entry = self._jobs.get(job)
        if entry.out is None:
            self._engine.remove(job, entry)
        else:
            self._pauses.given_back(entry.out, entry.server)
            self._end_service(entry)
            self._engine.leave(job)
        self._fresh.pop(job, None)
        self._jobs.remove(job)

    def _idle(self, idle: Mapping[str, int | Sequence[Hashable]]) -> list[Sequence[Hashable]]:
        """Return the servers that are idle and not paused, column by column."""
        found: list[Sequence[Hashable]] = [()] * len(self.server_classes)
        for name, some in idle.items():
            column = self._roster.column(name)
            if isinstance(some, str | bytes):
                raise BadInput(
                    f"idle[{name!r}] must be a number or a list of servers, such as [{some!r}]; got {short(some)}"
                )
            servers = some if isinstance(some, Sequence) else [None] * count(f"idle[{name!r}]", some, 0)
            found[column] = self._pauses.open(name, servers, self._now)
        return found


def _take(free: deque[Hashable], avoid: Hashable) -> Hashable:
    """Remove and return the next server, another than `avoid` if there is one."""
    if avoid is not None and len(free) > 1 and free[0] == avoid:
        free.rotate(-1)
    return free.popleft()
