"""The service at a glance."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from bilinq.arrays import Array
from bilinq.live.service.core import Core
from bilinq.live.service.memory import Memory
from bilinq.live.wire.messages import JobClassState, ServerClassState, State, Waits
from bilinq.live.wire.samples import StateView
from bilinq.scheduler.scheduler import Scheduler


def state(core: Core) -> State:
    """Return queues, servers, the last allocation, what was learnt, and counters."""
    memory = core.memory
    scheduler = memory.scheduler
    mean, width = _learnt(scheduler)
    return State(
        now=time.time(), slot=0 if scheduler is None else scheduler.slot, V=_V(scheduler), knobs=core.options.shown,
        job_classes=[_job_class(memory, row.name, row.weight) for row in memory.classes.values() if row.kind == "job"],
        server_classes=[_server_class(memory, row.name) for row in memory.classes.values() if row.kind == "server"],
        expected=_plain(_expected(scheduler)), mean=_plain(mean), width=_plain(width),
        counters=dict(memory.counters), reward_total=memory.reward_total,
    )  # fmt: skip


def state_view(core: Core, rate: list[list[float]]) -> StateView:
    """Return the part of the state that is made of matrices, with leases per second of each pair as `rate`."""
    memory, scheduler = core.memory, core.memory.scheduler
    mean, width = _learnt(scheduler)
    return StateView(
        at=time.time(), slot=0 if scheduler is None else scheduler.slot, V=_V(scheduler), knobs=core.options.shown,
        weights=[row.weight for row in memory.classes.values() if row.kind == "job"],
        expected=_plain(_expected(scheduler)), rate=rate, mean=_plain(mean), width=_plain(width),
        counters=dict(memory.counters), reward_total=memory.reward_total,
    )  # fmt: skip


def waits(seconds: Sequence[float]) -> Waits:
    """Return how long jobs waited."""
    if not seconds:
        return Waits(0, None, None, None, None)
    p50, p90, p99 = np.percentile(seconds, (50, 90, 99)).tolist()
    return Waits(len(seconds), float(np.mean(seconds)), p50, p90, p99)


def _job_class(memory: Memory, name: str, weight: float) -> JobClassState:
    return JobClassState(
        name, weight, memory.queued[name], memory.leased[name], waits(list(memory.waits.get(name, ())))
    )


def _server_class(memory: Memory, name: str) -> ServerClassState:
    return ServerClassState(name, memory.idle_servers(name), memory.busy[name])


def _learnt(scheduler: Scheduler | None) -> tuple[Array | None, Array | None]:
    known = None if scheduler is None else scheduler.beliefs()
    return (None, None) if known is None else (known.mean, known.width)


def _V(scheduler: Scheduler | None) -> float:
    """Return V, or what it is now for the wait to aim at; zero without a scheduler, or with a policy that has none."""
    return 0.0 if scheduler is None or scheduler.settings is None else scheduler.V


def _expected(scheduler: Scheduler | None) -> Array | None:
    """Return the expected allocation of the last slot by classes; None for a policy that goes by jobs."""
    return None if scheduler is None or scheduler.policy.rows == "job" else scheduler.expected


def _plain(array: Array | None) -> list[list[float]]:
    return [] if array is None else array.tolist()
