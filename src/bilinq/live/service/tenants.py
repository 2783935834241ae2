"""Namespaces in the leader's memory: what is counted for each, and which servers serve the jobs of which."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from bilinq.live.keys import LOCAL, covers, key_reach
from bilinq.live.metrics import Meters
from bilinq.live.wire.access import NamespaceInfo

if TYPE_CHECKING:
    from bilinq.live.keys import Identity
    from bilinq.live.service.entities import LiveJob, LiveLease
    from bilinq.live.service.memory import Memory
    from bilinq.live.store.admin_tables import KeyRow
    from bilinq.scheduler.scheduler import Assignment, Scheduler

log = logging.getLogger("bilinq.live")

Idle = dict[str, list[int]]
View: TypeAlias = "frozenset[str] | None"
"""The namespaces that a caller sees; None: all that are in use."""

NO_LIMITS = NamespaceInfo("")
SHOWN = 100  # leases kept for the dashboard
RECENT = 2000  # waiting times kept of each class


class Books:
    """The counts of one namespace: the same as memory keeps for all of them together.

    `queued` and `leased` are by job class; `waiting`, `running` and `bytes` are their totals, and the bytes of payloads that
    wait. `meters` outlive the memory that this belongs to. `limits` are the settings of the namespace. `reported` tells that
    the log says that no server serves its jobs.
    """

    def __init__(self, name: str, meters: Meters, limits: NamespaceInfo) -> None:
        self.name, self.meters, self.limits = name, meters, limits
        self.queued: Counter[str] = Counter()
        self.leased: Counter[str] = Counter()
        self.bound: Counter[tuple[str, ...]] = Counter()
        self.waiting = self.running = self.bytes = self.dead = self.awaited = 0
        self.counters: Counter[str] = Counter()
        self.reward_total = 0.0
        self.reported = False
        self.recent: deque[LiveLease] = deque(maxlen=SHOWN)
        self.waits: dict[str, deque[float]] = {}

    @property
    def room(self) -> int | None:
        """How many more jobs may run; None: any number."""
        return None if self.limits.running is None else max(self.limits.running - self.running, 0)

    def queue(self, job: LiveJob) -> None:
        """Count a job that waits."""
        if job.options.servers is not None:
            self.bound[tuple(job.options.servers)] += 1
        self.queued[job.job_class] += 1
        self.waiting += 1
        self.bytes += job.size

    def unqueue(self, job: LiveJob) -> None:
        """Count a job that waits no more."""
        if job.options.servers is not None:
            self.bound[tuple(job.options.servers)] -= 1
        self.queued[job.job_class] -= 1
        self.waiting -= 1
        self.bytes -= job.size

    def hold(self, lease: LiveLease) -> None:
        """Count a lease."""
        self.leased[lease.job_class] += 1
        self.running += 1
        self.recent.append(lease)

    def release(self, job_class: str, state: str) -> None:
        """Count the end of a lease."""
        self.leased[job_class] -= 1
        self.running -= 1
        self.meters.leases_ended[job_class, state] += 1

    def end(self, job_class: str, state: str) -> None:
        """Count the end of a job."""
        self.counters[state] += 1
        self.meters.jobs_ended[job_class, state] += 1
        if state == "dead":
            self.dead += 1

    def wait(self, job_class: str, seconds: float) -> None:
        """Count the wait of a job for its first lease."""
        self.waits.setdefault(job_class, deque(maxlen=RECENT)).append(seconds)
        self.meters.wait(job_class, seconds)

    def finish(self, job_class: str, seconds: float, reward: float | None) -> None:
        """Count a finished lease."""
        self.counters["finished"] += 1
        self.meters.finish(job_class, seconds, reward)
        if reward is not None:
            self.counters["rewards"] += 1
            self.reward_total += reward


def view_of(who: Identity, keys: Iterable[KeyRow], memory: Memory | None) -> View:
    """Return what a caller sees: its namespaces, or None if no other namespace is in use."""
    if who.reach is None:
        return None
    return None if covers(who.reach, in_use(keys, memory)) else who.reach


def in_use(keys: Iterable[KeyRow], memory: Memory | None) -> set[str]:
    """Return the namespaces that have keys, jobs or settings."""
    used = {row.namespace for row in keys}
    return used if memory is None else used | memory.tenants.keys() | memory.limits.keys()


def seen(memory: Memory, view: View) -> Memory | Books:
    """Return the counts of all namespaces, or of those in a view."""
    if view is None:
        return memory
    parts = [memory.tenants[name] for name in sorted(view) if name in memory.tenants]
    return parts[0] if len(parts) == 1 else _merged(parts)


def _merged(parts: Sequence[Books]) -> Books:
    total = Books("", Meters.merged([part.meters for part in parts]), NO_LIMITS)
    for part in parts:
        for name in ("queued", "leased", "bound", "counters"):
            getattr(total, name).update(getattr(part, name))
        total.dead += part.dead
        total.awaited += part.awaited
        total.reward_total += part.reward_total
        for job_class, some in part.waits.items():
            total.waits.setdefault(job_class, deque()).extend(some)
    leases = sorted((lease for part in parts for lease in part.recent), key=lambda lease: lease.row.id)
    total.recent.extend(leases)
    return total


def unserved(memory: Memory, view: View, absent: float) -> dict[tuple[str, tuple[str, ...]], int]:
    """Return the waiting jobs in a view that no server may serve, by namespace and the server classes that they name.

    Servers that an operator holds do not count, nor do those that are offline and have sent nothing since the time `absent`.
    """
    books = memory.tenants.values() if view is None else [one for name, one in memory.tenants.items() if name in view]
    bound = {(one.name, names): many for one in books for names, many in one.bound.items() if many}
    serves = defaultdict[str, set[frozenset[str] | None]](set)
    for server in memory.servers.values() if bound else ():
        if server.row.held is None and (server.state != "away" or server.seen >= absent):
            serves[server.row.server_class].add(server.serves)
    return {
        (namespace, names): many
        for (namespace, names), many in bound.items()
        if not any(covers(rights, {namespace}) for name in names for rights in serves[name])
    }


def servers_seen(memory: Memory, view: View) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return by class how many servers are idle and how many are busy, of those that belong to namespaces of a view."""
    if view is None:
        return {name: len(some) for name, some in memory.servers.idle().items()}, memory.busy
    own = [one for one in memory.servers.values() if one.namespace in view]
    idle, busy = (Counter(one.row.server_class for one in own if one.state == state) for state in ("idle", "busy"))
    return idle, busy


