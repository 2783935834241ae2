"""The digest of a trace: the aggregate figures that the trace experiment needs, without raw rows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from os import PathLike
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import count, non_negative, one_of, positive, scalar, shaped
from bilinq.errors import BadInput
from bilinq.problem import Problem
from bilinq.simulation.arrivals import Recorded
from bilinq.traces import experiment
from bilinq.traces.digest_files import load, parse, save


@dataclass(frozen=True)
class MachineClass:
    """Machines of equal capacity, as shares of the largest machine, present when the trace began."""

    cpus: float
    memory: float
    machines: int

    def __post_init__(self) -> None:
        scalar("cpus", self.cpus, positive)
        scalar("memory", self.memory, positive)
        count("machines", self.machines)


@dataclass(frozen=True)
class TraceJobClass:
    """Collections with similar requests; `cpus` and `memory` are means over all units of the class."""

    cpus: float
    memory: float
    collections: int
    units: int

    def __post_init__(self) -> None:
        scalar("cpus", self.cpus, non_negative)
        scalar("memory", self.memory, non_negative)
        count("collections", self.collections)
        count("units", self.units, least=self.collections)


@dataclass(frozen=True)
class CollectionPoint:
    """One collection: the second of the trace in which it was queued, its class (from 0), units and mean request."""

    second: int
    job_class: int
    units: int
    cpus: float
    memory: float

    def __post_init__(self) -> None:
        count("second", self.second, least=0)
        count("job_class", self.job_class, least=0)
        count("units", self.units)
        scalar("cpus", self.cpus, non_negative)
        scalar("memory", self.memory, non_negative)


@dataclass(frozen=True)
class Pair:
    """1/CPI of a job class on a machine class (both from 0); `variance` is None where the pair was seen only once."""

    job_class: int
    machine_class: int
    count: int
    mean: float
    variance: float | None

    def __post_init__(self) -> None:
        count("job_class", self.job_class, least=0)
        count("machine_class", self.machine_class, least=0)
        count("count", self.count)
        scalar("mean", self.mean, positive)
        if (self.variance is None) != (self.count == 1):
            raise BadInput(f"variance must be null where count is 1 and only there; got {self.variance}")
        if self.variance is not None:
            scalar("variance", self.variance, non_negative)


@dataclass(frozen=True)
class LeftOut:
    """Rows, collections or files that are not part of the digest, and how many."""

    what: str
    count: int

    def __post_init__(self) -> None:
        count("count", self.count)


Features = Literal["raw", "normalised"]
Unseen = Literal["zero", "predicted", "left out"]
Rewards = Literal["raw", "scaled"]
Units = Literal["rows", "instances"]
Progress = Callable[[int, int], None]

SOURCE = "Google cluster-data-2019, https://github.com/google/cluster-data"
LICENCE = "CC-BY 4.0"
SHIPPED = "borg2019-a.json"


@dataclass(frozen=True)
class Digest:
    """Aggregate figures of a trace: classes, collections without ids, rewards of pairs, and what was left out.

    `Digest.shipped()` is that of the slice of cell a that the paper uses; `Digest.of(path)` reads a trace.

    Attributes
    ----------
    source, licence : str
    until : float
        End of the window in seconds; a trace begins at 600.
    units : "rows" or "instances"
        What a unit of a collection is.
    seed : int
        Of k-means.
    machine_classes : tuple of MachineClass
        Most machines first.
    job_classes : tuple of TraceJobClass
        The one with the most collections first, the others by falling `cpus`.
    collections : tuple of CollectionPoint
        In order of arrival.
    pairs : tuple of Pair
        The pairs of classes that were seen, by job class and machine class.
    left_out : tuple of LeftOut

    Examples
    --------
    >>> digest = Digest.shipped()
    >>> [kind.collections for kind in digest.job_classes], len(digest.pairs)
    ([39, 2, 9, 2, 24], 19)
    """

    source: str
    licence: str
    until: float
    units: Units
    seed: int
    machine_classes: tuple[MachineClass, ...]
    job_classes: tuple[TraceJobClass, ...]
    collections: tuple[CollectionPoint, ...]
    pairs: tuple[Pair, ...]
    left_out: tuple[LeftOut, ...]

    def __post_init__(self) -> None:
        scalar("until", self.until, positive)
        one_of("units", self.units, ("rows", "instances"))
        count("seed", self.seed, least=0)
        for name in ("machine_classes", "job_classes", "collections"):
            if not getattr(self, name):
                raise BadInput(f"{name} must have at least one entry; got none")
        self._check_collections()
        self._check_pairs()

    def _check_collections(self) -> None:
        for i, kind in enumerate(self.job_classes):
            mine = [point.units for point in self.collections if point.job_class == i]
            for name, found in (("collections", len(mine)), ("units", sum(mine))):
                if getattr(kind, name) != found:
                    rule = f"what the list of collections adds up to, {found}"
                    raise BadInput(f"job_classes[{i}].{name} must be {rule}; got {getattr(kind, name)}")
        for k, point in enumerate(self.collections):
            _below(f"collections[{k}].job_class", point.job_class, len(self.job_classes))
            if point.second > self.until:
                raise BadInput(f"collections[{k}].second must be at most until = {self.until:g}; got {point.second}")

    def _check_pairs(self) -> None:
        for k, pair in enumerate(self.pairs):
            _below(f"pairs[{k}].job_class", pair.job_class, len(self.job_classes))
            _below(f"pairs[{k}].machine_class", pair.machine_class, len(self.machine_classes))
        if len({(pair.job_class, pair.machine_class) for pair in self.pairs}) < len(self.pairs):
            raise BadInput("pairs must be listed once each; got one twice")

    @classmethod
    def of(
        cls,
        path: str | PathLike[str],
        *,
        until: float = 5500.0,
        classes: int = 5,
        units: Units = "rows",
        seed: int = 0,
        cell: str | None = None,
        source: str = SOURCE,
        licence: str = LICENCE,
        progress: Progress | None = None,
    ) -> "Digest":
        """Read a trace, whatever its format and size, and return its digest.

        Parameters
        ----------
        path : path
            A folder with files of `machine_events`, `collection_events`, `instance_events` and `instance_usage`.
        until : float
            End of the window in seconds; 5,500 is the paper's.
        classes : int
            Job classes, found by k-means on the mean request of each collection.
        units : "rows" or "instances"
            Event rows of instances, the paper's choice, or instances that were submitted, each counted once.
        seed : int
            Of k-means.
        cell : "a" to "h", optional
            Which cell; required for a joined file with rows of several.
        source, licence : str
            Named in the digest.
        progress : callable, optional
            Called with the number of files read and of all files.
        """
        from bilinq.traces.cluster import aggregate

        return aggregate(path, until=until, classes=classes, units=units, seed=seed, cell=cell, source=source,
                         licence=licence, progress=progress)  # fmt: skip

    @classmethod
    def shipped(cls) -> Self:
        """Return the digest that comes with bilinq: cell a, first 5,500 s, the slice that the paper uses."""
        text = resources.files("bilinq.traces").joinpath("data", SHIPPED).read_text(encoding="utf-8")
        return parse(cls, text, SHIPPED)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a digest from a file that `save` wrote."""
        return load(cls, path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the digest to a JSON file that `load` reads back without loss."""
        save(self, path)

    def slots(self, slot: float = 5.0) -> int:
        """Return the number of slots of `slot` seconds in the window: 1,100 for the paper's."""
        return math.ceil(self.until / experiment.slot_seconds(slot))

    def problem(
        self,
        *,
        features: Features = "raw",
        unseen: Unseen = "zero",
        rewards: Rewards = "raw",
        slot: float = 5.0,
        service_rate: ArrayLike | None = None,
        holding_cost: ArrayLike | None = None,
    ) -> Problem:
        """Return the trace as a problem; the defaults are the paper's choices.

        Parameters
        ----------
        features : "raw" or "normalised"
            (CPU, memory, 1/CPU, 1/memory) as they are, or each divided by its largest value and all vectors by the
            largest norm, so that norms are at most one as the model requires.
        unseen : "zero", "predicted" or "left out"
            Mean reward of pairs that the trace does not show: zero; the prediction of the bilinear fit, clipped to the
            observed range; or only the largest block of classes in which every pair was observed.
        rewards : "raw" or "scaled"
            1/CPI as it is, up to 1.39 in the shipped trace, or divided by the largest mean.
        slot : float
            Seconds of a slot.
        service_rate : float or (I,) array, optional
            Default: one over the median number of units of a collection.
        holding_cost : float or (I,) array, optional
            Default: 7/4, 7/4, 1/4, 1/4, 1 as in the paper, or 1 where there are not five classes.
        """
        u, v = experiment.features(self, one_of("features", features, ("raw", "normalised")) == "normalised")
        mean, noise = experiment.rewards(self, one_of("unseen", unseen, experiment.UNSEEN))
        scale = float(mean.max()) if one_of("rewards", rewards, ("raw", "scaled")) == "scaled" else 1.0
        if not scale:
            raise BadInput("rewards must not be 'scaled' where no pair was seen; got 'scaled'")
        rate = 1.0 / np.median([point.units for point in self.collections]) if service_rate is None else service_rate
        i, j = experiment.kept(self, unseen)
        jobs, servers = self.job_classes, self.machine_classes
        return Problem(
            arrival_rate=np.array([kind.collections for kind in jobs])[i] / self.slots(slot),
            servers=np.array([kind.machines for kind in servers])[j], job_features=u[i], server_features=v[j],
            mean_reward=mean[np.ix_(i, j)] / scale, noise=noise[np.ix_(i, j)] / scale,
            service_rate=shaped("service_rate", positive("service_rate", rate), (len(jobs),))[i],
            holding_cost=experiment.holding_costs(holding_cost, len(jobs))[i],
            job_names=[f"class {k + 1} ({jobs[k].collections} collections)" for k in i],
            server_names=[f"class {k + 1} ({servers[k].cpus:.3g} cpus, {servers[k].memory:.3g} memory)" for k in j],
            unbounded=rewards == "raw",
        )  # fmt: skip

    def arrivals(self, *, slot: float = 5.0, unseen: Unseen = "zero") -> Recorded:
        """Return the collections as recorded arrivals; with "left out" those of the classes that such a problem has."""
        classes, _ = experiment.kept(self, one_of("unseen", unseen, experiment.UNSEEN))
        number = {int(kind): k for k, kind in enumerate(classes)}
        seconds, last = experiment.slot_seconds(slot), self.slots(slot) - 1
        points = [point for point in self.collections if point.job_class in number]
        return Recorded([(min(int(p.second // seconds), last), number[p.job_class], p.units) for p in points])

    def bilinear_fit(self, *, unseen: Literal["zero", "left out"] = "left out") -> experiment.BilinearFit:
        """Return the least-squares bilinear fit to the mean rewards of pairs, each with the same weight.

        The pairs are those that were seen, or all of them with zero for those that were not.
        """
        return experiment.bilinear_fit(self, unseen)


def _below(name: str, value: int, bound: int) -> None:
    if value >= bound:
        raise BadInput(f"{name} must be below {bound}; got {value}")
