"""The rules for the arguments of a workload: types, shapes, ranges, names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinq.arrays import (
    Array,
    BoolArray,
    IntArray,
    as_floats,
    count,
    finite,
    non_negative,
    positive,
    require,
    scalar,
    shaped,
    short,
)
from bilinq.errors import BadInput

T = TypeVar("T")


@dataclass(frozen=True)
class Outage:
    """A time, from `start` to `end`, in which `servers` servers of a class take no new job.

    A server that serves a job finishes it first; idle servers are the first to go.
    """

    server_class: str
    start: float
    end: float
    servers: int = 1

    def __post_init__(self) -> None:
        begin, finish = scalar("start of an outage", self.start), scalar("end of an outage", self.end)
        if not begin < finish:
            raise BadInput(f"end of an outage must be after its start, {begin:g}; got {finish:g}")
        count("servers of an outage", self.servers)


def times(arrival: ArrayLike) -> Array:
    """Return times of arrival (N,), checked to be in order."""
    found = finite("arrival", arrival)
    if found.ndim != 1 or not found.size:
        raise BadInput(f"arrival must be a list of at least one time; got shape {found.shape}")
    late = np.flatnonzero(np.diff(found) < 0.0)
    if late.size:
        k = int(late[0]) + 1
        raise BadInput(f"arrival must never decrease; got arrival[{k}] = {found[k]:g} after {found[k - 1]:g}")
    return found


def fleet(servers: Mapping[str, int]) -> Mapping[str, int]:
    """Return the servers of each class by name."""
    if not isinstance(servers, Mapping) or not servers:
        raise BadInput(f"servers must map names of server classes to numbers; got {short(servers)}")
    for name in servers:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise BadInput(f"servers must have printable names; got {short(name)}")
    return {name: count(f"servers[{name!r}]", number) for name, number in servers.items()}


def table(name: str, value: ArrayLike, N: int, J: int) -> Array:
    """Return a table (N, J) without infinite entries; NaN is allowed."""
    found = as_floats(name, value)
    if found.shape != (N, J):
        raise BadInput(f"{name} must have shape ({N}, {J}), jobs and server classes; got {found.shape}")
    return require(name, found, lambda x: ~np.isinf(x), "finite, or NaN where a pair is not eligible")


def mask(eligible: ArrayLike | None, reward: Array) -> BoolArray:
    """Return the eligible pairs (N, J); every job needs one."""
    allowed: BoolArray = ~np.isnan(reward)
    if eligible is not None:
        given = np.asarray(eligible)
        if given.shape != reward.shape or given.dtype != np.bool_:
            raise BadInput(f"eligible must be a bool array of shape {reward.shape}; got {given.dtype}, {given.shape}")
        allowed &= given
    if not allowed.any(axis=1).all():
        k = int(np.flatnonzero(~allowed.any(axis=1))[0])
        raise BadInput(f"eligible must have a server class for every job; got none for job {k}")
    return allowed


def durations(duration: ArrayLike, N: int, J: int) -> Array:
    """Return durations (N, J), a view where they are the same for all jobs."""
    found = positive("duration", duration)
    if found.shape not in ((), (J,), (N, J)):
        raise BadInput(f"duration must be a number or have shape ({J},) or ({N}, {J}); got {found.shape}")
    return np.broadcast_to(found.copy(), (N, J))


def features(name: str, value: ArrayLike | None, rows: int) -> Array | None:
    """Return features (rows, d), or None."""
    if value is None:
        return None
    found = finite(name, value)
    if found.ndim != 2 or found.shape[0] != rows or not found.shape[1]:
        raise BadInput(f"{name} must have shape ({rows}, d); got {found.shape}")
    return found


def classes(job_class: Any, names: Sequence[str] | None, N: int) -> tuple[tuple[str, ...], IntArray]:
    """Return the names of classes, in order, and the number of each job's class (N,)."""
    if job_class is None and names is None:
        return ("job",), np.zeros(N, np.int64)
    given = np.asarray(job_class)
    if given.dtype.kind == "O" and all(isinstance(one, str) for one in given.flat):
        given = given.astype(np.str_)
    if given.shape != (N,) or given.dtype.kind not in "iuU":
        raise BadInput(f"job_class must be names or whole numbers of shape ({N},); got {short(job_class)}")
    if names is not None:
        return tuple(names), _numbers(given, tuple(names))
    found, kinds = np.unique(given, return_inverse=True)
    return tuple(str(name) for name in found.tolist()), kinds.astype(np.int64)


def _numbers(given: NDArray[Any], names: tuple[str, ...]) -> IntArray:
    """Return the numbers (N,) of classes that are given by name, or by number in the order of `names`."""
    place: dict[Any, int] = {name: k for k, name in enumerate(names)}
    if len(place) < len(names):
        raise BadInput(f"job_classes must be unique; got {short(names)}")
    if given.dtype.kind != "U":
        place = {k: k for k in range(len(names))}
    wrong = [one for one in given.tolist() if one not in place]
    if wrong:
        raise BadInput(f"job_class must be among job_classes, {short(names)}; got {short(wrong[0])}")
    return np.array([place[one] for one in given.tolist()], np.int64)


def non_negatives(name: str, value: ArrayLike, N: int) -> Array:
    """Return values (N,) of at least zero."""
    return shaped(name, non_negative(name, value), (N,))


def deadlines(value: ArrayLike, N: int) -> Array:
    """Return deadlines (N,) of at least zero; infinity is none."""
    found = require("deadline", as_floats("deadline", value), lambda x: x >= 0.0, "non-negative")
    return shaped("deadline", found, (N,))


def chances(name: str, value: ArrayLike, size: int) -> Array:
    """Return probabilities (size,)."""
    found = require(name, finite(name, value), lambda x: (x >= 0.0) & (x <= 1.0), "a probability from 0 to 1")
    return shaped(name, found, (size,))


def failures(value: ArrayLike, J: int) -> Array:
    """Return chances of a failure (J,), below one."""
    return require("failure", chances("failure", value, J), lambda x: x < 1.0, "below 1")


def units(value: ArrayLike, N: int) -> IntArray:
    """Return numbers of services (N,), at least one."""
    found = require("units", positive("units", value), lambda x: x == np.floor(x), "whole numbers")
    return shaped("units", found, (N,)).astype(np.int64)


def outages(given: Iterable[Outage], servers: Mapping[str, int]) -> tuple[Outage, ...]:
    """Return outages of known server classes."""
    found = tuple(given)
    for one in found:
        if not isinstance(one, Outage):
            raise BadInput(f"outages must be Outage objects; got {short(one)}")
        if one.server_class not in servers:
            raise BadInput(f"server_class of an outage must be one of {short(list(servers))}; got {one.server_class!r}")
    return found


def reward_range(given: Sequence[float] | None, rewards: Array) -> tuple[float, float]:
    """Return the bounds of rewards, as given or as found."""
    low, high = float(rewards.min()), float(rewards.max())
    if given is None:
        return low, high
    if len(given) != 2 or not (given[0] <= low and high <= given[1]):
        raise BadInput(f"reward_range must be (low, high) with all rewards, {low:g} to {high:g}; got {short(given)}")
    return float(given[0]), float(given[1])


def locked(value: T) -> T:
    """Return a read-only copy of an array, or another value as it is."""
    if not isinstance(value, np.ndarray):
        return value
    array: NDArray[Any] = value if not value.flags.writeable else value.copy(order="C")
    array.setflags(write=False)
    return array  # type: ignore[return-value]
