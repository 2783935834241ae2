"""The slotted simulator: `simulate`, arrival laws, capacities, and the record `Runs`."""

from bilinq.simulation.arrivals import Arrivals, Bernoulli, Block, MarkovModulated, Poisson, Recorded, Sized
from bilinq.simulation.records import Interval, Jobs, Runs
from bilinq.simulation.services import AllUp, Breakdowns, Capacity, Schedule
from bilinq.simulation.simulate import simulate

__all__ = [
    "AllUp", "Arrivals", "Bernoulli", "Block", "Breakdowns", "Capacity", "Interval", "Jobs", "MarkovModulated",
    "Poisson", "Recorded", "Runs", "Schedule", "Sized", "simulate",
]  # fmt: skip
