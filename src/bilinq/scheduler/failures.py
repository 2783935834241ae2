"""Servers that fail, and server classes: pauses that double, and one job as a test before a server is used again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bilinq.arrays import short
from bilinq.errors import BadInput
from bilinq.scheduler.outcomes import Outcomes
from bilinq.scheduler.snapshot import label, number, whole

UNLIKELY = 1e-3  # chance, at the failure rate of the others, of a row of failures that begins a pause, Eq. (69)
USUAL_RATE = 0.05  # failure rate that is assumed at least
LONGEST = 1024.0  # the longest pause, in mean durations
MOST = 10_000  # servers whose failures are kept
WINDOW = 200.0  # services over which the failure rate is averaged

# Only what stands out is paused, so that bad jobs pause nothing. A bad job counts against one server at most, the first one,
# and not even there once it has failed on a healthy class. A batch of them fails on other servers, too, which are then no
# reason to pause one: p of Eq. (69) is at least the part of them that fail. A class stands out if half of its servers fail
# unlike those of other classes. Where there is nothing to compare with, a broken class and a bad batch look the same: a
# pause would stop the jobs of everyone, while dead jobs can be retried.


@dataclass
class Record:
    """Failures in a row of a server or a server class, when its pause ends, how long it is, and whether it is on trial.

    Without a pause, `until` is the time of the last failure.
    """

    row: int = 0
    until: float = -1.0
    pause: float = 0.0
    trial: bool = False

    def release(self, now: float) -> None:
        """End the pause."""
        self.until, self.pause, self.trial = now, 0.0, False


class Pauses:
    """Which servers may take jobs. A key is (server class, server), with None for the class and servers without names.

    `longest` is the longest pause in slots; default: as many mean durations as `LONGEST`. With zero there are no pauses.
    """

    def __init__(self, longest: float | None = None) -> None:
        self.longest = longest
        self._records: dict[tuple[str, Hashable], Record] = {}
        self._rates: dict[str, tuple[float, float]] = {}  # failures and services of each class, of about the last 200
        self._outcomes = Outcomes()

    def note(
        self, server_class: str, server: Hashable, failed: bool, now: float, duration: float, job: Hashable = None
    ) -> None:
        """Note how a service of a job ended; a success ends what failures before it began."""
        counts = self._outcomes.note(server_class, server, job, failed)
        failures, services = self._rates.get(server_class, (0.0, 0.0))
        fade = 1.0 - 1.0 / WINDOW
        self._rates[server_class] = fade * failures + (failed and counts), fade * services + 1.0
        if not failed:
            self._records.pop((server_class, server), None)
            self._records.pop((server_class, None), None)
            return
        if not counts:
            self._acquit(server_class, job, now)
        beside = self._outcomes.beside(server_class, server, self._paused_classes())
        record = self._count((server_class, server), counts, now)
        stands_out = beside.known > 0 and _unlikely(record.row, max(self._rate(self._rates, record.row), beside.rate))
        self._judge(record, counts, stands_out, now, duration)
        if server is not None:
            self._note_class(server_class, now, duration, counts)
        self._expire(now, duration)

    def _note_class(self, server_class: str, now: float, duration: float, counts: bool) -> None:
        """Pause a class if two of its servers or more, and half of them, fail unlike those of other classes."""
        record = self._count((server_class, None), counts, now)
        own, others = self._outcomes.of_classes(server_class, self._paused_classes())
        rate = max(self._rate({name: rate for name, rate in self._rates.items() if name != server_class}), others.rate)
        half = own.failing > 1 and 2 * own.failing >= own.known
        self._judge(record, counts, half and others.known > 0 and _unlikely(record.row, rate), now, duration)

    def _count(self, key: tuple[str, Hashable], counts: bool, now: float) -> Record:
        """Count a failure; the records are in the order of the last ones."""
        record = self._records[key] = self._records.pop(key, Record())
        record.row += counts
        record.until = max(record.until, now)
        return record

    def _expire(self, now: float, duration: float) -> None:
        """Forget the servers that failed longest ago, and have had no job for long since: they may be gone."""
        kept = max(LONGEST * duration, self.longest or 0.0)
        while len(self._records) > 1:
            key = next(iter(self._records))
            if now - self._records[key].until <= kept and len(self._records) <= MOST:
                break
            del self._records[key]

    def _judge(self, record: Record, counts: bool, stands_out: bool, now: float, duration: float) -> None:
        """Begin a pause, or a longer one after a trial; a trial of a job that has failed elsewhere is repeated at once."""
        if self._runs(record, now):
            return
        if not stands_out:
            record.release(now)
        elif counts or record.pause == 0.0:
            self._pause(record, now, duration)
        record.trial = False

    def _acquit(self, server_class: str, job: Hashable, now: float) -> None:
        """Take back what a job that fails on a healthy class, too, has counted against others; this may end their pauses."""
        healthy = self._records.get((server_class, None))
        if healthy is not None and healthy.row > 0:
            return
        for name, server in self._outcomes.take_back(job, but=server_class):
            for key in {(name, server), (name, None)} & self._records.keys():
                record = self._records[key]
                record.row = max(record.row - 1, 0)
                if not _unlikely(record.row, USUAL_RATE):
                    record.release(now)

    def _paused_classes(self) -> set[str]:
        return {name for name in self._rates if self.holds(name)}

    def _rate(self, rates: Mapping[str, tuple[float, float]], own: int = 0) -> float:
        """Return the failure rate of some classes over about the last 200 services, without `own` failures, Eq. (69)."""
        failures, services = (sum(one) for one in zip((0.0, 0.0), *rates.values(), strict=True))
        others = max(services - own, 1.0)
        return float(min(max(failures - own, USUAL_RATE * others) / others, 1.0))

    def _runs(self, record: Record, now: float) -> bool:
        """Tell whether a pause runs: what fails during it began before."""
        return record.until > now and not record.trial

    def _pause(self, record: Record, now: float, duration: float) -> None:
        longest = LONGEST * duration if self.longest is None else self.longest
        record.pause = min(max(2.0 * record.pause, duration), longest)
        record.until = now + record.pause

    def open(self, server_class: str, idle: Sequence[Hashable], now: float) -> Sequence[Hashable]:
        """Return those of the idle servers that may take a job now."""
        if not self._records:
            return idle
        whole = self._records.get((server_class, None))
        if whole is not None and whole.pause > 0.0:
            return self._next_trial(server_class, idle) if whole.until <= now and not whole.trial else ()
        found, trials = [], 0
        for server in idle:
            record = self._records.get((server_class, server))
            if record is None or record.pause == 0.0:
                found.append(server)
            elif record.until <= now and not record.trial and (server is not None or not trials):
                found.append(server)
                trials += 1
        return found

    def _next_trial(self, server_class: str, idle: Sequence[Hashable]) -> Sequence[Hashable]:
        """Return the idle server that has failed least often in a row: trials of a class go to one after the other."""
        records = self._records
        failures = [records[key].row if (key := (server_class, server)) in records else 0 for server in idle]
        return [idle[failures.index(min(failures))]] if idle else ()

    def began(self, server_class: str, server: Hashable) -> None:
        """Note that a server took a job; after a pause this is its trial."""
        for key in {(server_class, server), (server_class, None)} if self._records else ():
            record = self._records.get(key)
            if record is not None and record.pause > 0.0:
                record.trial = True

    def given_back(self, server_class: str, server: Hashable) -> None:
        """Note that a job came back without having been served, so that a trial said nothing."""
        for key in {(server_class, server), (server_class, None)}:
            record = self._records.get(key)
            if record is not None:
                record.trial = False

    def paused(self, now: float) -> dict[tuple[str, Hashable], float]:
        """Return the servers that get no job, or one on trial, with the time that is left of their pause; None: a class."""
        return {key: max(one.until - now, 0.0) for key, one in self._records.items() if one.pause > 0.0}

    def holds(self, server_class: str, server: Hashable = None) -> bool:
        """Tell whether a server gets no job, or one on trial; without a server: a class."""
        record = self._records.get((server_class, server))
        return record is not None and record.pause > 0.0

    def trust(self, server_class: str, server: Hashable) -> None:
        """Forget the failures of a server, and those of its class as a whole."""
        for key in {(server_class, server), (server_class, None)}:
            self._records.pop(key, None)
        self._outcomes.forget(server_class, server)

    def forget(self, server_class: str) -> None:
        """Forget the failures of a server class."""
        self._records = {key: one for key, one in self._records.items() if key[0] != server_class}
        self._outcomes.forget(server_class)

    def state(self) -> list[object]:
        """Return everything as plain values; servers with other names than text or numbers are left out."""
        kept = [
            [name, server, one.row, one.until, one.pause, one.trial]
            for (name, server), one in self._records.items()
            if server is None or isinstance(server, str | int)
        ]
        return [self._rates, kept, self._outcomes.state()]

    def load(self, state: Sequence[Any]) -> None:
        """Take what `state` returned, after checks."""
        rates, kept, *outcomes = state  # earlier versions kept no outcomes
        self._outcomes.load(*outcomes or [{}])
        self._rates = {
            name: (number("failures", failures, 0.0, 2.0 * WINDOW), number("services", services, 0.0, 2.0 * WINDOW))
            for name, (failures, services) in rates.items()
        }
        self._records = {(_text(name), label("server", server)): _record(*rest) for name, server, *rest in kept}


def _unlikely(row: int, rate: float) -> bool:
    """Tell whether a row of failures is unlikely at a rate, Eq. (69)."""
    return bool(rate**row < UNLIKELY)


def _record(row: Any, until: Any, pause: Any, trial: Any) -> Record:
    if not isinstance(trial, bool):
        raise BadInput(f"trial must be true or false; got {short(trial)}")
    return Record(whole("row", row), number("until", until), number("pause", pause, 0.0), trial)


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise BadInput(f"server_class must be text; got {short(name)}")
    return name
