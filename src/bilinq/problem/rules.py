"""Checks of the arguments of `Problem`; each returns the checked array in its full shape."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, BoolArray, count, finite, non_negative, positive, require, short
from bilinq.errors import BadInput
from bilinq.problem.pairs import Pairs

REWARD_TOLERANCE = 1e-9
RATES_APART = 1e9  # ratio of the rates of a job class above which no program with both can be solved
LEAST_RATE = 1e-12  # mean service times, and what is computed from them, stay far from overflow
MOST_SERVERS = 2.0**53  # above it floats do not represent every whole number
MOST_CLASSES, MOST_PAIRS, LONGEST = 10**6, 10**8, 10**4  # classes of a kind, pairs of them, and length of features


def vector(name: str, array: Array) -> Array:
    """Return `array` if it has one axis and at least one entry."""
    if array.ndim != 1 or not array.size:
        raise BadInput(f"{name} must be a list with at least one number; got shape {array.shape}")
    return array


def filled(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """Return `array` if it has `shape`, or one number repeated to `shape`."""
    if array.ndim and array.shape != shape:
        raise BadInput(f"{name} must be one number or have shape {shape}; got {array.shape}")
    return np.broadcast_to(array, shape)


def capacity(servers: ArrayLike) -> Array:
    """Return the servers of each class (J,): whole numbers, not all zero."""
    array = vector("servers", non_negative("servers", servers))
    require("servers", array, lambda x: (x == np.floor(x)) & (x < MOST_SERVERS), "whole numbers below 2**53")
    if not array.any():
        raise BadInput(f"servers must contain at least one server; got {short(array.tolist())}")
    return array


def service(service_rate: ArrayLike, n_jobs: int, n_servers: int) -> Array:
    """Return service rates in (0, 1]: of job classes (I,), or of pairs (I, J) if those of a class are not all equal."""
    array = require("service_rate", positive("service_rate", service_rate), lambda x: x <= 1, "at most 1")
    require("service_rate", array, lambda x: x >= LEAST_RATE, f"at least {LEAST_RATE:g}")
    if array.ndim == 2 and array.shape == (n_jobs, n_servers):
        return array[:, 0] if (array == array[:, :1]).all() else array
    if array.ndim and array.shape != (n_jobs,):
        rule = f"one number or have shape ({n_jobs},) or ({n_jobs}, {n_servers})"
        raise BadInput(f"service_rate must be {rule}; got {array.shape}")
    return np.broadcast_to(array, (n_jobs,))


def apart(service_rate: Array, eligible: BoolArray | None) -> Array:
    """Return service rates if the durations of a job class, where it is eligible, are not too far apart for a program."""
    duration = Pairs.of(service_rate, eligible, service_rate.ndim == 2).duration
    if duration is not None:
        known = np.ones(duration.shape, np.bool_) if eligible is None else eligible
        low, high = duration.min(axis=1, where=known, initial=np.inf), duration.max(axis=1, where=known, initial=0.0)
        for k in np.flatnonzero(high / low > RATES_APART).tolist():
            some = service_rate[k][known[k]]
            rule = f"service_rate must not differ by more than {RATES_APART:g} times between servers of a job class"
            raise BadInput(f"{rule}; got {some.min():g} to {some.max():g} in row {k}")
    return service_rate


def mask(eligible: ArrayLike | None, servers: Array, job: Sequence[str]) -> BoolArray | None:
    """Return which server class may serve which job class (I, J), or None if all may; every job class needs a server."""
    if eligible is None:
        return None
    try:
        array, shape = np.asarray(eligible), (len(job), servers.size)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"eligible must have rows of equal length; got {short(eligible)}") from None
    if array.dtype.kind not in "biuf" or not ((array == 0) | (array == 1)).all():
        raise BadInput(f"eligible must be True or False for each pair; got {short(eligible)}")
    if array.shape != shape:
        raise BadInput(f"eligible must have shape {shape}, job classes by server classes; got {array.shape}")
    allowed = array.astype(np.bool_)
    for i in np.flatnonzero(~(allowed & (servers > 0)).any(axis=1)).tolist():
        what = "with servers " if allowed[i].any() else ""
        raise BadInput(f"eligible must have a server class {what}for every job class; got none in row {i}, {job[i]!r}")
    return None if allowed.all() else allowed


def features(name: str, value: ArrayLike | None, rows: int, fits: str) -> Array:
    """Return feature vectors (rows, d), by default one-hot; `fits` names the argument that determines `rows`."""
    if value is None:
        if rows > LONGEST:
            raise BadInput(f"{name} must be given for more than {LONGEST:,} classes; got {fits} ({rows},)")
        return np.eye(rows)
    array = finite(name, value)
    if array.ndim != 2 or array.shape[0] != rows or not array.size:
        raise BadInput(f"{name} must have shape ({rows}, d) with d >= 1 to fit {fits} ({rows},); got {array.shape}")
    return array


def rewards(
    theta: ArrayLike | None, mean_reward: ArrayLike | None, u: Array, v: Array, unbounded: bool
) -> tuple[Array | None, Array]:
    """Return parameters (d1, d2) or None, and mean rewards (I, J), from the argument that is given."""
    (I, d1), (J, d2) = u.shape, v.shape
    if not isinstance(unbounded, bool):
        raise BadInput(f"unbounded must be true or false; got {short(unbounded)}")
    if mean_reward is not None and theta is None:
        table = _table("mean_reward", mean_reward, (I, J), f"arrival_rate ({I},) and servers ({J},)")
        advice = f"divide mean_reward and noise by {np.abs(table).max():g}"
        return None, table if unbounded else require("mean_reward", table, in_bounds, f"in [-1, 1] ({advice})")
    if theta is None or mean_reward is not None:
        raise BadInput(f"either theta or mean_reward must be given; got {'neither' if theta is None else 'both'}")
    array = _table("theta", theta, (d1, d2), f"job_features {u.shape} and server_features {v.shape}")
    with np.errstate(all="ignore"):  # numbers that overflow break the rule below
        reward = u @ array @ v.T
    return array, require("mean_reward", reward, in_bounds, "in [-1, 1] when it comes from theta")


def _table(name: str, value: ArrayLike, shape: tuple[int, int], others: str) -> Array:
    array = finite(name, value)
    if array.shape != shape:
        raise BadInput(f"{name} must have shape {shape} to fit {others}; got {array.shape}")
    return array


def in_bounds(reward: Array) -> BoolArray:
    """Return which rewards lie in [-1, 1], up to rounding."""
    return np.abs(reward) <= 1 + REWARD_TOLERANCE


def total_traffic(arrival_rate: Array, service_rate: Array) -> float:
    """Return the total traffic intensity of rates (I,); raise an error if it is not finite."""
    with np.errstate(over="ignore"):
        total = float((arrival_rate / service_rate).sum())
    if not np.isfinite(total):
        raise BadInput(f"arrival_rate / service_rate must have a finite sum; got {total}")
    return total


def names(name: str, value: Sequence[str] | None, noun: str, size: int) -> tuple[str, ...]:
    """Return `size` unique printable names; by default they are numbered from one."""
    if value is None:
        return tuple(f"{noun} {k + 1}" for k in range(size))
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != size:
        raise BadInput(f"{name} must be a list of {size} names; got {short(value)}")
    seen: dict[str, None] = {}
    for k, entry in enumerate(value):
        if not isinstance(entry, str) or not entry or not entry.isprintable():
            raise BadInput(f"{name} must be printable text; got {name}[{k}] = {short(entry)}")
        if entry in seen:
            raise BadInput(f"{name} must be unique; got {entry!r} twice")
        seen[entry] = None
    return tuple(seen)


def dimensions(dimension: int | tuple[int, int]) -> tuple[int, int]:
    """Return the lengths (d1, d2) of job and server features from one number or a pair."""
    pair = dimension if isinstance(dimension, tuple | list) else (dimension, dimension)
    if len(pair) != 2:
        raise BadInput(f"dimension must be one number or a pair; got {short(dimension)}")
    return count("dimension", pair[0], most=LONGEST), count("dimension", pair[1], most=LONGEST)


def sizes(job_classes: int, server_classes: int) -> tuple[int, int]:
    """Return the numbers of classes, if there is memory for a number for each pair."""
    n_jobs = count("job_classes", job_classes, most=MOST_CLASSES)
    n_servers = count("server_classes", server_classes, most=MOST_CLASSES)
    pairs(n_jobs, n_servers)
    return n_jobs, n_servers


def pairs(n_jobs: int, n_servers: int) -> None:
    """Raise unless there is memory for a number for each pair of classes."""
    if n_jobs * n_servers > MOST_PAIRS:
        raise BadInput(f"job classes * server classes must be at most {MOST_PAIRS:,}; got {n_jobs:,} * {n_servers:,}")


def split(servers: int | Sequence[int], n_servers: int) -> Array:
    """Return servers per class (J,) from one count for each class, or from a total to split equally."""
    if not isinstance(servers, int | np.integer):
        return filled("servers", capacity(servers), (n_servers,))
    total = count("servers", servers)
    if total % n_servers:
        raise BadInput(f"servers must be a multiple of server_classes = {n_servers}, or a list; got {total}")
    return np.full(n_servers, total / n_servers)
