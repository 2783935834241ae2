"""Regions that compute locally between exchanges: the shards of `bilinq.distributed.on_ray`, in lockstep.

In an exchange every region sends each other the demand of its job classes for the other's servers and receives loads and
prices. Then all iterate locally, assuming that the others do the same, Eq. (46). An exchange takes a round trip.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from bench.scale.regions import REGIONS, homes
from bench.scale.settling import Optimum, Settling
from bilinq.arrays import Array
from bilinq.distributed import System, start_rates
from bilinq.distributed.on_ray.shards import Block, Rows, ServerShard

SPARE = 0.1
"""The fraction that server classes leave idle; only the barrier uses it."""


class Regions:
    """A job shard and a server shard in every region; counts the messages and bytes that they exchange."""

    def __init__(self, system: System, start: Array | None = None) -> None:
        rates = start_rates(system) if start is None else start
        self._rows, self._columns = (_slices(classes) for classes in system.shape)
        n, penalty, a, c = system.capacity, system.penalty, system.demand, system.cost
        self._blocks = [Block(Rows(a[r], c[r], n, rates[r], penalty, SPARE, REGIONS)) for r in self._rows]
        self._servers = [ServerShard(c, n, penalty, REGIONS) for c in self._columns]
        self.messages = self.bytes = 0

    @property
    def expected(self) -> Array:
        """The present rates, (I, J)."""
        return np.concatenate([block.rates for block in self._blocks])

    def exchange(self, iterations: int) -> None:
        """Let all regions send, receive, and iterate."""
        sums_sent = [block.sums for block in self._blocks]
        for _ in range(2):  # servers answer when all have sent
            quotes = [
                [server.quote(k, sums[columns]) for server, columns in zip(self._servers, self._columns, strict=True)]
                for k, sums in enumerate(sums_sent)
            ]
        for k, block in enumerate(self._blocks):
            for m, (columns, quote) in enumerate(zip(self._columns, quotes[k], strict=True)):
                assert quote is not None
                block.hear(columns, sums_sent[k][columns], quote, 1.0)
                if k != m and quote.load.size:
                    self.messages += 2
                    self.bytes += sums_sent[k][columns].nbytes + quote.load.nbytes + quote.price.nbytes
            block.iterate(iterations)


def settle_by_exchanges(
    system: System, soft: Optimum, *, iterations: int, level: float, exchanges: int, start: Array | None = None
) -> Settling:
    """Exchange until the gap to `soft` is within `level`, at most `exchanges` times; the gap never grows again."""
    regions, seen = Regions(system, start), Settling()
    for now in _counted(regions, iterations, exchanges):
        seen.rounds.append(now)
        seen.gaps.append(soft.gap(system, regions.expected))
        if seen.gaps[-1] <= level:
            break
    return seen


def _counted(regions: Regions, iterations: int, exchanges: int) -> Iterator[int]:
    """Yield the number of exchanges so far."""
    yield 0
    for now in range(exchanges):
        regions.exchange(iterations)
        yield now + 1


def _slices(classes: int) -> list[slice]:
    """Return the classes of each region."""
    ends = np.searchsorted(homes(classes), np.arange(REGIONS + 1))
    return [slice(int(first), int(last)) for first, last in pairwise(ends)]
