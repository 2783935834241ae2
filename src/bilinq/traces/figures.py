"""The figures of a digest: classes of machines and jobs, collections, rewards of pairs, and what was left out."""

from dataclasses import dataclass

from bilinq.arrays import count, non_negative, positive, scalar
from bilinq.errors import BadInput


@dataclass(frozen=True)
class MachineClass:
    """Machines of equal capacity, as shares of the largest machine, that were there when the trace began."""

    cpus: float
    memory: float
    machines: int

    def __post_init__(self) -> None:
        scalar("cpus", self.cpus, positive)
        scalar("memory", self.memory, positive)
        count("machines", self.machines)


@dataclass(frozen=True)
class JobClass:
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
    """1/CPI of a job class on a machine class (both from 0); `variance` is None where it was seen once only."""

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
    """Rows, collections or files that do not enter the digest, and how many."""

    what: str
    count: int

    def __post_init__(self) -> None:
        count("count", self.count)
