"""Jobs and sizes in a snapshot, checked before a scheduler is made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import inf, isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from bilinq.errors import BadInput
from bilinq.learning.features import common_parts
from bilinq.scheduler.classes import JobClass, Roster, ServerClass, check_classes
from bilinq.scheduler.ledger import Entry, Served, job_features, waiting_entry
from bilinq.scheduler.snapshot import LATEST, from_record, label, number, whole

if TYPE_CHECKING:
    from bilinq.policies.policy import Policy

ROUNDING = 1e-9  # part of the present time by which rounding moves times of arrival, which are sums of differences
SMALL = 10_000_000  # numbers that a state may have, however short its snapshot is


def check_size(jobs: Sequence[JobClass], servers: Sequence[ServerClass], policy: Policy | None, size: int) -> None:
    """Raise unless a snapshot of `size` bytes can have the numbers of a state for these classes.

    It keeps memory from being filled with the state of very many classes or features that the snapshot does not contain.
    """
    check_classes("job_classes", jobs)
    check_classes("server_classes", servers)
    I, J, d = len(jobs), len(servers), len(jobs[0].features)
    if policy is None:
        needed, most = J * (1 + d) * (I + 1 + d), size
    else:
        d1, d2 = d or I, len(servers[0].features) or J
        needed, most = I * d1 + J * d2 + I * J + d1 * d2, max(size, SMALL)
        if needed <= most and policy.learns and d and servers[0].features:
            needed = d1 * d2 * _largest_block(jobs, servers)
    if needed > most:
        raise BadInput(f"a state of {I} job classes and {J} server classes must be in the snapshot; got {size} bytes")


def _largest_block(jobs: Sequence[JobClass], servers: Sequence[ServerClass]) -> int:
    """Return how many coordinates are learnt together at most, Eq. (52)."""
    u, v = np.array([[one.features for one in jobs]]), np.array([[one.features for one in servers]])
    return int(np.prod([(part[0, 2] - part[0, 1]).max() for part in common_parts(u, v)]))


def saved_entry(values: Sequence[Any], roster: Roster, now: float, serial: int) -> Entry:
    """Return a job that waits or is assigned, from its record; raise `BadInput` if `submit` would not have accepted it."""
    missing = len(fields(Entry)) - len(values)
    given = from_record(
        Entry, [*values, *[None] * (missing if missing in (1, 2) else 0)]
    )  # older: no `queued`, no cost
    roster.row(given.job_class)
    entry = waiting_entry(
        given.job_class, given.units, whole("serial", given.serial, high=serial), now, features=given.features,
        servers=given.servers, weight=given.weight, deadline=None, duration=given.duration,
        avoid=label("avoid", given.avoid), pool=None if given.pool is None else pool_name(given.pool), cost=given.cost,
    )  # fmt: skip
    entry.since = number("since", given.since, -LATEST, now + ROUNDING * (1.0 + now))
    entry.queued = min(entry.since, now) if isnan(given.queued) else number("queued", given.queued, -LATEST, now)
    if given.deadline != inf:
        entry.deadline = number("deadline", given.deadline)
    if not (isinstance(given.started, float) and isnan(given.started)):
        entry.started = number("started", given.started, -LATEST, now)
    if given.out is not None:
        roster.column(given.out)
        entry.out, entry.server = given.out, label("server", given.server)
        if isnan(entry.started):
            raise BadInput(f"started must be a number for a job at a server; got {given.started}")
    return entry


def saved_service(values: Sequence[Any]) -> Served:
    """Return a job that has left, from its record."""
    given = from_record(Served, values)
    for name in ("job_class", "server_class"):
        if not isinstance(getattr(given, name), str):
            raise BadInput(f"{name} of a job that has left must be text; got {getattr(given, name)!r}")
    reward = None if given.reward is None else number("reward", given.reward, -1.0, 1.0)
    return Served(
        given.job_class, given.server_class, job_features(given.features), reward, whole("epoch", given.epoch)
    )


def job_name(value: Any) -> int | str:
    """Return the name of a job."""
    found = label("job", value)
    if found is None:
        raise BadInput("job must have a name; got null")
    return found


def pool_name(value: Any) -> str:
    """Return the name of a pool."""
    if not isinstance(value, str):
        raise BadInput(f"pool must be text; got {value!r}")
    return value
