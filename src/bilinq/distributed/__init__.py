"""Allocation computed by job nodes or server nodes themselves, with delays: rules, fixed point, stability, gains."""

from bilinq.distributed.certificate import gap_bound
from bilinq.distributed.feasible import scaled_back, shortfall
from bilinq.distributed.fixed_point import Equilibrium
from bilinq.distributed.gains import automatic_gain
from bilinq.distributed.integrate import FlowRun, integrate
from bilinq.distributed.iterate import Run, iterate
from bilinq.distributed.network import Network, start_rates
from bilinq.distributed.penalties import Barrier, Bounded, Own, Penalty, Power
from bilinq.distributed.stability import boundary, growth_rate
from bilinq.distributed.system import System

__all__ = [
    "Barrier", "Bounded", "Equilibrium", "FlowRun", "Network", "Own", "Penalty", "Power", "Run", "System",
    "automatic_gain", "boundary", "gap_bound", "growth_rate", "integrate", "iterate", "scaled_back", "shortfall",
    "start_rates",
]  # fmt: skip
