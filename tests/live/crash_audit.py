"""The audit after a crash test: what was acknowledged against the contents of the database. Faults are sentences."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from crash_load import Said
from msgspec import structs

from bilinq.live.service.configuration import new_scheduler, scheduler_classes
from bilinq.live.service.outbox import from_text
from bilinq.live.service.replay import first_roster, replay, roster_at
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Transaction
from bilinq.live.store.class_tables import all_classes, stored_settings
from bilinq.live.store.job_tables import LEASE_COLUMNS, JobRow, LeaseRow, ObservationRow, list_jobs, observations_since
from bilinq.live.wire.messages import State

LOST = ("failed", "expired")
"""States of leases that cost an attempt."""


@dataclass
class Found:
    """Contents of the database."""

    jobs: list[JobRow]
    leases: list[LeaseRow]
    rewards: list[ObservationRow]


def read(tx: Transaction) -> Found:
    """Return all rows."""
    leases = [LeaseRow._make(row) for row in tx.rows(f"SELECT {LEASE_COLUMNS} FROM lease ORDER BY id")]
    return Found(list_jobs(tx, None, None, None, None, 10**9), leases, observations_since(tx, 0))


def faults(said: Said, found: Found, *, max_attempts: int, drained: bool = True) -> list[str]:
    """Return all that is not as it was acknowledged, or does not fit together."""
    parts = [_jobs(said, found), _ends(said, found), _lives(found, max_attempts, drained), _rewards(said, found)]
    return [*said.errors, *(fault for part in parts for fault in part)]


def _jobs(said: Said, found: Found) -> Iterator[str]:
    """Every acknowledged job is there once, as it was submitted, and none that nobody asked for."""
    by_payload: dict[str, list[JobRow]] = defaultdict(list)
    for row in found.jobs:
        by_payload[from_text(row.payload)].append(row)
    for payload, rows in by_payload.items():
        if payload not in said.asked:
            yield f"nobody submitted {payload}"
        elif len(rows) > 1:
            yield f"{payload} is there {len(rows)} times"
        elif (rows[0].job_class, rows[0].units) != (said.asked[payload].job_class, said.asked[payload].units):
            yield f"{payload} is not what was submitted"
    ids = [(payload, id) for payload, id in said.jobs.items()] + said.again
    for payload, id in ids:
        if id not in [f"j{row.id}" for row in by_payload.get(payload, ())]:
            yield f"{payload} was acknowledged as {id} and is not there"
    states = {f"j{row.id}": row.state for row in found.jobs}
    for id in said.cancelled:
        if states.get(id) != "cancelled":
            yield f"{id} was cancelled and is {states.get(id)}"


def _ends(said: Said, found: Found) -> Iterator[str]:
    """Every acknowledged end of a lease is that lease's end, and no refused one is."""
    rows = {f"l{row.id}": row for row in found.leases}
    for wanted, ended in (("finished", said.finished), ("failed", said.failed)):
        for lease, job in ended.items():
            row = rows.get(lease)
            if row is None or (row.state, f"j{row.job}") != (wanted, job):
                yield f"{lease} of {job} was acknowledged as {wanted} and is {row and row.state}"
            elif wanted == "finished" and row.reward != said.tried.get(lease):
                yield f"{lease} was finished with {said.tried.get(lease)} and has {row.reward}"
    for lease in said.refused:
        if lease in rows and rows[lease].state in ("finished", "active"):
            yield f"the end of {lease} was refused and yet it is {rows[lease].state}"


def _lives(found: Found, max_attempts: int, drained: bool) -> Iterator[str]:
    """Each job has the leases that its state, units and attempts imply."""
    leases: dict[int, list[LeaseRow]] = defaultdict(list)
    for lease in found.leases:
        leases[lease.job].append(lease)
    for row in found.jobs:
        leases_of = leases.pop(row.id, [])
        states = Counter(lease.state for lease in leases_of)
        wanted = 1 if row.state == "leased" else 0
        if states["active"] != wanted:
            yield f"j{row.id} is {row.state} with {states['active']} active leases"
        if states["finished"] != row.units - row.units_left:
            yield f"j{row.id} has {states['finished']} finished leases for {row.units - row.units_left} units"
        if sum(states[lost] for lost in LOST) != row.attempts:
            yield f"j{row.id} has {row.attempts} attempts and {dict(states)}"
        tried = {lease.server for lease in leases_of if lease.state in LOST}
        dead = row.attempts >= max_attempts and (len(tried) > 1 or row.attempts >= 2 * max_attempts)
        if (dead and row.state != "dead") or (row.state == "dead" and row.attempts < max_attempts):
            yield f"j{row.id} is {row.state} after {row.attempts} attempts"
        if row.state == "done" and not states["finished"]:
            yield f"j{row.id} is done and nobody finished it"
        if drained and row.state in ("queued", "leased"):
            yield f"j{row.id} is {row.state} when all should have ended"
    yield from (f"lease l{some[0].id} is of no job" for some in leases.values())


def _rewards(said: Said, found: Found) -> Iterator[str]:
    """Each finished lease with a reward has exactly one row in the log, with its value, and the log nothing else."""
    log: dict[int, list[ObservationRow]] = defaultdict(list)
    for reward in found.rewards:
        log[reward.lease].append(reward)
    for lease in found.leases:
        values = _final([row for row in log.pop(lease.id, ()) if row.value is not None])
        due = lease.state == "finished" and lease.reward is not None
        if values != ([lease.reward] if due else []):
            yield f"l{lease.id} is {lease.state} with reward {lease.reward}; the log has {values}"
        if due and said.tried.get(f"l{lease.id}") != lease.reward:
            yield f"l{lease.id} has reward {lease.reward} which nobody gave"
    yield from (f"the log has a reward for l{id}, which does not exist" for id in log)


def _final(rows: Sequence[ObservationRow]) -> list[float | None]:
    """Return the last of several rewards if each corrects the one before; otherwise all."""
    values = [row.value for row in rows]
    return values[-1:] if [row.before for row in rows] == [None, *values][: len(rows)] else values


def queue_faults(state: State, found: Found) -> list[str]:
    """Return where the queues that the service reports differ from the database."""
    number = Counter((row.job_class, row.state) for row in found.jobs)
    return [
        f"class {one.name}: the service reports {told}, the database has {stored}"
        for one in state.job_classes
        if (told := (one.queued, one.leased)) != (stored := (number[one.name, "queued"], number[one.name, "leased"]))
    ]


def learnt_faults(state: State, settings: ServiceSettings, tx: Transaction) -> list[str]:
    """Return where the service has learnt something else than a new scheduler learns from the log."""
    rows, log = all_classes(tx), observations_since(tx, 0)
    current = structs.replace(settings, **stored_settings(tx))
    start = new_scheduler(scheduler_classes(roster_at(rows, first_roster(rows)), current), current)
    scheduler = replay(start, rows, log, current)
    scheduler.assign({})
    wanted = scheduler.beliefs()
    assert wanted is not None
    pairs = (("mean", state.mean, wanted.mean), ("width", state.width, wanted.width))
    return [
        f"{name} is {told}; a replay of {len(log)} observations gives {right.tolist()}"
        for name, told, right in pairs
        if not np.allclose(told, right, rtol=1e-7, atol=1e-9)
    ]
