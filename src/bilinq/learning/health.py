"""How a learner is doing, in a few numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilinq.learning import BilinearState


class Health(NamedTuple):
    """What was seen and how well it determines the model.

    `noise` is the standard deviation of rewards as estimated, in the user's units; `smallest` and `largest` are the
    extreme eigenvalues of Lambda, Eq. (11): the smallest is the ridge as long as a direction of features was never seen.
    """

    observations: int
    noise: float
    smallest: float
    largest: float

    @property
    def condition(self) -> float:
        """Condition number of Lambda: how unevenly the directions of features are known."""
        return self.largest / self.smallest


def health_of(learnt: object, unit: float) -> Health | None:
    """Return the health of a bilinear learner's state, where a reward of one is `unit` to the user; else None."""
    if not isinstance(learnt, BilinearState):
        return None
    values = np.linalg.eigvalsh(learnt.gram[0])
    return Health(int(learnt.seen[0]), float(unit * learnt.noise[0]), float(values[0]), float(values[-1]))
