"""The log of what was learnt: observations and changes of classes, in one order. A replay repeats both, bit for bit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

import msgspec

from bilinq.live.service.configuration import scheduler_classes
from bilinq.live.service.entities import epoch_of
from bilinq.scheduler.scheduler import Observation, Scheduler

if TYPE_CHECKING:
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store.class_tables import ClassRow
    from bilinq.live.store.job_tables import ObservationRow


def in_order(rows: Iterable[ClassRow]) -> list[ClassRow]:
    """Return the newest row of each class, in the order in which the classes first came; rows are oldest first."""
    newest = {(row.kind, row.name): row for row in rows}
    return list(newest.values())


def roster_at(every: Sequence[ClassRow], seq: int) -> list[ClassRow]:
    """Return the classes that counted at a place in the log, in order."""
    return in_order(row for row in every if row.since <= seq)


def first_roster(every: Sequence[ClassRow]) -> int:
    """Return the place in the log from which on there are classes of both kinds."""
    return max(min(row.since for row in every if row.kind == kind) for kind in ("job", "server"))


def replay(
    scheduler: Scheduler, every: Sequence[ClassRow], log: Sequence[ObservationRow], settings: ServiceSettings,
    after: int = 0,
) -> Scheduler:  # fmt: skip
    """Let a scheduler learn from a log after a place, with the classes of each time; return it with the current ones."""
    for _ in replay_in_parts(scheduler, every, log, settings, after, len(log) or 1):
        pass
    return scheduler


def replay_in_parts(
    scheduler: Scheduler, every: Sequence[ClassRow], log: Sequence[ObservationRow], settings: ServiceSettings,
    after: int, part: int,
) -> Iterator[None]:  # fmt: skip
    """Do the same, and yield after each `part` of so many observations, so that other work can be done in between."""
    names, places = {row.id: row.name for row in every}, [row.seq for row in log]
    first, done = max(after, first_roster(every)), 0
    changes = sorted({row.since for row in every if row.since > first})
    for start, end in zip([first, *changes], [*changes, inf], strict=True):
        classes, until = scheduler_classes(roster_at(every, start), settings), bisect_right(places, end)
        scheduler.set_classes(*classes)
        for since in range(done, until, part):
            rows = log[since : min(since + part, until)]
            scheduler.replay(observation(row, names, scheduler) for row in rows if fits(scheduler, row))
            if since + part < until:
                scheduler.set_classes(*classes)  # what was observed is learnt now
                yield
        done = until
    scheduler.set_classes(*scheduler_classes(in_order(every), settings))


def observation(row: ObservationRow, names: dict[int, str], scheduler: Scheduler) -> Observation:
    """Return a row of the log as a scheduler learns from it; `names` are those of classes by id."""
    server_class = names[row.server_class_id]
    return Observation(
        names[row.job_class_id], server_class, row.value, row.duration, bool(row.failed),
        None if row.features is None else msgspec.json.decode(row.features), row.before,
        epoch_of(scheduler, server_class, row.epoch),
    )  # fmt: skip


def fits(scheduler: Scheduler, row: ObservationRow) -> bool:
    """Tell whether a scheduler can learn from a row: a policy cannot correct what it has learnt."""
    return row.before is None or scheduler.policy is None
