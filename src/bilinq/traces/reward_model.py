"""Counted rewards as a problem: features, predictions for unseen pairs, scale, noise and arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, IntArray, as_floats, non_negative, scalar
from bilinq.display import html_table
from bilinq.errors import BadInput
from bilinq.problem import Problem
from bilinq.simulation.arrivals import Arrivals, Poisson, Recorded
from bilinq.simulation.records import Interval, Runs, interval

if TYPE_CHECKING:
    from bilinq.traces.reward_rows import FileClasses, Tally

SPANNED = 1e-8
"""A pair is predictable if its features are a combination of observed ones up to this part of their length."""


def scaled_features(raw: ArrayLike) -> Array:
    """Return features (classes, d): each column divided by its largest entry, then all by the length of the longest.

    The theory requires vectors of length at most one; what a bilinear model can express stays the same.

    Examples
    --------
    >>> scaled_features([[1.0, 0.0], [1.0, 300.0]]).round(3)
    array([[0.707, 0.   ],
           [0.707, 0.707]])
    """
    vectors = as_floats("features", raw)
    largest = np.abs(vectors).max(axis=0)
    level = vectors / np.where(largest > 0.0, largest, 1.0)
    longest = float(np.linalg.norm(level, axis=1).max())
    return np.asarray(level / longest if longest > 0.0 else level)


def fill_unseen(mean: Array, count: IntArray, u: Array, v: Array, names: Sequence[Sequence[str]]) -> Array:
    """Return the means (I, J) with the pairs that were not observed predicted, Eq. (1).

    Least squares weighs the means by the `count` (I, J) of their observations; u (I, d1) and v (J, d2) are the features. A
    pair whose features are no combination of those of observed pairs is a `BadInput` that names it, by `names` of classes.
    """
    seen, products = count > 0, np.einsum("ia,jb->ijab", u, v).reshape(*count.shape, -1)
    root = np.sqrt(count[seen])
    basis = _row_space(products[seen])
    inside = products @ basis.T
    missed = np.linalg.norm(products - inside @ basis, axis=2)
    for i, j in np.argwhere(~seen & (missed > SPANNED * np.linalg.norm(products, axis=2))):
        pair = f"job {names[0][i]!r} on server {names[1][j]!r}"
        raise BadInput(f"unseen = 'predicted' must find {pair} in the span of observed features; got none of its kind")
    weights = np.linalg.lstsq(inside[seen] * root[:, None], mean[seen] * root, rcond=None)[0]
    return np.where(seen, mean, inside @ weights)


def _row_space(rows: Array) -> Array:
    """Return an orthonormal basis (rank, p) of what the rows (n, p) span."""
    _, size, basis = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(basis[size > SPANNED * size[0]])


PerClass = float | Mapping[str, float]  # one number for all classes, or one for each by name


@dataclass(frozen=True, slots=True)
class Scale:
    """The map from rewards in the file's units to those of the problem: `low` becomes 0 and `high` becomes 1.

    Examples
    --------
    >>> scale = Scale(low=20.0, high=120.0)
    >>> scale.to_problem([45.0]), scale.to_file([0.25])
    (array([0.25]), array([45.]))
    """

    low: float = 0.0
    high: float = 1.0

    def to_problem(self, reward: ArrayLike) -> Array:
        """Return rewards in the problem's units."""
        return np.asarray((as_floats("reward", reward) - self.low) / (self.high - self.low))

    def to_file(self, reward: ArrayLike) -> Array:
        """Return rewards in the file's units: the inverse of `to_problem`."""
        return np.asarray(self.low + (self.high - self.low) * as_floats("reward", reward))


@dataclass(frozen=True, eq=False)
class RewardTable:
    """A problem made from observations; `earned` says what a simulation of it earned.

    Attributes
    ----------
    problem : Problem
        Mean rewards and noise of all pairs in the units of `scale`, classes by the names in the file.
    arrivals : Arrivals
        `Poisson()` at the problem's rates, or the file's own jobs where their times were given.
    counts : (I, J) int array
        Observations of each pair.
    scale : Scale
        From the file's units to those of the problem and back.
    left_out : dict
        Number of rows, by class, that were left out because `arrival_rate` or `servers` does not name their class.
    """

    problem: Problem
    arrivals: Arrivals
    counts: IntArray
    scale: Scale
    left_out: dict[str, int]

    def earned(self, runs: Runs) -> Earned:
        """Return what a simulation of the problem earned, in the units of the table.

        Each service earns low + (high - low) * reward of the `scale`, so that sums need the number of services: the map
        must not be applied to rewards of slots.

        Examples
        --------
        >>> from bilinq import FirstCome, simulate
        >>> rows = {"job": ["a", "a", "a"], "server": ["x", "x", "x"], "reward": [70.0, 71.0, 72.0]}
        >>> from bilinq.traces import reward_table
        >>> table = reward_table(rows, servers=1, arrival_rate=0.5, reward_range=(0.0, 100.0))
        >>> runs = simulate(table.problem, FirstCome(), slots=2000, arrivals=table.arrivals)
        >>> round(table.earned(runs).per_service.mean)
        71
        """
        services = runs.services.sum(axis=1)
        total = self.scale.low * services + (self.scale.high - self.scale.low) * runs.observed.sum(axis=1)
        left = None if runs.jobs is None else np.bincount(runs.jobs.replication, minlength=runs.replications)
        return Earned(
            total=interval(total), per_slot=interval(total / runs.slots), per_service=interval(_ratio(total, services)),
            per_job=None if left is None else interval(_ratio(total, left)),
        )  # fmt: skip


