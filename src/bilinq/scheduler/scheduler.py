"""The scheduler to embed: submit jobs, get assignments, report rewards. It has no clock, no threads, no I/O."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, non_negative, positive, scalar, short
from bilinq.errors import BadInput, BadState
from bilinq.learning import Health
from bilinq.scheduler.classes import (
    Class,
    Exploration,
    JobClass,
    LookAheadSettings,
    PolicySettings,
    RewardRange,
    Roster,
    ServerClass,
)  # fmt: skip
from bilinq.scheduler.engine import Engine, Pool, Service
from bilinq.scheduler.explain import Decision, Explanation, explanation
from bilinq.scheduler.failures import Pauses
from bilinq.scheduler.first_come import FirstComeEngine
from bilinq.scheduler.ledger import Archive, Entry, Job, Ledger, Served, job_features, waiting_entry
from bilinq.scheduler.look_ahead import LookAhead
from bilinq.scheduler.slots import SlotEngine
from bilinq.scheduler.snapshot import check_policy, from_record, record, seal, unseal
from bilinq.scheduler.waits import Waits

if TYPE_CHECKING:
    from bilinq.policies.policy import Policy


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


class Beliefs(NamedTuple):
    """What is learnt, in the user's units: mean reward of each pair (I, J), and its standard error."""

    mean: Array
    width: Array


