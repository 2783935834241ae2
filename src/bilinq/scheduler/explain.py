"""Why a job is, or was, assigned to a server: what `Scheduler.explain` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


class Decision(NamedTuple):
    """What a decision rested on, by server class (J,): estimates on the scale of [-1, 1], durations and tolls.

    `toll` is infinity where a server class is not eligible or absent. Values were drawn with `scale` standard errors, or had
    that much added, or neither, by the kind of `exploration`.
    """

    value: Array
    width: Array
    duration: Array
    service_price: Array
    toll: Array
    scale: float
    exploration: str
    servers: tuple[str, ...]

    @property
    def net(self) -> Array:
        """Value less all prices, before a draw: with it, the chosen server class had the largest."""
        bonus = self.scale * self.width if self.exploration == "ucb" else 0.0
        return np.asarray(self.value + bonus - self.service_price - self.toll)

    def probabilities(self) -> Array:
        """Return the estimated chance of each server class over the draws, at the prices of the decision, Eq. (68)."""
        from scipy.special import ndtr

        net = self.net
        spread = self.scale * self.width if self.exploration == "thompson" else np.zeros_like(self.width)
        allowed = np.flatnonzero(np.isfinite(net))
        chance = np.zeros(net.size)
        if not allowed.size:
            return chance
        m, s = net[allowed], np.maximum(spread[allowed], 1e-12)
        drawn = m[:, None] + s[:, None] * NODES
        below = ndtr((drawn[:, :, None] - m) / s)
        below[np.arange(m.size), :, np.arange(m.size)] = 1.0
        found = below.prod(axis=2) @ WEIGHTS
        chance[allowed] = found / found.sum()
        return chance


@dataclass(frozen=True, slots=True)
class Option:
    """A server class that may serve a job, in the caller's units.

    `value` is the expected reward and `uncertainty` its standard error, `duration` the expected slots of service, `price`
    what the service costs beyond the cheapest option: waiting for the server, the server's time, and what other jobs would
    pay for the place. `score` is value less price. `probability` is an estimate: the chance of the choice over the draws of
    exploration, at the prices of that slot.
    """

    server_class: str
    value: float
    uncertainty: float
    duration: float
    price: float
    score: float
    probability: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is where it is: its options, best score first. `chosen` is None while it waits."""

    job: object
    job_class: str
    chosen: str | None
    options: tuple[Option, ...]
    draw: str

    @property
    def second(self) -> Option | None:
        """The best option that was not chosen."""
        rest = [one for one in self.options if one.server_class != self.chosen]
        return rest[0] if rest else None

    @property
    def probability(self) -> float | None:
        """Estimated chance of the choice; None while the job waits."""
        return next((one.probability for one in self.options if one.server_class == self.chosen), None)


def explanation(
    job: object, job_class: str, chosen: str | None, decision: Decision, low: float, unit: float
) -> Explanation:
    """Return a decision in the caller's units: a reward of -1 is `low`, and one is worth `unit`."""
    chance, cost = decision.probabilities(), decision.service_price + decision.toll
    price = cost - cost.min() if np.isfinite(cost).any() else cost
    score = decision.value - price
    order = [int(k) for k in np.argsort(-score, kind="stable") if np.isfinite(score[k])]
    options = tuple(
        Option(
            server_class=decision.servers[k], value=float(low + unit * (1.0 + decision.value[k])),
            uncertainty=float(unit * decision.width[k]), duration=float(decision.duration[k]), price=float(unit * price[k]),
            score=float(low + unit * (1.0 + score[k])), probability=float(chance[k]),
        )
        for k in order
    )  # fmt: skip
    drawn = f"values drawn with {decision.scale:g} standard errors"
    kinds = {"thompson": drawn, "ucb": f"values with {decision.scale:g} standard errors added"}
    return Explanation(job, job_class, chosen, options, kinds.get(decision.exploration, "values as estimated"))
