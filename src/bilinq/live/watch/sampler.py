"""From the service's memory to what is shown of it. Nothing here costs more than a look at each class."""

from __future__ import annotations

import time
from collections import deque

from msgspec import structs

from bilinq.live.service import views
from bilinq.live.service.configuration import settings_info
from bilinq.live.service.memory import LiveLease
from bilinq.live.service.replica import Replica
from bilinq.live.watch.load import Load
from bilinq.live.watch.window import Window, in_order
from bilinq.live.wire.samples import BaselineSample, Layout, RecentLease, Sample, StateView

RATE_OVER = 10.0
"""Seconds over which leases per second are counted."""

PRESENT = 10
"""Moments of which the one with most servers counts: between two leases a server is neither idle nor busy."""


class Sampler:
    """Looks at the leader's memory; raises `Unavailable` while there is none that can be trusted."""

    def __init__(self, core: Replica) -> None:
        self._core = core
        self._layout: Layout | None = None
        self._slots, self._slot_seconds = sum(core.meters.slots.counts), core.meters.slots.total
        self._window: Window | None = None
        self._present: deque[dict[str, int]] = deque(maxlen=PRESENT)

    @property
    def layout(self) -> Layout:
        """Which classes there are now."""
        memory, settings = self._core.memory, self._core.settings
        rows = memory.classes.values()
        now = Layout(
            1 if self._layout is None else self._layout.version,
            [row.name for row in rows if row.kind == "job"], [row.name for row in rows if row.kind == "server"],
            settings_info(settings).target_wait, settings.reward.low, settings.reward.high,
        )  # fmt: skip
        if self._layout is None or now != self._layout:
            self._layout = now if self._layout is None else structs.replace(now, version=now.version + 1)
        return self._layout

    @property
    def window(self) -> Window:
        """What happened in the last minute."""
        if self._window is None:
            self._window = Window(self._core.meters, time.monotonic())
        return self._window

    def moment(self, id: str, best: float | None, baseline: BaselineSample | None) -> Sample:
        """Return how things are now, and what happened since the last call."""
        memory, layout, window = self._core.memory, self.layout, self.window
        window.add(time.monotonic())
        latest = window.latest
        all_slots, all_seconds = sum(self._core.meters.slots.counts), self._core.meters.slots.total
        slots, seconds = all_slots - self._slots, all_seconds - self._slot_seconds
        self._slots, self._slot_seconds = all_slots, all_seconds
        jobs, servers = layout.job_classes, layout.server_classes
        idle, busy = [memory.idle_servers(name) for name in servers], in_order(servers, memory.busy)
        self._present.append({name: a + b for name, a, b in zip(servers, idle, busy, strict=True)})
        p50, p90, p99 = window.waits(0.5, 0.9, 0.99)
        return Sample(
            id=id, at=time.time(), slots=slots, slot_seconds=seconds / slots if slots else 0.0,
            queued=in_order(jobs, memory.queued), leased=in_order(jobs, memory.leased),
            submitted=in_order(jobs, latest.submitted), finished=in_order(jobs, latest.finished),
            reward=in_order(jobs, latest.reward), wait_p50=p50, wait_p90=p90, wait_p99=p99,
            idle=idle, busy=busy, best=best, earned=window.within().earned, rival=baseline,
        )  # fmt: skip

    def state(self) -> StateView:
        """Return the matrices and the knobs."""
        layout, recent = self.layout, self.window.within(RATE_OVER)
        granted, seconds = recent.granted, recent.lasted or 1.0
        rate = [[granted.get((i, j), 0) / seconds for j in layout.server_classes] for i in layout.job_classes]
        return views.state_view(self._core, rate)

    def load(self) -> Load | None:
        """Return the load of the last minute, or None while there is nothing to say."""
        servers = [max((past.get(name, 0) for past in self._present), default=0) for name in self.layout.server_classes]
        return Load.of(self._core.memory.scheduler, self.layout.job_classes, servers, self.window.within())

    def leases(self, limit: int) -> list[RecentLease]:
        """Return the newest leases, newest first."""
        newest = list(self._core.memory.recent)[: -limit - 1 : -1]
        return [_shown(lease) for lease in newest]


def _shown(lease: LiveLease) -> RecentLease:
    end = lease.end
    return RecentLease(
        f"l{lease.id}", f"j{lease.job}", lease.job_class, f"s{lease.server}", lease.server_class, lease.granted,
        None if end is None else end.ended, "active" if end is None else end.state, None if end is None else end.reward,
    )  # fmt: skip
