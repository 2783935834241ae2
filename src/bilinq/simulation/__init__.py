"""The slotted simulator: `simulate`, laws of arrivals, capacities and rewards, and the record `Runs`."""

from bilinq.simulation.arrivals import (
    AllUp,
    Arrivals,
    Backlog,
    Bernoulli,
    Block,
    Breakdowns,
    Capacity,
    MarkovModulated,
    Poisson,
    Recorded,
    Schedule,
    Sized,
)
from bilinq.simulation.records import Interval, Jobs, Runs
from bilinq.simulation.rewards import BinaryRewards, HeavyTailedRewards, NormalRewards, RewardLaw
from bilinq.simulation.simulate import simulate

__all__ = [
    "AllUp", "Arrivals", "Backlog", "Bernoulli", "BinaryRewards", "Block", "Breakdowns", "Capacity", "HeavyTailedRewards",
    "Interval", "Jobs", "MarkovModulated", "NormalRewards", "Poisson", "Recorded", "RewardLaw", "Runs", "Schedule", "Sized",
    "simulate",
]  # fmt: skip
