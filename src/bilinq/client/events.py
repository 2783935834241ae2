"""The server-sent events of a service, across lost connections and restarts."""

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import httpx

from bilinq.client.transport import Link, backoff, no_answer, refusal
from bilinq.errors import BilinqError, Busy, Unavailable

SILENCE = 40.0  # seconds of silence after which a connection counts as lost; the service sends something every 15 s


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
    last, tries = None, 0
    with httpx.Client(**link.options()) as http:
        while True:
            try:
                for event in _stream(http, link, limit, last, seconds):
                    last, tries = event.id or last, 0
                    yield event
                error: BilinqError = Unavailable(f"{link.url} has ended the stream")
            except (Unavailable, Busy) as unavailable:
                if seconds is not None:
                    raise
                error = unavailable
            if seconds is not None:
                return
            tries += 1
            yield Interrupted(str(error))
            time.sleep(backoff(tries))


def parse(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Yield the events of a stream of lines, without comments and events that have no name."""
    found: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            found[name] = value.removeprefix(" ")
            continue
        if "event" in found:
            yield ServerEvent(found["event"], found.get("data", ""), found.get("id"))
        found = {}


def _stream(
    http: httpx.Client, link: Link, limit: int, last: str | None, seconds: float | None
) -> Iterator[ServerEvent]:
    query: dict[str, str] = {"limit": str(limit)}
    if seconds is not None:
        query["seconds"] = f"{seconds:g}"
    headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last})
    times = httpx.Timeout(SILENCE, connect=min(link.attempt, 5.0))
    try:
        with http.stream("GET", "/v1/events", params=query, headers=headers, timeout=times) as answer:
            if answer.status_code != 200:
                answer.read()
                error = refusal(answer, link.url)
                raise error or Unavailable(f"{link.url} answered {answer.status_code}")
            yield from parse(answer.iter_lines())
    except httpx.RequestError as error:
        lost = no_answer(error, SILENCE)
        raise Unavailable(f"{'lost' if lost.sent else 'cannot reach'} {link.url}: {lost.why}") from None
