"""Arrival laws, service laws, and how many servers are up in each slot."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, IntArray, as_floats, count, non_negative, one_of, require, scalar
from bilinq.errors import BadInput
from bilinq.problem.instances import Instances

Rngs: TypeAlias = Sequence[np.random.Generator]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The jobs that arrive in B slots: replication r gets, in slot b, those from start[r, b] to start[r, b + 1].

    `job_class` and `units` (R, M) contain class and size of each job, in order of arrival; places after the last job are
    unused.
    """

    start: IntArray
    job_class: IntArray
    units: IntArray


class Arrivals(ABC):
    """A law of arrivals."""

    @abstractmethod
    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Block]:
        """Yield blocks of `slots` slots without end, drawn with a generator for each replication."""

    def rates(self, instances: Instances, slots: int) -> tuple[Array, Array] | None:
        """Return jobs per slot and mean units of a job (R, I each) in a run of `slots` slots; default: None, not known.

        Regret is measured against the best reward at these rates, and is not known without them.
        """
        return None


@dataclass(frozen=True)
class Bernoulli(Arrivals):
    """At most one job in a slot, with probability lambda; its class is i with probability lambda_i / lambda."""

    def rates(self, instances: Instances, slots: int) -> tuple[Array, Array]:
        return _of_problem(instances)

    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Block]:
        rate = instances.arrival_rate
        require("arrival_rate summed over classes", rate.sum(axis=1), lambda x: x <= 1.0 + 1e-12,
                "at most one per slot for Bernoulli arrivals (use Poisson)")  # fmt: skip
        upper = np.cumsum(rate, axis=1)
        while True:
            start = np.zeros((len(rngs), slots + 1), np.int64)
            job_class = np.zeros((len(rngs), slots), np.int64)
            for r, rng in enumerate(rngs):
                drawn = np.searchsorted(upper[r], rng.random(slots) * max(upper[r, -1], 1.0), side="right")
                came = drawn[drawn < upper.shape[1]]
                start[r, 1:] = np.cumsum(drawn < upper.shape[1])
                job_class[r, : came.size] = came
            yield Block(start, job_class, np.ones_like(job_class))


@dataclass(frozen=True)
class Poisson(Arrivals):
    """Independent Poisson numbers of jobs of each class in each slot."""

    def rates(self, instances: Instances, slots: int) -> tuple[Array, Array]:
        return _of_problem(instances)

    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Block]:
        rate = instances.arrival_rate
        while True:
            yield _from_counts([rng.poisson(rate[r], (slots, rate.shape[1])) for r, rng in enumerate(rngs)])


@dataclass(frozen=True)
class MarkovModulated(Arrivals):
    """Poisson arrivals whose rates are multiplied by a factor that follows a Markov chain: bursts and lulls.

    Parameters
    ----------
    factor : (S,) array
        Multiplier of all rates in each state; scaled so that the long-run mean is one.
    transition : (S, S) array
        Probabilities from one slot to the next; rows sum to one. The chain starts in its stationary law.
    """

    factor: ArrayLike = (0.5, 2.0)
    transition: ArrayLike = ((0.98, 0.02), (0.04, 0.96))

    def __post_init__(self) -> None:
        factor, chain = non_negative("factor", self.factor), non_negative("transition", self.transition)
        if factor.ndim != 1 or chain.shape != (factor.size, factor.size):
            raise BadInput(f"transition must have shape ({factor.size}, {factor.size}); got {chain.shape}")
        require("transition row sums", chain.sum(axis=1), lambda x: np.abs(x - 1.0) < 1e-9, "one")
        if not factor @ self.stationary() > 0.0:
            raise BadInput("factor must be positive in some state that is visited")

    def rates(self, instances: Instances, slots: int) -> tuple[Array, Array]:
        return _of_problem(instances)

    def stationary(self) -> Array:
        """Return the long-run share of each state (S,)."""
        chain = as_floats("transition", self.transition)
        size = len(chain)
        equations = np.vstack([chain.T - np.eye(size), np.ones(size)])
        return np.asarray(np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0])

    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Block]:
        share = self.stationary()
        factor = as_floats("factor", self.factor) / (as_floats("factor", self.factor) @ share)
        upper = np.cumsum(as_floats("transition", self.transition), axis=1)
        now = [int(np.searchsorted(np.cumsum(share), rng.random())) for rng in rngs]
        while True:
            counts = []
            for r, rng in enumerate(rngs):
                states = np.empty(slots, np.int64)
                for b, u in enumerate(rng.random(slots).tolist()):
                    states[b] = now[r]
                    now[r] = min(int(np.searchsorted(upper[now[r]], u, side="right")), len(upper) - 1)
                counts.append(rng.poisson(factor[states][:, None] * instances.arrival_rate[r]))
            yield _from_counts(counts)


