"""How fast two shards talk, and how large their moves may be at that pace."""

import time
from collections import deque

import numpy as np

from bilinq.distributed.bounds import gain_within

KEPT = 16
"""Round trips that are remembered."""


class Pace:
    """How long answers of one server shard take and how often they come; it gives the damping, Eq. (40)."""

    def __init__(self, fraction: float) -> None:
        self._fraction, self.last = fraction, time.perf_counter()
        self._trips, self._gaps = deque[float](maxlen=KEPT), deque[float](maxlen=KEPT)

    def note(self, sent: float) -> None:
        """Note an answer to what was sent then."""
        now = time.perf_counter()
        self._trips.append(now - sent)
        self._gaps.append(now - self.last)
        self.last = now

    @property
    def round_trip(self) -> float:
        """The median of the last round trips in seconds; NaN before the first."""
        return float(np.median(self._trips)) if self._trips else float("nan")

    @property
    def damping(self) -> float:
        """What Eq. (40) allows at the longest of the last round trips, in units of the time between answers; at most 1."""
        delay = np.array(max(self._trips) / max(sum(self._gaps) / len(self._gaps), 1e-9))
        return min(1.0, float(gain_within(np.ones(()), delay, self._fraction, "discrete")))
