"""Shards of job nodes and server nodes as Ray actors: what they exchange, and the rates that each computes."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bilinq.arrays import Array
from bilinq.distributed.network import NOTHING, SEED
from bilinq.distributed.on_ray.cluster import imported
from bilinq.distributed.penalties import Penalty
from bilinq.distributed.system import gain_within, row_gaps

BY_SHARE = 0.5
"""Part of the weights of Eq. (46) that follows a shard's share of a load; the rest is equal for all shards."""
LOCAL = 0.5  # part of what Eq. (40) allows without delay that a local iteration uses.
FILLED = np.linspace(0.04, 2.0, 50)
"""Loads, in parts of the capacity, at which the stiffness of a penalty without a known bound is evaluated."""
KEPT = 16  # number of the latest round trips that are kept
PAUSE = 0.05  # seconds that a job shard waits before it asks a server shard again that is unavailable or not ready


@dataclass(frozen=True)
class ShardRows:
    """The rows of a job shard: a (I,), c (I, J), n (J,), rates (I, J) to start from, and the number of job shards.

    `spare` is the part of its capacity that every server class leaves idle (for the barrier).
    """

    a: Array
    c: Array
    n: Array
    start: Array
    penalty: Penalty
    spare: float
    shards: int


class Quote(NamedTuple):
    """The answer of a server shard: loads and prices of its columns."""

    load: Array
    price: Array


@dataclass(frozen=True)
class Report:
    """The state of a shard: its process, and the version of bilinq it runs."""

    pid: int
    bilinq: str


@dataclass(frozen=True)
class JobReport(Report):
    """The state of a job shard.

    Its part of the bound on the gap, local iterations, messages answered and their bytes; for every server shard, the
    seconds since it last answered and the median round trip, (server shards,) each.
    """

    gap: float
    iterations: int
    answers: int
    bytes: int
    silence: Array
    round_trip: Array


class ShardRates:
    """Rates of the rows of a job shard, computed from the latest loads and prices of all columns."""

    def __init__(self, rows: ShardRows) -> None:
        self._rows, size = rows, len(rows.n)
        self._live = (rows.a > 0.0)[:, None] & (rows.n > 0.0)
        self.iterations = 0
        self._y = np.ascontiguousarray(np.where(self._live, rows.start, 0.0))[None]
        self._c = np.array(rows.c, order="C")[None]  # Ray passes it read-only: another type for a kernel
        self._a, self._n = np.where(rows.a > 0.0, rows.a, np.inf)[None], np.where(rows.n > 0.0, rows.n, 1.0)
        self._stiff = stiffness_bound(rows.penalty, rows.c, self._n, rows.spare) - 1.0
        useful = np.where(self._live, rows.a[:, None] / rows.c, np.inf).min(initial=np.inf)
        self._low = np.array([SEED * (useful if np.isfinite(useful) else 1.0)])
        self._known = np.zeros(size, dtype=np.bool_)
        self._load, self._price, self._sent = np.zeros(size), np.zeros(size), np.zeros(size)
        self._damping = np.ones(size)
        self.iterate(1)  # moves nothing, since nothing is known yet; but the kernel is compiled now
        self.iterations = 0

    @property
    def rates(self) -> Array:
        """The present rates, (I, J)."""
        return np.array(self._y[0])

    @property
    def sums(self) -> Array:
        """What these rows ask of each server class, (J,)."""
        return np.asarray(self._y[0].sum(axis=0))

    def receive(self, columns: slice, sent: Array, quote: Quote, damping: float) -> None:
        """Use the answer to the sums that were `sent`; a move counts 1 / `damping` times until the next answer."""
        self._load[columns], self._price[columns] = quote
        self._sent[columns], self._damping[columns], self._known[columns] = sent, damping, True

    def resume(self, columns: slice, sums: Array) -> None:
        """Scale the rates of these columns to the `sums` that the server shard still has."""
        now = self._y[0, :, columns].sum(axis=0)
        self._y[0, :, columns] *= np.where(now > 0.0, sums / np.where(now > 0.0, now, 1.0), 1.0)

    def close(self, columns: slice) -> None:
        """Stop using these server classes."""
        self._live[:, columns] = False
        self._y[0, :, columns] = 0.0

    def iterate(self, count: int) -> None:
        """Run local iterations on the columns with a known price, with the prices that Eq. (46) expects."""
        from bilinq.distributed.kernels import advance_alike

        weight, sums, served = self._weight(), self.sums, self._y.sum(axis=2)
        gain = self._gain(weight, self._expected_price(sums, weight), served)
        for _ in range(count):
            price = self._expected_price(sums, weight)
            far, near = np.zeros(price.shape), np.empty(served.shape)
            advance_alike(
                self._y, NOTHING, gain, self._c, served / self._a, price, far, near, self._low, np.inf, False, True
            )
            sums, served = far[0], near
        self.iterations += count

    def gap(self) -> float:
        """Return the part of these rows in the bound on the gap, Eq. (45), at the last prices; infinite before."""
        if not self._known[self._live.any(axis=0)].all():
            return float("inf")
        return float(row_gaps(self._y[0], self._rows.a, self._rows.c, self._price, self._live).sum())

    def _weight(self) -> Array:
        """Return the assumed part of this shard in the move of each column, damped, (J,)."""
        share = np.clip(self._sent / np.where(self._load > 0.0, self._load, 1.0), 0.0, 1.0)
        return np.asarray(self._damping * (BY_SHARE * share + (1.0 - BY_SHARE) / self._rows.shards))

    def _expected_price(self, sums: Array, weight: Array) -> Array:
        """Return prices (1, J) if these rows ask for `sums` and all others move alike."""
        load = np.maximum(self._load + (sums - self._sent) / weight, 0.0)
        return np.ascontiguousarray(self._rows.penalty.price(load, self._n), dtype=np.float64)[None]

    def _gain(self, weight: Array, price: Array, served: Array) -> Array:
        """Return gains (1, I, J) for iterations without delay, for the weight of this shard's moves.

        They are smaller at prices far above what a class would pay, where the rule would set rates to zero at once.
        """
        share = np.maximum(self._sent, self.sums) / np.where(self._load > 0.0, self._load, 1.0)
        stiffness = 1.0 + np.clip(share, 0.0, 1.0) / weight * self._stiff
        used = (price[:, None, :] + self._c) * (served / self._a)[:, :, None]
        return np.where(self._live & self._known, 2.0 * LOCAL / (stiffness * np.maximum(used, 1.0)), 0.0)


