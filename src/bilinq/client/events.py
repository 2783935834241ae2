"""Following a service: its server-sent events, over lost connections and restarts."""

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import httpx

from bilinq.client.transport import Ask, Call, Link, answer_of, backoff, lost, refusal
from bilinq.errors import BilinqError, Busy, Unavailable

SILENCE = 40.0
"""Seconds without a word after which a connection is taken for lost; the service says something every 15."""


class Told(NamedTuple):
    """An event: its name, its data, JSON, and the id of the moment that it is."""

    event: str
    data: str
    id: str | None


class Interrupted(NamedTuple):
    """The connection is lost, and is tried again; `why` is for people."""

    why: str


def follow(link: Link, limit: int, *, seconds: float | None = None) -> Iterator[Told | Interrupted]:
    """Yield events, first of the last `limit` moments and then as they come; where it is interrupted, it goes on after that.

    With `seconds` the service ends the stream after so long, and a connection is tried only once.

    Raises
    ------
    BilinqError
        If the service refuses, or, with `seconds`, cannot be reached.
    """
    last, tries = None, 0
    with httpx.Client(**link.options()) as http:
        while True:
            try:
                for told in _stream(http, link, limit, last, seconds):
                    last, tries = told.id or last, 0
                    yield told
                error: BilinqError = Unavailable(f"{link.url} has ended the stream")
            except (Unavailable, Busy) as away:
                if seconds is not None:
                    raise
                error = away
            if seconds is not None:
                return
            tries += 1
            yield Interrupted(str(error))
            time.sleep(backoff(tries))


def parse(lines: Iterable[str]) -> Iterator[Told]:
    """Yield the events of a stream of lines; comments and events without a name are left out."""
    found: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            found[name] = value.removeprefix(" ")
            continue
        if "event" in found:
            yield Told(found["event"], found.get("data", ""), found.get("id"))
        found = {}


def _stream(http: httpx.Client, link: Link, limit: int, last: str | None, seconds: float | None) -> Iterator[Told]:
    """Yield the events of one connection."""
    query: dict[str, str] = {"limit": str(limit)}
    if seconds is not None:
        query["seconds"] = f"{seconds:g}"
    headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last})
    times = httpx.Timeout(SILENCE, connect=min(link.attempt, 5.0))
    try:
        with http.stream("GET", "/v1/events", params=query, headers=headers, timeout=times) as answer:
            if answer.status_code != 200:
                answer.read()
                error = refusal(answer_of(answer), link.url)
                raise error or Unavailable(f"{link.url} answered {answer.status_code}")
            yield from parse(answer.iter_lines())
    except httpx.RequestError as error:
        why = lost(error, Ask(Call("GET", "/v1/events", bytes), SILENCE))
        raise Unavailable(f"{'lost' if why.sent else 'cannot reach'} {link.url}: {why.why}") from None
