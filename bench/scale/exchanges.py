"""Regions that compute on their own between exchanges: the shards of `bilinq.distributed.on_ray`, all in step.

In an exchange every region sends each other what its job classes ask of the other's servers, and receives loads and prices;
then all iterate on what they know, expecting the others to do the same, Eq. (46). It takes a round trip.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from bench.scale.regions import REGIONS, homes
from bench.scale.settling import Optimum, Settling
from bilinq.arrays import Array
from bilinq.distributed import System, start_rates
from bilinq.distributed.on_ray.shards import ServerShard, ShardRates, ShardRows

SPARE = 0.1
"""What server classes leave idle; only the barrier asks."""


class Regions:
    """A job shard and a server shard in every region, with the bytes they exchange."""

    def __init__(self, system: System, start: Array | None = None) -> None:
        rates = start_rates(system) if start is None else start
        self._rows, self._columns = (_slices(classes) for classes in system.shape)
        n, penalty, a, c = system.capacity, system.penalty, system.demand, system.cost
        self._blocks = [
            ShardRates(ShardRows(a=a[r], c=c[r], n=n, start=rates[r], penalty=penalty, spare=SPARE, shards=REGIONS))
            for r in self._rows
        ]
        self._servers = [ServerShard(c, n, penalty, REGIONS) for c in self._columns]
        self.messages = self.bytes = 0

    @property
    def expected(self) -> Array:
        """The present rates, (I, J)."""
        return np.concatenate([block.rates for block in self._blocks])

    def exchange(self, iterations: int) -> None:
        """Let all regions send, receive, and iterate."""
        sent = [block.sums for block in self._blocks]
        for _ in range(2):  # servers answer once all have asked
            quotes = [
                [server.quote(k, sums[columns]) for server, columns in zip(self._servers, self._columns, strict=True)]
                for k, sums in enumerate(sent)
            ]
        for k, block in enumerate(self._blocks):
            for m, (columns, quote) in enumerate(zip(self._columns, quotes[k], strict=True)):
                assert quote is not None
                block.receive(columns, sent[k][columns], quote, 1.0)
                if k != m and quote.load.size:
                    self.messages += 2
                    self.bytes += sent[k][columns].nbytes + quote.load.nbytes + quote.price.nbytes
            block.iterate(iterations)


def settle_by_exchanges(
    system: System, soft: Optimum, *, iterations: int, level: float, exchanges: int, start: Array | None = None
) -> Settling:
    """Exchange until the gap to `soft` is within `level`, or so often; what all gain together is never lost again."""
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
