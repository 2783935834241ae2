"""Servers that fail: fewer jobs at once, pauses that double, and one job as a test before a server is used again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

UNLIKELY = 1e-3  # chance, at the failure rate of the others, of a row of failures that begins a pause, Eq. (69)
USUAL_RATE = 0.05  # failure rate that is assumed at least
LONGEST = 1024.0  # the longest pause, in mean durations
WINDOW = 200.0  # services over which the failure rate is averaged


@dataclass
class Record:
    """Failures in a row of a server or a server class, when its pause ends, how long it is, and whether it is on trial."""

    row: int = 0
    until: float = -1.0
    pause: float = 0.0
    trial: bool = False


class Pauses:
    """Which servers may take jobs. A key is (server class, server), with None for servers without names."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, Hashable], Record] = {}
        self._failures, self._services = 0.0, 0.0

    def note(self, server_class: str, server: Hashable, failed: bool, now: float, duration: float) -> None:
        """Note how a service ended; a success ends what failures before it began."""
        key = server_class, server
        self._failures = (1.0 - 1.0 / WINDOW) * self._failures + failed
        self._services = (1.0 - 1.0 / WINDOW) * self._services + 1.0
        if not failed:
            self._records.pop(key, None)
            return
        record = self._records.setdefault(key, Record())
        record.row += 1
        if record.until > now and not record.trial:
            return  # it began before the pause
        if record.trial or self._rate_of_others(record) ** record.row < UNLIKELY:
            record.pause = min(max(2.0 * record.pause, duration), LONGEST * duration)
            record.until, record.trial = now + record.pause, False

    def _rate_of_others(self, record: Record) -> float:
        """Return the part of services that failed, without the failures in a row of a record."""
        others = max(self._services - record.row, 1.0)
        return min(max(self._failures - record.row, USUAL_RATE * others) / others, 1.0)

    def open(self, server_class: str, idle: Sequence[Hashable], now: float) -> Sequence[Hashable]:
        """Return those of the idle servers that may take a job now."""
        if not self._records:
            return idle
        found, trials = [], 0
        for server in idle:
            record = self._records.get((server_class, server))
            if record is None or record.pause == 0.0:
                found.append(server)
            elif record.until <= now and not record.trial and (server is not None or not trials):
                found.append(server)
                trials += 1
        return found

    def began(self, server_class: str, server: Hashable) -> None:
        """Note that a server took a job; after a pause this is its trial."""
        record = self._records.get((server_class, server))
        if record is not None and record.pause > 0.0:
            record.trial = True

    def given_back(self, server_class: str, server: Hashable) -> None:
        """Note that a job came back without having been served, so that a trial said nothing."""
        record = self._records.get((server_class, server))
        if record is not None:
            record.trial = False

    def paused(self, now: float) -> dict[tuple[str, Hashable], float]:
        """Return the servers that get no job, or one on trial, with the time that is left of their pause."""
        return {key: max(one.until - now, 0.0) for key, one in self._records.items() if one.pause > 0.0}

    def forget(self, server_class: str) -> None:
        """Forget the failures of a server class."""
        self._records = {key: one for key, one in self._records.items() if key[0] != server_class}

    def state(self) -> list[object]:
        """Return everything as plain values; servers with other names than text or numbers are left out."""
        kept = [
            [name, server, one.row, one.until, one.pause, one.trial]
            for (name, server), one in self._records.items()
            if server is None or isinstance(server, str | int)
        ]
        return [self._failures, self._services, kept]

    def load(self, state: Sequence[object]) -> None:
        """Take what `state` returned."""
        failures, services, kept = state
        self._failures, self._services = float(failures), float(services)  # type: ignore[arg-type]
        self._records = {(name, server): Record(*rest) for name, server, *rest in kept}  # type: ignore[attr-defined]
