"""What another policy would have earned, from a log of decisions: `evaluate`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, finite, positive, scalar
from bilinq.display import html_table
from bilinq.errors import BadInput
from bilinq.off_policy import LEAST, NEGLIGIBLE, Scores, interval, too_rare
from bilinq.routing import models
from bilinq.routing.log import Log
from bilinq.simulation.records import Interval

Choice: TypeAlias = str | ArrayLike | Callable[[Any, Any], ArrayLike]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Estimate:
    """The mean reward of a job that a policy would have earned, by four estimates with 95 % intervals.

    Attributes
    ----------
    direct : Interval
        Mean prediction of a reward model; wrong where the model is.
    inverse_propensity : Interval
        Rewards of the log, weighted by the policy's chance over the log's.
    self_normalised : Interval
        The same over the sum of the weights.
    doubly_robust : Interval
        Prediction plus weighted residual; right if either the model or the chances are.
    logged : Interval
        What the log earned.
    gain : Interval
        Doubly robust minus logged, job by job.
    recommended : str or None
        Which of the four to read; None if the log is worth too few jobs.
    jobs : int
    effective_jobs : float
        (sum of weights)^2 / sum of squared weights: how many jobs of the policy's own the log is worth.
    smallest_probability : float
        Smallest chance in the log where the policy has weight.
    tail : float
        Share of all weight on the 1 % of the jobs with the largest weights.
    mean_weight : float
        Close to one if the chances are right.
    rests_on : tuple of str
        What must hold for the numbers to mean what they say.
    """

    direct: Interval
    inverse_propensity: Interval
    self_normalised: Interval
    doubly_robust: Interval
    logged: Interval
    gain: Interval
    recommended: str | None
    jobs: int
    effective_jobs: float
    smallest_probability: float
    tail: float
    mean_weight: float
    rests_on: tuple[str, ...]

    def __repr__(self) -> str:
        reading = f"{self.doubly_robust} doubly robust" if self.recommended else "no estimate is recommended"
        worth = f"{self.jobs} logged jobs, worth {self.effective_jobs:.0f}"
        return f"Estimate({reading}, logged {self.logged}; {worth})"

    def _repr_html_(self) -> str:
        names = ("doubly_robust", "self_normalised", "inverse_propensity", "direct", "logged", "gain")
        table = html_table(repr(self), {name.replace("_", " "): str(getattr(self, name)) for name in names})
        notes = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.rests_on)
        return f"{table}<ul>{notes}</ul>"


def evaluate(
    log: Any,
    policy: Choice,
    *,
    features: Sequence[str] = (),
    servers: Sequence[str] | None = None,
    folds: int = 5,
    least_probability: float = LEAST,
    seed: int = 0,
) -> Estimate:
    """Return what `policy` would have earned on the jobs of a log, with intervals and what they rest on.

    Parameters
    ----------
    log : dict of arrays, pandas DataFrame, PyArrow table or Log
        Columns `server` and `reward`, and if there are any `features`, `job_class`, `probability` and `eligible`, as
        `bilinq.routing.log.Log` describes them. Without `probability` the chances are estimated.
    policy : callable, (N, J) array or str
        `policy(features, job_class)` returns the chance of each server for each job (N, J), and gets None for what the log
        does not have; or these chances; or the name of the server that gets all jobs.
    features : sequence of str, optional
        Columns with the features, if they are not one column of vectors.
    servers : sequence of str, optional
        Names of the columns of `policy`; default: the names in the log, sorted.
    folds : int
        Models are fitted to all folds but one and applied to that one.
    least_probability : float
        The smallest chance in the log that is accepted where the policy has weight (more than 0.001).
    seed : int
        Of the folds.

    Raises
    ------
    BadInput
        If the log does not overlap with the policy; the message says how many jobs and which.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> server = rng.integers(2, size=2000)
    >>> log = {"server": np.array(["cpu", "gpu"])[server], "reward": rng.normal(server, 1.0), "probability": [0.5] * 2000}
    >>> evaluate(log, "gpu").doubly_robust.low < 1.0 < evaluate(log, "gpu").doubly_robust.high
    True
    """
    record = Log.of(log, features, servers)
    if not 2 <= count("folds", folds, least=2) <= record.chosen.size:
        raise BadInput(f"folds must be at most the number of jobs, {record.chosen.size}; got {folds}")
    least = scalar("least_probability", least_probability, positive)
    pi = _policy_chances(policy, record)
    _check_support(record, pi)
    x, fold = models.design(record), models.folds(record.chosen.size, folds, seed)
    chances = models.estimated_chances(x, record, fold) if record.chances is None else record.chances
    smallest = _check_overlap(record, pi, chances, least)
    return _estimate(
        record, pi, chances, models.predicted_rewards(x, record, fold), models.balance(x, record, pi), smallest
    )


def _policy_chances(policy: Choice, log: Log) -> Array:
    """Return the chances (N, J) of the policy, checked."""
    shape = (log.chosen.size, len(log.names))
    if isinstance(policy, str):
        if policy not in log.names:
            raise BadInput(f"policy must be one of the servers {', '.join(log.names)}; got {policy!r}")
        return np.tile([float(name == policy) for name in log.names], (shape[0], 1))
    given = policy(log.vectors, log.job_class) if callable(policy) else policy
    pi = finite("policy", given)
    if pi.shape != shape:
        raise BadInput(f"policy must have shape (jobs, servers) = {shape}; got {pi.shape}")
    wrong = np.flatnonzero((pi < 0).any(axis=1) | (np.abs(pi.sum(axis=1) - 1.0) > 1e-6))
    if wrong.size:
        raise BadInput(f"policy must have non-negative rows that add up to 1; got {pi[wrong[0]]} for job {wrong[0]}")
    return pi


def _check_support(log: Log, pi: Array) -> None:
    """Raise if the policy uses a server that is not eligible, or one that the log never has for this class."""
    closed = np.argwhere((pi > 0) & ~log.allowed)
    if len(closed):
        k, j = closed[0]
        raise BadInput(
            f"policy must use eligible servers only; got {len(closed)} others, first job {k} on {log.names[j]!r}"
        )
    names, code = log.classes
    seen = np.zeros((len(names), len(log.names)), np.bool_)
    seen[code, log.chosen] = True
    missing = (pi > NEGLIGIBLE) & ~seen[code]
    if missing.any():
        pairs = sorted({(names[code[k]], log.names[j]) for k, j in np.argwhere(missing).tolist()})
        listed = ", ".join(f"{kind!r} on {server!r}" for kind, server in pairs[:5]) + (
            ", ..." if len(pairs) > 5 else ""
        )
        jobs = int(missing.any(axis=1).sum())
        raise BadInput(f"policy must use pairs that the log has; got {jobs} jobs of {len(pi)} on other pairs: {listed}")


def _check_overlap(log: Log, pi: Array, chances: Array, least: float) -> float:
    """Return the smallest chance where the policy has weight; raise if it is below `least`."""
    taken = np.arange(log.chosen.size), log.chosen
    wanted = pi[taken] if chances.ndim == 1 else pi
    low = too_rare(wanted, chances, least)
    if low.any():
        rows = np.argwhere(low)
        k, j = int(rows[0, 0]), int(log.chosen[rows[0, 0]] if chances.ndim == 1 else rows[0, 1])
        first = f"first job {k} on {log.names[j]!r} with {chances[tuple(rows[0])]:.2g}"
        rule = f"probability must be at least least_probability = {least:g} where the policy has weight"
        jobs = int(low.reshape(len(low), -1).any(axis=1).sum())
        raise BadInput(f"{rule}; got {jobs} of {len(pi)} jobs below, {first}")
    return float(chances[wanted > NEGLIGIBLE].min(initial=1.0))


def _estimate(log: Log, pi: Array, chances: Array, reward: Array, change: Array, smallest: float) -> Estimate:
    """Return the estimates from predicted rewards (N, J) and `change` (N,), that of the direct one with each reward."""
    n = log.chosen.size
    taken = np.arange(n), log.chosen
    scores = Scores(
        weight=pi[taken] / (chances if chances.ndim == 1 else chances[taken]), earned=log.earned,
        expected=(pi * reward).sum(axis=1), predicted=reward[taken],
    )  # fmt: skip
    direct = scores.expected + change * (log.earned - scores.predicted)
    return Estimate(
        direct=interval(direct, n, centre=float(scores.expected.mean())), inverse_propensity=scores.inverse_propensity,
        self_normalised=scores.self_normalised, doubly_robust=scores.doubly_robust, logged=scores.logged,
        gain=scores.gain, recommended="doubly_robust" if scores.enough else None, jobs=n,
        effective_jobs=scores.effective_jobs, smallest_probability=smallest, tail=scores.tail,
        mean_weight=scores.mean_weight, rests_on=_rests_on(log, pi, scores),
    )  # fmt: skip


def _rests_on(log: Log, pi: Array, scores: Scores) -> tuple[str, ...]:
    known = "class, features and eligibility"
    chances = (
        f"The log has no probabilities: they are estimated, and servers must have been chosen by nothing but {known}."
        if log.chances is None
        else "The probabilities in the log are those with which servers were really chosen."
    )
    before = np.bincount(log.chosen, minlength=pi.shape[1]) / len(pi)
    shift = pi.mean(axis=0) - before
    j = int(np.argmax(np.abs(shift)))
    shares = f"The policy sends {pi[:, j].mean():.0%} of the jobs to {log.names[j]!r}, the log {before[j]:.0%}."
    sentences = [
        "Overlap: wherever the policy has weight, the log had a chance to choose the same server.",
        chances,
        "Jobs are independent, and rewards do not change over time.",
        f"Waits stay as logged. Jobs compete for servers, so moving many of them changes waits. {shares}",
    ]
    return (*sentences, *scores.doubts())
