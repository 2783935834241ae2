"""A channel: the samples that keys with equal rights see, kept for an hour, and the feed of new ones."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import msgspec

from bilinq.live.service.views import state_view
from bilinq.live.watch.feed import Feed, Ring, event
from bilinq.live.watch.sampler import Sampler
from bilinq.live.wire.samples import Layout, Leases

if TYPE_CHECKING:
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.tenants import View
    from bilinq.live.wire.samples import BaselineSample

STATE_EVERY = 2.0  # seconds between two events with matrices and leases
LEASES = 20  # leases in an event


class Channel:
    """Samples of all namespaces, or of those in `view`; `used` is when it was last asked for, by the monotonic clock."""

    def __init__(self, core: Replica, view: View) -> None:
        self._core, self._view, self._every = core, view, core.settings.sample
        self.sampler, self.feed = Sampler(core, view), Feed()
        self.used = time.monotonic()
        self._ring = Ring(secrets.token_hex(4), math.ceil(core.settings.history / self._every))
        self._layout: Layout | None = None
        self._views, self._views_at = b"", -math.inf

    def history(self, after: str | None, limit: int | None) -> msgspec.Raw:
        """Return the samples after the one with an id, all if it is not known, as the JSON of a `History`."""
        layout, kept = self._current_layout(), self._ring.after(after, limit)
        body = {"layout": layout, "moments": [msgspec.Raw(one.json) for one in kept], "every": self._every}
        return msgspec.Raw(msgspec.json.encode(body))

    def leases(self, limit: int) -> Leases:
        """Return the newest leases."""
        return Leases(self.sampler.leases(limit))

    def events(self, after: str | None, limit: int | None) -> AsyncGenerator[bytes, None]:
        """Yield events: the layout, the samples after the one with an id, matrices and leases, and then new events."""

        def catch_up(seen: str | None) -> bytes:
            samples = [event("moment", one.json, one.id) for one in self._ring.after(seen, limit)]
            return b"".join([event("layout", self._current_layout()), *samples, self._current_views()])

        return self.feed.follow(after, catch_up)

    def take_sample(self, best: float | None = None, baseline: BaselineSample | None = None) -> None:
        """Keep a sample of now, and send it to all viewers."""
        before, layout = self._layout, self._current_layout()
        kept = self._ring.add(self.sampler.sample(self._ring.next_id, best, baseline))
        if not self.feed.viewers:
            return
        news = [] if layout is before else [event("layout", layout)]
        news.append(event("moment", kept.json, kept.id))
        if time.monotonic() - self._views_at > STATE_EVERY - 0.5 * self._every:
            news.append(self._current_views())
        self.feed.publish(kept.id, b"".join(news))

    def _current_layout(self) -> Layout:
        """Return the layout as it is now, after the kept samples were brought into its order."""
        before, now = self._layout, self.sampler.layout
        if before is not None and now.version != before.version:
            self._ring.rearrange(before, now)
        self._layout = now
        return now

    def _current_views(self) -> bytes:
        """Return matrices and leases as events, made again if they are older than the last sample."""
        now = time.monotonic()
        if now - self._views_at > 0.5 * self._every:
            state = state_view(self._core, self.sampler.lease_rates(), self._view)
            self._views, self._views_at = event("state", state) + event("leases", self.leases(LEASES)), now
        return self._views
