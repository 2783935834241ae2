"""Recovery: load memory and what was learnt from the database, at the start and whenever a write has failed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec import structs

from bilinq.errors import BadState, Unavailable
from bilinq.live.service import configuration as config
from bilinq.live.service.entities import Ids, LiveServer
from bilinq.live.service.memory import Memory
from bilinq.live.service.options import options_of
from bilinq.live.service.replay import first_roster, in_order, replay, roster_at
from bilinq.live.service.retries import retries
from bilinq.live.service.tenants import server_rights
from bilinq.live.settings import LOOK_AHEAD
from bilinq.live.store import class_tables, job_tables
from bilinq.live.store.admin_tables import all_keys, get_meta, largest_ids
from bilinq.live.store.class_tables import all_namespaces
from bilinq.scheduler.scheduler import Scheduler
from bilinq.scheduler.snapshot import policy_of, unseal

if TYPE_CHECKING:
    from bilinq.live.service.replica import Replica
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store import Transaction
    from bilinq.live.store.class_tables import ClassRow

log = logging.getLogger("bilinq.live")

RETRY = 0.5  # seconds after which loading is tried again
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds of the second pause (there is none at first), and of the longest
CALM = 30.0  # seconds without a failure after which recovery begins without a pause again
LED = 2.0  # seconds for which another process must lead to show that the database works: no pause is needed then
UNUSABLE = (BadState, ValueError, LookupError, ArithmeticError)
"""Errors of learnt state or observations that are damaged, do not fit the classes, or cannot be computed with."""


class Recovery:
    """Loads memory when the service starts, and again when it cannot be trusted any more."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._given = replica, replica.settings
        self._pauses = Pauses()

    async def run(self) -> None:
        """Recover from each failure until cancelled."""
        replica = self._replica
        while True:
            await replica.failed.wait()
            await asyncio.sleep(self._pauses.next(time.monotonic()))
            while not replica.ready:
                await self._try()
            replica.failed.clear()
            log.info("the database is back")

    async def _try(self) -> None:
        replica = self._replica
        try:
            replica.following = replica.store.shared
            async with replica.finding_leader():
                began = time.monotonic()
                if await replica.store.reconnect():
                    log.warning("another process led in between")
                    if time.monotonic() - began >= LED:
                        self._pauses = Pauses()
            await self.load()
            replica.following = False
        except Unavailable as error:
            log.error("the database is still unavailable: %s", error)
            await asyncio.sleep(RETRY)
        except Exception:
            log.exception("the database cannot be loaded")
            await asyncio.sleep(RETRY)

    async def load(self) -> None:
        """Load everything, and serve requests from then on."""
        replica, now, wall = self._replica, time.monotonic(), time.time()
        ids = await replica.store.write(lambda tx: config.configure(tx, self._given, replica.address))
        replica.secret = await replica.store.read(lambda tx: get_meta(tx, config.SECRET))
        loaded = await replica.store.read(lambda tx: load_memory(tx, self._given, ids, now, wall), patient=True)
        replica.use(*loaded)

    async def checkpoint(self, memory: Memory) -> None:
        """Save what was learnt, with the place in the log up to which it goes.

        Not if something of that could not be written, which a service may do that stops before memory is loaded again.
        """
        replica = self._replica
        if memory.scheduler is None or not memory.scheduler.learns or not memory.scheduler.sound:
            return
        state, seq, now = memory.scheduler.snapshot(jobs=False), memory.ids.last_seq, time.time()

        def save(tx: Transaction) -> bool:
            written = largest_ids(tx).seq >= seq
            if written:
                class_tables.save_checkpoint(tx, seq, now, state, sha256(state).hexdigest())
            return written

        if await replica.write(save):
            replica.meters.saved = now

    async def watch_connection(self) -> None:
        """Notice that the connection to the database is gone also while nothing is written."""
        while True:
            await self._replica.store.lost.wait()
            self._replica.fail(self._replica.store.reason)
            await asyncio.sleep(0.1)


@dataclass
class Pauses:
    """How long to wait before the next try: not at all at first, then twice as long each time.

    Examples
    --------
    >>> pauses = Pauses()
    >>> [pauses.next(now) for now in (100.0, 101.0, 102.0, 140.0)]
    [0.0, 0.25, 0.5, 0.0]
    """

    _last: float = -CALM
    _pause: float = 0.0

    def next(self, now: float) -> float:
        """Return the pause before a try at the time `now`, in seconds."""
        calm = now - self._last >= self._pause + CALM
        self._pause = 0.0 if calm else min(max(FIRST_PAUSE, 2.0 * self._pause), LONGEST_PAUSE)
        self._last = now
        return self._pause


