"""One given problem for all replications."""

from __future__ import annotations

from dataclasses import dataclass

from bilinq.experiments.specs import make_arrivals
from bilinq.lab.runs.setting import Setting
from bilinq.problem import Problem
from bilinq.simulation import Arrivals


@dataclass(frozen=True)
class Fixed(Setting):
    """The same problem in every replication; arrivals, rewards and services differ."""

    problem: Problem
    law: str = "poisson"

    def problems(self, seed: int, replications: range) -> list[Problem]:
        """Return the problem for each replication."""
        return [self.problem] * len(replications)

    def arrivals(self) -> Arrivals:
        """Return the law of that name: "bernoulli", "poisson" or "markov-modulated"."""
        return make_arrivals(self.law)
