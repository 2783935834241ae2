"""The last hour: a moment for every second, as JSON that is made once and sent to whoever asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from bilinq.live.watch_messages import Layout, Moment

BY_JOB = ("queued", "leased", "submitted", "finished", "reward")
BY_SERVER = ("idle", "busy")


class Kept(NamedTuple):
    """A moment as JSON, with its id."""

    id: str
    json: bytes


class Ring:
    """The newest `size` moments of a `start` of the service, numbered from one."""

    def __init__(self, start: str, size: int) -> None:
        self.start = start
        self.last = 0
        self._kept: deque[Kept] = deque(maxlen=size)

    @property
    def next_id(self) -> str:
        """Id for the next moment."""
        return f"{self.start}-{self.last + 1}"

    def add(self, moment: Moment) -> Kept:
        """Keep the next moment and return it as JSON."""
        kept = Kept(moment.id, msgspec.json.encode(moment))
        self.last += 1
        self._kept.append(kept)
        return kept

    def after(self, id: str | None, limit: int | None = None) -> list[Kept]:
        """Return the moments after that of `id`, all if it is not known, oldest first; with a limit the newest of them."""
        count = min(self.last - self._number(id), len(self._kept), len(self._kept) if limit is None else limit)
        return list(islice(self._kept, len(self._kept) - count, None))

    def rearrange(self, before: Layout, after: Layout) -> None:
        """Bring what is kept into the order of other classes; a class that was not there had nothing."""
        if (before.job_classes, before.server_classes) == (after.job_classes, after.server_classes):
            return  # only a knob was turned
        jobs = _places(before.job_classes, after.job_classes)
        servers = _places(before.server_classes, after.server_classes)
        for place, kept in enumerate(self._kept):
            moment = msgspec.json.decode(kept.json)
            for name in BY_JOB:
                moment[name] = _moved(moment[name], jobs)
            for name in BY_SERVER:
                moment[name] = _moved(moment[name], servers)
            self._kept[place] = Kept(kept.id, msgspec.json.encode(moment))

    def _number(self, id: str | None) -> int:
        """Return the number in the id of a moment; zero if there was no such moment."""
        start, _, number = (id or "").rpartition("-")
        known = start == self.start and number.isascii() and number.isdigit() and len(number) < 18
        return int(number) if known and int(number) <= self.last else 0


def _places(before: Sequence[str], after: Sequence[str]) -> list[int | None]:
    known = {name: place for place, name in enumerate(before)}
    return [known.get(name) for name in after]


def _moved(values: list[float], places: Sequence[int | None]) -> list[float]:
    return [0 if place is None else values[place] for place in places]
