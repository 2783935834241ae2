"""Why a job is, or was, assigned to a server: what `Scheduler.explain` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array, IntArray

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
TINY = 1e-300  # so that nothing is divided by zero


OPTION = np.dtype([("id", "<u4"), ("value", "<f4"), ("width", "<f4"), ("duration", "<f4"), ("cost", "<f4")])
"""A server class in a stored decision: a number that the caller gives it, and what the decision rested on."""


@dataclass(slots=True, eq=False)
class Choices:
    """What the decisions of a slot rested on: `numbers` (S, 5, J) and the chosen `column` (S,) of each of S jobs.

    The numbers are, by server class, estimates of value and its standard error on the scale of [-1, 1], duration, price of
    the service, and toll, which is infinity where a server class is not eligible or absent. Values were drawn with at least
    `scale` standard errors, or had that much added, or neither, by the kind of `exploration`; `noise` is the variance of a
    single observation.
    """

    numbers: Array
    column: IntArray
    scale: float
    noise: float
    exploration: str
    servers: tuple[str, ...]
    _packed: tuple[Sequence[int], list[bytes]] | None = None

    def packed(self, ids: Sequence[int], most: int) -> list[bytes]:
        """Return each decision as bytes: its options as `OPTION`, the chosen one first, then by score, at most so many.

        `ids` are the numbers of the server classes by column. The result is kept for the next call with the same.
        """
        if self._packed is None or self._packed[0] != ids:
            self._packed = ids, self._pack(np.array(ids), most)
        return self._packed[1]

    def _pack(self, ids: IntArray, most: int) -> list[bytes]:
        value, width, duration, price, toll = self.numbers.swapaxes(0, 1)
        cost, rows = price + toll, np.arange(len(value))[:, None]
        score = np.where(np.isfinite(cost), value - cost, -np.inf)
        score[rows[:, 0], self.column] = np.inf
        best = np.argsort(-score, axis=1, kind="stable")[:, :most]
        options = np.empty(best.shape, OPTION)
        options["id"], options["value"], options["width"] = ids[best], value[rows, best], width[rows, best]
        options["duration"], options["cost"] = duration[rows, best], cost[rows, best]
        number = (score[rows, best] > -np.inf).sum(axis=1)
        return [some[:n].tobytes() for some, n in zip(options, number.tolist(), strict=True)]


class Decision(NamedTuple):
    """What the decision about one job rested on, by server class (J,)."""

    choices: Choices
    place: int

    @classmethod
    def alone(
        cls, value: Array, width: Array, duration: Array, cost: Array, scale: float, noise: float, exploration: str,
        servers: tuple[str, ...],
    ) -> Decision:  # fmt: skip
        """Return a decision that is not part of a slot; `cost` is the price of the service with its toll."""
        numbers = np.stack([value, width, duration, cost, np.zeros_like(cost)])[None]
        return cls(Choices(numbers, np.zeros(1, np.int64), scale, noise, exploration, servers), 0)

    def _numbers(self, kind: int) -> Array:
        found: Array = self.choices.numbers[self.place, kind]
        return found

    @property
    def value(self) -> Array:
        """The estimated value."""
        return self._numbers(0)

    @property
    def width(self) -> Array:
        """Its standard error."""
        return self._numbers(1)

    @property
    def duration(self) -> Array:
        """The expected duration."""
        return self._numbers(2)

    @property
    def service_price(self) -> Array:
        """What the time of the service costs."""
        return self._numbers(3)

    @property
    def toll(self) -> Array:
        """What waiting for the server costs, and what others would pay for the place."""
        return self._numbers(4)

    @property
    def scale(self) -> float:
        """How many standard errors are drawn or added at least."""
        return self.choices.scale

    @property
    def noise(self) -> float:
        """Variance of a single observation."""
        return self.choices.noise

    @property
    def spread(self) -> Array:
        """Standard deviation of the draws, or what is added: more where one observation would tell much, Eq. (63)."""
        variance = self.width**2
        return np.asarray(self.width * np.maximum(self.scale, variance / (variance + self.noise + TINY)))

    @property
    def exploration(self) -> str:
        """How values are drawn."""
        return self.choices.exploration

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the server classes."""
        return self.choices.servers

    def packed(self, ids: Sequence[int], most: int) -> bytes:
        """Return the decision as bytes; see `Choices.packed`."""
        return self.choices.packed(ids, most)[self.place]

    @property
    def net(self) -> Array:
        """Value less all prices, before a draw: with it, the chosen server class had the largest."""
        bonus = self.spread if self.exploration == "ucb" else 0.0
        return np.asarray(self.value + bonus - self.service_price - self.toll)

    def probabilities(self) -> Array:
        """Return the estimated chance of each server class over the draws, at the prices of the decision, Eq. (68)."""
        from scipy.special import ndtr

        net = self.net
        spread = self.spread if self.exploration == "thompson" else np.zeros_like(self.width)
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
    drawn = f"values drawn with {decision.scale:g} standard errors or more"
    kinds = {"thompson": drawn, "ucb": f"values with {decision.scale:g} standard errors or more added"}
    return Explanation(job, job_class, chosen, options, kinds.get(decision.exploration, "values as estimated"))
