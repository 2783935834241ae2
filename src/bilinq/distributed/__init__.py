"""Allocation computed by job nodes or server nodes themselves, with delays: rules, fixed point, stability, gains."""

from bilinq.distributed.fixed_point import Equilibrium
from bilinq.distributed.flow import FlowRun, integrate
from bilinq.distributed.network import Network, start_rates
from bilinq.distributed.penalties import Barrier, Bounded, Own, Penalty, Power
from bilinq.distributed.rounds import Run, iterate, shortfall
from bilinq.distributed.stability import automatic_gain, boundary, growth_rate
from bilinq.distributed.system import System, gap_bound, scaled_back

__all__ = [
    "Barrier", "Bounded", "Equilibrium", "FlowRun", "Network", "Own", "Penalty", "Power", "Run", "System",
    "automatic_gain", "boundary", "gap_bound", "growth_rate", "integrate", "iterate", "scaled_back", "shortfall",
    "start_rates",
]  # fmt: skip
