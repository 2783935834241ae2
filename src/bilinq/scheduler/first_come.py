"""An engine that serves jobs in the order of their arrival and learns nothing, for when a scheduler has failed."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from bilinq.arrays import Array
from bilinq.learning import Health
from bilinq.scheduler.engine import Engine, Pool, Service, counts
from bilinq.scheduler.ledger import Entry, Job

if TYPE_CHECKING:
    from bilinq.scheduler.classes import LookAheadSettings, PolicySettings, Roster
    from bilinq.scheduler.explain import Decision


class FirstComeEngine(Engine):
    """Gives each job, the oldest first, the first idle server that may serve it.

    With `values` (I, J) it is the one whose class is worth most; they count until classes change.
    """

    learns = False

    def __init__(self, roster: Roster, values: Array | None = None) -> None:
        self.roster, self._values = roster, values
        self._waiting: OrderedDict[Job, Entry] = OrderedDict()
        self.expected = np.zeros((len(roster.jobs), len(roster.servers)))

    def __repr__(self) -> str:
        return "FirstComeEngine()"

    def check(self, entry: Entry) -> None:
        if entry.features is not None and not self.own:
            self.own = entry.features.size

    def add(self, job: Job, entry: Entry, first: bool = False) -> None:
        self._waiting[job] = entry
        if first:
            self._waiting.move_to_end(job, last=False)

    def remove(self, job: Job, entry: Entry) -> None:
        del self._waiting[job]

    def order(self) -> list[Job]:
        return list(self._waiting)

    def queue(self) -> dict[str, int]:
        number = Counter(entry.job_class for entry in self._waiting.values())
        return {name: number[name] for name in self.roster.jobs}

    def decide(
        self, idle: Array, out: Array, now: float, elapsed: float, pools: Collection[str] | None = None
    ) -> list[tuple[Job, int, Decision | None]]:
        left, found = idle.copy(), list[tuple[Job, int, "Decision | None"]]()
        for job, entry in list(self._waiting.items()):
            if not left.any():
                break
            if pools is not None and entry.pool is not None and entry.pool not in pools:
                continue
            columns = [k for k in np.flatnonzero(left).tolist() if self._may_serve(k, entry)]
            if columns:
                column = columns[0]
                if self._values is not None:
                    column = columns[int(self._values[self.roster.row(entry.job_class), columns].argmax())]
                left[column] -= 1.0
                del self._waiting[job]
                found.append((job, column, None))
        self.expected = counts(self.expected.shape, [])
        return found

    def _may_serve(self, column: int, entry: Entry) -> bool:
        roster = self.roster
        allowed = roster.eligible is None or bool(roster.eligible[0, roster.row(entry.job_class), column])
        return allowed and (entry.servers is None or roster.server_classes[column].name in entry.servers)

    def set_pool(self, name: str, pool: Pool, waiting: Iterable[tuple[Job, Entry]]) -> None:
        pass  # weights do not count here, and the servers that ask may serve the pool

    def observe(self, service: Service) -> None:
        pass

    def correct(self, service: Service, before: float, epoch: int) -> None:
        pass

    def set_roster(self, roster: Roster, waiting: list[tuple[Job, Entry]]) -> None:
        self.roster, self._values, self.expected = roster, None, np.zeros((len(roster.jobs), len(roster.servers)))

    def check_roster(self, roster: Roster) -> None:
        pass

    @property
    def settings(self) -> PolicySettings | LookAheadSettings | None:
        return None

    def update(self, changes: dict[str, Any]) -> None:
        pass

    @property
    def V(self) -> float:
        return float("nan")

    def beliefs(self) -> tuple[Array, Array] | None:
        return None

    def health(self, unit: float) -> Health | None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any], now: float) -> None:
        raise self.refusal("a snapshot")
