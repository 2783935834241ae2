"""Slots that cannot fail: a stand-in serves jobs while a scheduler that failed is made again from checkpoint and log."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from bilinq.errors import BadState, Unavailable
from bilinq.live.service import tenants
from bilinq.live.service.configuration import SchedulerClasses, scheduler_classes
from bilinq.live.service.recovery import Pauses, load_scheduler
from bilinq.live.service.replay import observation
from bilinq.live.store.class_tables import all_classes
from bilinq.live.store.job_tables import last_observation
from bilinq.scheduler.classes import RewardRange
from bilinq.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from bilinq.arrays import Array
    from bilinq.live.service.memory import Memory
    from bilinq.live.service.replica import Replica
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store import Transaction
    from bilinq.live.store.class_tables import ClassRow
    from bilinq.scheduler.scheduler import Assignment

log = logging.getLogger("bilinq.live")


class Fallback:
    """Replaces a scheduler that raises, or whose numbers are not finite, and returns to it when it is sound again."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._pauses = replica, Pauses()
        self._reported = False

    def decide(self, memory: Memory, idle: dict[str, list[int]], elapsed: float, now: float) -> list[Assignment]:
        """Return what the scheduler decides, or what is left without it; nothing that was acknowledged is touched."""
        assert memory.scheduler is not None
        try:
            tasks = tenants.assign(memory, idle, elapsed)
            if not memory.scheduler.sound:
                raise BadState("what was learnt must be finite")
            return tasks
        except Exception as error:
            if memory.missed is not None:  # the stand-in itself has failed
                raise
            log.exception("the scheduler failed, jobs are served first come, first served: %s", error)
            self._replica.meters.fallbacks += 1
            memory.missed = []
            memory.replace_scheduler(_stand_in(memory, self._replica.settings), now)
            self._replica.spawn(self._recover(memory))
            return tenants.assign(memory, idle, elapsed)

    async def _recover(self, memory: Memory) -> None:
        """Make the scheduler again until that succeeds, or memory is loaded again anyway."""
        while self._replica.uses(memory) and memory.missed is not None:
            await asyncio.sleep(self._pauses.next(time.monotonic()))
            try:
                await self._replica.write(lambda tx: None)  # what was observed before is on disk then
                made = await self._replica.store.read(lambda tx: _load(tx, self._replica.settings), patient=True)
                if self._replica.uses(memory):
                    self._return_to(memory, *made)
            except Unavailable:
                return
            except Exception as error:
                if not self._reported:
                    log.error("the scheduler cannot be made again yet: %s", error)
                self._reported = True

    def _return_to(self, memory: Memory, scheduler: Scheduler | None, every: list[ClassRow], seq: int) -> None:
        """Let a scheduler made from the log learn what it has missed since, and take over the jobs."""
        newest = max(row.since for row in every)
        if scheduler is None or memory.missed is None or any(row.since > newest for row in memory.classes.values()):
            return  # there are no classes, or they have changed meanwhile
        names = {row.id: row.name for row in every}
        fits = scheduler.learns and scheduler.policy is None
        rows = [row for row in memory.missed if row.seq > seq and (fits or (scheduler.learns and row.before is None))]
        scheduler.replay(observation(row, names, scheduler) for row in rows)
        scheduler.set_classes(*scheduler_classes(memory.classes.values(), self._replica.settings))
        if not scheduler.sound:
            raise BadState("what was learnt from the log must be finite")
        memory.replace_scheduler(scheduler, time.monotonic())
        memory.missed, self._reported = None, False
        log.warning("the scheduler works again")


def _stand_in(memory: Memory, settings: ServiceSettings) -> Scheduler:
    classes = scheduler_classes(memory.classes.values(), settings)
    reward = RewardRange(settings.reward.low, settings.reward.high)
    values = _last_values(memory.scheduler, classes)
    return Scheduler.first_come(*classes, reward=reward, longest_pause=settings.pause_longest, values=values)


def _last_values(failed: Scheduler | None, classes: SchedulerClasses) -> Array | None:
    """Return the learnt value of each pair of classes if these are still known and finite; None if not."""
    try:
        known = None if failed is None else failed.beliefs()
    except Exception:
        return None
    if failed is None or known is None or not np.isfinite(known.mean).all():
        return None
    same = [*failed.job_classes, *failed.server_classes] == [*classes.jobs, *classes.servers]
    return known.mean if same else None


def _load(tx: Transaction, settings: ServiceSettings) -> tuple[Scheduler | None, list[ClassRow], int]:
    """Return the scheduler of checkpoint and log, all classes, and the last place in the log."""
    return load_scheduler(tx, settings), all_classes(tx), last_observation(tx)
