"""Compute an allocation with shards on Ray, and compare it with the same in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, non_negative, positive, scalar, shaped
from bilinq.distributed.network import Network, start_rates
from bilinq.distributed.on_ray.cluster import joined
from bilinq.distributed.on_ray.monitor import Name, Watch
from bilinq.distributed.on_ray.shards import Host, JobShard, Rows, ServerShard
from bilinq.distributed.rounds import distance
from bilinq.distributed.stability import automatic_gain
from bilinq.distributed.system import System, gap_bound
from bilinq.errors import BadInput, NotSolved


@dataclass(frozen=True)
class Moment:
    """How far a run is.

    Seconds since the shards began, what they report of the gap, messages between them, and their processes by name.
    """

    seconds: float
    gap: float
    messages: int
    pids: dict[str, int]


@dataclass(frozen=True, eq=False)
class RayRun:
    """An allocation that shards on Ray computed, with its certificate.

    Attributes
    ----------
    system : System
        What took part: without the queues and the servers of shards that stayed away.
    expected : (I, J) array
        Rates.
    gap : float
        What Eq. (33) can fall short of its optimum by at most, over the sum of all a_i; recomputed from `expected`.
    seconds, start_seconds : float
        From the first message to the last; and before, to start Ray, unless it ran, and the shards.
    iterations, messages, bytes : int
        Local iterations over all job shards, messages between shards both ways, and the bytes of numbers in them.
    round_trip : (job shards, server shards) array
        Median seconds from asking to the answer; NaN where there was none.
    restarts : dict
        How often a shard was replaced, by its name.
    absent : tuple of str
        Shards that stayed away, with their classes.
    history : (looks, 2) array
        Seconds, and what the shards reported of the gap by then.
    """

    system: System
    expected: Array
    gap: float
    seconds: float
    start_seconds: float
    iterations: int
    messages: int
    bytes: int
    round_trip: Array
    restarts: dict[str, int]
    absent: tuple[str, ...]
    history: Array

    @cached_property
    def distance(self) -> float:
        """How far row sums and loads are from the fixed point of `system`, which is solved for this."""
        return float(distance(self.system, self.expected))


def solve(
    system: System,
    *,
    shards: int | Sequence[int] = 8,
    address: str | None = None,
    tolerance: float = 1e-3,
    seconds: float = 60.0,
    iterations: int = 20,
    fraction: float = 0.9,
    away: float = 10.0,
    spare: float = 0.1,
    start: ArrayLike | None = None,
    progress: Callable[[Moment], None] | None = None,
) -> RayRun:
    """Return the allocation that shards of job nodes and server nodes find by exchanging messages on Ray.

    Parameters
    ----------
    system : System
        A single one. Its delays are not looked at: messages take what they take.
    shards : int or pair of int
        Actors in all, of which a quarter (at least one) has the server nodes; or the job shards and the server shards.
    address : str, optional
        Of a Ray cluster, as in `ray_cluster.joined`; a Ray of our own unless given or connected already.
    tolerance : float
        The gap at which to stop; see `RayRun.gap`.
    seconds : float
        The most to take, once the shards have started.
    iterations : int
        Local iterations for every message.
    fraction : float
        Part of what Eq. (40) allows at the measured round trips.
    away : float
        Seconds without an answer after which a shard counts as gone: then the servers of a server shard, or the queues of a
        job shard, leave the problem. Ray needs a few seconds to replace a shard that died.
    spare : float
        Part of its capacity that every server class leaves idle; only the barrier needs it.
    start : (I, J) array, optional
        Rates to start from; `start_rates(system)` unless given.
    progress : callable, optional
        Told a `Moment` about ten times a second.

    Raises
    ------
    NotSolved
        If the gap is not reached in time, or no shard of one kind is left.
    """
    limits = {name: scalar(name, value, positive) for name, value in (("tolerance", tolerance), ("seconds", seconds),
              ("fraction", fraction), ("away", away), ("spare", spare))}  # fmt: skip
    if system.batch:
        raise BadInput(f"system must be a single one; got a batch {system.batch}")
    rows, columns = _blocks(system, shards)
    begin = start_rates(system) if start is None else non_negative("start", start)
    begin = shaped("start", begin, system.reward.shape)
    parts = [Rows(system.demand[r], system.cost[r], system.capacity, begin[r], system.penalty, limits["spare"], len(rows))
             for r in rows]  # fmt: skip
    often = count("iterations", iterations)
    began = time.monotonic()
    with joined(address) as ray, _watched(ray, parts, columns, often, limits["fraction"], limits["away"]) as watch:
        run = _Run(system, rows, columns, watch, time.monotonic() - began)
        return run.finish(limits["tolerance"], limits["seconds"], progress)


def _blocks(system: System, shards: int | Sequence[int]) -> tuple[list[slice], list[slice]]:
    """Return the rows of every job shard and the columns of every server shard."""
    if isinstance(shards, int | np.integer):
        total = count("shards", int(shards), 2)
        servers = min(max(1, total // 4), system.shape[1])
        sizes = min(total - servers, system.shape[0]), servers
    else:
        if len(shards) != 2:
            raise BadInput(f"shards must be one number, or those of job and server shards; got {list(shards)}")
        sizes = count("job shards", shards[0]), count("server shards", shards[1])
    for noun, number, most in zip(("job", "server"), sizes, system.shape, strict=True):
        if number > most:
            raise BadInput(f"{noun} shards must be at most the {most} {noun} classes; got {number}")
    return _split(system.shape[0], sizes[0]), _split(system.shape[1], sizes[1])


def _split(size: int, parts: int) -> list[slice]:
    edges = [size * k // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


@contextmanager
def _watched(ray: Any, parts: list[Rows], columns: list[slice], iterations: int, fraction: float,
             away: float) -> Iterator[Watch]:  # fmt: skip
    """Start the shards, whose actors Ray replaces when they die; they end with the block."""
    names = [Name("job", k) for k in range(len(parts))] + [Name("server", k) for k in range(len(columns))]
    host = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy="SPREAD")(Host)
    hosts = {name: host.remote() for name in names}
    servers = [hosts[Name("server", k)] for k in range(len(columns))]
    contents: dict[Name, tuple[Any, ...]] = {}
    for k, rows in enumerate(parts):
        contents[Name("job", k)] = JobShard, k, ray.put(rows), columns, servers, iterations, fraction
    for k, part in enumerate(columns):
        contents[Name("server", k)] = ServerShard, part, parts[0].n, parts[0].penalty, len(parts)
    try:
        watch = Watch(ray, hosts, contents, away)
        watch.start()
        yield watch
    finally:
        for actor in hosts.values():
            ray.kill(actor)


class _Run:
    """A run under way: looks at the shards until what they report, and then what they have, is good enough."""

    def __init__(self, system: System, rows: list[slice], columns: list[slice], watch: Watch, taken: float) -> None:
        self._system, self._rows, self._columns, self._watch, self._taken = system, rows, columns, watch, taken
        self._began, self._history = time.monotonic(), list[tuple[float, float]]()

    def finish(self, tolerance: float, seconds: float, progress: Callable[[Moment], None] | None) -> RayRun:
        """Go on until the gap is at most `tolerance`."""
        while True:
            self._watch.look()
            now, gap = time.monotonic() - self._began, self._gap()
            self._history.append((now, gap))
            if progress:
                pids = {str(name): report.pid for name, report in self._watch.reports.items()}
                progress(Moment(now, gap, 2 * self._watch.totals().answers, pids))
            if gap <= tolerance and (run := self._gathered()) is not None and run.gap <= tolerance:
                return run
            if now > seconds:
                raise NotSolved(f"gap {gap:.1e} after {now:.0f} s on Ray; raise seconds or tolerance{self._away()}")

    def _gap(self) -> float:
        for nodes in ("job", "server"):
            if not self._watch.present(nodes):
                raise NotSolved(f"no {nodes} shard answers any more{self._away()}")
        return self._watch.gap() / max(float(self._remaining().demand.sum()), 1e-300)

    def _away(self) -> str:
        names = ", ".join(map(str, sorted(self._watch.gone)))
        return f"; {names} stayed away" if names else ""

    def _remaining(self) -> System:
        """Return the system without what left with its shards."""
        queue, capacity, s = self._system.queue.copy(), self._system.capacity.copy(), self._system
        for name in self._watch.gone:
            if name.nodes == "job":
                queue[self._rows[name.number]] = 0.0
            else:
                capacity[self._columns[name.number]] = 0.0
        return System(queue, s.reward, capacity, s.V, s.gamma, s.weight, s.penalty)

    def _gathered(self) -> RayRun | None:
        """Return what the shards have by now, or nothing if one does not answer."""
        watch, present = self._watch, self._watch.present("job")
        rates = watch.rates()
        if rates is None:
            return None
        expected, system, totals = np.zeros(self._system.shape), self._remaining(), watch.totals()
        for k, block in zip(present, rates, strict=True):
            expected[self._rows[k]] = block
        blocks = {"job": self._rows, "server": self._columns}
        parts = [(name, blocks[name.nodes][name.number]) for name in sorted(watch.gone)]
        absent = tuple(f"{name} (classes {part.start} to {part.stop - 1})" for name, part in parts)
        return RayRun(
            system, expected, float(gap_bound(system, expected)), time.monotonic() - self._began, self._taken,
            totals.iterations, 2 * totals.answers, totals.bytes, watch.round_trips(), dict(watch.restarts), absent,
            np.array(self._history),
        )  # fmt: skip


LOOK = 10
"""Rounds between two looks at the gap."""
MOST = 50_000
"""Rounds after which the nodes in one process give up."""


@dataclass(frozen=True)
class Effort:
    """What it took to get so close: seconds, also to start, iterations of all rows, messages, bytes, and the gap."""

    engine: str
    seconds: float
    start_seconds: float
    iterations: float
    messages: int
    bytes: int
    gap: float


def in_process(system: System, tolerance: float, fraction: float = 0.9) -> Effort:
    """Return what rounds without delay take in this process; more than `MOST` are not run."""
    near = system.with_delays(0.0, 0.0)
    network = Network(near, automatic_gain(near, np.zeros((1, *system.shape)), fraction))
    network.copy().advance(1)
    began = time.perf_counter()
    while (gap := float(gap_bound(near, network.expected))) > tolerance and network.round < MOST:
        network.advance(LOOK)
    return Effort("in process", time.perf_counter() - began, 0.0, network.round, 0, 0, gap)


def solved(system: System) -> Effort:
    """Return what the convex program takes, solved in one place."""
    began = time.perf_counter()
    best = system.with_delays(0.0, 0.0).fixed_point()
    return Effort("convex program", time.perf_counter() - began, 0.0, 0, 0, 0, float(gap_bound(system, best)))


def on_ray(run: RayRun) -> Effort:
    """Return what a run on Ray took; iterations are those of a job shard, on average."""
    jobs, servers = run.round_trip.shape
    name = f"Ray, {jobs} + {servers} shards"
    return Effort(name, run.seconds, run.start_seconds, run.iterations / jobs, run.messages, run.bytes, run.gap)
