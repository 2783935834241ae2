"""Rewards that come after a job has ended: the first counts, another one corrects it, the same again changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bilinq.errors import Conflict, Unavailable
from bilinq.live.service.entities import UNKNOWN_EPOCH, epoch_of
from bilinq.live.service.options import options_of
from bilinq.live.service.outbox import Changes, to_text
from bilinq.live.service.submissions import Claims, Submissions
from bilinq.live.store import job_tables as tables
from bilinq.live.store.class_tables import class_name
from bilinq.live.wire.messages import NewReward, Rewarded
from bilinq.scheduler.scheduler import Observation

if TYPE_CHECKING:
    from bilinq.live.keys import Identity
    from bilinq.live.service.memory import Memory
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.slots import Slots
    from bilinq.live.store import Transaction


MOST_REWARDS = 1000  # that one job may get after its end; each call reads those before it


class Past(NamedTuple):
    """A job, its last lease that was finished, the name of its server class, and what was observed of it."""

    job: tables.JobRow
    lease: tables.LeaseRow
    server_class: str
    seen: list[tables.ObservationRow]

    @property
    def last(self) -> tables.ObservationRow | None:
        """The reward that counts so far, None if there is none."""
        return next((row for row in reversed(self.seen) if row.value is not None), None)


class LateRewards(Submissions):
    """Rewards jobs that were served before."""

    def __init__(self, replica: Replica, slots: Slots) -> None:
        super().__init__(replica, slots)
        self._rewarding = Claims()

    async def reward(self, who: Identity, id: str, new: NewReward) -> Rewarded:
        """Reward a job that was finished, or correct its reward; calls for the same job come one after the other."""
        release = await self._rewarding.take([("job", id)])
        try:
            memory = self._replica.memory
            past = await self._replica.write(lambda tx: self._past(tx, who, id))
            if memory is not self._replica.memory:
                raise Unavailable("the service has lost its database meanwhile; try again", retry_after=1.0)
            value = new.reward + 0.0
            if _is_repeated(past, value, new.key):
                return Rewarded(id, value, repeated=True)
            if len(past.seen) > MOST_REWARDS:  # the first is what was observed of the lease itself
                raise Conflict(f"a job may be rewarded {MOST_REWARDS} times after its end; {id} has been")
            changes = Changes()
            row = _count(memory, past, value, new.key, changes)
            await self._replica.save(changes)
            return Rewarded(id, value, corrected=row.before is not None)
        finally:
            release()

    def _past(self, tx: Transaction, who: Identity, id: str) -> Past:
        job, leases = self._find(tx, who, id)
        ended = [lease for lease in leases if lease.state == "finished"]
        if not ended:
            raise Conflict(f"job {id} must have been finished to be rewarded; it is {job.state}")
        lease = ended[-1]
        return Past(job, lease, class_name(tx, lease.server_class_id), tables.observations_of(tx, lease.id))


def _is_repeated(past: Past, value: float, key: str | None) -> bool:
    """Tell whether a reward was counted before: under the same key, or as the last one."""
    same = None if key is None else next((row for row in past.seen if row.key == key), None)
    if same is not None and same.value != value:
        raise Conflict(f"key {key!r} was used for another reward of job j{past.job.id}, {same.value:g}")
    return same is not None or (past.last is not None and past.last.value == value)


def _count(memory: Memory, past: Past, value: float, key: str | None, changes: Changes) -> tables.ObservationRow:
    """Let the scheduler learn a reward, count it, and collect the changes; a bad reward raises before anything changes."""
    job, lease, last = past.job, past.lease, past.last
    scheduler, features = memory.scheduler, options_of(job.options).features
    assert scheduler is not None
    scheduler.reward.scaled(value)
    before = None if last is None else last.value
    epoch = epoch_of(scheduler, past.server_class, UNKNOWN_EPOCH if last is None else last.epoch)
    if scheduler.learns and (before is None or scheduler.policy is None):
        told = Observation(job.job_class, past.server_class, value, features=features, before=before, epoch=epoch)
        scheduler.replay([told])
    row = tables.ObservationRow(
        seq=memory.ids.next_seq(), lease=lease.id, revision=max([0, *(one.revision for one in past.seen)]) + 1,
        job_class_id=lease.job_class_id, server_class_id=lease.server_class_id, value=value, before=before, epoch=epoch,
        features=None if features is None else to_text(features), key=key,
    )  # fmt: skip
    memory.observe(changes, row)
    changes.late.append(tables.LateReward(job.id, lease.id, value))
    memory.count_late(job, value, before)
    return row
