"""The trace experiment: one problem and one sequence of arrivals for all replications."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bilinq import theory
from bilinq.experiments.settings import Setting
from bilinq.traces.digest import Digest

if TYPE_CHECKING:
    from bilinq.problem import Problem
    from bilinq.simulation import Arrivals
    from bilinq.traces.digest import Features, Rewards, Unseen


@dataclass(frozen=True)
class Trace(Setting):
    """A digest as a problem with recorded arrivals; the defaults are the paper's choices. See `Digest.problem`.

    Replications differ in rewards and in what the policy draws. The digest is a field, so other data make another run.
    """

    features: Features = "raw"
    unseen: Unseen = "zero"
    rewards: Rewards = "raw"
    slot: float = 5.0
    digest: Digest = field(default_factory=Digest.shipped)

    def problems(self, seed: int, replications: range) -> list[Problem]:
        problem = self.digest.problem(features=self.features, unseen=self.unseen, rewards=self.rewards, slot=self.slot)
        return [problem] * len(replications)

    def arrivals(self) -> Arrivals:
        return self.digest.arrivals(slot=self.slot, unseen=self.unseen)

    @property
    def service(self) -> str:
        return "units"

    @property
    def slots(self) -> int:
        """Slots in the window of the digest."""
        return self.digest.slots(self.slot)

    def V(self, weight: tuple[float, ...] | None = None) -> float:
        """Return the V of the public code, which omits the factors of N on the trace: Eq. (25) with one server."""
        problem = self.example
        one = [1.0] + [0.0] * (problem.server_classes - 1)
        return theory.V_published(problem.replace(servers=one), weight=weight)
