"""What the nodes need on Ray beside what they need in one process, to the same certified gap."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from bilinq.distributed.certificate import gap_bound
from bilinq.distributed.gains import automatic_gain
from bilinq.distributed.network import Network
from bilinq.distributed.on_ray.solve import RayRun
from bilinq.distributed.system import System

LOOK = 10
"""Rounds between two looks at the gap."""
MOST = 50_000
"""Rounds after which the nodes in one process give up."""


@dataclass(frozen=True)
class Effort:
    """What it took to get so close: seconds, also to start, iterations of all rows, messages, bytes, and the gap."""

    engine: str
    seconds: float
    start_seconds: float
    iterations: float
    messages: int
    bytes: int
    gap: float


def in_process(system: System, tolerance: float, fraction: float = 0.9) -> Effort:
    """Return what rounds without delay take in this process; more than `MOST` are not run."""
    near = system.with_delays(0.0, 0.0)
    network = Network(near, automatic_gain(near, np.zeros((1, *system.shape)), fraction))
    network.copy().advance(1)
    began = time.perf_counter()
    while (gap := float(gap_bound(near, network.expected))) > tolerance and network.round < MOST:
        network.advance(LOOK)
    return Effort("in process", time.perf_counter() - began, 0.0, network.round, 0, 0, gap)


def solved(system: System) -> Effort:
    """Return what the convex program takes, solved in one place."""
    began = time.perf_counter()
    best = system.with_delays(0.0, 0.0).fixed_point()
    return Effort("convex program", time.perf_counter() - began, 0.0, 0, 0, 0, float(gap_bound(system, best)))


def on_ray(run: RayRun) -> Effort:
    """Return what a run on Ray took; iterations are those of a job shard, on average."""
    jobs, servers = run.round_trip.shape
    name = f"Ray, {jobs} + {servers} shards"
    return Effort(name, run.seconds, run.start_seconds, run.iterations / jobs, run.messages, run.bytes, run.gap)
