"""Features before learning: their scale, the norms that the paper assumes, and the blocks that are learnt apart."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from bilinq.errors import UnprovedRadius

if TYPE_CHECKING:
    from bilinq.arrays import Array, IntArray

SAME = 1e-6  # lengths that differ by at most this part are equal: vectors of norm one may be rounded to 32 bits


def scales(features: Array) -> Array:
    """Return what each column of the features (R, n, d) of one side is divided by (R, d), Eq. (51).

    It is one for vectors of length one, and for columns of equal size whose longest vector has length one. Features times
    a number have scales times that number, and so has a column, unless all vectors have the same length.
    """
    count, features = len(features), _distinct(features)
    size = np.abs(features).max(axis=1)
    largest = _or_one(size.max(axis=1, keepdims=True))
    length = np.linalg.norm(features / largest[:, None], axis=2)
    even = length.min(axis=1) >= (1.0 - SAME) * length.max(axis=1)
    unit = np.where(even[:, None] | (size == 0.0), largest, size)
    longest = np.linalg.norm(features / unit[:, None], axis=2).max(axis=1, keepdims=True)
    scale = unit * _or_one(longest)
    unscaled = (np.abs(scale - 1.0) <= SAME).all(axis=1, keepdims=True)
    return np.repeat(np.where(unscaled, 1.0, scale), count // len(scale), axis=0)


def _distinct(features: Array) -> Array:
    """Return the features once if a batch is one problem repeated without a copy."""
    return features if features.strides[0] else features[:1]


def _or_one(value: Array) -> Array:
    return np.where(value > 0.0, value, 1.0)


def warn_of_norms(u: Array, v: Array, mean_reward: Array) -> None:
    """Warn if some ||z_ij|| is above one, or if ||theta|| must be for the mean rewards (R, I, J)."""
    length = np.linalg.norm(u, axis=2)[:, :, None] * np.linalg.norm(v, axis=2)[:, None]
    with np.errstate(divide="ignore"):
        theta = np.divide(np.abs(mean_reward), length, out=np.zeros_like(length), where=mean_reward != 0.0)
    for name, norm in (("z", length.max()), ("theta", theta.max())):
        if norm > 1.0 + SAME:
            least = "at least " if name == "theta" else ""
            text = f"the confidence radius is proved for ||{name}|| <= 1; got {least}{norm:g}"
            warnings.warn(text, UnprovedRadius, stacklevel=3)


def common_parts(
    u: Array, v: Array, before: tuple[IntArray, IntArray] | tuple[None, None] = (None, None)
) -> tuple[IntArray, IntArray]:
    """Return the `parts` of both sides; (1, 3, d) if they are the same in all replications."""
    job, server = parts(u, before[0]), parts(v, before[1])
    shared = (job == job[0]).all() and (server == server[0]).all()
    return (job[:1], server[:1]) if shared else (job, server)


def parts(features: Array, before: IntArray | None = None) -> IntArray:
    """Return the parts of the columns of the features (R, n, d), Eq. (52), as an array (R, 3, d).

    Columns are linked if both are non-zero in a vector, or were in the same part `before`. `[:, 0]` are the columns,
    ordered by part; the part of column k is in the places from `[:, 1, k]` up to `[:, 2, k]` of this order.
    """
    count, features = len(features), features if before is not None else _distinct(features)
    used, column = features != 0.0, np.arange(features.shape[2])
    if before is not None:
        together = before[:, 1, None] == column[:, None]
        used = np.concatenate([used, np.broadcast_to(together, (count, *together.shape[1:]))], axis=1)
    first = np.tile(column, (len(features), 1))
    while True:  # the first column that each is known to be linked with
        row = np.where(used, first[:, None], column.size).min(axis=2)
        linked = np.minimum(first, np.where(used, row[:, :, None], column.size).min(axis=1))
        linked = np.take_along_axis(linked, linked, axis=1)
        if (linked == first).all():
            break
        first = linked
    begin = (first[:, None] < first[:, :, None]).sum(axis=2)
    end = begin + (first[:, None] == first[:, :, None]).sum(axis=2)
    found = np.stack([np.argsort(first, axis=1, kind="stable"), begin, end], axis=1)
    return np.repeat(found, count // len(found), axis=0)


def block_groups(job_parts: IntArray, server_parts: IntArray, count: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield those of `count` replications that have the same parts, with their blocks of one size: coordinates (n, size)."""
    d1, d2 = job_parts.shape[2], server_parts.shape[2]
    if len(job_parts) == 1 and job_parts[0, 2, 0] == d1 and server_parts[0, 2, 0] == d2:  # one block: the usual case
        yield np.arange(count), np.arange(d1 * d2)[None]
        return
    pair = job_parts[:, 1, :, None] * d2 + server_parts[:, 1, None]
    owner = pair.reshape(len(pair), -1)
    patterns, kind = (owner, 0) if len(owner) == 1 else np.unique(owner, axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        some = np.flatnonzero(np.broadcast_to(np.ravel(kind), count) == k)
        order, size = np.argsort(pattern, kind="stable"), np.bincount(pattern)[pattern]
        for one in np.flatnonzero(np.bincount(size)):
            yield some, order[size[order] == one].reshape(-1, one)


def places(job_parts: IntArray, server_parts: IntArray, count: int) -> IntArray:
    """Return the place of each coordinate in its block (R, p)."""
    place = np.empty((count, job_parts.shape[2] * server_parts.shape[2]), np.int64)
    for some, members in block_groups(job_parts, server_parts, count):
        place[some[:, None], members.ravel()] = np.tile(np.arange(members.shape[1]), len(members))
    return place


def diagonal(job_parts: IntArray, server_parts: IntArray, value: Array) -> Array:
    """Return value (R,) times the identity, block by block: for each coordinate its row of its block, (R, p, b)."""
    place = places(job_parts, server_parts, len(value))
    rows = np.zeros((*place.shape, place.max() + 1))
    np.put_along_axis(rows, place[:, :, None], value[:, None, None], axis=2)
    return rows