@dataclass(frozen=True)
class Sized(Arrivals):
    """The arrivals of `law`, each job with a geometric number of units of mean one over its class's service rate.

    With service in units this is the same law as geometric service, but the length of a job is fixed when it arrives. So
    two policies get the same work. `sizes` may also be "fixed" (as equal as whole numbers with this mean can be) or
    "heavy-tailed" (Pareto's law of index 1.5, which has no variance).
    """

    law: Arrivals
    sizes: str = "geometric"

    def __post_init__(self) -> None:
        one_of("sizes", self.sizes, tuple(SIZES))

    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Block]:
        if instances.service_rate.ndim == 3:
            raise BadInput("service_rate must not depend on the server class for jobs of a given number of units")
        draw = SIZES[self.sizes]
        for block in self.law.blocks(instances, slots, rngs):
            units = np.ones_like(block.job_class)
            for r, rng in enumerate(rngs):
                came = block.job_class[r, : block.start[r, -1]]
                units[r, : came.size] = draw(rng, instances.service_rate[r, came])
            yield Block(block.start, block.job_class, units)

    def rates(self, instances: Instances, slots: int) -> tuple[Array, Array] | None:
        inner = self.law.rates(instances, slots)
        return inner and (inner[0], np.asarray(1.0 / instances.service_rate))


@dataclass(frozen=True)
class Backlog(Arrivals):
    """The arrivals of `law`, and `jobs` jobs of one unit of each class in the first slot: to see whether queues empty."""

    law: Arrivals
    jobs: int

    def __post_init__(self) -> None:
        count("jobs", self.jobs)

    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Block]:
        waiting = np.repeat(np.arange(instances.arrival_rate.shape[1]), self.jobs)
        for number, block in enumerate(self.law.blocks(instances, slots, rngs)):
            yield block if number else _with_first(block, waiting)

    def rates(self, instances: Instances, slots: int) -> tuple[Array, Array] | None:
        inner = self.law.rates(instances, slots)
        if inner is None:
            return None
        rate, units = inner
        total = rate + self.jobs / slots
        return total, np.asarray((rate * units + self.jobs / slots) / total)


@dataclass(frozen=True, init=False)
class Recorded(Arrivals):
    """A fixed sequence of jobs (slot, class, units), the same in every replication: a trace.

    Parameters
    ----------
    jobs : iterable of (slot, job class, units), or (M, 3) array
        Slots and classes count from 0; units is the number of services that a job needs. The order does not matter.
    """

    jobs: IntArray

    def __init__(self, jobs: Iterable[Sequence[int]] | IntArray) -> None:
        listed: IntArray | list[Sequence[int]] = jobs if isinstance(jobs, np.ndarray) else list(jobs)
        table = as_floats("jobs", listed) if len(listed) else np.zeros((0, 3))
        if table.ndim != 2 or table.shape[1] != 3:
            raise BadInput(f"jobs must be rows of (slot, job class, units); got shape {table.shape}")
        require("jobs", table, lambda x: (x == np.floor(x)) & (x >= 0.0), "whole and non-negative")
        require("jobs units", table[:, 2], lambda x: x >= 1.0, "at least one")
        object.__setattr__(self, "jobs", table[np.argsort(table[:, 0], kind="stable")].astype(np.int64))

    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Block]:
        """Yield blocks; after the last job they are empty."""
        classes = instances.arrival_rate.shape[1]
        if self.jobs.size and self.jobs[:, 1].max() >= classes:
            raise BadInput(f"jobs must have classes below {classes}; got {self.jobs[:, 1].max()}")
        repeat = (len(rngs), 1)
        for first in itertools.count(step=slots):
            edges = np.searchsorted(self.jobs[:, 0], np.arange(first, first + slots + 1))
            part = self.jobs[edges[0] : edges[-1]]
            yield Block(np.tile(edges - edges[0], repeat), np.tile(part[:, 1], repeat), np.tile(part[:, 2], repeat))

    def rates(self, instances: Instances, slots: int) -> tuple[Array, Array]:
        """Return what the record has in its first `slots` slots."""
        shape = instances.arrival_rate.shape
        mine = self.jobs[self.jobs[:, 0] < slots]
        jobs = np.bincount(mine[:, 1], minlength=shape[1]).astype(float)
        work = np.bincount(mine[:, 1], weights=mine[:, 2], minlength=shape[1])
        units = np.divide(work, jobs, out=np.ones(shape[1]), where=jobs > 0)
        return np.broadcast_to(jobs / slots, shape), np.broadcast_to(units, shape)