def stiffness_bound(penalty: Penalty, c: Array, n: Array, spare: float) -> Array:
    """Return a bound on the stiffness (I, J): the penalty's own, Eq. (39), or the largest up to twice the capacity."""
    known = penalty.stiffness(c, spare)
    if np.isfinite(known).all():
        return np.asarray(known)
    worst = np.ones(c.shape)
    for part in FILLED:
        z = np.minimum(part * n, 0.99 * penalty.most(n))
        worst = np.maximum(worst, 1.0 + z * penalty.slope(z, n) / (penalty.price(z, n) + c))
    return worst


class Pace:
    """How long answers of one server shard take and how often they arrive; sets the damping, Eq. (40)."""

    def __init__(self, fraction: float) -> None:
        self._fraction, self.last = fraction, time.perf_counter()
        self._trips, self._gaps = deque[float](maxlen=KEPT), deque[float](maxlen=KEPT)

    def record(self, sent: float) -> None:
        """Record an answer to the message that was sent at time `sent`."""
        now = time.perf_counter()
        self._trips.append(now - sent)
        self._gaps.append(now - self.last)
        self.last = now

    @property
    def round_trip(self) -> float:
        """The median of the last round trips in seconds; NaN before the first."""
        return float(np.median(self._trips)) if self._trips else float("nan")

    @property
    def damping(self) -> float:
        """What Eq. (40) allows at the longest of the last round trips, in units of the time between answers; at most 1."""
        delay = np.array(max(self._trips) / max(sum(self._gaps) / len(self._gaps), 1e-9))
        return min(1.0, float(gain_within(np.ones(()), delay, self._fraction, "discrete")))


class ServerShard:
    """Server nodes of some columns: add up what job shards ask of them, and answer with loads and prices."""

    def __init__(self, columns: slice, n: Array, penalty: Penalty, shards: int) -> None:
        self._columns, self._penalty = columns, penalty
        self._n = np.where(n > 0.0, n, 1.0)
        self._asked: dict[int, Array] = {}
        self._shards, self._gone = shards, set[int]()

    def quote(self, sender: int, sums: Array) -> Quote | None:
        """Store what a job shard asks for, and return the answer; None until all job shards have asked."""
        if sender not in self._gone:
            self._asked[sender] = sums
        if len(self._asked) < self._shards - len(self._gone):
            return None
        load = np.zeros(len(self._n))
        load[self._columns] = np.sum(list(self._asked.values()), axis=0)
        return Quote(load[self._columns], np.asarray(self._penalty.price(load, self._n))[self._columns])

    def recall(self, sender: int) -> Array | None:
        """Return what a job shard last asked for; the one that replaces it continues from there."""
        return self._asked.get(sender)

    def report(self, gone: Collection[int]) -> Report:
        """Return the state of this shard, and leave the job shards that are `gone` out of the sums."""
        self._gone = set(gone)
        self._asked = {sender: sums for sender, sums in self._asked.items() if sender not in self._gone}
        return Report(os.getpid(), version("bilinq"))


