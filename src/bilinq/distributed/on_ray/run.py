"""An allocation computed by shards on Ray, and its cost beside the same in one process."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, non_negative, positive, scalar, shaped
from bilinq.distributed.network import Network, start_rates
from bilinq.distributed.on_ray.cluster import joined
from bilinq.distributed.on_ray.monitor import Monitor, ShardName
from bilinq.distributed.on_ray.shards import Host, JobShard, ServerShard, ShardRates, ShardRows
from bilinq.distributed.rounds import distance
from bilinq.distributed.stability import automatic_gain
from bilinq.distributed.system import System, gap_bound
from bilinq.errors import BadInput, NotSolved


@dataclass(frozen=True)
class RunProgress:
    """The state of a run: seconds since the shards began, the gap they report, messages, and their processes by name."""

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
        The problem that was solved: without the queues and the servers of shards that stopped answering.
    expected : (I, J) array
        Rates.
    gap : float
        A bound on what Eq. (33) falls short of its optimum by, over the sum of all a_i; recomputed from `expected`.
    seconds, start_seconds : float
        From the first message to the last; and before that, to start the shards and, if it was not running, Ray.
    iterations, messages, bytes : int
        Local iterations over all job shards, messages between shards both ways, and the bytes of numbers in them.
    round_trip : (job shards, server shards) array
        Median seconds from a message to its answer; NaN where there was none.
    restarts : dict
        How often a shard was replaced, by its name.
    absent : tuple of str
        Shards that stopped answering, with their classes.
    history : (polls, 2) array
        Seconds, and the gap that the shards reported at that time.
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
        """The distance of row sums and loads from the fixed point of `system`, which is solved for this."""
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
    progress: Callable[[RunProgress], None] | None = None,
) -> RayRun:
    """Return the allocation that shards of job nodes and server nodes find by exchanging messages on Ray.

    Parameters
    ----------
    system : System
        Not a batch. Its delays are ignored: messages take the time that they take.
    shards : int or pair of int
        Actors in total, a quarter of which (at least one) has the server nodes; or the job shards and the server shards.
    address : str, optional
        Of a Ray cluster, as in `joined`; default: a private Ray, unless this process is connected already.
    tolerance : float
        The gap at which to stop; see `RayRun.gap`.
    seconds : float
        The time limit, once the shards have started.
    iterations : int
        Local iterations for every message.
    fraction : float
        Part of what Eq. (40) allows at the measured round trips.
    away : float
        Seconds without an answer after which a shard counts as gone: the servers of a server shard, or the queues of a
        job shard, then leave the problem. Ray needs a few seconds to replace a shard that died.
    spare : float
        Part of its capacity that every server class leaves idle; only the barrier needs it.
    start : (I, J) array, optional
        Rates to start from; default: `start_rates(system)`.
    progress : callable, optional
        Called with a `RunProgress` about ten times a second.

    Raises
    ------
    NotSolved
        If the gap is not reached in time, or no shard of one kind is left.
    """
    limits = {name: scalar(name, value, positive) for name, value in (("tolerance", tolerance), ("seconds", seconds),
              ("fraction", fraction), ("away", away), ("spare", spare))}  # fmt: skip
    if system.batch:
        raise BadInput(f"system must be a single one; got a batch {system.batch}")
    if system.eligible is not None:
        raise BadInput(
            "eligible must be None on Ray: every shard of job nodes exchanges messages with every server node"
        )
    rows, columns = _partition(system, shards)
    begin = start_rates(system) if start is None else non_negative("start", start)
    begin = shaped("start", begin, system.reward.shape)
    parts = [
        ShardRows(
            a=system.demand[r], c=system.cost[r], n=system.capacity, start=begin[r], penalty=system.penalty,
            spare=limits["spare"], shards=len(rows),
        )
        for r in rows
    ]  # fmt: skip
    local = count("iterations", iterations)
    began = time.monotonic()
    with joined(address) as ray, _monitored(ray, parts, columns, local, limits["fraction"], limits["away"]) as monitor:
        solver = _Solver(system, rows, columns, monitor, time.monotonic() - began)
        return solver.run(limits["tolerance"], limits["seconds"], progress)


def _partition(system: System, shards: int | Sequence[int]) -> tuple[list[slice], list[slice]]:
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
    return [slice(size * k // parts, size * (k + 1) // parts) for k in range(parts)]


@contextmanager
def _monitored(ray: Any, parts: list[ShardRows], columns: list[slice], iterations: int, fraction: float,
               patience: float) -> Iterator[Monitor]:  # fmt: skip
    """Start the shards, whose actors Ray replaces when they die; they end with the block."""
    ShardRates(parts[0])  # compiles what job shards need: here the user sees it, and Ray's workers have a low priority
    names = [ShardName("job", k) for k in range(len(parts))] + [ShardName("server", k) for k in range(len(columns))]
    host = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy="SPREAD")(Host)
    hosts = {name: host.remote() for name in names}
    servers = [hosts[ShardName("server", k)] for k in range(len(columns))]
    contents: dict[ShardName, tuple[Any, ...]] = {}
    for k, rows in enumerate(parts):
        contents[ShardName("job", k)] = JobShard, k, ray.put(rows), columns, servers, iterations, fraction
    for k, part in enumerate(columns):
        contents[ShardName("server", k)] = ServerShard, part, parts[0].n, parts[0].penalty, len(parts)
    try:
        monitor = Monitor(ray, hosts, contents, patience)
        monitor.start()
        yield monitor
    finally:
        for actor in hosts.values():
            ray.kill(actor)


class _Solver:
    """Polls the shards until the gap that they report, and then the one of their rates, is small enough."""

    def __init__(
        self, system: System, rows: list[slice], columns: list[slice], monitor: Monitor, start_seconds: float
    ) -> None:
        self._system, self._rows, self._columns, self._monitor = system, rows, columns, monitor
        self._start_seconds = start_seconds
        self._began, self._history = time.monotonic(), list[tuple[float, float]]()

    def run(self, tolerance: float, seconds: float, progress: Callable[[RunProgress], None] | None) -> RayRun:
        """Poll until the gap is at most `tolerance`; return the run."""
        while True:
            self._monitor.poll()
            now, gap = time.monotonic() - self._began, self._gap()
            self._history.append((now, gap))
            if progress:
                pids = {str(name): report.pid for name, report in self._monitor.reports.items()}
                progress(RunProgress(now, gap, 2 * self._monitor.totals()[1], pids))
            if gap <= tolerance and (run := self._gathered()) is not None and run.gap <= tolerance:
                return run
            if now > seconds:
                raise NotSolved(f"gap {gap:.1e} after {now:.0f} s on Ray; raise seconds or tolerance{self._silent()}")

    def _gap(self) -> float:
        for nodes in ("job", "server"):
            if not self._monitor.present(nodes):
                raise NotSolved(f"no {nodes} shard answers any more{self._silent()}")
        return self._monitor.gap() / max(float(self._remaining().demand.sum()), 1e-300)

    def _silent(self) -> str:
        names = ", ".join(map(str, sorted(self._monitor.gone)))
        return f"; no answer from {names}" if names else ""

    def _remaining(self) -> System:
        """Return the system without the queues and servers of shards that are gone."""
        s = self._system
        queue, capacity = s.queue.copy(), s.capacity.copy()
        for name in self._monitor.gone:
            if name.nodes == "job":
                queue[self._rows[name.number]] = 0.0
            else:
                capacity[self._columns[name.number]] = 0.0
        return System(queue, s.reward, capacity, s.V, s.gamma, weight=s.weight, penalty=s.penalty)

    def _gathered(self) -> RayRun | None:
        """Return the run with the present rates of the shards, or None if one does not answer."""
        monitor, present = self._monitor, self._monitor.present("job")
        rates = monitor.rates()
        if rates is None:
            return None
        expected, system, (iterations, answers, sent) = (
            np.zeros(self._system.shape),
            self._remaining(),
            monitor.totals(),
        )
        for name, part in zip(present, rates, strict=True):
            expected[self._rows[name.number]] = part
        return RayRun(
            system=system, expected=expected, gap=float(gap_bound(system, expected)),
            seconds=time.monotonic() - self._began, start_seconds=self._start_seconds,
            iterations=iterations, messages=2 * answers, bytes=sent, round_trip=monitor.round_trips(),
            restarts=dict(monitor.restarts), absent=tuple(map(self._described, sorted(monitor.gone))),
            history=np.array(self._history),
        )  # fmt: skip

    def _described(self, name: ShardName) -> str:
        part = (self._rows if name.nodes == "job" else self._columns)[name.number]
        return f"{name} (classes {part.start} to {part.stop - 1})"


# What the same allocation takes in one process and as a convex program, for comparison.

CHECK_EVERY = 10  # rounds between two computations of the gap
MOST_ROUNDS = 50_000  # rounds after which the nodes in one process give up


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The cost of an allocation: seconds, also to start, iterations of all rows, messages, bytes, and the gap reached."""

    engine: str
    seconds: float
    start_seconds: float = 0.0
    iterations: float
    messages: int = 0
    bytes: int = 0
    gap: float


