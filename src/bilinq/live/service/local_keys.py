"""Keys as one process knows them, also while it does not lead or its database is away."""

from __future__ import annotations

import time

from bilinq.errors import Unavailable
from bilinq.live.keyring import identify
from bilinq.live.keys import Identity
from bilinq.live.service.core import Core
from bilinq.live.store.admin_tables import KeyRow, all_keys

FRESH = 5.0
"""Seconds after which a process that does not lead reads the keys again."""


class LocalKeys:
    """For what every process answers itself: the leader's keys, or those read a while ago."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kept: dict[str, KeyRow] | None = None
        self._read = float("-inf")

    async def identify(self, key: str) -> Identity:
        """Return whose key it is, or raise `NoKey`; `Unavailable` if no keys could be read so far."""
        return identify(await self._known(), key, time.time())

    async def _known(self) -> dict[str, KeyRow]:
        if self._core.ready:
            self._kept = self._core.memory.keys
        elif self._kept is None or time.monotonic() > self._read + FRESH:
            await self._read_again()
        assert self._kept is not None
        return self._kept

    async def _read_again(self) -> None:
        try:
            rows = await self._core.store.read(all_keys)
        except Unavailable:
            if self._kept is None:
                raise
        else:
            self._kept, self._read = {row.prefix: row for row in rows}, time.monotonic()
