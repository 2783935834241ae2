"""The watcher: takes a sample every second for each channel, and predicts the effect of other settings."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import numpy as np

from bilinq.errors import NotAllowed
from bilinq.live.service.configuration import check_update
from bilinq.live.watch.channel import Channel
from bilinq.live.watch.ended import EndedJobs
from bilinq.live.watch.load import BestRate
from bilinq.live.watch.prediction import Scenario, predict, predict_ahead
from bilinq.live.watch.sampler import BaselinePoller

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import msgspec

    from bilinq.live.service.ended import EndedFilter
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.tenants import View
    from bilinq.live.wire.messages import SettingsUpdate
    from bilinq.live.wire.samples import Leases, Prediction

log = logging.getLogger("bilinq.live")


class Watcher:
    """Takes and publishes samples of a service. Failures here are logged and do not affect the service.

    There is one channel for all who see every namespace. A channel for some namespaces begins with the first request for it,
    and ends when it was not used for as long as samples are kept.
    """

    def __init__(self, core: Replica) -> None:
        self._core, self._every = core, core.settings.sample
        self._whole = Channel(core, None)
        self._parts: dict[frozenset[str], Channel] = {}
        self._ended = EndedJobs(core)
        self._best = BestRate(self._whole.sampler.load)
        baseline, key = core.settings.baseline_url, core.settings.baseline_key
        self._baseline = None if baseline is None else BaselinePoller(baseline, key, self._every)
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
        self._ended.end()
        for channel in (self._whole, *self._parts.values()):
            channel.feed.end()

    async def until_drained(self, work: Coroutine[Any, Any, None]) -> None:
        """Run some work, for instance forward a stream from the leader, until it is done or all streams end."""
        await self._whole.feed.until_end(work)

    def history(self, view: View, after: str | None, limit: int | None) -> msgspec.Raw:
        """Return the samples after the one with an id, all if it is not known, as the JSON of a `History`."""
        return self._channel(view).history(after, limit)

    def leases(self, view: View, limit: int) -> Leases:
        """Return the newest leases."""
        return self._channel(view).leases(limit)

    def events(self, view: View, after: str | None, limit: int | None) -> AsyncGenerator[bytes, None]:
        """Yield events: the layout, the samples after the one with an id, matrices and leases, and then new events."""
        return self._channel(view).events(after, limit)

    def ended(self, wanted: EndedFilter, after: str | None) -> AsyncGenerator[bytes, None]:
        """Yield jobs that end as events: those after the one with an id, then new ones."""
        return self._ended.follow(wanted, after)

    async def preview(self, view: View, update: SettingsUpdate) -> Prediction:
        """Return what the theory predicts for other settings; nothing changes."""
        if view is not None:
            raise NotAllowed("a prediction uses the load of all namespaces; the key must see all that are in use")
        after, weights = check_update(self._core.memory, self._core.settings, update)
        rows = [row for row in self._core.memory.classes.values() if row.kind == "job"]
        now = Scenario(self._core.settings, np.array([row.weight for row in rows]))
        proposed = Scenario(after, np.array([weights.get(row.name, row.weight) for row in rows]))
        known = [self._core.memory.waits.get(row.name) for row in rows]
        waits = [sum(some) / len(some) if some else None for some in known]
        names = [row.name for row in rows]
        scheduler, load = self._core.memory.scheduler, self._whole.sampler.load()
        if scheduler is not None and scheduler.policy is None:
            return predict_ahead(names, waits, load, scheduler.waits, after)
        return await asyncio.to_thread(predict, names, waits, load, now, proposed)

    def _channel(self, view: View) -> Channel:
        if view is None:
            return self._whole
        found = self._parts.get(view)
        if found is None:
            found = self._parts[view] = Channel(self._core, view)
        found.used = time.monotonic()
        return found

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self._every, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            if self._core.following:
                for channel in (self._whole, *self._parts.values()):
                    channel.feed.disconnect()  # viewers reconnect, and are forwarded to the leader
            elif self._core.ready:
                try:
                    self._take_samples()
                except Exception:
                    log.exception("watching failed")

    def _take_samples(self) -> None:
        self._whole.take_sample(self._best.value, None if self._baseline is None else self._baseline.take())
        since = time.monotonic() - self._core.settings.history
        for view, channel in list(self._parts.items()):
            if channel.used < since and not channel.feed.viewers:
                del self._parts[view]
            else:
                channel.take_sample()