def load_memory(
    tx: Transaction, given: ServiceSettings, ids: Ids, now: float, wall: float
) -> tuple[Memory, ServiceSettings]:
    """Return memory and the settings, with those that the API changed, as stored; `now` and `wall` are the clocks.

    Every active lease gets a full lease time from now: changes of the wall clock do not matter.
    """
    settings = structs.replace(given, **class_tables.stored_settings(tx))
    memory = Memory(ids, load_scheduler(tx, settings), retries(settings))
    every = class_tables.all_classes(tx)
    memory.classes = {(row.kind, row.name): row for row in in_order(every)}
    memory.keys = {row.prefix: row for row in all_keys(tx)}
    memory.limits = all_namespaces(tx)
    for server in class_tables.all_servers(tx):
        memory.servers.enrol(LiveServer(server, server.seen, **server_rights(memory.keys, server.owner)))
    queued, failed = job_tables.queued_jobs(tx), defaultdict[int, list[job_tables.FailedOn]](list)
    for one in job_tables.failed_servers(tx, [waiting.id for waiting in queued if waiting.attempts]):
        failed[one.job].append(one)
    for waiting in queued:
        memory.add(waiting, wall, now, failed.get(waiting.id, ()))
    for namespace, number in job_tables.count_dead_jobs(tx).items():
        memory.books(namespace).dead = number
        memory.dead += number
    memory.set_awaited(job_tables.count_awaited(tx))
    for lease in job_tables.active_leases(tx):
        job = job_tables.get_job(tx, lease.job)
        assert job is not None
        memory.adopt(lease, job, now - max(wall - lease.granted, 0.0), now + settings.lease, wall, now)
    for one in job_tables.failed_servers(tx, [id for id, job in memory.jobs.items() if job.lease and job.attempts]):
        memory.jobs[one.job].failed_on |= {one.server}
    return memory, settings


def load_scheduler(tx: Transaction, settings: ServiceSettings) -> Scheduler | None:
    """Return a scheduler without jobs for the current classes; None until there are classes of both kinds.

    It has learnt what is in the newest sound checkpoint of its policy and from the log since; without such a checkpoint,
    from the whole log; if that does not fit either, nothing. A policy that does not learn starts from nothing, and leaves
    checkpoints and log to the next one that does.
    """
    every = class_tables.all_classes(tx)
    current = config.scheduler_classes(in_order(every), settings)
    if not current.jobs or not current.servers:
        return None
    if not config.policy_of(settings).learns:
        return config.new_scheduler(current, settings)
    for kept in class_tables.newest_checkpoints(tx):
        try:
            scheduler = _restored(kept, settings)
            if scheduler is not None:
                _check_jobs(tx, scheduler)
                log_since = job_tables.observations_since(tx, kept.seq)
                return replay(scheduler, every, log_since, settings, after=kept.seq)
        except UNUSABLE as error:
            log.error("checkpoint %d is not usable: %s", kept.id, error)
    return _from_log(tx, every, settings) or config.new_scheduler(current, settings)


def _check_jobs(tx: Transaction, scheduler: Scheduler) -> None:
    """Raise unless a scheduler from a checkpoint accepts the jobs that are open."""
    for own in map(options_of, job_tables.open_options(tx)):
        if own.features is not None and scheduler.own_features not in (0, len(own.features)):
            rule = f"it must be for jobs with {len(own.features)} features, as those that are open have"
            raise BadState(f"{rule}; got {scheduler.own_features}")


def _from_log(tx: Transaction, every: Sequence[ClassRow], settings: ServiceSettings) -> Scheduler | None:
    """Return a scheduler that has learnt from the whole log; None if that does not fit."""
    seen = job_tables.observations_since(tx, 0)
    if seen:
        log.warning("what was learnt is computed again from all %d observations", len(seen))
    start = config.scheduler_classes(roster_at(every, first_roster(every)), settings)
    try:
        return replay(config.new_scheduler(start, settings), every, seen, settings)
    except UNUSABLE as error:
        log.error("the observations do not fit, learning starts again from nothing: %s", error)
        return None


def _restored(kept: class_tables.Checkpoint, settings: ServiceSettings) -> Scheduler | None:
    """Return the scheduler of a checkpoint, None if another policy made it; raise if it is damaged or has other rewards."""
    if sha256(kept.state).hexdigest() != kept.checksum:
        raise BadState("it must have the checksum it was stored with")
    document = unseal(kept.state)
    family = policy_of(document)
    if family != config.policy_of(settings).family:
        log.warning("checkpoint %d belongs to another policy: %s", kept.id, family or LOOK_AHEAD)
        return None
    if any(document.get(name) for name in ("jobs", "served", "fresh", "expired")):
        raise BadState("it must have no jobs: those are in other tables")
    scheduler = Scheduler.restore(kept.state, config.scheduler_policy(settings))
    low, high = scheduler.reward.low, scheduler.reward.high
    if (low, high) != (settings.reward.low, settings.reward.high):
        wanted = f"{settings.reward.low:g} to {settings.reward.high:g}"
        raise BadState(f"it must be for rewards from {wanted}; got {low:g} to {high:g}")
    scheduler.longest_pause = settings.pause_longest / config.time_unit(settings)
    if scheduler.policy is None:  # a policy has the present settings already
        scheduler.update_settings(**config.scheduler_settings(settings))
    return scheduler
