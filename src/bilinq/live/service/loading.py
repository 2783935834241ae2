"""Load memory and what was learned from the database."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from bilinq.errors import BadState
from bilinq.live.service.ids import Ids
from bilinq.live.service.memory import LiveServer, Memory
from bilinq.live.service.options import Options, options_from
from bilinq.live.settings import Settings
from bilinq.live.store import Transaction
from bilinq.live.store.admin_tables import all_keys
from bilinq.live.store.class_tables import (
    Checkpoint,
    ClassRow,
    all_classes,
    all_servers,
    current_classes,
    newest_checkpoints,
    stored_settings,
)
from bilinq.live.store.job_tables import (
    QueuedJob,
    RewardRow,
    active_leases,
    count_dead_jobs,
    get_job,
    queued_jobs,
    rewards_since,
)
from bilinq.policies import FirstCome
from bilinq.scheduler.classes import JobClass, ServerClass
from bilinq.scheduler.scheduler import Scheduler

log = logging.getLogger("bilinq.live")

UNUSABLE = (BadState, ValueError, LookupError, ArithmeticError)
"""What comes of learnt state or rewards that are damaged, do not fit the classes, or cannot be computed with."""


class Kinds(NamedTuple):
    """Classes of both kinds as the scheduler knows them."""

    jobs: list[JobClass]
    servers: list[ServerClass]


def scheduler_from(tx: Transaction, options: Options) -> Scheduler | None:
    """Return a scheduler without jobs for the current classes; None until there are classes of both kinds.

    What it has learnt is that of the newest sound checkpoint and the rewards since; if no checkpoint is sound, that of all
    rewards; if these do not fit either, nothing. What is not as it should be goes to the log. A policy that does not learn
    starts from nothing, and leaves checkpoints and rewards to the next one that does.
    """
    every = {row.id: row for row in all_classes(tx)}
    current = kinds([row for row in every.values() if row.current], options)
    if not current.jobs or not current.servers:
        return None
    if not options.learns:
        return new_scheduler(current, options)
    for kept in newest_checkpoints(tx):
        try:
            return _settled(_restored(kept, options), every, rewards_since(tx, kept.seq), current, options)
        except UNUSABLE as error:
            log.error("checkpoint %d is not usable: %s", kept.id, error)
    seen = rewards_since(tx, 0)
    if seen:
        log.warning("what was learnt is computed again from all %d rewards", len(seen))
    try:
        return _settled(new_scheduler(current, options), every, seen, current, options)
    except UNUSABLE as error:
        log.error("the rewards do not fit, learning starts again from nothing: %s", error)
        return new_scheduler(current, options)


def new_scheduler(current: Kinds, options: Options) -> Scheduler:
    """Return a scheduler that has learnt nothing."""
    given = options.arguments if options.learns else {"policy": FirstCome()}
    return Scheduler(*current, reward=options.reward, seed=options.seed, **given)


def kinds(rows: Sequence[ClassRow], options: Options) -> Kinds:
    """Return stored classes as the scheduler knows them, with weights if its policy knows any."""
    jobs = [
        JobClass(row.name, row.features, row.weight if options.learns else 1.0) for row in rows if row.kind == "job"
    ]
    return Kinds(jobs, [ServerClass(row.name, row.features) for row in rows if row.kind == "server"])


def _restored(kept: Checkpoint, options: Options) -> Scheduler:
    """Return the scheduler of a checkpoint, or raise if it is damaged or was made for another range of rewards."""
    if sha256(kept.state).hexdigest() != kept.checksum:
        raise BadState("it must have the checksum it was stored with")
    scheduler = Scheduler.restore(kept.state)
    if scheduler.reward != options.reward:
        raise BadState(f"it must be for rewards of {options.reward}; got {scheduler.reward}")
    return scheduler


def _settled(
    scheduler: Scheduler, every: dict[int, ClassRow], seen: Sequence[RewardRow], current: Kinds, options: Options
) -> Scheduler:
    """Return the scheduler after it has learnt from rewards under the features of then, with the current classes."""
    if seen:
        jobs, servers = {row.job_class_id for row in seen}, {row.server_class_id for row in seen}
        scheduler.set_classes(
            [JobClass(str(id), every[id].features) for id in sorted(jobs)],
            [ServerClass(str(id), every[id].features) for id in sorted(servers)],
        )
        scheduler.observe((str(row.job_class_id), str(row.server_class_id), row.value) for row in seen)
    scheduler.set_classes(*current)
    scheduler.update_settings(**options.arguments)
    return scheduler


def load(tx: Transaction, settings: Settings, ids: Ids, seed: int, now: float) -> tuple[Memory, Options]:
    """Return memory and options as the database has them; `now` is the monotonic clock.

    Every active lease gets a full lease time from now: what the clock on the wall did meanwhile does not matter.
    """
    options = options_from(settings, stored_settings(tx), seed)
    memory = Memory(ids, scheduler_from(tx, options), settings.max_attempts)
    memory.classes = {(row.kind, row.name): row for row in current_classes(tx)}
    memory.keys = {row.prefix: row for row in all_keys(tx)}
    for server in all_servers(tx):
        memory.enrol(LiveServer(server, server.seen))
    for job in queued_jobs(tx):
        memory.add(job)
    memory.dead = count_dead_jobs(tx)
    for lease in active_leases(tx):
        row = get_job(tx, lease.job)
        assert row is not None
        job = QueuedJob(row.id, row.job_class, row.units_left, row.attempts, row.submitted)
        memory.adopt(lease, job, now + settings.lease)
    return memory, options
