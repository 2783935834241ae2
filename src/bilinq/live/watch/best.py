"""The most that could be earned: what the learnt rewards allow for the jobs that came, on the servers that are there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import numpy as np

from bilinq.errors import Away, BilinqError
from bilinq.live.watch.load import Load, best_split

log = logging.getLogger("bilinq.live")

EVERY, SELDOM = 1.0, 5.0
"""Least and most seconds between two computations."""
SHARE = 50.0
"""As many times its own duration a computation leaves to everything else, within these bounds."""


def best_rate(load: Load) -> float:
    """Return the most reward per second, in the user's units, by the linear program of Eq. (2).

    Of more jobs than the servers can take, those that pay most per second of service are taken.
    """
    worth = load.mean / load.seconds[:, None]
    share = best_split(worth, load.traffic, load.servers).share[:, : load.servers.size]
    return float(np.einsum("i,ij,ij->", load.rate, share, load.mean))


class Best:
    """The best possible, computed now and then beside everything else; `value` is None before there is anything to say."""

    def __init__(self, load: Callable[[], Load | None]) -> None:
        self.value: float | None = None
        self._load = load

    async def run(self) -> None:
        """Compute again and again, and give way in between."""
        while True:
            began = time.monotonic()
            await self.compute()
            await asyncio.sleep(min(max(EVERY, SHARE * (time.monotonic() - began)), SELDOM))

    async def compute(self) -> None:
        """Compute once; what fails is only logged."""
        try:
            load = self._load()
            self.value = None if load is None else await asyncio.to_thread(best_rate, load)
        except Away:
            self.value = None
        except BilinqError as error:
            self.value = None
            log.warning("the best possible reward cannot be computed: %s", error)
