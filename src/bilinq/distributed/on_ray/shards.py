"""Server shards quote loads and prices; job shards iterate and ask them, each at its own pace; actors host them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NoReturn

import numpy as np

from bilinq.arrays import Array
from bilinq.distributed.on_ray.block import Block, Quote, Rows
from bilinq.distributed.on_ray.pace import Pace
from bilinq.distributed.penalties import Penalty
from bilinq.ray_cluster import imported

PAUSE = 0.05
"""Seconds that a job shard waits before it asks a server shard again that is away or not ready."""


@dataclass(frozen=True)
class Report:
    """What a shard tells about itself: its process, and the version of bilinq it runs."""

    pid: int
    bilinq: str


@dataclass(frozen=True)
class JobReport(Report):
    """What a job shard knows besides.

    Its part of the bound on the gap, local iterations, messages answered and their bytes; for every server shard, the
    seconds since it last answered and the median round trip, (server shards,) each.
    """

    gap: float
    iterations: int
    answers: int
    bytes: int
    silence: Array
    round_trip: Array


class ServerShard:
    """Server nodes of some columns: add up what job shards ask of them, and quote loads and prices."""

    def __init__(self, columns: slice, n: Array, penalty: Penalty, shards: int) -> None:
        self._columns, self._penalty = columns, penalty
        self._n = np.where(n > 0.0, n, 1.0)
        self._asked: dict[int, Array] = {}
        self._shards, self._gone = shards, set[int]()

    def quote(self, sender: int, sums: Array) -> Quote | None:
        """Note what a job shard asks, and answer; nothing before all job shards have been heard."""
        if sender not in self._gone:
            self._asked[sender] = sums
        if len(self._asked) < self._shards - len(self._gone):
            return None
        load = np.zeros(len(self._n))
        load[self._columns] = np.sum(list(self._asked.values()), axis=0)
        return Quote(load[self._columns], np.asarray(self._penalty.price(load, self._n))[self._columns])

    def recall(self, sender: int) -> Array | None:
        """Return what a job shard last asked, for one that was replaced."""
        return self._asked.get(sender)

    def report(self, gone: Collection[int]) -> Report:
        """Tell about this shard, and take the job shards that are `gone` out of the sums."""
        self._gone = set(gone)
        self._asked = {sender: sums for sender, sums in self._asked.items() if sender not in self._gone}
        return Report(os.getpid(), version("bilinq"))


class JobShard:
    """Job nodes of some rows: a conversation with every server shard, none of which waits for another.

    A conversation has one message under way at a time. Whatever is answered is used at once, in `iterations` local
    iterations; then that server shard is asked again.

    Parameters
    ----------
    number : int
        Which job shard it is.
    rows : Rows
    columns : list of slices
        The server classes of each server shard.
    servers : list of actors
        `Host`s of the server shards.
    iterations : int
        For each answer.
    fraction : float
        Part of what Eq. (40) allows.
    """

    def __init__(self, number: int, rows: Rows, columns: Sequence[slice], servers: Sequence[Any], iterations: int,
                 fraction: float) -> None:  # fmt: skip
        self._number, self._block, self._columns, self._servers = number, Block(rows), columns, servers
        self._iterations, self._error = iterations, imported().exceptions.RayActorError
        self._paces = [Pace(fraction) for _ in servers]
        self._talks: dict[int, asyncio.Task[NoReturn]] = {}
        self._answers = self._bytes = 0

    def report(self, gone: Collection[int]) -> JobReport:
        """Tell about this shard; begin to talk, and end it with the server shards that are `gone`."""
        for k in gone:
            self._end(k)
        for k in range(len(self._servers)):
            if k not in gone and k not in self._talks:
                self._paces[k].last = time.perf_counter()
                self._talks[k] = asyncio.ensure_future(self._talk(k))
        for talk in self._talks.values():
            if talk.done():
                talk.result()  # an error of the penalty, say, which then goes to whoever asked
        now = time.perf_counter()
        silence = np.array([0.0 if k in gone else now - pace.last for k, pace in enumerate(self._paces)])
        trips = np.array([pace.round_trip for pace in self._paces])
        done = self._block.iterations, self._answers, self._bytes
        return JobReport(os.getpid(), version("bilinq"), self._block.gap(), *done, silence, trips)

    def rates(self) -> Array:
        """Return the present rates, (I, J)."""
        return self._block.rates

    def _end(self, k: int) -> None:
        """Stop talking with a server shard, and ask nothing of its columns."""
        if talk := self._talks.pop(k, None):
            talk.cancel()
        self._block.close(self._columns[k])

    async def _talk(self, k: int) -> NoReturn:
        """Go on asking one server shard."""
        columns, pace = self._columns[k], self._paces[k]
        asked = await self._call(k, "recall")
        if asked is not None:
            self._block.resume(columns, asked)
        while True:
            said, sent = self._block.sums[columns], time.perf_counter()
            quote = await self._call(k, "quote", said)
            pace.note(sent)
            if quote is None:
                await asyncio.sleep(PAUSE)
                continue
            self._answers += 1
            self._bytes += said.nbytes + quote.load.nbytes + quote.price.nbytes
            self._block.hear(columns, said, quote, pace.damping)
            self._block.iterate(self._iterations)

    async def _call(self, k: int, method: str, *values: Any) -> Any:
        """Return the answer of a server shard, as often as it takes: one that died may be replaced."""
        while True:
            try:
                return await self._servers[k].ask.remote(method, self._number, *values)
            except self._error:
                await asyncio.sleep(PAUSE)


class Host:
    """An actor: empty when Ray makes it, also when it has to make it again, until it is told which shard it is.

    What a shard knows is not an argument of the actor: Ray warns of large ones in actors that it may have to replace.
    """

    def __init__(self) -> None:
        self._shard: JobShard | ServerShard | None = None

    async def begin(self, gone: Collection[int], shard: type[JobShard] | type[ServerShard], *values: Any) -> Report:
        """Become a shard made of these values, unless it is one already; return a report."""
        if self._shard is None:
            self._shard = shard(*values)
        return self._shard.report(gone)

    async def ask(self, method: str, *values: Any) -> Any:
        """Return what the shard answers; nothing as long as there is none."""
        return None if self._shard is None else getattr(self._shard, method)(*values)
