"""The slotted simulator: `simulate`, arrival laws, capacities, and the record `Runs`."""

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
from bilinq.simulation.simulate import simulate

__all__ = [
    "AllUp", "Arrivals", "Backlog", "Bernoulli", "Block", "Breakdowns", "Capacity", "Interval", "Jobs", "MarkovModulated",
    "Poisson", "Recorded", "Runs", "Schedule", "Sized", "simulate",
]  # fmt: skip
