"""What a scheduler is made of, with its classes and settings, what can be seen of it, and its snapshots."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from bilinq.arrays import Array, count, non_negative, positive, scalar
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
from bilinq.scheduler.engine import Engine, Pool
from bilinq.scheduler.failures import Pauses
from bilinq.scheduler.first_come import FirstComeEngine
from bilinq.scheduler.ledger import Archive, Entry, Job, Ledger
from bilinq.scheduler.look_ahead import LookAhead
from bilinq.scheduler.saved import check_size, job_name, pool_name, saved_entry, saved_service
from bilinq.scheduler.slots import SlotEngine
from bilinq.scheduler.snapshot import LATEST, check_policy, flag, listed, number, record, seal, unseal, whole
from bilinq.scheduler.waits import Waits

if TYPE_CHECKING:
    from bilinq.policies.policy import Policy


UNUSABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError, RecursionError)
"""What a snapshot may raise that is not one of this scheduler, beside `BadState`."""


class Beliefs(NamedTuple):
    """What is learnt, in the user's units: mean reward of each pair (I, J), and its standard error."""

    mean: Array
    width: Array


class Core:
    """An engine that decides, the jobs, the clock and the pauses of servers. `Scheduler` adds what is done with jobs."""

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
        self._fresh: dict[Job, Entry] = {}  # waiting jobs that came at an unknown time after the last slot
        self._exact = False  # whether `advance` has set the present time, so that what happens now has this time
        roster.warn_unserved()

    @classmethod
    def first_come(
        cls, job_classes: Sequence[JobClass], server_classes: Sequence[ServerClass], *,
        reward: RewardRange | tuple[float, float] = (-1.0, 1.0), longest_pause: float | None = None,
        values: Array | None = None,
    ) -> Self:  # fmt: skip
        """Return a scheduler that serves jobs in the order of their arrival, and learns nothing.

        It takes the same calls, and can stand in for one that has failed. With `values` (I, J) each job takes the idle
        server whose class is worth most.
        """
        self = cls(job_classes, server_classes, reward=reward, longest_pause=longest_pause, keep=0)
        self._engine = FirstComeEngine(self._roster, values)
        return self

    @property
    def _roster(self) -> Roster:
        return self._engine.roster

    # Classes and settings

    def set_classes(self, job_classes: Sequence[JobClass], server_classes: Sequence[ServerClass]) -> None:
        """Replace the classes; what was learnt stays, and so do jobs, whose classes must be among them."""
        after = self.check_classes(job_classes, server_classes)
        after.warn_unserved()
        out = dict(zip(self._roster.servers, self._out.tolist(), strict=True))
        new = {one.name: one.features for one in after.job_classes}
        changed = {one.name: one.features for one in self.job_classes if new.get(one.name) != one.features}
        if changed:
            self._archive.keep_features(changed)  # late rewards belong to the features of then
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
        """Change some settings, where there are any. `V` replaces `target_wait` and `percentile`; `gamma` is a policy's."""
        changes = {
            "target_wait": target_wait, "V": V, "work_conserving": work_conserving, "exploration": exploration,
            "gamma": gamma, "percentile": percentile,
        }  # fmt: skip
        self._engine.update(changes)

    def turn(self, **settings: Any) -> None:
        """Call `update_settings`; deprecated."""
        warnings.warn("Scheduler.turn is deprecated; use Scheduler.update_settings", DeprecationWarning, stacklevel=2)
        self.update_settings(**settings)

    def set_pool(self, name: str, weight: float = 1.0, servers: Sequence[str] | None = None) -> None:
        """Change a pool: its weight, and the server classes that have servers for it; None: all.

        Pools whose jobs wait begin services in proportion to their weights; with a policy, within each job class.
        """
        pool = Pool(scalar("weight", weight, positive), None if servers is None else tuple(servers))
        if pool != self._pools.get(name, Pool()):
            waiting = [(job, entry) for job, entry in self._jobs.items() if entry.pool == name and entry.out is None]
            self._engine.set_pool(name, pool, waiting)
            self._pools[name] = pool

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

    def is_paused(self, server_class: str, server: Hashable = None) -> bool:
        """Tell whether a server failed too often, or, without one, its class as a whole."""
        return self._pauses.holds(server_class, server)

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
            "exact": self._exact, "pauses": self._pauses.state(), "engine": self._engine.state(),
            "pools": {name: [pool.weight, pool.servers] for name, pool in self._pools.items()},
        }  # fmt: skip
        waiting = self._engine.order() if jobs else []
        out = [job for job, entry in self._jobs.items() if entry.out is not None]
        theirs = {
            "jobs": [record(job, self._jobs.get(job)) for job in (*waiting, *out)],
            "served": [record(job, one) for job, one in self._archive.items()],
            "fresh": list(self._fresh), "expired": self._expired, "uncounted": self._engine.uncounted() if jobs else [],
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
            check_size(jobs, servers, policy, len(data))
            settings = asdict(LookAheadSettings(**kept["knobs"])) if policy is None else {}
            self = cls(jobs, servers, reward=tuple(kept["reward"]), policy=policy, seed=kept["seed"], keep=kept["keep"],
                       longest_pause=kept.get("longest_pause"), **settings)  # fmt: skip
            self._resume(kept)
        except UNUSABLE as error:
            reason = f"it must have {error}" if isinstance(error, KeyError) else str(error)
            raise BadState(f"snapshot must fit this version and policy; {reason}") from None
        return self

    def _resume(self, kept: dict[str, Any]) -> None:
        self._slot, self._next, self._serial = (whole(name, kept[name]) for name in ("slot", "next", "serial"))
        self._now, self._failure = (
            number("now", kept["now"], 0.0, LATEST),
            number("failure", kept["failure"], -1.0, 1.0),
        )
        self._pauses.load(kept["pauses"])
        self._engine.load(kept["engine"], self._now)
        for pool, (weight, servers) in kept.get("pools", {}).items():
            self.set_pool(pool, weight, None if servers is None else [pool_name(one) for one in listed(pool, servers)])
        new = set(map(job_name, kept.get("uncounted", [])))  # older ones counted when a job came
        for name, *values in kept["jobs"]:
            entry = saved_entry(values, self._roster, self._now, self._serial)
            self._engine.check(replace(entry, duration=None, cost=None))  # these may be of classes that are gone
            self._jobs.add(job_name(name), entry)
            if entry.out is None:
                self._engine.resume(name, entry, counted=name not in new)
            else:
                self._engine.place(name, entry)
                self._out[self._roster.column(entry.out)] += 1.0
        fresh = dict.fromkeys(map(job_name, kept["fresh"]))
        came = {job: self._jobs.get(job) for job in fresh if job in self._jobs}
        self._fresh = {job: entry for job, entry in came.items() if entry.out is None}
        self._exact = flag("exact", kept.get("exact", False))  # older ones do not have it
        self._expired = list(map(job_name, kept["expired"]))
        for name, *values in kept["served"]:
            served = saved_service(values, len(self.job_classes[0].features))
            self._engine.check_features(served.features)
            self._archive.add(job_name(name), served)


def _with(classes: Sequence[Class], one: Class) -> list[Class]:
    """Return classes with `one` in place of that with its name, or at the end."""
    return list(({other.name: other for other in classes} | {one.name: one}).values())
