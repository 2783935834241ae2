"""The trace experiment: a digest as a problem with arrivals, and the bilinear fit to its rewards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, BoolArray, IntArray, non_negative, one_of, positive, require, scalar, shaped
from bilinq.errors import BadInput
from bilinq.traces.reward_model import scaled_features

if TYPE_CHECKING:
    from bilinq.traces.digest import Digest, MachineClass, TraceJobClass

HOLDING_COST = (1.75, 1.75, 0.25, 0.25, 1.0)
"""The paper's holding costs of five classes, in the order of their sizes 39, 2, 9, 2, 24."""
UNSEEN = ("zero", "predicted", "left out")
MOST_CLASSES = 20
"""The largest number of classes on the smaller side for which the largest block is searched; each doubles the search."""


@dataclass(frozen=True, eq=False)
class BilinearFit:
    """The bilinear model u' theta v fitted to mean rewards by least squares.

    Attributes
    ----------
    theta : (4, 4) array
        Parameters for the raw features; where the data leave them open, the smallest for features scaled to at most one.
    predicted : (I, J) array
        The prediction of the model for every pair, observed or not.
    explained : float
        Share of the variance of the fitted means that it explains, 1 - (residual sum of squares) / (sum about the mean).
    pairs, rank : int
        Number of means fitted, and of parameters that they determine.
    """

    theta: Array
    predicted: Array
    explained: float
    pairs: int
    rank: int


def bilinear_fit(digest: Digest, unseen: str) -> BilinearFit:
    """Return the least-squares fit to the pairs seen, or to all with zero for the others; all weigh the same."""
    everything = one_of("unseen", unseen, ("zero", "left out")) == "zero"
    u, v = features(digest, normalised=False)
    largest = np.outer(u.max(axis=0), v.max(axis=0))
    seen, mean, _ = _observed(digest)
    used = np.ones_like(seen) if everything else seen
    if not used.any():
        raise BadInput("pairs must have at least one entry for a fit; got none")
    z = np.einsum("ia,jb->ijab", u, v)[used] / largest
    r = mean[used]
    theta, _, rank, _ = np.linalg.lstsq(z.reshape(len(r), -1), r)
    theta = theta.reshape(largest.shape) / largest
    predicted = u @ theta @ v.T
    left, spread = ((r - predicted[used]) ** 2).sum(), ((r - r.mean()) ** 2).sum()
    return BilinearFit(theta, predicted, float(1.0 - left / spread) if spread else 1.0, len(r), int(rank))


def observed_block(seen: BoolArray) -> tuple[IntArray, IntArray]:
    """Return rows and columns of the block with the most pairs of a table (I, J) that is true everywhere.

    Of equal ones it is the one with the most classes on the table's shorter side, then the first.
    """
    if len(seen) > seen.shape[1]:
        return observed_block(seen.T)[::-1]
    if len(seen) > MOST_CLASSES:
        raise BadInput(f"unseen = 'left out' takes at most {MOST_CLASSES} job or machine classes; got {seen.shape}")
    if not seen.any():
        raise BadInput("pairs must have at least one entry where unseen = 'left out'; got none")
    sizes = range(len(seen), 0, -1)
    choices = (list(some) for size in sizes for some in itertools.combinations(range(len(seen)), size))
    kept = np.array(max(choices, key=lambda some: len(some) * np.count_nonzero(seen[some].all(axis=0))))
    return kept, np.flatnonzero(seen[kept].all(axis=0))


def kept(digest: Digest, unseen: str) -> tuple[IntArray, IntArray]:
    """Return the job classes and the machine classes that a problem has."""
    seen, _, _ = _observed(digest)
    return observed_block(seen) if unseen == "left out" else (np.arange(len(seen)), np.arange(seen.shape[1]))


def features(digest: Digest, normalised: bool) -> tuple[Array, Array]:
    """Return the features of job classes (I, 4) and machine classes (J, 4)."""
    u, v = _with_inverses("job_classes", digest.job_classes), _with_inverses("machine_classes", digest.machine_classes)
    return (scaled_features(u), scaled_features(v)) if normalised else (u, v)


def _with_inverses(name: str, kinds: Sequence[TraceJobClass] | Sequence[MachineClass]) -> Array:
    sizes = np.array([(kind.cpus, kind.memory) for kind in kinds])
    require(f"{name} cpus and memory", sizes, lambda x: x > 0.0, "positive to have inverses")
    return np.hstack([sizes, 1.0 / sizes])


def _observed(digest: Digest) -> tuple[BoolArray, Array, Array]:
    """Return which pairs were seen, their means and variances (I, J); zero where they were not."""
    seen = np.zeros((len(digest.job_classes), len(digest.machine_classes)), np.bool_)
    mean, variance = np.zeros(seen.shape), np.zeros(seen.shape)
    for pair in digest.pairs:
        place = pair.job_class, pair.machine_class
        seen[place], mean[place] = True, pair.mean
        variance[place] = _pooled(digest) if pair.variance is None else pair.variance
    return seen, mean, variance


def _pooled(digest: Digest) -> float:
    """Return the variance within pairs over all of them, for pairs that have none of their own."""
    known = [(pair.count - 1, pair.variance) for pair in digest.pairs if pair.variance is not None]
    return sum(n * variance for n, variance in known) / max(sum(n for n, _ in known), 1)


def rewards(digest: Digest, unseen: str) -> tuple[Array, Array]:
    """Return mean reward and noise of all pairs (I, J)."""
    seen, mean, variance = _observed(digest)
    if unseen == "predicted":
        predicted = bilinear_fit(digest, "left out").predicted
        mean = np.where(seen, mean, np.clip(predicted, mean[seen].min(), mean[seen].max()))
        variance = np.where(seen, variance, _pooled(digest))
    return mean, np.sqrt(variance)


def holding_costs(given: ArrayLike | None, classes: int) -> Array:
    """Return the holding costs (classes,); default: the paper's for five classes, or ones."""
    if given is None:
        given = HOLDING_COST if classes == len(HOLDING_COST) else 1.0
    return shaped("holding_cost", non_negative("holding_cost", given), (classes,))


def slot_seconds(slot: float) -> float:
    """Return `slot` if it is at least one second."""
    seconds = scalar("slot", slot, positive)
    if seconds < 1.0:
        raise BadInput(f"slot must be at least one second, the resolution of a digest; got {slot:g}")
    return seconds