class JobShard:
    """Job nodes of some rows, which exchange messages with every server shard independently.

    With each server shard one message is in transit at a time. Its answer is used at once, in `iterations` local
    iterations with a `fraction` of what Eq. (40) allows; then that server shard is asked again. `columns` are the server
    classes of each server shard, and `servers` their `Host`s.
    """

    def __init__(self, number: int, rows: ShardRows, columns: Sequence[slice], servers: Sequence[Any], iterations: int,
                 fraction: float) -> None:  # fmt: skip
        self._number, self._rates, self._columns, self._servers = number, ShardRates(rows), columns, servers
        self._iterations, self._error = iterations, imported().exceptions.RayActorError
        self._paces = [Pace(fraction) for _ in servers]
        self._tasks: dict[int, asyncio.Task[NoReturn]] = {}
        self._answers = self._bytes = 0

    def report(self, gone: Collection[int]) -> JobReport:
        """Return the state of this shard; start the exchange of messages, and end it with server shards that are `gone`."""
        for k in gone:
            self._end(k)
        for k in range(len(self._servers)):
            if k not in gone and k not in self._tasks:
                self._paces[k].last = time.perf_counter()
                self._tasks[k] = asyncio.ensure_future(self._exchange(k))
        for task in self._tasks.values():
            if task.done():
                task.result()  # raises its error, of the penalty for example, to the caller
        now = time.perf_counter()
        silence = np.array([0.0 if k in gone else now - pace.last for k, pace in enumerate(self._paces)])
        return JobReport(
            pid=os.getpid(), bilinq=version("bilinq"), gap=self._rates.gap(), iterations=self._rates.iterations,
            answers=self._answers, bytes=self._bytes, silence=silence,
            round_trip=np.array([pace.round_trip for pace in self._paces]),
        )  # fmt: skip

    def rates(self) -> Array:
        """Return the present rates, (I, J)."""
        return self._rates.rates

    def _end(self, k: int) -> None:
        """Stop the exchange with a server shard, and ask nothing of its columns."""
        if task := self._tasks.pop(k, None):
            task.cancel()
        self._rates.close(self._columns[k])

    async def _exchange(self, k: int) -> NoReturn:
        columns, pace = self._columns[k], self._paces[k]
        if (asked := await self._call(k, "recall")) is not None:
            self._rates.resume(columns, asked)
        while True:
            sums, sent = self._rates.sums[columns], time.perf_counter()
            quote = await self._call(k, "quote", sums)
            pace.record(sent)
            if quote is None:
                await asyncio.sleep(PAUSE)
                continue
            self._answers += 1
            self._bytes += sums.nbytes + quote.load.nbytes + quote.price.nbytes
            self._rates.receive(columns, sums, quote, pace.damping)
            self._rates.iterate(self._iterations)

    async def _call(self, k: int, method: str, *values: Any) -> Any:
        """Return the answer of a server shard; try again while its actor is dead, since Ray may replace it."""
        while True:
            try:
                return await self._servers[k].ask.remote(method, self._number, *values)
            except self._error:
                await asyncio.sleep(PAUSE)


class Host:
    """The actor of a shard: empty when Ray creates it, and when Ray creates it again, until `begin` is called.

    The contents of a shard are not an argument of the actor, because Ray warns of large arguments of actors that it may
    have to replace.
    """

    _shard: JobShard | ServerShard | None = None

    async def begin(self, gone: Collection[int], shard: type[JobShard] | type[ServerShard], *values: Any) -> Report:
        """Create the shard from these values, unless there is one already; return its report."""
        if self._shard is None:
            self._shard = shard(*values)
        return self._shard.report(gone)

    async def ask(self, method: str, *values: Any) -> Any:
        """Return the answer of the shard; None while there is no shard."""
        return None if self._shard is None else getattr(self._shard, method)(*values)
