"""Pauses before another try, which grow while tries follow each other soon."""

from __future__ import annotations

from dataclasses import dataclass

FIRST, LONGEST = 0.25, 10.0
"""Seconds of the second pause, the first being none, and of the longest."""
CALM = 30.0
"""Seconds without trouble after which it begins with no pause again."""


@dataclass
class Pauses:
    """How long to wait before the next try: not at all at first, then twice as long each time.

    Examples
    --------
    >>> pauses = Pauses()
    >>> [pauses.next(now) for now in (100.0, 101.0, 102.0, 140.0)]
    [0.0, 0.25, 0.5, 0.0]
    """

    _last: float = -CALM
    _pause: float = 0.0

    def next(self, now: float) -> float:
        """Return the pause before a try that is wanted `now`, by a clock in seconds."""
        calm = now - self._last >= self._pause + CALM
        self._pause = 0.0 if calm else min(max(FIRST, 2.0 * self._pause), LONGEST)
        self._last = now
        return self._pause
