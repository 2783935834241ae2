"""The price of learning, Eq. (32): regret above that of known rewards at an equal time-average queue."""

from collections.abc import Sequence

import numpy as np

from bilinq.arrays import IntArray
from bilinq.experiments import Record
from bilinq.lab import effects
from bilinq.lab.effects import Effect


def price(policy: Sequence[Record], known: Sequence[Record], queue: float | None = None) -> Effect:
    """Return the regret of a policy above that of known rewards where both have the same queue.

    Parameters
    ----------
    policy, known : sequences of Record
        Runs at several V, in the same setting.
    queue : float, optional
        The queue at which to compare; that of the policy's only run unless given.
    """
    return effects.estimate(lambda keep: _price(policy, known, queue, keep), known[0].replications, "regret")


def price_gap(
    one: Sequence[Record], other: Sequence[Record], known: Sequence[Record], queue: float | None = None
) -> Effect:
    """Return the price of one policy less that of the other, both at `queue`, or each at its own."""

    def statistic(keep: IntArray) -> float:
        return _price(one, known, queue, keep) - _price(other, known, queue, keep)

    return effects.estimate(statistic, known[0].replications, "regret")


def learnt(
    policy: Sequence[Record], blind: Sequence[Record], known: Sequence[Record], queue: float | None = None
) -> Effect:
    """Return which share of the price of `blind`, which learns nothing, the policy saves: one is knowing everything."""

    def statistic(keep: IntArray) -> float:
        return 1.0 - _price(policy, known, queue, keep) / _price(blind, known, queue, keep)

    return effects.estimate(statistic, known[0].replications, "of the gap")


def _price(policy: Sequence[Record], known: Sequence[Record], queue: float | None, keep: IntArray) -> float:
    if queue is None:
        (only,) = policy
        return _mean(only, "regret", keep) - _regret_at(known, _mean(only, "queue", keep), keep)
    return _regret_at(policy, queue, keep) - _regret_at(known, queue, keep)


def _regret_at(records: Sequence[Record], queue: float, keep: IntArray) -> float:
    """Return the mean regret where the mean queue is `queue`, by interpolation between runs at several V."""
    x, y = (np.array([_mean(record, name, keep) for record in records]) for name in ("queue", "regret"))
    return effects.at_level(queue, x, y)


def _mean(record: Record, name: str, keep: IntArray) -> float:
    return float(record.samples[name][keep].mean())