def in_process(system: System, tolerance: float, fraction: float = 0.9) -> Effort:
    """Return the cost of rounds without delay in this process; at most `MOST_ROUNDS` are run."""
    near = system.with_delays(0.0, 0.0)
    network = Network(near, automatic_gain(near, np.zeros((1, *system.shape)), fraction))
    network.copy().advance(1)
    began = time.perf_counter()
    while (gap := float(gap_bound(near, network.expected))) > tolerance and network.round < MOST_ROUNDS:
        network.advance(CHECK_EVERY)
    return Effort(engine="in process", seconds=time.perf_counter() - began, iterations=network.round, gap=gap)


def solved(system: System) -> Effort:
    """Return the cost of the convex program, solved in this process."""
    began = time.perf_counter()
    best = system.with_delays(0.0, 0.0).fixed_point()
    seconds = time.perf_counter() - began
    return Effort(engine="convex program", seconds=seconds, iterations=0, gap=float(gap_bound(system, best)))


def on_ray(run: RayRun) -> Effort:
    """Return the cost of a run on Ray; iterations are those of a job shard, on average."""
    jobs, servers = run.round_trip.shape
    return Effort(
        engine=f"Ray, {jobs} + {servers} shards", seconds=run.seconds, start_seconds=run.start_seconds,
        iterations=run.iterations / jobs, messages=run.messages, bytes=run.bytes, gap=run.gap,
    )  # fmt: skip