class Scheduler:
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

    def __init__(
        self,
        job_classes: Sequence[JobClass],
        server_classes: Sequence[ServerClass],
        *,
        target_wait: float | None = None,
        percentile: float | None = None,
        V: float | None = None,
        work_conserving: bool = False,
        exploration: Exploration = "thompson",
        reward: RewardRange | tuple[float, float] = (-1.0, 1.0),
        failure_reward: float | None = None,
        keep: int = 100_000,
        longest_pause: float | None = None,
        policy: Policy | None = None,
        seed: int = 0,
    ) -> None:
        self._range = reward if isinstance(reward, RewardRange) else RewardRange(*reward)
        self._failure = -1.0 if failure_reward is None else self._range.scaled(failure_reward)
        self._seed, self._slot, self._next, self._serial = count("seed", seed, least=0), 0, 1, 0
        self._now = 0.0
        self._jobs, self._archive, self._pauses = Ledger(), Archive(count("keep", keep, least=0)), Pauses()
        self.longest_pause = longest_pause
        roster = Roster(tuple(job_classes), tuple(server_classes), policy)
        self._engine: Engine
        if policy is None:
            settings = LookAheadSettings(target_wait, percentile, V, work_conserving, exploration)
            self._engine = LookAhead(roster, settings, self._seed)
        elif (target_wait, V, percentile, work_conserving, exploration) != (None, None, None, False, "thompson"):
            raise BadInput("policy has settings of its own; set target_wait, V and others there")
        else:
            self._engine = SlotEngine(roster, self._seed)
        self._out = np.zeros(len(roster.servers))
        self._pools: dict[str, Pool] = {}
        self._expired: list[Job] = []
        self._fresh: list[tuple[Job, Entry]] = []
        roster.warn_unserved()

    @classmethod
    def first_come(
        cls, job_classes: Sequence[JobClass], server_classes: Sequence[ServerClass], *,
        reward: RewardRange | tuple[float, float] = (-1.0, 1.0), longest_pause: float | None = None,
    ) -> Self:  # fmt: skip
        """Return a scheduler that serves jobs in the order of their arrival, and learns nothing.

        It takes the same calls, and can stand in for one whose learner has failed.
        """
        self = cls(job_classes, server_classes, reward=reward, longest_pause=longest_pause, keep=0)
        self._engine = FirstComeEngine(self._roster)
        return self

    @property
    def _roster(self) -> Roster:
        return self._engine.roster

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
        name = self._next if job is None else job
        entry = waiting_entry(job_class, units, self._serial + 1, self._now, features=features, servers=servers,
                              weight=weight, deadline=deadline, duration=duration, avoid=avoid, pool=pool)  # fmt: skip
        self._engine.check(entry)
        self._jobs.add(name, entry)
        if waited > 0.0 or ahead:
            entry.since -= scalar("waited", waited, non_negative)
        else:
            self._fresh.append((name, entry))
        self._engine.add(name, entry, first=ahead)
        self._serial += 1
        if job is None:
            self._next += 1
        return name

    def advance(self, elapsed: float) -> None:
        """Move the clock without a decision, where arrivals between two slots should have their own times."""
        self._move(scalar("elapsed", elapsed, non_negative))

    def _move(self, elapsed: float) -> None:
        """Move the clock; jobs that were submitted since it last moved arrive at its new time."""
        if elapsed > 0.0:
            self._now += elapsed
            for job, entry in self._fresh:
                entry.deadline += self._now - entry.since
                entry.since = self._now
                self._engine.arrived(job, entry)
            self._fresh = []

    def assign(self, idle: Mapping[str, int | Sequence[Hashable]], elapsed: float = 1.0) -> list[Assignment]:
        """Learn from what was reported, and return jobs for some of the idle servers: one slot.

        Parameters
        ----------
        idle : mapping from server class to a number, or to a list of servers
            Servers that can take a job now; classes that are left out have none.
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

    def set_pool(self, name: str, weight: float = 1.0, servers: Sequence[str] | None = None) -> None:
        """Change a pool: a factor of the weights of its jobs, and the server classes that have servers for it; None: all.

        With a policy, pools take turns within each job class in proportion to their weights.
        """
        pool = Pool(scalar("weight", weight, positive), None if servers is None else tuple(servers))
        if pool != self._pools.get(name, Pool()):
            waiting = [(job, entry) for job, entry in self._jobs.items() if entry.pool == name and entry.out is None]
            self._engine.set_pool(name, pool, waiting)
            self._pools[name] = pool

    def _begin(self, elapsed: float) -> float:
        """Begin a slot: move the clock and drop the jobs whose deadline has passed; return the time that has passed."""
        check = positive if isinstance(self._engine, SlotEngine) else non_negative
        time = elapsed if type(elapsed) is float and 0.0 < elapsed < inf else scalar("elapsed", elapsed, check)
        self._move(time)
        self._slot += 1
        if isinstance(self._engine, LookAhead):
            for job in self._engine.expired(self._now):
                self._drop(job)
                self._expired.append(job)
        return time

    def _decide(
        self, servers: list[Sequence[Hashable]], out: Array, elapsed: float, pools: Collection[str] | None
    ) -> list[Assignment]:
        """Let the engine choose jobs of some pools for idle servers, column by column; `out` are the other servers (J,)."""
        capacity = np.array([float(len(some)) for some in servers])
        tasks, free = [], [deque(some) for some in servers]
        for job, column, decision in self._engine.decide(capacity, out, self._now, elapsed, pools):
            entry, name = self._jobs.get(job), self.server_classes[column].name
            entry.out, entry.started, entry.decision = name, self._now, decision
            entry.server = _take(free[column], entry.avoid)
            self._out[column] += 1.0
            self._pauses.began(name, entry.server)
            tasks.append(Assignment(job, entry.job_class, name, entry.server))
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
        self._pauses.note(server_class, entry.server, failed, self._now, self._engine.mean_duration())
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
        entry.deadline = inf  # it has started
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
        service = Service(None, served.job_class, served.server_class, served.features, value, None, None)
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
        server: Hashable = None, pool: str | None = None,
    ) -> None:  # fmt: skip
        """Add a job that is at a server already, for example after a restart."""
        self._roster.row(job_class)
        column = self._roster.column(server_class)
        self._serial += 1
        entry = Entry(job_class=job_class, units=count("units", units), serial=self._serial, since=self._now,
                      started=self._now, features=job_features(features), out=server_class, server=server,
                      pool=pool)  # fmt: skip
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
        self._engine.add(job, entry, first=True)

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
        self._jobs.remove(job)

    def _idle(self, idle: Mapping[str, int | Sequence[Hashable]]) -> list[Sequence[Hashable]]:
        """Return the servers that are idle and not paused, column by column."""
        found: list[Sequence[Hashable]] = [()] * len(self.server_classes)
        for name, some in idle.items():
            column = self._roster.column(name)
            servers = some if isinstance(some, Sequence) else [None] * count(f"idle[{name!r}]", some, 0)
            found[column] = self._pauses.open(name, servers, self._now)
        return found

    # Classes and settings

    def set_classes(self, job_classes: Sequence[JobClass], server_classes: Sequence[ServerClass]) -> None:
        """Replace the classes; what was learnt stays, and so do jobs, whose classes must be among them."""
        after = self.check_classes(job_classes, server_classes)
        after.warn_unserved()
        out = dict(zip(self._roster.servers, self._out.tolist(), strict=True))
        waiting = [] if self._engine.by_job else [(job, self._jobs.get(job)) for job in self._engine.order()]
        self._engine.set_roster(after, waiting)
        self._out = np.array([out.get(name, 0.0) for name in after.servers])

    def check_classes(self, job_classes: Sequence[JobClass], server_classes: Sequence[ServerClass]) -> Roster:
        """Raise unless `set_classes` accepts these classes; return them as a roster."""
        after = replace(self._roster, job_classes=tuple(job_classes), server_classes=tuple(server_classes))
        gone = self._roster.jobs.keys() - after.jobs.keys(), self._roster.servers.keys() - after.servers.keys()
        if any(gone):
            self._jobs.check_unused(set(gone[0]), set(gone[1]))
        self._engine.check_roster(after)
        return after

    def set_job_class(self, job_class: JobClass) -> None:
        """Add a class, or change its features or weight; a new one starts from what was learnt about all classes."""
        self.set_classes(_with(self.job_classes, job_class), self.server_classes)

    def set_server_class(self, server_class: ServerClass) -> None:
        """Add a class of servers, or change its features."""
        self.set_classes(self.job_classes, _with(self.server_classes, server_class))

    def drop_job_class(self, name: str) -> None:
        """Remove a class that has no jobs."""
        self._roster.row(name)
        self.set_classes([one for one in self.job_classes if one.name != name], self.server_classes)

    def drop_server_class(self, name: str) -> None:
        """Remove a class of servers that serves no job."""
        self._roster.column(name)
        self.set_classes(self.job_classes, [one for one in self.server_classes if one.name != name])

    def update_settings(
        self, *, target_wait: float | None = None, V: float | None = None, work_conserving: bool | None = None,
        exploration: Exploration | None = None, gamma: float | None = None, percentile: float | None = None,
    ) -> None:  # fmt: skip
        """Change some settings, where there are any. `target_wait` and `V` replace each other; `gamma` is a policy's."""
        changes = {
            "target_wait": target_wait, "V": V, "work_conserving": work_conserving, "exploration": exploration,
            "gamma": gamma, "percentile": percentile,
        }  # fmt: skip
        self._engine.update(changes)

    def turn(self, **settings: Any) -> None:
        """Call `update_settings`; deprecated."""
        warnings.warn("Scheduler.turn is deprecated; use Scheduler.update_settings", DeprecationWarning, stacklevel=2)
        self.update_settings(**settings)

    # What it knows

    @property
    def policy(self) -> Policy | None:
        """The policy that decides; None for the look-ahead."""
        return None if self._roster.given is None else self._roster.policy

    @property
    def learns(self) -> bool:
        """Whether rewards change its decisions."""
        return self._engine.learns

    @property
    def sound(self) -> bool:
        """Whether the numbers behind its decisions are finite."""
        return self._engine.sound()

    @property
    def by_job(self) -> bool:
        """Whether a row of `expected` is a single job, not a job class."""
        return self._engine.by_job

    @property
    def own_features(self) -> int:
        """The length of the features of single jobs; 0 until one has some."""
        return self._engine.own

    @property
    def settings(self) -> PolicySettings | LookAheadSettings | None:
        """The settings that can change while it runs; None if there are none."""
        return self._engine.settings

    @property
    def knobs(self) -> PolicySettings | LookAheadSettings | None:
        """The same as `settings`; deprecated."""
        warnings.warn("Scheduler.knobs is deprecated; use Scheduler.settings", DeprecationWarning, stacklevel=2)
        return self.settings

    @property
    def reward(self) -> RewardRange:
        """The range of rewards in the caller's units."""
        return self._range

    @property
    def slot(self) -> int:
        """Slots so far."""
        return self._slot

    @property
    def job_classes(self) -> tuple[JobClass, ...]:
        """The classes of jobs, in the order of rows."""
        return self._roster.job_classes

    @property
    def server_classes(self) -> tuple[ServerClass, ...]:
        """The classes of servers, in the order of columns."""
        return self._roster.server_classes

    @property
    def queue(self) -> dict[str, int]:
        """How many jobs of each class wait."""
        return self._engine.queue()

    @property
    def V(self) -> float:
        """V of the next slot: as given, or computed from `target_wait`; NaN for a policy without it."""
        return self._engine.V

    @property
    def expected(self) -> Array:
        """The expected allocation of the last slot (rows, J); the look-ahead's is what it assigned."""
        return self._engine.expected.copy()

    @property
    def waits(self) -> Waits | None:
        """How waits compare with `target_wait`, and why it is not met where it is not; None for a policy."""
        return self._engine.waits()

    @property
    def longest_pause(self) -> float | None:
        """The longest pause of a server that fails, in slots; None: 1,024 mean durations. It may be changed."""
        return self._pauses.longest

    @longest_pause.setter
    def longest_pause(self, value: float | None) -> None:
        self._pauses.longest = None if value is None else scalar("longest_pause", value, non_negative)

    @property
    def paused(self) -> dict[tuple[str, Hashable], float]:
        """Servers that failed too often, by class and name, with the slots that are left of their pause."""
        return self._pauses.paused(self._now)

    def beliefs(self) -> Beliefs | None:
        """Return what is learnt about each pair of classes, or None for a policy that learns nothing."""
        known = self._engine.beliefs()
        return None if known is None else Beliefs(self._range.unscaled(known[0]), self._range.unit * known[1])

    def health(self) -> Health | None:
        """Return how much was learnt, None for a policy without a regression; other threads may call it."""
        return self._engine.health(self._range.unit)

    # Snapshots

    def snapshot(self, *, jobs: bool = True) -> bytes:
        """Return everything as bytes with a checksum; without `jobs` only classes, settings and what was learnt."""
        mine = {
            "seed": self._seed, "slot": self._slot, "next": self._next, "serial": self._serial, "now": self._now,
            "reward": [self._range.low, self._range.high], "failure": self._failure, "keep": self._archive.size,
            "longest_pause": self._pauses.longest,
            "knobs": None if self.settings is None else asdict(self.settings),
            "policy": None if self.policy is None else type(self.policy).__name__,
            "job_classes": [[one.name, one.features, one.weight, one.servers] for one in self.job_classes],
            "server_classes": [[one.name, one.features] for one in self.server_classes],
            "pauses": self._pauses.state(), "engine": self._engine.state(),
            "pools": {name: [pool.weight, pool.servers] for name, pool in self._pools.items()},
        }  # fmt: skip
        waiting = self._engine.order() if jobs else []
        out = [job for job, entry in self._jobs.items() if entry.out is not None]
        theirs = {
            "jobs": [record(job, self._jobs.get(job)) for job in (*waiting, *out)],
            "served": [record(job, one) for job, one in self._archive.items()],
            "fresh": [job for job, _ in self._fresh], "expired": self._expired,
        }  # fmt: skip
        return seal(mine | (theirs if jobs else dict.fromkeys(theirs, ())))

    @classmethod
    def restore(cls, data: bytes, policy: Policy | None = None) -> Self:
        """Return the scheduler that `snapshot` saved, after checks that it is complete and sound.

        `policy` must be given where the scheduler had one; its settings are used then, not those of the snapshot.

        Raises
        ------
        BadState
            If the bytes are damaged, of another version or policy, or not a sound state.
        """
        kept = unseal(data)
        check_policy(kept, None if policy is None else type(policy).__name__)
        try:
            jobs = [JobClass(*one) for one in kept["job_classes"]]
            servers = [ServerClass(*one) for one in kept["server_classes"]]
            settings = kept["knobs"] if policy is None else {}
            self = cls(jobs, servers, reward=tuple(kept["reward"]), policy=policy, seed=kept["seed"], keep=kept["keep"],
                       longest_pause=kept.get("longest_pause"), **settings)  # fmt: skip
            self._resume(kept)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise BadState(f"snapshot must fit this version and policy; {error}") from None
        return self

    def _resume(self, kept: dict[str, Any]) -> None:
        self._slot, self._next = count("slot", kept["slot"], 0), count("next", kept["next"])
        self._serial, self._now, self._failure = count("serial", kept["serial"], 0), float(kept["now"]), kept["failure"]
        self._pauses.load(kept["pauses"])
        self._engine.load(kept["engine"])
        for pool, (weight, servers) in kept.get("pools", {}).items():
            self.set_pool(pool, weight, servers)
        for name, *values in kept["jobs"]:
            entry = from_record(Entry, values)
            self._jobs.add(name, entry)
            if entry.out is None:
                self._engine.resume(name, entry)
            else:
                self._engine.place(name, entry)
                self._out[self._roster.column(entry.out)] += 1.0
        self._fresh = [(job, self._jobs.get(job)) for job in kept["fresh"] if job in self._jobs]
        self._expired = kept["expired"]
        for name, *values in kept["served"]:
            self._archive.add(name, from_record(Served, values))


def _take(free: deque[Hashable], avoid: Hashable) -> Hashable:
    """Remove and return the next server, another than `avoid` if there is one."""
    if avoid is not None and len(free) > 1 and free[0] == avoid:
        free.rotate(-1)
    return free.popleft()


def _with(classes: Sequence[Class], one: Class) -> list[Class]:
    """Return classes with `one` in place of that with its name, or at the end."""
    return list(({other.name: other for other in classes} | {one.name: one}).values())
