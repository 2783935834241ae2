"""Samples of this service, from the leader's memory, and of the baseline that it is compared with.

Taking a sample costs a few operations for each class, not for each job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, TypeVar

import httpx
import msgspec

from bilinq.live.service.configuration import settings_info
from bilinq.live.service.tenants import seen, servers_seen
from bilinq.live.watch.load import ObservedLoad, Window, in_order
from bilinq.live.wire.messages import SettingsInfo
from bilinq.live.wire.samples import BaselineSample, History, Layout, RecentLease, Sample

if TYPE_CHECKING:
    from bilinq.live.service.entities import LiveLease
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.tenants import View

log = logging.getLogger("bilinq.live")

T = TypeVar("T")

RATE_OVER = 10.0  # seconds over which leases per second are counted
PRESENT = 10  # samples over which the most servers count: between two leases a server is neither idle nor busy
SETTINGS_PATH = "/v1/settings"  # where a baseline reports its policy
TIMEOUT = 5.0  # seconds to wait for a response of the baseline
FAILURES = (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError)
"""Errors of a baseline that is unavailable, refuses the request, or is some other program."""


class Sampler:
    """Reads the leader's memory; raises `Unavailable` while there is none that can be trusted.

    With a `view` it counts the jobs and servers of these namespaces only, and leaves out what they share with others.
    """

    def __init__(self, core: Replica, view: View = None) -> None:
        self._core, self._view = core, view
        self._layout: Layout | None = None
        self._slots, self._slot_seconds = sum(core.meters.slots.counts), core.meters.slots.total
        self._window: Window | None = None
        self._present: deque[dict[str, int]] = deque(maxlen=PRESENT)

    @property
    def layout(self) -> Layout:
        """The current classes."""
        memory, settings = self._core.memory, self._core.settings
        rows = memory.classes.values()
        now = Layout(
            version=1 if self._layout is None else self._layout.version,
            job_classes=[row.name for row in rows if row.kind == "job"],
            server_classes=[row.name for row in rows if row.kind == "server"],
            target_wait=settings_info(settings).target_wait, reward_low=settings.reward.low,
            reward_high=settings.reward.high,
        )  # fmt: skip
        if self._layout is None:
            self._layout = now
        elif now != self._layout:
            self._layout = msgspec.structs.replace(now, version=now.version + 1)
        return self._layout

    @property
    def window(self) -> Window:
        """The totals of the last minute."""
        if self._window is None:
            meters, view = self._core.meters, self._view
            parts = [meters] if view is None else [meters.of(name) for name in sorted(view)]
            self._window = Window(*parts, at=time.monotonic())
        return self._window

    def sample(self, id: str, best: float | None, baseline: BaselineSample | None) -> Sample:
        """Return the state of the service now, and what happened since the last call."""
        memory, layout, window = seen(self._core.memory, self._view), self.layout, self.window
        window.add(time.monotonic())
        latest = window.latest
        slots, seconds = self._latest_slots()
        jobs, servers = layout.job_classes, layout.server_classes
        idle, busy = (in_order(servers, some) for some in servers_seen(self._core.memory, self._view))
        self._present.append({name: a + b for name, a, b in zip(servers, idle, busy, strict=True)})
        p50, p90, p99 = window.waits(0.5, 0.9, 0.99)
        return Sample(
            id=id, at=time.time(), slots=slots, slot_seconds=seconds / slots if slots else 0.0,
            queued=in_order(jobs, memory.queued), leased=in_order(jobs, memory.leased),
            submitted=in_order(jobs, latest.submitted), finished=in_order(jobs, latest.finished),
            reward=in_order(jobs, latest.reward), wait_p50=p50, wait_p90=p90, wait_p99=p99,
            idle=idle, busy=busy, best=best, earned=window.within().earned, rival=baseline,
            wait_mean=window.mean_wait(),
        )  # fmt: skip

    def _latest_slots(self) -> tuple[int, float]:
        """Return the slots since the last call, and how long they took."""
        if self._view is not None:
            return 0, 0.0
        before, meter = (self._slots, self._slot_seconds), self._core.meters.slots
        self._slots, self._slot_seconds = sum(meter.counts), meter.total
        return self._slots - before[0], self._slot_seconds - before[1]

    def lease_rates(self) -> list[list[float]]:
        """Return the recent leases per second of each pair of classes."""
        layout, recent = self.layout, self.window.within(RATE_OVER)
        granted, seconds = recent.granted, recent.duration or 1.0
        return [[granted.get((i, j), 0) / seconds for j in layout.server_classes] for i in layout.job_classes]

    def load(self) -> ObservedLoad | None:
        """Return the load of the last minute, or None if that is not enough to compute it."""
        names = self.layout.server_classes
        servers = [max((counts.get(name, 0) for counts in self._present), default=0) for name in names]
        return ObservedLoad.of(self._core.memory.scheduler, self.layout.job_classes, servers, self.window.within())

    def leases(self, limit: int) -> list[RecentLease]:
        """Return the newest leases, newest first."""
        return [_recent_lease(lease) for lease in list(seen(self._core.memory, self._view).recent)[: -limit - 1 : -1]]


def _recent_lease(lease: LiveLease) -> RecentLease:
    row, end = lease.row, lease.end
    return RecentLease(
        lease=f"l{row.id}", job=f"j{row.job}", job_class=lease.job_class, server=f"s{row.server}",
        server_class=lease.server_class, granted=row.granted, ended=None if end is None else end.ended,
        state="active" if end is None else end.state, reward=None if end is None else end.reward,
    )  # fmt: skip


class BaselinePoller:
    """Polls the service at `url`, which gets the same jobs, for its samples; none while it does not respond."""

    def __init__(self, url: str, key: str | None, every: float) -> None:
        self._url, self._every = url.rstrip("/"), every
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._name = ""
        self._last: Sample | None = None
        self._reward = 0.0
        self._failed = False

    def take(self) -> BaselineSample | None:
        """Return a sample of the baseline, with its rewards since the last call."""
        last, reward = self._last, self._reward
        self._reward = 0.0
        if last is None:
            return None
        return BaselineSample(self._name, sum(last.queued), reward, last.wait_p50, last.wait_p90)

    async def run(self) -> None:
        """Poll until cancelled."""
        async with httpx.AsyncClient(headers=self._headers, timeout=TIMEOUT, trust_env=False) as client:
            while True:
                await self.poll(client)
                await asyncio.sleep(self._every)

    async def poll(self, client: httpx.AsyncClient) -> None:
        """Request the new samples once; the first of several failures is logged."""
        try:
            if not self._name:
                self._name = (await _get(client, f"{self._url}{SETTINGS_PATH}", SettingsInfo)).policy
            since = {"limit": "1"} if self._last is None else {"after": self._last.id}
            history = await _get(client, f"{self._url}/v1/history", History, since)
        except FAILURES as error:
            if not self._failed:
                log.warning("the baseline at %s does not respond: %s", self._url, error or type(error).__name__)
            self._failed, self._last, self._reward = True, None, 0.0
            return
        self._failed = False
        for sample in history.moments:
            self._last = sample
            self._reward += sum(sample.reward)


async def _get(client: httpx.AsyncClient, url: str, kind: type[T], query: dict[str, str] | None = None) -> T:
    response = await client.get(url, params=query)
    response.raise_for_status()
    return msgspec.json.decode(response.content, type=kind)
