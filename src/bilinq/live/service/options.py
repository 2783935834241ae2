"""What a single job may have of its own beside its class and payload."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from bilinq.errors import NotFound
from bilinq.live.wire.queries import BadField

if TYPE_CHECKING:
    from bilinq.live.wire.messages import NewJob


class JobOptions(Struct, frozen=True, omit_defaults=True):
    """Features, eligible server classes, priority, limit of attempts and tags of a job; None where it has none.

    `deadline` and `not_before` are points in time by the wall clock.
    """

    features: list[float] | None = None
    servers: list[str] | None = None
    weight: float | None = None
    max_attempts: int | None = None
    deadline: float | None = None
    not_before: float | None = None
    tags: list[str] = []

    @property
    def text(self) -> str | None:
        """The options as they are stored; None if there are none."""
        return None if self == PLAIN else msgspec.json.encode(self).decode()


PLAIN = JobOptions()
_decode = msgspec.json.Decoder(JobOptions).decode


def options_of(text: str | None) -> JobOptions:
    """Return stored options."""
    return PLAIN if text is None else _decode(text)


def new_options(job: NewJob, wall: float) -> JobOptions:
    """Return the options of a job that is submitted at a time."""
    return JobOptions(
        features=job.features, servers=None if job.servers is None else sorted(set(job.servers)), weight=job.weight,
        max_attempts=job.max_attempts, deadline=None if job.deadline is None else wall + job.deadline,
        not_before=None if job.not_before is None else wall + job.not_before, tags=sorted(set(job.tags)),
    )  # fmt: skip


def is_plain(job: NewJob) -> bool:
    """Tell whether a job has nothing of its own; most have nothing, and cost nothing more."""
    return (
        job.features is None
        and job.servers is None
        and job.weight is None
        and job.max_attempts is None
        and job.deadline is None
        and job.not_before is None
        and not job.tags
    )


def check_job(where: str, job: NewJob, known: Collection[str], by_job: bool) -> None:
    """Raise unless what a job has of its own makes sense; `known` are server classes, and `by_job` what the policy can."""
    for name in ("features", "servers", "weight"):
        if not by_job and getattr(job, name) is not None:
            raise BadField(
                f"{where}.{name}", "needs the policy look-ahead; the service runs one that knows classes only"
            )
    for name in job.servers or ():
        if name not in known:
            raise NotFound(f"{where}.servers: there is no server class {name!r}; known are {', '.join(sorted(known))}")
    if job.deadline is not None and job.not_before is not None and job.deadline <= job.not_before:
        rule = f"must be after not_before; got {job.deadline:g} and {job.not_before:g} seconds from now"
        raise BadField(f"{where}.deadline", rule)
