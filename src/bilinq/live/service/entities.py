"""Jobs, servers and leases in the leader's memory, their numbers, what is due for them, and calls that wait for work."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Literal

from bilinq.live.service.options import PLAIN, JobOptions

if TYPE_CHECKING:
    from bilinq.live.service.tenants import Books
    from bilinq.live.store.admin_tables import LargestIds
    from bilinq.live.store.class_tables import ServerRow
    from bilinq.live.store.job_tables import LeaseEnd, LeaseRow
    from bilinq.live.wire.messages import Lease
    from bilinq.scheduler.scheduler import Scheduler


class Ids:
    """The next number of each kind, each used once; only the leader assigns them."""

    def __init__(self, largest: LargestIds) -> None:
        self.job, self.lease, self.server, self._seq, self.class_, self._end = (count(last + 1) for last in largest)
        self.last_seq, self.last_end = largest.seq, largest.end

    def next_seq(self) -> int:
        """Return the next place in the log of what is learnt."""
        self.last_seq = next(self._seq)
        return self.last_seq

    def next_end(self) -> int:
        """Return the number of the next end of a job."""
        self.last_end = next(self._end)
        return self.last_end


UNKNOWN_EPOCH = -1


def epoch_of(scheduler: Scheduler, server_class: str, known: int = UNKNOWN_EPOCH) -> int:
    """Return a known epoch, or else that of now; it stays unknown for a scheduler that does not learn or cannot correct."""
    if known != UNKNOWN_EPOCH or not scheduler.learns or scheduler.policy is not None:
        return known
    return scheduler.epoch(server_class)


def number(kind: str, text: str) -> int | None:
    """Return the number in an id such as "j12" of kind "j"; None if it is no such id.

    Examples
    --------
    >>> number("j", "j12"), number("j", "l12"), number("j", "j012")
    (12, None, None)
    """
    digits = text[1:]
    if text[:1] != kind or not digits.isdigit() or digits[0] == "0" or not digits.isascii() or len(digits) > 18:
        return None
    return int(digits)


class Poll:
    """A call that waits for work on behalf of servers.

    It ends when the first leases for any of its servers are on disk, after a timeout, or by `end`. `pending` counts leases
    that are being written; while there are any, it is not over. `abandoned` tells that the caller has disconnected.
    """

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.pending = 0
        self.abandoned = False
        self._over = asyncio.Event()

    def expect(self) -> None:
        """Count a lease for this call that is being written."""
        self.pending += 1
        self._over.clear()

    def deliver(self, lease: Lease) -> None:
        """Add a lease that is on disk."""
        self.leases.append(lease)
        self.miss()

    def miss(self) -> None:
        """Count one lease fewer that is being written."""
        self.pending = max(self.pending - 1, 0)  # after `end` none is expected, but one may still arrive
        self.close()

    def close(self) -> None:
        """Wait for nothing except what is being written."""
        if not self.pending:
            self._over.set()

    def end(self) -> None:
        """Stop waiting for anything."""
        self.pending = 0
        self._over.set()

    async def wait(self, seconds: float) -> None:
        """Return when it is over and nothing is being written for it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        while self.pending:  # a lease may have been granted after the end, before this call resumed
            await self._over.wait()


@dataclass(slots=True)
class LiveJob:
    """A job that waits or is leased. It was `submitted` by the wall clock, and `came` by the monotonic clock.

    `held` tells that it is not in the scheduler yet: before the time `start` it must not start. `deadline` is when it leaves
    unless it is leased. Both are by the monotonic clock. `failed_on` are servers that have failed it; `avoid` is the last of
    them, which does not serve it before `avoid_until` if another can. `books` are those of its
    namespace, `size` the bytes of its payload, and `offered` the scheduler's last slot before it got the job.
    """

    job_class: str
    units_left: int
    attempts: int
    submitted: float
    came: float
    books: Books
    size: int = 0
    started: bool = False
    lease: int | None = None
    options: JobOptions = PLAIN
    held: bool = False
    start: float = -inf
    deadline: float = inf
    failed_on: frozenset[int] = frozenset()
    avoid: int | None = None
    avoid_until: float = -inf
    offered: int = -1


@dataclass(slots=True)
class LiveServer:
    """A server, its lease, and the call in which it waits for one.

    It belongs to the namespace of its key, and serves the jobs of the namespaces in `serves`; None: of all.
    """

    row: ServerRow
    seen: float
    lease: int | None = None
    poll: Poll | None = None
    namespace: str = "default"
    serves: frozenset[str] | None = None

    @property
    def state(self) -> Literal["idle", "busy", "away"]:
        """Idle while it waits for work, busy while it has a lease, else away."""
        return "idle" if self.poll else "busy" if self.lease else "away"


@dataclass(slots=True)
class LiveLease:
    """A lease as stored, its begin and deadline by the monotonic clock, its classes, and its end, None before that."""

    row: LeaseRow
    began: float
    deadline: float
    job_class: str
    server_class: str
    end: LeaseEnd | None = None


class Agenda:
    """Jobs by the time, on the monotonic clock, at which something is to be done about them.

    An entry may be out of date when it is due, since the job has gone on meanwhile: the caller looks.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, at: float, job: int) -> None:
        """Note a job for a time."""
        heapq.heappush(self._entries, (at, job))

    def replace(self, entries: Iterable[tuple[float, int]]) -> None:
        """Forget all entries but these."""
        self._entries = list(entries)
        heapq.heapify(self._entries)

    def due(self, now: float) -> Iterator[int]:
        """Yield the jobs whose time has come, each entry once."""
        while self._entries and self._entries[0][0] <= now:
            yield heapq.heappop(self._entries)[1]
