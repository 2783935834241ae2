"""Routes of those who watch: history, what happens now, and recent leases."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TypeAlias

import msgspec

from bilinq.errors import NoKey, Unavailable
from bilinq.live.http.call import Call
from bilinq.live.http.endpoint import identify
from bilinq.live.http.routing import EVENTS, Route
from bilinq.live.http.stream import Stream
from bilinq.live.wire.messages import SettingsUpdate
from bilinq.live.wire.queries import EventsQuery, HistoryQuery, LeasesQuery, News, given
from bilinq.live.wire.samples import History, Leases, Prediction

READ = ("read",)
Parts: TypeAlias = AsyncGenerator[bytes, None]


async def get_history(call: Call[None, HistoryQuery]) -> msgspec.Raw:
    """Return the last hour."""
    return call.watch.history(given(call.query.after), given(call.query.limit))


async def get_events(call: Call[None, EventsQuery]) -> Stream:
    """Stream what happens."""
    seen = call.header(b"last-event-id")
    after = given(call.query.after) if seen is None else seen.decode("latin-1")
    news = call.watch.events(after, given(call.query.limit))
    return Stream(_while_allowed(call, _for_some_time(news, given(call.query.seconds))))


async def get_leases(call: Call[None, LeasesQuery]) -> Leases:
    """Return recent leases."""
    return call.watch.leases(call.query.limit)


async def preview_settings(call: Call[SettingsUpdate, None]) -> Prediction:
    """Return what to expect of other settings."""
    return await call.watch.preview(call.body)


async def _for_some_time(parts: Parts, seconds: float | None) -> Parts:
    """Yield the first part in any case, and others for so many seconds, or for ever."""
    clock = asyncio.get_running_loop().time
    end = None if seconds is None else clock() + seconds
    async with aclosing(parts):
        yield await anext(parts)
        with suppress(StopAsyncIteration, TimeoutError):
            while True:
                yield await asyncio.wait_for(anext(parts), None if end is None else end - clock())


async def _while_allowed(call: Call[None, EventsQuery], parts: Parts) -> Parts:
    """Yield parts until the key is revoked or expires."""
    async with aclosing(parts):
        async for part in parts:
            try:
                identify(call.service, call.header(b"authorization"), READ)
            except NoKey:
                return
            except Unavailable:
                pass  # nobody knows about keys at the moment
            yield part


ROUTES = (
    Route("GET", "/v1/history", get_history, "Moments of the last hour, oldest first", "state", READ,
          query=HistoryQuery, answer=History),
    Route("GET", "/v1/events", get_events, "Follow what happens, as server-sent events", "state", READ,
          query=EventsQuery, answer=News, content_type=EVENTS),
    Route("GET", "/v1/leases", get_leases, "Recent leases, newest first", "state", READ,
          query=LeasesQuery, answer=Leases),
    Route("POST", "/v1/knobs/preview", preview_settings, "Predict the effect of other settings", "state", READ,
          body=SettingsUpdate, answer=Prediction, also=(404,)),
)  # fmt: skip
