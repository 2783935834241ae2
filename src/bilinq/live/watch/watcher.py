"""The watcher: takes a sample every second, keeps an hour of them, and sends each to all viewers."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bilinq.live.service.configuration import check_update
from bilinq.live.service.views import state_view
from bilinq.live.watch.feed import Feed, Ring, event
from bilinq.live.watch.load import BestRate
from bilinq.live.watch.prediction import Scenario, measured, predict
from bilinq.live.watch.sampler import BaselinePoller, Sampler
from bilinq.live.wire.samples import Layout, Leases, Prediction

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bilinq.live.service.replica import Replica
    from bilinq.live.wire.messages import SettingsUpdate

log = logging.getLogger("bilinq.live")

STATE_EVERY = 2.0  # seconds between two events with matrices and leases
LEASES = 20  # leases in an event


class Watcher:
    """Takes and publishes samples of a service. Failures here are logged and do not affect the service."""

    def __init__(self, core: Replica) -> None:
        self._core, self._every = core, core.settings.sample
        self._sampler, self._feed = Sampler(core), Feed()
        self._best = BestRate(self._sampler.load)
        baseline, key = core.settings.baseline_url, core.settings.baseline_key
        self._baseline = None if baseline is None else BaselinePoller(baseline, key, self._every)
        self._ring = Ring(secrets.token_hex(4), math.ceil(core.settings.history / self._every))
        self._layout: Layout | None = None
        self._views, self._views_at = b"", -math.inf
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to take samples."""
        loop = asyncio.get_running_loop()
        baseline = [] if self._baseline is None else [self._baseline.run()]
        self._tasks = [loop.create_task(work) for work in (self._run(), self._best.run(), *baseline)]

    async def stop(self) -> None:
        """End all streams and take no more samples."""
        self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drain(self) -> None:
        """End all streams, so that connections can be closed."""
        self._feed.end()

    async def until_drained(self, work: Coroutine[Any, Any, None]) -> None:
        """Run some work, for instance forward a stream from the leader, until it is done or all streams end."""
        await self._feed.until_end(work)

    def history(self, after: str | None, limit: int | None) -> msgspec.Raw:
        """Return the samples after the one with an id, all if it is not known, as the JSON of a `History`."""
        layout, kept = self._current_layout(), self._ring.after(after, limit)
        body = {"layout": layout, "moments": [msgspec.Raw(one.json) for one in kept], "every": self._every}
        return msgspec.Raw(msgspec.json.encode(body))

    def leases(self, limit: int) -> Leases:
        """Return the newest leases."""
        return Leases(self._sampler.leases(limit))

    async def preview(self, update: SettingsUpdate) -> Prediction:
        """Return what the theory predicts for other settings; nothing changes."""
        after, weights = check_update(self._core.memory, self._core.settings, update)
        rows = [row for row in self._core.memory.classes.values() if row.kind == "job"]
        now = Scenario(self._core.settings, np.array([row.weight for row in rows]))
        proposed = Scenario(after, np.array([weights.get(row.name, row.weight) for row in rows]))
        known = [self._core.memory.waits.get(row.name) for row in rows]
        waits = [sum(some) / len(some) if some else None for some in known]
        names = [row.name for row in rows]
        scheduler = self._core.memory.scheduler
        if scheduler is not None and scheduler.policy is None:
            return measured(names, waits, scheduler.waits, after)
        return await asyncio.to_thread(predict, names, waits, self._sampler.load(), now, proposed)

    def events(self, after: str | None, limit: int | None) -> AsyncGenerator[bytes, None]:
        """Yield events: the layout, the samples after the one with an id, matrices and leases, and then new events."""

        def catch_up(seen: str | None) -> bytes:
            samples = [event("moment", one.json, one.id) for one in self._ring.after(seen, limit)]
            return b"".join([event("layout", self._current_layout()), *samples, self._current_views()])

        return self._feed.follow(after, catch_up)

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self._every, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            if self._core.following:
                self._feed.disconnect()  # viewers reconnect, and are forwarded to the leader
            elif self._core.ready:
                try:
                    self._take_sample()
                except Exception:
                    log.exception("watching failed")

    def _take_sample(self) -> None:
        before, layout = self._layout, self._current_layout()
        baseline = None if self._baseline is None else self._baseline.take()
        kept = self._ring.add(self._sampler.sample(self._ring.next_id, self._best.value, baseline))
        if not self._feed.viewers:
            return
        news = [] if layout is before else [event("layout", layout)]
        news.append(event("moment", kept.json, kept.id))
        if time.monotonic() - self._views_at > STATE_EVERY - 0.5 * self._every:
            news.append(self._current_views())
        self._feed.publish(kept.id, b"".join(news))

    def _current_layout(self) -> Layout:
        """Return the layout as it is now, after the kept samples were brought into its order."""
        before, now = self._layout, self._sampler.layout
        if before is not None and now.version != before.version:
            self._ring.rearrange(before, now)
        self._layout = now
        return now

    def _current_views(self) -> bytes:
        """Return matrices and leases as events, made again if they are older than the last sample."""
        now = time.monotonic()
        if now - self._views_at > 0.5 * self._every:
            state = state_view(self._core, self._sampler.lease_rates())
            self._views, self._views_at = event("state", state) + event("leases", self.leases(LEASES)), now
        return self._views
