"""The service at a glance: its state for the API and the dashboard, and its metrics for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from math import isinf
from typing import TYPE_CHECKING, Any

import numpy as np

from bilinq.allocation.batch import tally
from bilinq.live.metrics import Histogram, Meters
from bilinq.live.metrics.meters import WAITS
from bilinq.live.metrics.page import Page, add_process
from bilinq.live.service.configuration import settings_info
from bilinq.live.service.tenants import seen, servers_seen, unserved
from bilinq.live.settings import NO_SHADOW
from bilinq.live.wire.samples import JobClassState, ServerClassState, ShadowInfo, State, StateView, Waits

if TYPE_CHECKING:
    from bilinq.learning import Health
    from bilinq.live.service.entities import LiveServer
    from bilinq.live.service.memory import Memory
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.tenants import Books, View

LEASES = ("finished", "failed", "expired", "revoked")
JOBS = ("done", "dead", "cancelled", "expired")
SERVERS = ("idle", "busy", "away")
HELD = ("paused", "draining", "quarantined")
NONE = Histogram(WAITS)  # waits of a class that has had no lease yet

Labelled = tuple[dict[str, str], float]
_version = cache(version)


def state(replica: Replica, view: View = None) -> State:
    """Return queues, servers, the last allocation, what was learnt, and counters, of all namespaces or of some."""
    memory, books = replica.memory, seen(replica.memory, view)
    idle, busy = servers_seen(memory, view)
    servers = [ServerClassState(name, idle.get(name, 0), busy.get(name, 0)) for name in _names(memory, "server")]
    jobs = [_job_class(books, row.name, row.weight) for row in memory.classes.values() if row.kind == "job"]
    return State(now=time.time(), job_classes=jobs, server_classes=servers, **_common(replica, view))


def state_view(replica: Replica, rate: list[list[float]], view: View = None) -> StateView:
    """Return the part of the state that is made of matrices, with leases per second of each pair as `rate`."""
    weights = [row.weight for row in replica.memory.classes.values() if row.kind == "job"]
    return StateView(at=time.time(), weights=weights, rate=rate, **_common(replica, view))


def _common(replica: Replica, view: View) -> dict[str, Any]:
    """Return the fields that both have; V is zero and matrices are empty where the policy has none, or none yet.

    Those who see some namespaces only get neither the number of slots nor the allocation, which tell of the others' load.
    """
    memory, scheduler = seen(replica.memory, view), replica.memory.scheduler
    known = None if scheduler is None else scheduler.beliefs()
    by_class = scheduler is not None and not scheduler.by_job and view is None
    return {
        "slot": 0 if scheduler is None or view is not None else scheduler.slot,
        "V": 0.0 if scheduler is None or scheduler.settings is None or isinf(scheduler.V) else scheduler.V,
        "knobs": settings_info(replica.settings),
        "expected": scheduler.expected.tolist() if scheduler is not None and by_class else [],
        "mean": [] if known is None else known.mean.tolist(),
        "width": [] if known is None else known.width.tolist(),
        "counters": dict(memory.counters),
        "reward_total": memory.reward_total,
        "shadow": shadow_info(replica) if view is None else None,
        "unserved": sum(unserved(replica.memory, view, replica.absent).values()),
        "awaited": memory.awaited,
    }


def shadow_info(replica: Replica) -> ShadowInfo | None:
    """Return how the shadow compares; None if there is none."""
    if replica.settings.shadow == NO_SHADOW:
        return None
    shadow = replica.memory.shadow
    return ShadowInfo(replica.settings.shadow, "starting") if shadow is None else shadow.info()


def waits(seconds: Sequence[float]) -> Waits:
    """Return how long jobs waited."""
    if not seconds:
        return Waits(0, None, None, None, None)
    p50, p90, p99 = np.percentile(seconds, (50, 90, 99)).tolist()
    return Waits(len(seconds), float(np.mean(seconds)), p50, p90, p99)


def _job_class(memory: Memory | Books, name: str, weight: float) -> JobClassState:
    waited = waits(list(memory.waits.get(name, ())))
    return JobClassState(name, weight, memory.queued[name], memory.leased[name], waited)


async def metrics_page(replica: Replica, view: View = None) -> str:
    """Return the metrics as Prometheus reads them; without those of a leader where this process does not lead.

    Those who see some namespaces only get their jobs and servers, and nothing about the process.
    """
    page, memory = Page(), replica.memory if replica.ready else None
    if view is not None:
        return _part_of_page(page, replica, memory, view)
    scheduler = None if memory is None else memory.scheduler
    health = None if scheduler is None else await asyncio.to_thread(scheduler.health)
    _add_role(page, replica)
    if memory is not None:
        _add_queues(page, replica, memory)
        _add_servers(page, memory)
        _add_settings(page, replica, memory)
        _add_shadow(page, replica)
    if health is not None and replica.meters.saved is not None:
        _add_learner(page, health, replica.meters.saved)
    _add_jobs(page, replica.meters, [] if memory is None else _names(memory, "job"))
    _add_work(page, replica)
    add_process(page)
    return page.text()


def _part_of_page(page: Page, replica: Replica, memory: Memory | None, view: frozenset[str]) -> str:
    names = [] if memory is None else _names(memory, "job")
    if memory is not None:
        _add_queues(page, replica, memory, view)
        _add_servers(page, memory, view)
    _add_jobs(page, Meters.merged([replica.meters.of(name) for name in sorted(view)]), names)
    return page.text()


def _add_role(page: Page, replica: Replica) -> None:
    page.gauge("bilinq_build_info", "Always 1; the label is the version.", [({"version": _version("bilinq")}, 1)])
    page.gauge("bilinq_ready", "Whether this process serves requests itself.", int(replica.ready))
    about = "Whether this process leads; 0 is one that follows or has lost its database."
    page.gauge("bilinq_leader", about, int(replica.ready and not replica.following))
    page.gauge("bilinq_epoch", "How many leaders there were until this process led.", replica.store.epoch)
    about = "How often the database was unavailable and memory was loaded again."
    page.counter("bilinq_recoveries_total", about, replica.meters.recoveries)
    about = "How often the database did not answer in time."
    page.counter("bilinq_database_stalls_total", about, replica.store.meter.stalls)
    about = "Slots in which the scheduler failed and jobs were served first come, first served."
    page.counter("bilinq_slot_fallbacks_total", about, replica.meters.fallbacks)
    about = "How often a shadow failed and was switched off."
    page.counter("bilinq_shadow_failures_total", about, replica.meters.shadow_failures)
    about = "Allocations that could not be certified as optimal; each was feasible and used."
    page.counter("bilinq_uncertified_allocations_total", about, tally.uncertified)


def _add_queues(page: Page, replica: Replica, whole: Memory, view: View = None) -> None:
    memory, names = seen(whole, view), _names(whole, "job")
    page.gauge("bilinq_jobs_queued", "Jobs that wait.", _by_class(names, memory.queued))
    page.gauge("bilinq_jobs_leased", "Jobs that are being served.", _by_class(names, memory.leased))
    page.gauge("bilinq_jobs_dead", "Jobs that failed too often and can be retried.", memory.dead)
    page.gauge("bilinq_rewards_awaited", "Jobs that are done and have no reward so far.", memory.awaited)
    about = "Jobs that wait for server classes without a server that may serve them."
    page.gauge("bilinq_jobs_unserved", about, sum(unserved(whole, view, replica.absent).values()))


def _add_servers(page: Page, memory: Memory, view: View = None) -> None:
    own = [server for server in memory.servers.values() if view is None or server.namespace in view]
    found = Counter[tuple[str, str]]((server.row.server_class, server.state) for server in own)
    places = [(name, state) for name in _names(memory, "server") for state in SERVERS]
    samples = [({"server_class": name, "state": state}, found[name, state]) for name, state in places]
    about = "Servers by class and state; those away neither wait for work nor have any."
    page.gauge("bilinq_servers", about, samples)
    kept = [(name, how) for name in _names(memory, "server") for how in HELD]
    held = _held(memory, own)
    about = "Servers that get no job: paused after failures, or draining or quarantined by an operator."
    page.gauge("bilinq_servers_held", about, [({"server_class": c, "held": how}, held[c, how]) for c, how in kept])


def _held(memory: Memory, servers: Sequence[LiveServer]) -> Counter[tuple[str, str]]:
    """Count the servers that get no job, by class and reason."""
    paused = {} if memory.scheduler is None else memory.scheduler.paused
    found: Counter[tuple[str, str]] = Counter()
    for server in servers:
        id, name = server.row.id, server.row.server_class
        if server.row.held is not None:
            found[name, server.row.held] += 1
        elif (name, id) in paused or (name, None) in paused:
            found[name, "paused"] += 1
    return found


def _add_settings(page: Page, replica: Replica, memory: Memory) -> None:
    wait, scheduler = settings_info(replica.settings).target_wait, memory.scheduler
    if wait is not None:
        page.gauge("bilinq_target_wait_seconds", "How long jobs may wait for a good match at light load.", wait)
    if scheduler is not None and scheduler.settings is not None:
        page.gauge("bilinq_reward_weight", "V: the weight of rewards against queues.", scheduler.V)


def _add_shadow(page: Page, replica: Replica) -> None:
    found = shadow_info(replica)
    if found is None:
        return
    about = "Whether the shadow is asked; 0 while it starts, and after a failure."
    page.gauge("bilinq_shadow_on", about, [({"policy": found.policy}, int(found.state == "on"))])
    about = "Of the last decisions with a choice, those that can be compared with the shadow's."
    page.gauge("bilinq_shadow_compared", about, found.compared)
    about = "How often the shadow would have chosen the same server class."
    page.gauge("bilinq_shadow_agreement", about, [] if found.agreement is None else found.agreement)
    about = "Reward of a service that the shadow would have earned more, with its 95 % interval."
    bounds = {} if found.gain is None else {"mean": found.gain.mean, "low": found.gain.low, "high": found.gain.high}
    page.gauge("bilinq_shadow_gain", about, [({"bound": name}, value) for name, value in bounds.items()])


def _add_learner(page: Page, health: Health, saved: float) -> None:
    page.gauge("bilinq_learner_observations", "Rewards and failures that were learnt from, ever.", health.observations)
    page.gauge("bilinq_learner_noise", "Standard deviation of rewards as estimated, in the user's units.", health.noise)
    page.gauge("bilinq_learner_condition", "Condition number of the design matrix.", health.condition)
    extremes = [({"which": "smallest"}, health.smallest), ({"which": "largest"}, health.largest)]
    page.gauge("bilinq_learner_eigenvalue", "Extreme eigenvalues of the design matrix.", extremes)
    about = "When what was learnt was last saved to the database or loaded from it, in seconds since 1970."
    page.gauge("bilinq_learner_saved_timestamp_seconds", about, saved)


def _add_jobs(page: Page, meters: Meters, known: Sequence[str]) -> None:
    """Add counts by job class, also those that are zero."""
    granted: Counter[str] = Counter()
    for (name, _), many in meters.granted.items():
        granted[name] += many
    names = list(dict.fromkeys([*known, *meters.submitted, *granted]))
    page.counter("bilinq_jobs_submitted_total", "Jobs that were submitted.", _by_class(names, meters.submitted))
    page.counter("bilinq_jobs_ended_total", "Jobs that ended, by how.", _by_end(names, JOBS, meters.jobs_ended))
    page.counter("bilinq_leases_granted_total", "Leases that were granted.", _by_class(names, granted))
    page.counter("bilinq_leases_ended_total", "Leases that ended, by how.", _by_end(names, LEASES, meters.leases_ended))
    rewards = [({"job_class": name}, meters.rewards[name], meters.reward_sum.get(name, 0.0)) for name in names]
    page.summary("bilinq_reward", "Rewards, in the user's units.", rewards)
    waits = [({"job_class": name}, meters.waits.get(name, NONE)) for name in names]
    page.histogram("bilinq_wait_seconds", "How long jobs waited for their first lease.", waits)


def _add_work(page: Page, replica: Replica) -> None:
    slots, solver, commits = replica.meters.slots, replica.meters.solver, replica.store.meter
    page.histogram("bilinq_slot_seconds", "How long slots took that asked the scheduler.", [({}, slots)])
    about = "How long the scheduler took in these slots: to learn, decide and pick."
    page.histogram("bilinq_solver_seconds", about, [({}, solver)])
    about = "How long transactions took, from their begin to the disk."
    page.histogram("bilinq_commit_seconds", about, [({}, commits.seconds)])
    page.histogram("bilinq_commit_operations", "Operations in one transaction.", [({}, commits.operations)])
    samples = [
        ({"method": method, "path": path, "status": str(status)}, many)
        for (method, path, status), many in replica.meters.answers.items()
    ]
    page.counter("bilinq_http_answers_total", "Answers by method, path and status.", samples)


def _names(memory: Memory, kind: str) -> list[str]:
    return [name for one, name in memory.classes if one == kind]


def _by_class(names: Sequence[str], values: Mapping[str, int]) -> list[Labelled]:
    return [({"job_class": name}, values.get(name, 0)) for name in names]


def _by_end(names: Sequence[str], ends: Sequence[str], values: Mapping[tuple[str, str], int]) -> list[Labelled]:
    return [({"job_class": name, "how": how}, values.get((name, how), 0)) for name in names for how in ends]
