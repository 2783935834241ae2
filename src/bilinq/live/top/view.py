"""What is known of a service that is watched."""

from collections import deque
from collections.abc import Sequence
from threading import Lock

import msgspec

from bilinq.live.client.events import Interrupted, Told
from bilinq.live.watch_messages import Layout, Leases, Moment, RecentLease, StateView

KEPT = 240
"""Moments kept: as many as a wide terminal has columns."""


class View:
    """The newest of everything, as events bring it; `problem` tells why there is nothing new.

    Whoever reads it in another thread holds `lock` meanwhile.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.lock = Lock()
        self.problem: str | None = None
        self.layout: Layout | None = None
        self.moments: deque[Moment] = deque(maxlen=KEPT)
        self.state: StateView | None = None
        self.leases: list[RecentLease] = []

    @property
    def now(self) -> Moment | None:
        """The newest moment."""
        return self.moments[-1] if self.moments else None

    def take(self, told: Told | Interrupted) -> None:
        """Take in an event; of kinds that are not known nothing is kept."""
        with self.lock:
            if isinstance(told, Interrupted):
                self.problem = told.why
            else:
                self.problem = None
                self._take(told)

    def _take(self, told: Told) -> None:
        if told.event == "layout":
            self._take_layout(msgspec.json.decode(told.data, type=Layout))
        elif told.event == "moment":
            self.moments.append(msgspec.json.decode(told.data, type=Moment))
        elif told.event == "state":
            self.state = msgspec.json.decode(told.data, type=StateView)
        elif told.event == "leases":
            self.leases = msgspec.json.decode(told.data, type=Leases).leases

    def _take_layout(self, layout: Layout) -> None:
        before, self.layout = self.layout, layout
        if before is None or _classes(before) != _classes(layout):
            self.moments.clear()
            self.state = None

    def past(self, name: str, row: int) -> list[float]:
        """Return a number of a class over time, oldest first."""
        return [getattr(moment, name)[row] for moment in self.moments]

    def per_second(self, name: str, row: int, moments: int = 10) -> float:
        """Return how much of a number came per second lately."""
        some = list(self.moments)[-moments - 1 :]
        seconds = some[-1].at - some[0].at
        return sum(getattr(moment, name)[row] for moment in some[1:]) / seconds if seconds > 0.0 else 0.0


def _classes(layout: Layout) -> tuple[Sequence[str], Sequence[str]]:
    return layout.job_classes, layout.server_classes
