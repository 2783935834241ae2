"""Jobs that have ended, in the order of their ends and by a filter, as the stream of ended jobs sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bilinq.live.service.options import options_of
from bilinq.live.service.outbox import from_text
from bilinq.live.store.job_tables import ended_jobs, ends_after
from bilinq.live.wire.messages import EndedJob

if TYPE_CHECKING:
    from bilinq.live.store import Transaction
    from bilinq.live.store.job_tables import End, EndedJobRow

SPAN = 1000  # ends that are looked at in one read
BATCH = 100  # jobs that are sent at once


class EndedFilter(NamedTuple):
    """Which jobs to send: those of some namespaces, states, a class and a tag; None: of all."""

    namespaces: frozenset[str] | None = None
    states: frozenset[str] | None = None
    job_class: str | None = None
    tag: str | None = None

    def accepts(self, end: End) -> bool:
        """Tell whether the job of an end is one of these."""
        return (
            (self.namespaces is None or end.namespace in self.namespaces)
            and (self.states is None or end.state in self.states)
            and self.job_class in (None, end.job_class)
            and (self.tag is None or self.tag in options_of(end.options).tags)
        )


class Found(NamedTuple):
    """Jobs that match, the last end that was looked at, and whether there may be more."""

    jobs: list[EndedJob]
    last: int
    more: bool


def find(tx: Transaction, wanted: EndedFilter, after: int) -> Found:
    """Return the next jobs that match after an end, of a bounded number of ends."""
    ends = ends_after(tx, after, SPAN)
    matching = [end for end in ends if wanted.accepts(end)]
    many = len(matching) > BATCH
    last = matching[BATCH - 1].number if many else ends[-1].number if ends else after
    rows = ended_jobs(tx, [end.id for end in matching[:BATCH]])
    return Found(list(map(_message, rows)), last, many or len(ends) == SPAN)


def _message(row: EndedJobRow) -> EndedJob:
    return EndedJob(
        event=f"e{row.number}", id=f"j{row.id}", job_class=row.job_class, state=row.state, namespace=row.namespace,  # type: ignore[arg-type]
        key=row.key, attempts=row.attempts, submitted=row.submitted, started=row.started, ended=row.ended,
        result=from_text(row.result), reward=row.reward, error=row.error, tags=options_of(row.options).tags,
    )  # fmt: skip