def server_rights(keys: Mapping[str, KeyRow], owner: str) -> dict[str, Any]:
    """Return to which namespace a server belongs and which it serves: as the key that registered it."""
    row = keys.get(owner)
    if row is not None:
        return {"namespace": row.namespace, "serves": key_reach(row)}
    return {
        "namespace": LOCAL.namespace,
        "serves": LOCAL.reach if owner == LOCAL.prefix else frozenset({LOCAL.namespace}),
    }


def assign(memory: Memory, idle: Idle, elapsed: float) -> list[Assignment]:
    """Let the scheduler choose jobs for idle servers: only jobs that they may serve, and not more than may run.

    As long as every server may serve every job that waits, this is the scheduler's plain `assign`.
    """
    assert memory.scheduler is not None
    if memory.pooled != (memory.scheduler, memory.servers.changes):
        _set_pools(memory)
    waiting = {name for name, books in memory.tenants.items() if books.waiting}
    if not idle or is_open(memory, waiting):
        return memory.scheduler.assign(idle, elapsed)
    limited = any(memory.tenants[name].limits.running is not None for name in waiting)
    may_start = frozenset(name for name in waiting if memory.tenants[name].room != 0)
    tasks = memory.scheduler.assign_pools(_groups(memory, idle, may_start), elapsed)
    return _within_limits(memory, tasks) if limited else tasks


def is_open(memory: Memory, namespaces: Collection[str]) -> bool:
    """Tell whether every server may serve all jobs of some namespaces, any number of them."""
    limited = any(memory.tenants[name].limits.running is not None for name in namespaces)
    return not limited and all(covers(serves, namespaces) for serves in memory.servers.rights)


def _groups(memory: Memory, idle: Idle, may_start: frozenset[str]) -> list[tuple[frozenset[str], Idle]]:
    """Return idle servers with equal rights, and the namespaces whose jobs they may start now."""
    found: dict[frozenset[str] | None, Idle] = {}
    for server_class, ids in idle.items():
        for id in ids:
            found.setdefault(memory.servers[id].serves, {}).setdefault(server_class, []).append(id)
    return [(may_start if serves is None else may_start & serves, some) for serves, some in found.items()]


def _within_limits(memory: Memory, tasks: list[Assignment]) -> list[Assignment]:
    """Return the assignments of each namespace up to its limit of running jobs; the other jobs wait on, in their order."""
    assert memory.scheduler is not None
    room = {name: books.room for name, books in memory.tenants.items()}
    kept: list[Assignment] = []
    back: list[Assignment] = []
    for task in tasks:
        namespace = memory.jobs[cast(int, task.job)].books.name
        left = room[namespace]
        if left is not None:
            room[namespace] = left - 1
        (kept if left is None or left > 0 else back).append(task)
    for task in reversed(back):
        memory.scheduler.give_back(task.job)
    return kept


def _set_pools(memory: Memory) -> None:
    """Report weights to the scheduler, and the server classes that have servers for each namespace."""
    assert memory.scheduler is not None
    for name, books in memory.tenants.items():
        servers = None
        if not all(covers(serves, {name}) for serves in memory.servers.rights):
            servers = sorted({one.row.server_class for one in memory.servers.values() if covers(one.serves, {name})})
            if books.waiting and not servers and not books.reported:
                log.warning("no server may serve the jobs of a namespace, so they wait: namespace=%s", name)
            books.reported = not servers
        memory.scheduler.set_pool(name, books.limits.weight if takes_weights(memory.scheduler) else 1.0, servers)
    memory.pooled = memory.scheduler, memory.servers.changes


def takes_weights(scheduler: Scheduler | None) -> bool:
    """Tell whether weights of namespaces have an effect."""
    return scheduler is None or scheduler.policy is None or scheduler.policy.takes_weights
