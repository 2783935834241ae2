"""The scheduler to embed: submit jobs, get assignments, report rewards. It has no clock, no threads, no I/O."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from bilinq.arrays import Array, IntArray, count, positive, scalar
from bilinq.assignment import assign as draw
from bilinq.errors import BadInput, BadState
from bilinq.learning import Health, Outcome, health_of
from bilinq.policies.fair import Sabr
from bilinq.scheduler.classes import Class, Exploration, JobClass, PolicySettings, RewardRange, Roster, ServerClass
from bilinq.scheduler.ledger import Job, Ledger
from bilinq.scheduler.snapshot import Draws, decode, encode, policy_of, seal, unseal

if TYPE_CHECKING:
    from bilinq.policies.policy import Policy

HORIZON = 1_000_000  # the number of slots for policies that need one: a live scheduler has no end


class Assignment(NamedTuple):
    """A job that a server should serve now; `server` is the caller's name of it, or None."""

    job: Job
    job_class: str
    server_class: str
    server: Hashable


class Beliefs(NamedTuple):
    """What is learnt, in the user's units: mean reward of each pair (I, J), and its standard error."""

    mean: Array
    width: Array


class Scheduler:
    """A scheduler that learns where each class of jobs pays best and keeps every queue short.

    In every slot the caller passes the idle servers and gets jobs for some of them; when a job has been served, the
    caller reports its reward, which counts from the next slot on.

    Parameters
    ----------
    job_classes, server_classes : sequences of JobClass and of ServerClass
        At least one of each. A constant 1 among the features lets the model have an offset.
    target_wait, V : float, optional, at most one
        How long jobs may wait for a good match at light load, in slots (default: 20), or V of the program itself.
    work_conserving : bool
        Whether no server idles while a job waits. Off is the paper: jobs may wait for a better server.
    exploration : "thompson", "ucb" or "none"
        How to try what is not known yet; all use the noise that is measured.
    reward : RewardRange or (low, high)
        The range of rewards in the caller's units.
    gamma : float
        Cost of using a server on the scale of [-1, 1], above one.
    policy : Policy, optional
        Another policy than the default, `Sabr`; it has its own settings instead of those above.
    seed : int

    Examples
    --------
    >>> scheduler = Scheduler(
    ...     [JobClass("chat", [1.0, 0.1]), JobClass("code", [1.0, 0.9])],
    ...     [ServerClass("small", [1.0, 0.2]), ServerClass("large", [1.0, 1.0])],
    ...     reward=(0.0, 10.0), work_conserving=True, seed=7,
    ... )
    >>> scheduler.submit("code")
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
        V: float | None = None,
        work_conserving: bool = False,
        exploration: Exploration = "thompson",
        reward: RewardRange | tuple[float, float] = (-1.0, 1.0),
        gamma: float = 1.2,
        policy: Policy | None = None,
        seed: int = 0,
    ) -> None:
        self._is_default = policy is None
        if policy is None:
            wait = 20.0 if target_wait is None and V is None else target_wait
            settings = PolicySettings(wait, V, work_conserving, exploration, gamma)
            policy = Sabr.for_scheduler(**asdict(settings))
        elif target_wait is not None or V is not None:
            raise BadInput("policy has settings of its own; set target_wait and V there")
        self._roster = Roster(tuple(job_classes), tuple(server_classes), policy)
        self._roster.warn_unserved()
        self._range = reward if isinstance(reward, RewardRange) else RewardRange(*reward)
        self._seed, self._slot, self._next = count("seed", seed, least=0), 0, 1
        self._jobs = Ledger(by_job=self.policy.rows == "job", classes=len(job_classes))
        self._draws = Draws(self._seed)
        self._state = self.policy.start(self._roster.instances, HORIZON, [np.random.default_rng((self._seed, 0))])
        self._seen: list[tuple[int, int, float]] = []
        self._shown = self._jobs.rows.waiting()
        self._idle_servers = np.zeros(len(server_classes))
        self._expected: Array = np.zeros((self._shown.size, len(server_classes)))

    def submit(self, job_class: str, units: int = 1, job: Job | None = None) -> Job:
        """Queue a job and return its name: `job` if given, else the next number."""
        row = self._roster.row(job_class)
        name = self._next if job is None else job
        self._jobs.add(name, job_class, row, units)
        if job is None:
            self._next += 1
        return name

    def assign(self, idle: Mapping[str, int | Sequence[Hashable]], elapsed: float = 1.0) -> list[Assignment]:
        """Learn from what was reported, and return jobs for some of the idle servers: one slot.

        Parameters
        ----------
        idle : mapping from server class to a number, or to a list of servers
            Servers that can take a job now; classes that are left out have none.
        elapsed : float
            Slots since the last call, where calls are not at equal intervals: a short slot offers fewer services.
        """
        servers = self._idle(idle)
        time = elapsed if type(elapsed) is float and 0.0 < elapsed < inf else scalar("elapsed", elapsed, positive)
        capacity = np.array([float(len(some)) for some in servers])
        self._learn()
        queue = self._jobs.rows.waiting()
        self._slot += 1
        self._shown, self._idle_servers = queue, capacity
        if not (capacity.any() and queue.any()):
            self._expected = np.zeros((queue.size, capacity.size))
            return []
        y = self.policy.decide(self.policy.paced(self._state, time), queue[None], capacity[None])[0]
        self._expected = y
        picks = draw(y, queue, capacity, self._draws.of_slot(self._slot), "distinct")
        return self._take(picks, servers)

    def report(self, job: Job, reward: float | None = None, done: bool | None = None) -> bool:
        """Report that a job has been served; return whether it has left.

        Parameters
        ----------
        job : hashable
            A job that was assigned to a server.
        reward : float, optional
            In the caller's units; nothing is learnt without it.
        done : bool, optional
            Whether the job is complete; default: after its last unit. If not, it waits again, ahead of its class.
        """
        entry = self._jobs.out(job)
        assert entry.out is not None
        row = self._roster.row(entry.job_class)
        if reward is not None:
            column = self._roster.column(entry.out)
            self._seen.append((self._jobs.rows.row(job, row), column, self._range.scaled(reward)))
        entry.units = max(entry.units - 1, 0 if done is None else 1)
        if done or (done is None and not entry.units):
            self._jobs.leave(job)
            return True
        self._jobs.back(job, row)
        return False

    def place(self, job_class: str, server_class: str, job: Job, units: int = 1) -> None:
        """Add a job that is at a server already, for example after a restart."""
        self._roster.column(server_class)
        row = self._roster.row(job_class)
        self._jobs.place(job, job_class, row, units, server_class)
        new_rows = self._jobs.rows.row(job, row) + 1 - self._shown.size
        if new_rows > 0:  # it did not wait in the last slot, but its reward may arrive before the next
            self._shown = np.pad(self._shown, (0, new_rows))

    def give_back(self, job: Job) -> None:
        """Return a job to its queue, ahead of its class, as if it had not been assigned."""
        self._jobs.back(job, self._roster.row(self._jobs.out(job).job_class))

    def cancel(self, job: Job) -> None:
        """Remove a job, whether it waits or is assigned."""
        self._jobs.cancel(job, self._roster.row(self._jobs.job_class(job)))

    def observe(self, rewards: Iterable[tuple[str, str, float]]) -> None:
        """Learn from other services: tuples of job class, server class and reward in the caller's units."""
        if self._jobs.by_job:
            raise BadInput(f"{self.policy!r} learns from its own jobs only")
        for job_class, server_class, reward in rewards:
            row, column = self._roster.row(job_class), self._roster.column(server_class)
            self._seen.append((row, column, self._range.scaled(reward)))

    def set_classes(self, job_classes: Sequence[JobClass], server_classes: Sequence[ServerClass]) -> None:
        """Replace the classes; what was learnt stays, and so do jobs, whose classes must be among them."""
        after = self.check_classes(job_classes, server_classes)
        after.warn_unserved()
        self._learn()
        self._state = after.policy.adapt(self._state, after.instances)
        self._jobs.rows.arrange([self._roster.jobs.get(name) for name in after.jobs])
        self._roster, self._shown = after, self._jobs.rows.waiting()
        self._idle_servers = np.zeros(len(after.servers))
        self._expected = np.zeros((self._shown.size, len(after.servers)))

    def check_classes(self, job_classes: Sequence[JobClass], server_classes: Sequence[ServerClass]) -> Roster:
        """Raise unless `set_classes` accepts these classes; return them as a roster."""
        after = replace(self._roster, job_classes=tuple(job_classes), server_classes=tuple(server_classes))
        gone = self._roster.jobs.keys() - after.jobs.keys(), self._roster.servers.keys() - after.servers.keys()
        if any(gone):
            self._jobs.check_unused(set(gone[0]), set(gone[1]))
        after.policy.adapt(self._state, after.instances)
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
        exploration: Exploration | None = None, gamma: float | None = None,
    ) -> None:  # fmt: skip
        """Change some settings of the policy, where it has them. `target_wait` and `V` replace each other."""
        self._roster = self._roster.updated(
            target_wait=target_wait, V=V, work_conserving=work_conserving, exploration=exploration, gamma=gamma
        )
        self._state = self.policy.adapt(self._state, self._roster.instances)

    def turn(self, **settings: Any) -> None:
        """Call `update_settings`; deprecated."""
        warnings.warn("Scheduler.turn is deprecated; use Scheduler.update_settings", DeprecationWarning, stacklevel=2)
        self.update_settings(**settings)

    @property
    def policy(self) -> Policy:
        """The policy that decides."""
        return self._roster.policy

    @property
    def settings(self) -> PolicySettings | None:
        """The settings of the policy; None if it has none that can change while it runs."""
        return PolicySettings.of(self.policy)

    @property
    def knobs(self) -> PolicySettings | None:
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
        return self._jobs.queue(self._roster.jobs)

    @property
    def V(self) -> float:
        """V of the next slot: as given, or computed from `target_wait`; NaN for a policy without it."""
        V = self.policy.current_V(self._state)
        return float("nan") if V is None else float(V[0])

    @property
    def expected(self) -> Array:
        """The expected allocation of the last slot (rows, J)."""
        return self._expected.copy()

    def beliefs(self) -> Beliefs | None:
        """Return what is learnt about each pair of classes, or None for a policy that learns nothing."""
        known = self.policy.beliefs(self._state)
        if known is None:
            return None
        return Beliefs(self._range.unscaled(known[0][0]), self._range.unit * known[1][0])

    def health(self) -> Health | None:
        """Return the health of a bilinear learner, None for a policy without one; other threads may call it."""
        return health_of(getattr(self._state, "learnt", None), self._range.unit)

    def snapshot(self, *, jobs: bool = True) -> bytes:
        """Return everything as bytes with a checksum; without `jobs` only classes, settings and what was learnt."""
        return seal(
            {
                "seed": self._seed, "slot": self._slot, "next": self._next, "reward": [self._range.low, self._range.high],
                "knobs": None if self.settings is None else asdict(self.settings),
                "policy": None if self._is_default else type(self.policy).__name__,
                "job_classes": [[one.name, one.features, one.weight, one.servers] for one in self.job_classes],
                "server_classes": [[one.name, one.features] for one in self.server_classes],
                "jobs": list(self._jobs.listed()) if jobs else [],
                "seen": self._seen, "shown": encode(self._shown), "state": encode(self._state),
            }
        )  # fmt: skip

    @classmethod
    def restore(cls, data: bytes, policy: Policy | None = None) -> Self:
        """Return the scheduler that `snapshot` saved, after checks that it is complete and sound.

        `policy` must be given where the scheduler had one of the caller's own; its settings are used then, not those of
        the snapshot.

        Raises
        ------
        BadState
            If the bytes are damaged, of another version or policy, or not a sound state of the policy.
        """
        kept = unseal(data)
        family = policy_of(kept)
        if policy is None and (kept["knobs"] is None or kept.get("policy") is not None):
            raise BadInput("policy must be given, since the snapshot was made with one; got None")
        if policy is not None and family not in (None, type(policy).__name__):
            raise BadState(f"snapshot must be of policy {type(policy).__name__}; got one of {family}")
        try:
            jobs = [JobClass(*one) for one in kept["job_classes"]]
            servers = [ServerClass(*one) for one in kept["server_classes"]]
            low, high = kept["reward"]
            settings = kept["knobs"] if policy is None else {}
            self = cls(jobs, servers, reward=(low, high), policy=policy, seed=kept["seed"], **settings)
            self._resume(kept)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BadState(f"snapshot must fit this version and policy; {error}") from None
        return self

    def _resume(self, kept: dict[str, Any]) -> None:
        self._state = decode(kept["state"], self._state)
        self.policy.check(self._state)
        self._slot, self._next = count("slot", kept["slot"], 0), count("next", kept["next"])
        self._seen = [(int(row), int(column), float(value)) for row, column, value in kept["seen"]]
        self._shown = decode(kept["shown"], self._shown)
        for name, job_class, units, out in kept["jobs"]:
            if out is None:
                self.submit(job_class, units, name)
            else:
                self.place(job_class, out, name, units)

    def _idle(self, idle: Mapping[str, int | Sequence[Hashable]]) -> list[Sequence[Hashable]]:
        """Return the servers that are idle, column by column."""
        found: list[Sequence[Hashable]] = [()] * len(self.server_classes)
        for name, some in idle.items():
            column = self._roster.column(name)
            found[column] = some if isinstance(some, Sequence) else [None] * count(f"idle[{name!r}]", some, 0)
        return found

    def _take(self, picks: IntArray, servers: Sequence[Sequence[Hashable]]) -> list[Assignment]:
        free, tasks = [iter(some) for some in servers], []
        for row, column in zip(*(axis.tolist() for axis in np.nonzero(picks)), strict=True):
            name = self.server_classes[column].name
            for _ in range(picks[row, column]):
                job, job_class = self._jobs.take(row, name)
                tasks.append(Assignment(job, job_class, name, next(free[column])))
        return tasks

    def _learn(self) -> None:
        if not self._slot and not self._seen:
            return
        shape = (1, self._shown.size, len(self.server_classes))
        rows, columns, rewards = zip(*self._seen, strict=True) if self._seen else ((), (), ())
        pairs, value = np.array(rows, np.int64) * shape[2] + np.array(columns, np.int64), np.array(rewards, np.float64)
        size = shape[1] * shape[2]
        number = np.bincount(pairs, minlength=size).reshape(shape)
        total, squares = (np.bincount(pairs, one, size).astype(float).reshape(shape) for one in (value, value * value))
        left = np.zeros(shape[:2], np.bool_)
        left[0, [row for row in self._jobs.rows.gone() if row < shape[1]]] = True
        outcome = Outcome(self._slot, number, total, squares, left, self._shown[None], self._idle_servers[None])
        self._state, self._seen = self.policy.learn(self._state, outcome), []


def _with(classes: Sequence[Class], one: Class) -> list[Class]:
    """Return classes with `one` in place of that with its name, or at the end."""
    return list(({other.name: other for other in classes} | {one.name: one}).values())
