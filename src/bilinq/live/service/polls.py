"""Calls that wait for work on behalf of servers."""

from __future__ import annotations

import asyncio
import contextlib

from bilinq.live.wire.messages import Lease


class Poll:
    """One call: it ends when the first leases for any of its servers are on disk, when time is up, or when it is told to.

    `pending` counts leases that are being written; while there are any, it is not over. `abandoned` tells that nobody waits
    for the answer any more.
    """

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.pending = 0
        self.abandoned = False
        self._over = asyncio.Event()

    def expect(self) -> None:
        """Tell that a lease for this call is being written."""
        self.pending += 1
        self._over.clear()

    def deliver(self, lease: Lease) -> None:
        """Hand over a lease that is on disk."""
        self.leases.append(lease)
        self.miss()

    def miss(self) -> None:
        """Tell that one lease fewer is being written."""
        self.pending = max(self.pending - 1, 0)  # after `end` none is expected, and yet one may come
        self.close()

    def close(self) -> None:
        """Wait for no more than what is being written."""
        if not self.pending:
            self._over.set()

    def end(self) -> None:
        """Stop waiting for anything."""
        self.pending = 0
        self._over.set()

    async def wait(self, seconds: float) -> None:
        """Return when it is over, and nothing is being written for it at that moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        while self.pending:  # also what was granted between the end and the moment in which this call noticed
            await self._over.wait()
