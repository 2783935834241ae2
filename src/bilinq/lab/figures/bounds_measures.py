"""What the figure `bounds` compares: where it measures, how, and the bound on each measure."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bilinq import theory
from bilinq.arrays import Array, IntArray
from bilinq.lab import effects
from bilinq.lab.effects import Effect
from bilinq.lab.presets import least_bound, order, published
from bilinq.lab.runs import Record, Synthetic

COSTS = (7 / 4,) * 5 + (1 / 4,) * 5
"""Holding costs of the paper."""
SETTING = Synthetic(holding_cost=COSTS)
SLOTS = 500
RULE = "V = sqrt(I T)"
STEPS = (1 / 4, 2.0)
"""Multiples of sqrt(I T) that are run besides the rules for V."""


def grid() -> dict[str, float]:
    """Return the values of V by name, ascending."""
    example = SETTING.example
    steps = {f"x{step:g}": step * order(example, SLOTS) for step in STEPS}
    rules = {RULE: order(example, SLOTS), "published": published(example, SLOTS), "least": least_bound(example, SLOTS)}
    return dict(sorted((steps | rules).items(), key=lambda entry: entry[1]))


def slack_grid() -> dict[str, float]:
    """Return the two values of V at which the slack is varied: one that rules the queue, and one that hardly matters."""
    V = order(SETTING.example, SLOTS)
    return {"large V": V, "small V": V / 16}


def narrow(slack: float) -> Synthetic:
    """Return two servers with this spare capacity; jobs of two units, so that at most one arrives per slot."""
    return Synthetic(servers=2, traffic=2.0 - slack, service_rate=0.5)


def _top(path: NDArray[np.float32], keep: IntArray) -> float:
    """Return the highest mean queue over time of some replications."""
    return float(path[keep].mean(axis=0, dtype=np.float64).max())


def _top_average(path: NDArray[np.float32], keep: IntArray) -> float:
    """Return the highest time average, from the start to any slot, of the mean over some replications."""
    mean = path[keep].mean(axis=0, dtype=np.float64)
    return float((np.cumsum(mean) / np.arange(1, mean.size + 1)).max())


STATISTICS: dict[str, Callable[[Record, IntArray], float]] = {
    "queue": lambda record, keep: _top(record.paths["queue"], keep),
    "holding cost": lambda record, keep: _top_average(record.paths["holding_cost"], keep),
    "regret": lambda record, keep: float(record.samples["regret"][keep].mean()),
}
"""What each bound is about, as a function of a record and the replications to use."""


def bound(measure: str, V: float, weight: tuple[float, ...] | None = None) -> float:
    """Return the paper's bound on a measure in `SETTING`."""
    problem = SETTING.example
    if measure == "queue":
        return theory.queue_bound(problem, V, weight=weight)
    if measure == "holding cost":
        return theory.holding_cost_bound(problem, V, weight=weight)
    return theory.regret_bound(problem, V, SLOTS, weight=weight).total


def exact(value: float, unit: str = "") -> Effect:
    """Return a number that is calculated, not measured."""
    return Effect(value, value, value, unit)


def measured(record: Record, measure: str) -> Effect:
    """Return a measure with its interval."""
    return effects.estimate(lambda keep: STATISTICS[measure](record, keep), record.replications)


def tightness(record: Record, measure: str, V: float) -> Effect:
    """Return how many times the measured value the bound is, with the interval of the measurement."""
    found, limit = measured(record, measure), bound(measure, V)
    low = limit / found.high if found.high > 0 else np.nan
    return Effect(limit / found.value, low, limit / found.low if found.low > 0 else np.inf, "times")


def worst(records: dict[float, Record], measure: str) -> Effect:
    """Return the largest ratio of measurement to bound over the records of several V."""
    limits = {V: bound(measure, V) for V in records}

    def statistic(keep: IntArray) -> float:
        return max(STATISTICS[measure](record, keep) / limits[V] for V, record in records.items())

    return effects.estimate(statistic, next(iter(records.values())).replications, "of the bound")


def slack_slope(records: dict[float, Record]) -> Effect:
    """Return the slope of the highest mean queue over 1 / slack on log axes, from records by slack."""
    inverse: Array = 1.0 / np.array(list(records))

    def statistic(keep: IntArray) -> float:
        return effects.slope(inverse, np.array([STATISTICS["queue"](record, keep) for record in records.values()]))

    return effects.estimate(statistic, next(iter(records.values())).replications, "slope")


def still_growing(record: Record) -> Effect:
    """Return the highest mean queue of the whole run over that of its first half."""
    path = record.paths["queue"]
    early = path[:, record.slot <= record.slot[-1] // 2]
    return effects.estimate(lambda keep: _top(path, keep) / _top(early, keep), record.replications, "times")
