"""Deletion of what ended long ago, by time that has really passed: a wall clock that jumps deletes nothing."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from bilinq.live.store.admin_tables import get_meta, put_meta
from bilinq.live.store.class_tables import remove_servers
from bilinq.live.store.job_tables import count_awaited, purge_jobs

if TYPE_CHECKING:
    from bilinq.live.service.replica import Replica
    from bilinq.live.store import Transaction

log = logging.getLogger("bilinq.live")

DELETE_LIMIT = 5000  # jobs deleted with one commit
JUMP = 1.0  # seconds by which two clocks differ when one of them has jumped
MOST_JUMPS = 100  # that are kept; older ones are joined
STORED = "counted time"  # the name under which the database has it


class Jump(msgspec.Struct, array_like=True, frozen=True):
    """The wall clock went `size` seconds further than time did; `at` is in counted seconds."""

    at: float
    size: float


class Counted(msgspec.Struct, frozen=True):
    """Seconds in which a process led, the wall clock then, and the jumps of that clock, oldest first."""

    seconds: float
    wall: float
    jumps: tuple[Jump, ...] = ()

    def jumped(self, size: float) -> Counted:
        """Return the same after a jump."""
        jumps = (*self.jumps, Jump(self.seconds, size))
        if len(jumps) > MOST_JUMPS:  # joined, they delay deletions for no less than they did
            first, second, *later = jumps
            jumps = (Jump(second.at, max(first.size, 0.0) + max(second.size, 0.0)), *later)
        return Counted(self.seconds, self.wall + size, jumps)

    def passed(self, wall: float, seconds: float) -> Counted:
        """Return the same some seconds later, when the wall clock shows another time."""
        later, ahead = Counted(self.seconds + seconds, self.wall + seconds, self.jumps), wall - self.wall - seconds
        return later.jumped(ahead) if abs(ahead) > JUMP else Counted(later.seconds, wall, later.jumps)

    def before(self, age: float) -> float:
        """Return a time of the wall clock: what happened before is older than `age` seconds, whatever the clock did.

        Jumps longer ago than `age` do not matter: what happened before them is older. Of the others, those after an event
        make it look older or younger than it is, and it is not known which these are: the worst is assumed.
        """
        ahead = worst = 0.0
        for jump in reversed(self.jumps):
            if jump.at < self.seconds - age:
                break
            ahead += jump.size
            worst = max(worst, ahead)
        return self.wall - age - worst

    def since(self, age: float) -> Counted:
        """Return the same without jumps that were longer ago."""
        return Counted(self.seconds, self.wall, tuple(one for one in self.jumps if one.at >= self.seconds - age))


class Retention:
    """Deletes jobs that ended, and servers that were offline, longer ago than the settings allow.

    Time counts while a process leads, by its monotonic clock. A pause between two leaders may be anything, or a jump of the
    clock, and does not count.
    """

    def __init__(self, replica: Replica, wall: float, steady: float) -> None:
        self._replica, self._steady, self._loaded = replica, steady, False
        self._counted = Counted(0.0, wall)

    async def run(self) -> None:
        """Delete what is too old now."""
        await self.delete(time.time(), time.monotonic())

    async def delete(self, wall: float, steady: float) -> None:
        """Do the same at a time of the wall clock and of the monotonic one."""
        counted, replica = self._counted.passed(wall, steady - self._steady), self._replica
        keep = replica.settings.retention
        self._counted, self._steady = counted.since(max(keep or 0.0, replica.settings.server_retention)), steady
        await self._delete_servers(self._counted.before(replica.settings.server_retention))
        if keep is not None:
            self._counted, self._loaded = await replica.write(self._count), True
            delete = partial(purge_jobs, before=self._counted.before(keep), limit=DELETE_LIMIT)
            while await replica.write(delete) == DELETE_LIMIT:
                pass
            memory = replica.memory
            memory.set_awaited(await replica.write(count_awaited))

    def _count(self, tx: Transaction) -> Counted:
        """Store the time that has passed, and return it; the first time together with that of earlier leaders."""
        counted = self._counted if self._loaded else _joined(get_meta(tx, STORED), self._counted)
        put_meta(tx, STORED, msgspec.json.encode(counted).decode())
        return counted

    async def _delete_servers(self, before: float) -> None:
        """Delete servers that were offline since `before`; what happened before memory was loaded is not known."""
        replica = self._replica
        if replica.loaded > before:
            return
        memory = replica.memory
        gone = memory.servers.absent_since(before)
        for id in gone:
            memory.servers.dismiss(id)
        if gone:
            log.info("deleting servers that were offline for too long: %d", len(gone))
            await replica.write(lambda tx: remove_servers(tx, *gone))


def _joined(stored: str | None, own: Counted) -> Counted:
    """Return the time of earlier leaders, a jump of the wall clock until this one led, and the time of this one."""
    if stored is None:
        return own
    earlier = msgspec.json.decode(stored, type=Counted)
    began = own.wall - own.seconds - sum(jump.size for jump in own.jumps)
    joined = earlier.jumped(began - earlier.wall)
    for jump in own.jumps:
        joined = Counted(earlier.seconds + jump.at, joined.wall, joined.jumps).jumped(jump.size)
    return Counted(earlier.seconds + own.seconds, own.wall, joined.jumps)
