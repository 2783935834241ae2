"""Where a policy is put to the test: problems, arrivals and the kind of service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from bilinq.experiments.specs import make_arrivals
from bilinq.problem import Problem
from bilinq.simulation import Arrivals

SEED_STEP = 1_000_003
"""Distance between the numbers that two seeds use: more than any run has replications."""


class Setting(ABC):
    """A family of problems, one for each replication. Subclasses are frozen dataclasses of plain values."""

    @abstractmethod
    def problems(self, seed: int, replications: range) -> list[Problem]:
        """Return the problems of the given replications; each depends on the seed and its own number alone."""

    def arrivals(self) -> Arrivals:
        """Return the law of arrivals, the paper's unless overridden."""
        return make_arrivals("bernoulli")

    @property
    def service(self) -> str:
        """What a service does to a job: "geometric" or "units"."""
        return "geometric"

    @property
    def example(self) -> Problem:
        """One problem of the family, for formulas in which rewards do not appear (V, bounds, traffic)."""
        return self.problems(0, range(1))[0]


@dataclass(frozen=True)
class Synthetic(Setting):
    """Random bilinear problems; the defaults are the paper's synthetic experiment. See `Problem.synthetic`."""

    job_classes: int = 10
    server_classes: int = 2
    dimension: int = 2
    servers: int = 4
    traffic: float = 1.0
    service_rate: float = 1.0
    noise: float = 0.1
    holding_cost: float | tuple[float, ...] = 1.0
    law: str = "bernoulli"

    def problems(self, seed: int, replications: range) -> list[Problem]:
        """Draw a problem for each replication, as the paper does."""
        drawn = {name: value for name, value in vars(self).items() if name != "law"}
        return [Problem.synthetic(**drawn, seed=seed * SEED_STEP + k) for k in replications]

    def arrivals(self) -> Arrivals:
        """Return the law of that name: "bernoulli", "poisson" or "markov-modulated"."""
        return make_arrivals(self.law)
