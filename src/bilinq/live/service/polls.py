"""Calls that wait for work on behalf of servers."""

from __future__ import annotations

import asyncio

from bilinq.live.messages import Lease


class Poll:
    """One call: it ends when the first leases for any of its servers are on disk, when time is up, or when it is told to.

    `pending` counts leases that are being written; `abandoned` tells that nobody waits for the answer any more.
    """

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.pending = 0
        self.abandoned = False
        self._over = asyncio.get_running_loop().create_future()

    def expect(self) -> None:
        """Tell that a lease for this call is being written."""
        self.pending += 1

    def deliver(self, lease: Lease) -> None:
        """Hand over a lease that is on disk."""
        self.pending -= 1
        self.leases.append(lease)
        self._settle()

    def end(self) -> None:
        """Stop waiting for anything."""
        self.pending = 0
        self._settle()

    def _settle(self) -> None:
        if not self.pending and not self._over.done():
            self._over.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Return when it is over."""
        await asyncio.wait([self._over], timeout=seconds)
        if self.pending:
            await self._over