def _of_problem(instances: Instances) -> tuple[Array, Array]:
    """Return the rates of the problem, for jobs of one unit."""
    return instances.arrival_rate, np.ones(instances.arrival_rate.shape)


def _with_first(block: Block, waiting: IntArray) -> Block:
    """Return the block with more jobs in its first slot, one of each class in `waiting`, before the others."""
    repeat = np.tile(waiting, (len(block.start), 1))
    start = block.start + waiting.size
    start[:, 0] = 0
    return Block(start, np.hstack([repeat, block.job_class]), np.hstack([np.ones_like(repeat), block.units]))


def _geometric_sizes(rng: np.random.Generator, rate: Array) -> IntArray:
    return rng.geometric(rate)


def _fixed_sizes(rng: np.random.Generator, rate: Array) -> IntArray:
    return np.floor(1.0 / rate + rng.random(rate.size)).astype(np.int64)


def _heavy_sizes(rng: np.random.Generator, rate: Array) -> IntArray:
    """Draw one plus a Lomax number of mean 1 / rate - 1, rounded up or down at random so that the mean stays."""
    extra = rng.pareto(TAIL, rate.size) * (TAIL - 1.0) * (1.0 / rate - 1.0)
    return 1 + np.floor(np.minimum(extra, MOST_UNITS) + rng.random(rate.size)).astype(np.int64)


TAIL = 1.5  # index of the heavy tail
MOST_UNITS = 1e9
SIZES: dict[str, Callable[[np.random.Generator, Array], IntArray]] = {
    "geometric": _geometric_sizes,
    "fixed": _fixed_sizes,
    "heavy-tailed": _heavy_sizes,
}
"""Laws of the units of a job with mean 1 / rate (M,)."""


def _from_counts(counts: Sequence[IntArray]) -> Block:
    """Return the block with counts[r] (B, I) jobs of each slot and class."""
    slots, classes = counts[0].shape
    most = max(int(table.sum()) for table in counts)
    start = np.zeros((len(counts), slots + 1), np.int64)
    job_class = np.zeros((len(counts), max(most, 1)), np.int64)
    for r, table in enumerate(counts):
        start[r, 1:] = np.cumsum(table.sum(axis=1))
        job_class[r, : start[r, -1]] = np.repeat(np.tile(np.arange(classes), slots), table.ravel())
    return Block(start, job_class, np.ones_like(job_class))


SERVICES = ("geometric", "units")
"""A service completes a job with probability mu_i ("geometric"), or removes one of its units ("units")."""


class Capacity(ABC):
    """A law of how many servers of each class are up."""

    @abstractmethod
    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Array]:
        """Yield the servers that are up (R, slots, J) in blocks of slots, without end."""


@dataclass(frozen=True)
class AllUp(Capacity):
    """All servers, always."""

    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Array]:
        yield from itertools.repeat(np.repeat(instances.servers[:, None, :], slots, axis=1))


@dataclass(frozen=True, init=False, eq=False)
class Schedule(Capacity):
    """A given number of servers for each slot: `table` (slots, J), repeated from the start when it ends."""

    table: Array

    def __init__(self, table: ArrayLike) -> None:
        given = require("table", non_negative("table", table), lambda x: x == np.floor(x), "whole numbers")
        if given.ndim != 2 or not given.size:
            raise BadInput(f"table must have shape (slots, server classes); got {given.shape}")
        object.__setattr__(self, "table", given)

    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Array]:
        if self.table.shape[1] != instances.servers.shape[1]:
            raise BadInput(f"table must have {instances.servers.shape[1]} columns, one for each server class; "
                           f"got {self.table.shape[1]}")  # fmt: skip
        for first in itertools.count(step=slots):
            rows = self.table[np.arange(first, first + slots) % len(self.table)]
            yield np.repeat(rows[None], instances.count, axis=0)


@dataclass(frozen=True)
class Breakdowns(Capacity):
    """Servers fail and return independently: in each slot with probability `fail` if up, and `repair` if down.

    All are up in the first slot.
    """

    fail: float
    repair: float

    def __post_init__(self) -> None:
        for name in ("fail", "repair"):
            require(
                name, np.asarray(scalar(name, getattr(self, name), non_negative)), lambda x: x <= 1.0, "at most one"
            )

    def blocks(self, instances: Instances, slots: int, rngs: Rngs) -> Iterator[Array]:
        servers = instances.servers.astype(np.int64)
        now = servers.copy()
        while True:
            up = np.empty((instances.count, slots, servers.shape[1]))
            for r, rng in enumerate(rngs):
                for b in range(slots):
                    up[r, b] = now[r]
                    now[r] += rng.binomial(servers[r] - now[r], self.repair) - rng.binomial(now[r], self.fail)
            yield up
