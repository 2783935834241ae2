"""The server-sent events of a service, across lost connections and restarts: samples, and jobs that end."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx
import msgspec

from bilinq.client.transport import Link, backoff, no_answer, refusal
from bilinq.errors import BilinqError, Busy, Unavailable
from bilinq.live.wire.messages import EndedJob

SILENCE = 40.0  # seconds of silence after which a connection counts as lost; the service sends something every 15 s
LOST = (httpx.RequestError, Unavailable, Busy)
"""Errors after which it is tried again."""


class ServerEvent(NamedTuple):
    """An event: its name, its data as JSON, and the id of the sample if it is one."""

    event: str
    data: str
    id: str | None


class Interrupted(NamedTuple):
    """The connection is lost and will be tried again; `why` is the reason in words."""

    why: str


def follow(link: Link, limit: int, *, seconds: float | None = None) -> Iterator[ServerEvent | Interrupted]:
    """Yield events: those of the last `limit` samples, then new ones; after an interruption it continues where it stopped.

    With `seconds` the service ends the stream after that time, and there is only one attempt to connect.

    Raises
    ------
    BilinqError
        If the service refuses, or, with `seconds`, cannot be reached.
    """
    return _follow(_Place(link, {"limit": str(limit)}, seconds))


def ended(link: Link, query: Mapping[str, str], seconds: float | None) -> Iterator[EndedJob]:
    """Yield jobs that end and match a query, as `Client.ended` describes; interruptions are waited out."""
    for event in _follow(_Place(link, {"kind": "jobs", **query}, seconds)):
        if isinstance(event, ServerEvent) and event.event == "job":
            yield msgspec.json.decode(event.data, type=EndedJob)


async def ended_later(link: Link, query: Mapping[str, str], seconds: float | None) -> AsyncIterator[EndedJob]:
    """Yield the same for coroutines."""
    place = _Place(link, {"kind": "jobs", **query}, seconds)
    async with httpx.AsyncClient(**link.options()) as http:
        while True:
            try:
                async with http.stream(**place.request()) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                    place.check(answer)
                    parser = Parser()
                    async for line in answer.aiter_lines():
                        event = parser.feed(line)
                        if event is not None and place.seen(event).event == "job":
                            yield msgspec.json.decode(event.data, type=EndedJob)
                place.lost(None)
            except LOST as error:
                place.lost(error)
            if seconds is not None:
                return
            await asyncio.sleep(backoff(place.tries))


def _follow(place: "_Place") -> Iterator[ServerEvent | Interrupted]:
    with httpx.Client(**place.link.options()) as http:
        while True:
            try:
                with http.stream(**place.request()) as answer:
                    if answer.status_code != 200:
                        answer.read()
                    place.check(answer)
                    for event in parse(answer.iter_lines()):
                        yield place.seen(event)
                why = place.lost(None)
            except LOST as error:
                why = place.lost(error)
            if place.seconds is not None:
                return
            yield Interrupted(why)
            time.sleep(backoff(place.tries))


class _Place:
    """How far a stream was read, and how to continue it; `tries` are attempts since the last event."""

    def __init__(self, link: Link, query: Mapping[str, str], seconds: float | None) -> None:
        self.link, self.seconds, self.tries = link, seconds, 0
        self._query = dict(query) | ({} if seconds is None else {"seconds": f"{seconds:g}"})
        self._last: str | None = None

    def request(self) -> dict[str, Any]:
        """Return the arguments of a request that continues the stream."""
        headers = {"accept": "text/event-stream"} | ({} if self._last is None else {"last-event-id": self._last})
        times = httpx.Timeout(SILENCE, connect=min(self.link.attempt, 5.0))
        return {"method": "GET", "url": "/v1/events", "params": self._query, "headers": headers, "timeout": times}

    def check(self, answer: httpx.Response) -> None:
        """Raise if the service refuses; `answer` was read then."""
        if answer.status_code != 200:
            error = refusal(answer, self.link.url)
            raise error or Unavailable(f"{self.link.url} answered {answer.status_code}")

    def seen(self, event: ServerEvent) -> ServerEvent:
        """Note an event and return it."""
        self._last, self.tries = event.id or self._last, 0
        return event

    def lost(self, error: Exception | None) -> str:
        """Return why the stream is over, None: it ended; raise that if there is only one attempt."""
        self.tries += 1
        if isinstance(error, httpx.RequestError):
            lost = no_answer(error, SILENCE)
            error = Unavailable(f"{'lost' if lost.sent else 'cannot reach'} {self.link.url}: {lost.why}")
        if error is not None and self.seconds is not None:
            assert isinstance(error, BilinqError)
            raise error from None
        return f"{self.link.url} has ended the stream" if error is None else str(error)


class Parser:
    """Makes events of the lines of a stream, without comments and events that have no name."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def feed(self, line: str) -> ServerEvent | None:
        """Add a line; return the event that it ends, or None."""
        if line:
            name, _, value = line.partition(":")
            self._found[name] = value.removeprefix(" ")
            return None
        found, self._found = self._found, {}
        return ServerEvent(found["event"], found.get("data", ""), found.get("id")) if "event" in found else None


def parse(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Yield the events of a stream of lines."""
    parser = Parser()
    for line in lines:
        event = parser.feed(line)
        if event is not None:
            yield event
