"""Changes of memory on their way to the database: many small changes become few large statements."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from bilinq.live.store import Transaction
from bilinq.live.store import job_tables as tables

Payloads = asyncio.Future[dict[int, str]]
"""A future that is done when changes are on disk; its result are payloads by job."""


@dataclass
class Changes:
    """Rows to write together: new jobs first; the order of the others does not matter."""

    leases: list[tables.LeaseEnd] = field(default_factory=list)
    queued: list[tables.RequeuedJob] = field(default_factory=list)
    ended: list[tables.JobEnd] = field(default_factory=list)
    observations: list[tables.ObservationRow] = field(default_factory=list)
    new: list[tables.JobRow] = field(default_factory=list)
    tags: list[tables.TagRow] = field(default_factory=list)
    late: list[tables.LateReward] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.leases or self.queued or self.ended or self.late)

    @property
    def size(self) -> int:
        """Characters of payloads and results."""
        return sum(len(row.payload) for row in self.new) + sum(len(row.result or "") for row in self.ended)

    def write(self, tx: Transaction) -> None:
        """Write all rows."""
        tables.insert_jobs(tx, self.new)
        tables.insert_tags(tx, self.tags)
        tables.end_leases(tx, self.leases)
        tables.requeue_jobs(tx, self.queued)
        tables.end_jobs(tx, self.ended)
        tables.add_observations(tx, self.observations)
        tables.reward_jobs(tx, self.late)
        tables.reward_leases(tx, self.late)


PAUSE, LEAST, MOST = 0.003, 0.001, 0.01
"""Seconds between two groups, least seconds that a group waits for more changes, and most seconds while a slot is due. The
end of a slot ends each of them."""
LARGEST = 1 << 24  # characters of payloads and results in a group: what comes then waits for the next one


class Group:
    """Changes and new leases that become one operation, until the writer begins with it.

    Except for being new, no job is in it twice, so that the order inside does not matter.
    """

    def __init__(self, written: Payloads) -> None:
        self.written = written
        self._changes = Changes()
        self._granted: list[tables.LeaseRow] = []
        self._jobs: set[int] = set()
        self._size = 0
        self._begun = False
        self._lock = threading.Lock()

    def add(self, changes: Changes, granted: Sequence[tables.LeaseRow]) -> bool:
        """Add changes; return False if it is too late, if they are too large, or if they change a job of the group again."""
        touched = [row.id for row in changes.queued] + [row.id for row in changes.ended] + [row.job for row in granted]
        touched += [row.job for row in changes.late]
        size = self._size + changes.size
        with self._lock:
            if self._begun or not self._jobs.isdisjoint(touched) or (self._size and size > LARGEST):
                return False
            self._jobs.update(touched)
            self._size = size
            for all, more in zip(vars(self._changes).values(), vars(changes).values(), strict=True):
                all += more
            self._granted += granted
            return True

    def write(self, tx: Transaction) -> dict[int, str]:
        """Write everything; return the payloads of the jobs that were leased."""
        with self._lock:
            self._begun = True
        changes, payloads = _born_leased(self._changes, self._granted)
        changes.write(tx)
        return payloads | tables.grant_leases(tx, self._granted, payloads)


def _born_leased(changes: Changes, granted: Sequence[tables.LeaseRow]) -> tuple[Changes, dict[int, str]]:
    """Return the changes with new jobs that are leased at once stored as such, and the payloads of these."""
    starts = {lease.job: lease.granted for lease in granted}
    leased = {row.id: row._replace(state="leased", started=starts[row.id]) for row in changes.new if row.id in starts}
    new = [leased.get(row.id, row) for row in changes.new]
    return replace(changes, new=new), {id: row.payload for id, row in leased.items()}


class Outbox:
    """Passes changes on to `Store.submit`, in order: earlier changes are never written after later ones.

    Changes wait shortly for others, so that one commit serves them all. While `slot_is_due`, they wait for the slot, whose
    leases are then written together with their jobs.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[Transaction], dict[int, str]]], Payloads],
        slot_is_due: Callable[[], bool] = lambda: False,
    ) -> None:
        self._submit, self._slot_is_due = submit, slot_is_due
        self._last: Group | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flushed = 0.0

    def put(self, changes: Changes, granted: Sequence[tables.LeaseRow] = ()) -> Payloads:
        """Add changes; return a future of payloads by job, at least of those in `granted`, that is done when all is on disk.

        The future is shared: shield it from cancellation.
        """
        if self._last is None or self._last.written.done() or not self._last.add(changes, granted):
            self.flush()
            loop = asyncio.get_running_loop()
            self._last = Group(loop.create_future())
            self._last.add(changes, granted)
            self._timer = loop.call_later(max(self._flushed + PAUSE - loop.time(), LEAST), self._end_pause)
        return self._last.written

    def _end_pause(self) -> None:
        if self._slot_is_due():
            self._timer = asyncio.get_running_loop().call_later(MOST, self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Submit now what waits."""
        group = self._last
        if self._timer is None or group is None:
            return
        self._timer.cancel()
        self._timer, self._flushed = None, asyncio.get_running_loop().time()
        self._submit(group.write).add_done_callback(partial(_pass_on, group.written))

    def close(self) -> None:
        """Submit now what waits, and put later changes into a new group."""
        self.flush()
        self._last = None


def _pass_on(waiting: Payloads, written: Payloads) -> None:
    error = written.exception()
    if error is None:
        waiting.set_result(written.result())
    else:
        waiting.set_exception(error)
        waiting.exception()  # mark it as retrieved, even if nobody waits; memory is loaded again in any case


_encoder = msgspec.json.Encoder(order="deterministic")


def to_text(value: Any) -> str:
    """Return a value as JSON text, the same for equal values."""
    return _encoder.encode(value).decode()


def from_text(text: str | None) -> Any:
    """Return the value of a JSON text, or None."""
    return None if text is None else msgspec.json.decode(text)


def digest(*values: Any) -> str:
    """Return a short text that differs for different values."""
    return blake2b(_encoder.encode(values), digest_size=16).hexdigest()
