"""Classes of jobs and servers as the live scheduler knows them, and the range of rewards in the user's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, finite, positive, scalar, short
from bilinq.errors import BadInput
from bilinq.instances import Instances


@dataclass(frozen=True)
class JobClass:
    """A kind of job: its name, features (d1,) and weight, its priority against the other classes."""

    name: str
    features: tuple[float, ...]
    weight: float = 1.0

    def __init__(self, name: str, features: ArrayLike, weight: float = 1.0) -> None:
        object.__setattr__(self, "name", _name(name))
        object.__setattr__(self, "features", _features(name, features))
        object.__setattr__(self, "weight", scalar(f"weight of {name}", weight, positive))


@dataclass(frozen=True)
class ServerClass:
    """A kind of server: its name and features (d2,)."""

    name: str
    features: tuple[float, ...]

    def __init__(self, name: str, features: ArrayLike) -> None:
        object.__setattr__(self, "name", _name(name))
        object.__setattr__(self, "features", _features(name, features))


Class = TypeVar("Class", JobClass, ServerClass)


def by_name(argument: str, classes: Sequence[Class]) -> dict[str, Class]:
    """Return classes by name: at least one, names unique, features of one length."""
    found = {one.name: one for one in classes}
    if not found:
        raise BadInput(f"{argument} must hold at least one class; got none")
    if len(found) < len(classes):
        raise BadInput(f"{argument} must have unique names; got {short([one.name for one in classes])}")
    lengths = {len(one.features) for one in found.values()}
    if len(lengths) > 1:
        raise BadInput(f"{argument} must have features of one length; got {short(sorted(lengths))}")
    return found


@dataclass(frozen=True)
class RewardRange:
    """The smallest and the largest reward in the user's units, which policies see as -1 and 1."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        low, high = scalar("reward.low", self.low), scalar("reward.high", self.high)
        if not (low < high and np.isfinite(2.0 * (high - low))):
            raise BadInput(f"reward.low must be below reward.high; got {low:g} and {high:g}")

    def scaled(self, reward: float) -> float:
        """Return a reward in [-1, 1], or say that it is outside the range."""
        value = reward if type(reward) is float and isfinite(reward) else scalar("reward", reward)
        if not self.low <= value <= self.high:
            raise BadInput(f"reward must be from {self.low:g} to {self.high:g}, the declared range; got {value:g}")
        return min(max((value - self.middle) / self.unit, -1.0), 1.0)

    def unscaled(self, value: Array) -> Array:
        """Return means in [-1, 1] in the user's units."""
        return np.asarray(self.middle + self.unit * value)

    @cached_property
    def middle(self) -> float:
        """The reward that policies see as zero."""
        return 0.5 * (self.low + self.high)

    @cached_property
    def unit(self) -> float:
        """How much of the user's units one is."""
        return 0.5 * (self.high - self.low)


def instances_of(jobs: Sequence[JobClass], servers: Sequence[ServerClass]) -> Instances:
    """Return classes as one replication for a policy: rewards and rates, which nobody knows, are zero and one."""
    u, v = np.array([[one.features for one in jobs]]), np.array([[one.features for one in servers]])
    I, J = u.shape[1], v.shape[1]
    pairs, rows = np.zeros((1, I, J)), np.ones((1, I))
    return Instances(u, v, pairs, 0.0 * rows, rows, np.ones((1, J)), pairs + 0.5, rows)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise BadInput(f"name of a class must be printable text; got {short(value)}")
    return value


def _features(name: str, value: ArrayLike) -> tuple[float, ...]:
    array = finite(f"features of {name}", value)
    if array.ndim != 1 or not array.size:
        raise BadInput(f"features of {name} must be a list of numbers; got shape {array.shape}")
    return tuple(array.tolist())
