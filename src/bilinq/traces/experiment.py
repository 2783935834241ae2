"""The trace experiment: a digest as a problem with arrivals, and the bilinear fit to its rewards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, BoolArray, IntArray, non_negative, one_of, positive, require, scalar, shaped
from bilinq.errors import BadInput
from bilinq.problem import Problem
from bilinq.simulation.arrivals import Recorded
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


def slots(digest: Digest, slot: float) -> int:
    """Return the number of slots of `slot` seconds in the window."""
    return math.ceil(digest.until / _slot(slot))


def problem(
    digest: Digest,
    features: str,
    unseen: str,
    rewards: str,
    slot: float,
    service_rate: ArrayLike | None,
    holding_cost: ArrayLike | None,
) -> Problem:
    """Return the trace as a problem; see `Digest.problem`."""
    u, v = _features(digest, one_of("features", features, ("raw", "normalised")) == "normalised")
    mean, noise = _rewards(digest, one_of("unseen", unseen, UNSEEN))
    scale = float(mean.max()) if one_of("rewards", rewards, ("raw", "scaled")) == "scaled" else 1.0
    if not scale:
        raise BadInput("rewards must not be 'scaled' where no pair was seen; got 'scaled'")
    rate = 1.0 / np.median([point.units for point in digest.collections]) if service_rate is None else service_rate
    i, j = _kept(digest, unseen)
    jobs, servers = digest.job_classes, digest.machine_classes
    return Problem(
        arrival_rate=np.array([kind.collections for kind in jobs])[i] / slots(digest, slot),
        servers=np.array([kind.machines for kind in servers])[j],
        job_features=u[i],
        server_features=v[j],
        mean_reward=mean[np.ix_(i, j)] / scale,
        noise=noise[np.ix_(i, j)] / scale,
        service_rate=shaped("service_rate", positive("service_rate", rate), (len(jobs),))[i],
        holding_cost=_holding_cost(holding_cost, len(jobs))[i],
        job_names=[f"class {k + 1} ({jobs[k].collections} collections)" for k in i],
        server_names=[f"class {k + 1} ({servers[k].cpus:.3g} cpus, {servers[k].memory:.3g} memory)" for k in j],
    )


def arrivals(digest: Digest, slot: float, unseen: str) -> Recorded:
    """Return the collections as jobs (slot, class, units), the classes numbered as in the problem."""
    kept, _ = _kept(digest, one_of("unseen", unseen, UNSEEN))
    number = {int(kind): k for k, kind in enumerate(kept)}
    seconds, last = _slot(slot), slots(digest, slot) - 1
    return Recorded(
        [
            (min(int(point.second // seconds), last), number[point.job_class], point.units)
            for point in digest.collections
            if point.job_class in number
        ]
    )


def bilinear_fit(digest: Digest, unseen: str) -> BilinearFit:
    """Return the least-squares fit to the pairs seen, or to all with zero for the others; all weigh the same."""
    everything = one_of("unseen", unseen, ("zero", "left out")) == "zero"
    u, v = _features(digest, normalised=False)
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
    """Return rows and columns of the largest block of a table (I, J) that is true everywhere.

    Largest is by number of pairs; of equal ones the one with most classes on the table's shorter side, then the first.
    """
    if len(seen) > seen.shape[1]:
        columns, rows = observed_block(seen.T)
        return rows, columns
    if len(seen) > MOST_CLASSES:
        raise BadInput(f"unseen = 'left out' takes at most {MOST_CLASSES} job or machine classes; got {seen.shape}")
    if not seen.any():
        raise BadInput("pairs must have at least one entry where unseen = 'left out'; got none")
    sizes = range(len(seen), 0, -1)
    choices = (list(some) for size in sizes for some in itertools.combinations(range(len(seen)), size))
    kept = np.array(max(choices, key=lambda some: len(some) * np.count_nonzero(seen[some].all(axis=0))))
    return kept, np.flatnonzero(seen[kept].all(axis=0))


def _kept(digest: Digest, unseen: str) -> tuple[IntArray, IntArray]:
    """Return the job classes and the machine classes that a problem has."""
    seen, _, _ = _observed(digest)
    return observed_block(seen) if unseen == "left out" else (np.arange(len(seen)), np.arange(seen.shape[1]))


def _features(digest: Digest, normalised: bool) -> tuple[Array, Array]:
    """Return the features of job classes (I, 4) and machine classes (J, 4)."""
    u, v = _with_inverses("job_classes", digest.job_classes), _with_inverses("machine_classes", digest.machine_classes)
    return (_normalised(u), _normalised(v)) if normalised else (u, v)


def _with_inverses(name: str, kinds: Sequence[TraceJobClass] | Sequence[MachineClass]) -> Array:
    sizes = np.array([(kind.cpus, kind.memory) for kind in kinds])
    require(f"{name} cpus and memory", sizes, lambda x: x > 0.0, "positive to have inverses")
    return np.hstack([sizes, 1.0 / sizes])


def _normalised(features: Array) -> Array:
    scaled = features / features.max(axis=0)
    return np.asarray(scaled / np.linalg.norm(scaled, axis=1).max())


def _observed(digest: Digest) -> tuple[BoolArray, Array, Array]:
    """Return which pairs were seen, their means and variances (I, J); zero where they were not."""
    shape = len(digest.job_classes), len(digest.machine_classes)
    seen, mean, variance = np.zeros(shape, np.bool_), np.zeros(shape), np.zeros(shape)
    for pair in digest.pairs:
        place = pair.job_class, pair.machine_class
        seen[place], mean[place] = True, pair.mean
        variance[place] = _pooled(digest) if pair.variance is None else pair.variance
    return seen, mean, variance


def _pooled(digest: Digest) -> float:
    """Return the variance within pairs over all of them, for pairs that have none of their own."""
    known = [(pair.count - 1, pair.variance) for pair in digest.pairs if pair.variance is not None]
    return sum(n * variance for n, variance in known) / max(sum(n for n, _ in known), 1)


def _rewards(digest: Digest, unseen: str) -> tuple[Array, Array]:
    """Return mean reward and noise of all pairs (I, J)."""
    seen, mean, variance = _observed(digest)
    if unseen == "predicted":
        predicted = bilinear_fit(digest, "left out").predicted
        mean = np.where(seen, mean, np.clip(predicted, mean[seen].min(), mean[seen].max()))
        variance = np.where(seen, variance, _pooled(digest))
    return mean, np.sqrt(variance)


def _holding_cost(given: ArrayLike | None, classes: int) -> Array:
    if given is None:
        given = HOLDING_COST if classes == len(HOLDING_COST) else 1.0
    return shaped("holding_cost", non_negative("holding_cost", given), (classes,))


def _slot(slot: float) -> float:
    seconds = scalar("slot", slot, positive)
    if seconds < 1.0:
        raise BadInput(f"slot must be at least one second, the resolution of a digest; got {slot:g}")
    return seconds