@dataclass(frozen=True)
class Earned:
    """Observed rewards in the units of a table: means over replications with 95 % intervals.

    Attributes
    ----------
    total : Interval
        Of all slots.
    per_slot, per_service : Interval
    per_job : Interval or None
        The total over the number of jobs that left; None if jobs were not recorded.
    """

    total: Interval
    per_slot: Interval
    per_service: Interval
    per_job: Interval | None

    def _repr_html_(self) -> str:
        shown = {name.replace("_", " "): str(value) for name, value in vars(self).items() if value is not None}
        return html_table("Earned", shown)


def _ratio(total: Array, number: IntArray) -> Array:
    """Return total / number (R,), NaN where the number is zero."""
    return np.asarray(np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0))


def build(tally: Tally, file: Path | str, *, servers: int | Mapping[str, int], arrival_rate: PerClass | None,
          slot: float | None, service_rate: PerClass, holding_cost: PerClass, noise: float | None,
          unseen: str) -> RewardTable:  # fmt: skip
    """Return the problem with its arrivals; the arguments by keyword are those of `reward_table`."""
    counts, mean, spread = tally.tables()
    job_names, server_names = list(tally.job.number), list(tally.server.number)
    scale, (rates, arrivals) = _scale(tally), _arrivals(tally, arrival_rate, slot)
    if not counts.all():
        mean = _filled(tally, file, counts, mean, unseen)
    problem = Problem(
        arrival_rate=rates, servers=np.broadcast_to(_each("servers", servers, server_names), len(server_names)),
        job_features=_features(tally.job), server_features=_features(tally.server), mean_reward=scale.to_problem(mean),
        service_rate=_each("service_rate", service_rate, job_names),
        noise=_noise(file, counts, spread, noise) / (scale.high - scale.low),
        holding_cost=_each("holding_cost", holding_cost, job_names), job_names=job_names, server_names=server_names,
    )  # fmt: skip
    return RewardTable(problem, arrivals, counts, scale, tally.left_out())


def _scale(tally: Tally) -> Scale:
    if tally.bounds is not None:
        return Scale(*tally.bounds)
    if tally.low >= -1.0 and tally.high <= 1.0:
        return Scale()
    return Scale(tally.low, tally.high if tally.high > tally.low else tally.low + 1.0)


def _features(side: FileClasses) -> Array:
    """Return the features (classes, d): one-hot, or the file's, scaled."""
    return scaled_features(side.vectors) if side.features else np.eye(len(side.number))


def _filled(tally: Tally, file: Path | str, counts: IntArray, mean: Array, unseen: str) -> Array:
    """Return the means with predictions for unseen pairs; raise an error that names the first if these are not wanted."""
    job, server = tally.job, tally.server
    names = (list(job.number), list(server.number))
    if unseen == "error":
        i, j = np.argwhere(counts == 0)[0]
        pair = f"{job.column} {names[0][i]!r} on {server.column} {names[1][j]!r}"
        raise BadInput(f"{file}: must contain a row of {pair}, or set unseen = 'predicted'; got none")
    if not job.features and not server.features:
        raise BadInput("unseen = 'predicted' needs job_features or server_features; got neither")
    low, high = tally.bounds or (tally.low, tally.high)
    return np.clip(fill_unseen(mean, counts, _features(job), _features(server), names), low, high)


def _noise(file: Path | str, counts: IntArray, spread: Array, noise: float | None) -> Array:
    """Return the standard deviation of each pair's rewards (I, J), in the file's units."""
    if noise is not None:
        return np.full(counts.shape, scalar("noise", noise, non_negative))
    free = np.maximum(counts - 1, 0)
    if not free.any():
        raise BadInput(f"{file}: must contain some pair twice, or set noise; got every pair at most once")
    pooled = np.sqrt(spread.sum() / free.sum())
    return np.where(free > 0, np.sqrt(spread / np.maximum(free, 1)), pooled)


def _each(name: str, value: PerClass | Mapping[str, int], classes: Sequence[str]) -> Array:
    """Return the one number for all classes, or one for each (classes,)."""
    if not isinstance(value, Mapping):
        return np.array(scalar(name, value))
    for key in classes:
        if key not in value:
            raise BadInput(f"{name} must have a number for every class; got none for {key!r}")
    return np.array([scalar(f"{name}[{key!r}]", value[key]) for key in classes])


def _arrivals(tally: Tally, arrival_rate: PerClass | None, slot: float | None) -> tuple[Array, Arrivals]:
    classes = list(tally.job.number)
    if arrival_rate is not None:
        given = _each("arrival_rate", arrival_rate, classes)
        return (given if given.ndim else np.full(len(classes), given / len(classes))), Poisson()
    times, jobs = np.concatenate(tally.times), np.concatenate(tally.jobs)
    slots = np.floor((times - times.min()) / slot).astype(np.int64)
    rates = np.bincount(jobs, minlength=len(classes)) / (slots.max() + 1)
    return rates, Recorded(np.stack([slots, jobs, np.ones_like(jobs)], axis=1))
