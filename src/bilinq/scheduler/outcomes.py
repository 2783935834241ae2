"""How the last services of each server class ended: what tells a server or a class that fails from jobs that fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from bilinq.arrays import short
from bilinq.errors import BadInput
from bilinq.scheduler.snapshot import label, listed

LAST = 50  # services of each class


class Outcome(NamedTuple):
    """A service of a job by a server, which failed or not, and whether it counts for what is said of the server."""

    server: Hashable
    job: Hashable
    failed: bool
    counts: bool


class Shares(NamedTuple):
    """Of some servers, how many failed in their last service, and how many there are."""

    failing: int
    known: int

    @property
    def rate(self) -> float:
        """The part that fails, zero if there are none."""
        return self.failing / max(self.known, 1)


class Outcomes:
    """The last services of each server class. A job that has failed on another server is the likely cause itself.

    Its further failures do not count, so that it counts against the first server that it failed on, and against no other.
    """

    def __init__(self) -> None:
        self._last: dict[str, deque[Outcome]] = {}

    def note(self, server_class: str, server: Hashable, job: Hashable, failed: bool) -> bool:
        """Note how a service ended; return whether it counts: False for a job that has failed on another server before."""
        counts = not (failed and job is not None and self._failed_elsewhere((server_class, server), job))
        self._last.setdefault(server_class, deque(maxlen=LAST)).append(Outcome(server, job, failed, counts))
        return counts

    def _failed_elsewhere(self, here: tuple[str, Hashable], job: Hashable) -> bool:
        return any(one.failed and one.job == job and (name, one.server) != here for name, one in self._all())

    def _all(self) -> Iterator[tuple[str, Outcome]]:
        return ((name, one) for name, some in self._last.items() for one in some)

    def beside(self, server_class: str, server: Hashable, paused: Collection[str]) -> Shares:
        """Return how many of all other servers fail, without those of paused classes."""
        last = {(name, one.server): one.failed for name, one in self._all() if one.counts and name not in paused}
        last.pop((server_class, server), None)
        return _shares(last)

    def of_classes(self, server_class: str, paused: Collection[str]) -> tuple[Shares, Shares]:
        """Return how many servers of a class fail, and how many of the other classes, without paused ones."""
        own, others = dict[Hashable, bool](), dict[Hashable, bool]()
        for name, one in self._all():
            if one.counts and name == server_class:
                own[one.server] = one.failed
            elif one.counts and name not in paused:
                others[name, one.server] = one.failed
        return _shares(own), _shares(others)

    def take_back(self, job: Hashable, but: str) -> list[tuple[str, Hashable]]:
        """Let the failures of a job count no more, but those on one class; return the classes and servers concerned."""
        found = []
        for name, some in self._last.items():
            for place, one in enumerate(some):
                if name != but and one.job == job and one.failed and one.counts:
                    some[place] = one._replace(counts=False)
                    found.append((name, one.server))
        return found

    def forget(self, server_class: str, server: Hashable = None) -> None:
        """Forget the failures of a server, or of a class."""
        kept = [] if server is None else [one for one in self._last.get(server_class, ()) if one.server != server]
        self._last[server_class] = deque(kept, LAST)

    def state(self) -> dict[str, list[list[object]]]:
        """Return everything as plain values; servers and jobs with other names than text or numbers are left out."""
        return {
            name: [list(one) for one in some if all(isinstance(each, str | int | None) for each in one[:2])]
            for name, some in self._last.items()
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take what `state` returned, after checks."""
        self._last = {
            name: deque((_outcome(listed("outcome", one)) for one in listed("outcomes", some)), LAST)
            for name, some in state.items()
        }


def _shares(last: dict[Any, bool]) -> Shares:
    return Shares(sum(last.values()), len(last))


def _outcome(plain: Sequence[Any]) -> Outcome:
    server, job, failed, counts = plain
    if not isinstance(failed, bool) or not isinstance(counts, bool):
        raise BadInput(f"failed and counts must be true or false; got {short([failed, counts])}")
    return Outcome(label("server", server), label("job", job), failed, counts)
