"""The service as Prometheus sees it: every number of one process, whether it leads or follows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version

from bilinq.learning import Health
from bilinq.live.metrics import Histogram, Meters
from bilinq.live.metrics.meters import WAITS
from bilinq.live.metrics.page import Page, add_process
from bilinq.live.service.core import Core
from bilinq.live.service.memory import Memory

LEASES = ("finished", "failed", "expired", "revoked")
JOBS = ("done", "dead", "cancelled")
SERVERS = ("idle", "busy", "away")
NONE = Histogram(WAITS)
"""Of a class of which no job was leased yet."""

Sample = tuple[dict[str, str], float]


async def scrape(core: Core) -> str:
    """Return the page of metrics; what only a leader knows is left out where this process does not lead."""
    page, memory = Page(), core.memory if core.ready else None
    scheduler = None if memory is None else memory.scheduler
    health = None if scheduler is None else await asyncio.to_thread(scheduler.health)
    _add_role(page, core)
    if memory is not None:
        _add_queues(page, memory)
        _add_servers(page, memory)
        _add_settings(page, core, memory)
    if health is not None and core.meters.saved is not None:
        _add_learner(page, health, core.meters.saved)
    _add_jobs(page, core.meters, [] if memory is None else _names(memory, "job"))
    _add_work(page, core)
    add_process(page)
    return page.text()


def _add_role(page: Page, core: Core) -> None:
    page.gauge("bilinq_build_info", "Always 1; the label tells the version.", [({"version": _version()}, 1)])
    page.gauge("bilinq_ready", "Whether this process serves requests itself.", int(core.ready))
    about = "Whether this process leads; 0 is one that follows or has lost its database."
    page.gauge("bilinq_leader", about, int(core.ready and not core.following))
    page.gauge("bilinq_epoch", "How many leaders there were until this process led.", core.store.epoch)
    about = "How often the database was away and memory was loaded again."
    page.counter("bilinq_recoveries_total", about, core.meters.recoveries)


def _add_queues(page: Page, memory: Memory) -> None:
    names = _names(memory, "job")
    page.gauge("bilinq_jobs_queued", "Jobs that wait.", _by_class(names, memory.queued))
    page.gauge("bilinq_jobs_leased", "Jobs that are being served.", _by_class(names, memory.leased))
    page.gauge("bilinq_jobs_dead", "Jobs that failed too often and wait for somebody to retry them.", memory.dead)


def _add_servers(page: Page, memory: Memory) -> None:
    found = Counter[tuple[str, str]]((server.row.server_class, server.state) for server in memory.servers.values())
    places = [(name, state) for name in _names(memory, "server") for state in SERVERS]
    samples = [({"server_class": name, "state": state}, found[name, state]) for name, state in places]
    about = "Servers by class and by what they do; those away neither ask for work nor hold any."
    page.gauge("bilinq_servers", about, samples)


def _add_settings(page: Page, core: Core, memory: Memory) -> None:
    wait, scheduler = core.options.target_wait, memory.scheduler
    if core.options.learns and wait is not None:
        page.gauge("bilinq_target_wait_seconds", "How long jobs may wait for a good match at light load.", wait)
    if scheduler is not None and scheduler.settings is not None:
        page.gauge("bilinq_reward_weight", "V: the weight of rewards against queues.", scheduler.V)


def _add_learner(page: Page, health: Health, saved: float) -> None:
    page.gauge("bilinq_learner_observations", "Rewards that were learnt from, ever.", health.observations)
    page.gauge("bilinq_learner_noise", "Standard deviation of rewards as estimated, in the user's units.", health.noise)
    page.gauge("bilinq_learner_condition", "Condition number of the design matrix.", health.condition)
    extremes = [({"which": "smallest"}, health.smallest), ({"which": "largest"}, health.largest)]
    page.gauge("bilinq_learner_eigenvalue", "Extreme eigenvalues of the design matrix.", extremes)
    about = "When what was learnt was last saved to the database or loaded from it, in seconds since 1970."
    page.gauge("bilinq_learner_saved_timestamp_seconds", about, saved)


def _add_jobs(page: Page, meters: Meters, known: Sequence[str]) -> None:
    """Add what was counted by job class, from zero on for classes that are known."""
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


def _add_work(page: Page, core: Core) -> None:
    """Add what the process did: slots, transactions, answers."""
    slots, solver, commits = core.meters.slots, core.meters.solver, core.store.meter
    page.histogram("bilinq_slot_seconds", "How long slots took in which the scheduler was asked.", [({}, slots)])
    about = "How long the scheduler took in these slots: to learn, decide and pick."
    page.histogram("bilinq_solver_seconds", about, [({}, solver)])
    about = "How long transactions took, from their begin to the disk."
    page.histogram("bilinq_commit_seconds", about, [({}, commits.seconds)])
    page.histogram("bilinq_commit_operations", "Operations in one transaction.", [({}, commits.operations)])
    samples = [
        ({"method": method, "path": path, "status": str(status)}, many)
        for (method, path, status), many in core.meters.answers.items()
    ]
    page.counter("bilinq_http_answers_total", "Answers by method, path and status.", samples)


@cache
def _version() -> str:
    return version("bilinq")


def _names(memory: Memory, kind: str) -> list[str]:
    return [name for one, name in memory.classes if one == kind]


def _by_class(names: Sequence[str], values: Mapping[str, int]) -> list[Sample]:
    return [({"job_class": name}, values.get(name, 0)) for name in names]


def _by_end(names: Sequence[str], ends: Sequence[str], values: Mapping[tuple[str, str], int]) -> list[Sample]:
    return [({"job_class": name, "how": how}, values.get((name, how), 0)) for name in names for how in ends]
