"""The checker: what actors were told, against each other and against the rows of the database. Violations are sentences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crash_audit import Found, final, lives

from bilinq.live.service.outbox import from_text
from bilinq.live.store.job_tables import JobRow, ObservationRow
from bilinq.live.wire.messages import Lease, NewJob
from simulator.acknowledged import Clocks, Stored, early_ends, lost_changes, lost_rewards, served_while_held
from simulator.actors import POLL
from simulator.history import Call, History

SETTLED = 30.0  # seconds after the last fault in which calls may still fail or wait
QUICK = 2.0  # seconds that a call may take after that, beside the wait for a job
ALWAYS = {"Unavailable", "Starting", "Busy"}  # errors that every call may raise
ALLOWED = {
    "finish": {"Stale"}, "fail": {"Stale"}, "extend": {"Stale"}, "cancel": {"Conflict"}, "reward": {"Conflict"},
}  # fmt: skip
Rewards = dict[str, set[float | None]]


@dataclass
class Evidence:
    """What is left when a history has ended, beside what actors were told.

    `found` and `stored` are what is in the database, `first` what was there before anybody changed it, and `clocks` those of
    the machines. `rewards` are all that somebody has tried to give, by lease.
    """

    found: Found
    stored: Stored
    first: Stored
    clocks: Clocks
    rewards: Rewards
    max_attempts: int


def violations(history: History, left: Evidence) -> list[str]:
    """Return everything that must not be, in a history that has ended and what is left."""
    found, rewards = left.found, left.rewards
    parts = (
        history.world.errors, _errors(history), _jobs(history, found), _ends(history, found, rewards), _at_once(history),
        early_ends(history, found, left.clocks), _own_writes(history), _waits(history),
        lives(found, left.max_attempts, drained=True), _rewards(found, rewards), lost_rewards(history, found),
        lost_changes(history, left.stored, left.first), served_while_held(history, found, left.clocks),
    )  # fmt: skip
    return [violation for part in parts for violation in part]


def _errors(history: History) -> Iterator[str]:
    """No call is answered by an error that it does not deserve."""
    for call in history.calls:
        if call.error is not None and call.error not in ALWAYS | ALLOWED.get(call.what, set()):
            yield f"{call.actor} called {call.what} {call.about[:2]} and got {call.error}: {call.detail}"


def _jobs(history: History, found: Found) -> Iterator[str]:
    """Every acknowledged job is there once, as it was submitted, and none that nobody asked for."""
    rows: dict[str, list[JobRow]] = defaultdict(list)
    for row in found.jobs:
        rows[from_text(row.payload)].append(row)
    asked: dict[str, NewJob] = {}
    for call in _of(history, "submit"):
        asked |= {job.payload: job for job in call.about}
        for job, id in zip(call.about, call.answer or (), strict=False):
            if id not in [f"j{row.id}" for row in rows[job.payload]]:
                yield f"{job.payload} was acknowledged as {id} and is not there"
    for payload, some in rows.items():
        if len(some) > 1:
            yield f"{payload} was submitted once, or under one key, and is there {len(some)} times"
        for row in some:
            job = asked.get(payload)
            if job is None or (row.job_class, row.units, row.key) != (job.job_class, job.units, job.key):
                yield f"j{row.id} is {payload}, not what was submitted"


def _ends(history: History, found: Found, rewards: Rewards) -> Iterator[str]:
    """Every acknowledged end is that of its lease, at most one is accepted, and no refused one counts."""
    rows = {f"l{row.id}": row for row in found.leases}
    accepted: dict[str, list[str]] = defaultdict(list)
    for lease, kind, answer in _acknowledged_ends(history):
        row, state = rows.get(lease), "finished" if kind == "finish" else "failed"
        if answer.refused is not None:
            if row is not None and row.state == "finished":
                yield f"the end of {lease} was refused ({answer.refused}) and yet it is finished"
            continue
        if not answer.repeated:
            accepted[lease].append(state)
        if row is None or (row.state, f"j{row.job}") != (state, answer.job):
            yield f"{lease} of {answer.job} was acknowledged as {state} and is {row and row.state}"
        elif state == "finished" and row.reward not in rewards[lease]:
            yield f"{lease} was finished with one of {rewards[lease]} and has {row.reward}"
    yield from (f"{lease} was ended {len(some)} times: {some}" for lease, some in accepted.items() if len(some) > 1)


class _Outcome:
    """An end of a lease as its worker was told."""

    def __init__(self, job: str | None, repeated: bool, refused: str | None) -> None:
        self.job, self.repeated, self.refused = job, repeated, refused


def _acknowledged_ends(history: History) -> Iterator[tuple[str, str, _Outcome]]:
    """Yield lease, "finish" or "fail", and outcome of each end that was answered."""
    for call in _of(history, "finish", "fail"):
        if call.error == "Stale":
            yield call.about[0], call.what, _Outcome(None, False, call.detail)
        elif call.done:
            yield call.about[0], call.what, _Outcome(call.answer.job, call.answer.repeated, None)
    for call in _of(history, "work"):
        for end, outcome in zip(call.about[0], call.answer.finished if call.done else (), strict=False):
            kind = "finish" if end.error is None else "fail"
            yield end.lease, kind, _Outcome(outcome.job, outcome.repeated, outcome.refused)


def _at_once(history: History) -> Iterator[str]:
    """No lease is given twice, and none is accepted once a later lease of its job is known to a worker."""
    job_of: dict[str, str] = {}
    known: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for call in _of(history, "lease", "work"):
        for lease in _leases(call):
            if lease.lease in job_of:
                yield f"{lease.lease} of {lease.job.id} was given twice, first for {job_of[lease.lease]}"
            assert call.end is not None
            job_of[lease.lease] = lease.job.id
            known[lease.job.id].append((call.end, lease.fence))
    for what, name, start in _accepted(history):
        for at, later in known[job_of[name]]:
            if later > int(name[1:]) and at < start:
                yield f"{what} of {name} at {start:.3f} s was accepted while l{later} of {job_of[name]} was valid"


def _accepted(history: History) -> Iterator[tuple[str, str, float]]:
    """Yield what was accepted for which lease, and when it was asked for."""
    for call in _of(history, "finish", "fail", "extend"):
        if call.done and not getattr(call.answer, "repeated", False):
            yield call.what, call.about[0], call.start
    for call in _of(history, "work"):
        for outcome in call.answer.finished if call.done else ():
            if outcome.refused is None and not outcome.repeated:
                yield "work", outcome.lease, call.start


def _own_writes(history: History) -> Iterator[str]:
    """Who reads a job after an acknowledged change sees the change."""
    ended: dict[str, tuple[float, str]] = {}
    for call in history.calls:
        if call.what == "job" and call.error == "NotFound":
            yield f"{call.about[0]} was acknowledged and is not found"
        if call.done and call.what in ("cancel", "finish"):
            job, state = (call.about[0], "cancelled") if call.what == "cancel" else (call.answer.job, call.answer.state)
            if state in ("cancelled", "done"):
                assert call.end is not None
                ended[job] = (call.end, state)
    for call in _of(history, "job"):
        at, state = ended.get(call.about[0], (call.start, ""))
        if call.done and at < call.start and call.answer.state != state:
            yield f"{call.about[0]} was {state} at {at:.3f} s and {call.answer.state} at {call.start:.3f} s"


def _waits(history: History) -> Iterator[str]:
    """Once all has been calm for a while, each call is answered soon."""
    for call in history.calls:
        if call.start < history.calm + SETTLED:
            continue
        waited = (history.world.now if call.end is None else call.end) - call.start
        if waited > QUICK + (POLL if call.what in ("lease", "work") else 0.0) or call.error in ALWAYS:
            yield f"{call.actor} called {call.what} without any fault and waited {waited:.1f} s: {call.error}"


def _rewards(found: Found, rewards: Rewards) -> Iterator[str]:
    """Each finished lease with a reward has exactly one row in the log, with its value, and the log nothing else."""
    log: dict[int, list[ObservationRow]] = defaultdict(list)
    for row in found.rewards:
        log[row.lease].append(row)
    for lease in found.leases:
        values = final([row for row in log.pop(lease.id, ()) if row.value is not None])
        due = lease.state == "finished" and lease.reward is not None
        if values != ([lease.reward] if due else []):
            yield f"l{lease.id} is {lease.state} with reward {lease.reward}; the log has {values}"
        if due and lease.reward not in rewards.get(f"l{lease.id}", ()):
            yield f"l{lease.id} has reward {lease.reward} which nobody gave"
    yield from (f"the log has a reward for l{id}, which does not exist" for id in log)


def _of(history: History, *whats: str) -> Iterator[Call]:
    return (call for call in history.calls if call.what in whats)


def _leases(call: Call) -> list[Any]:
    """Return the leases that a call was given."""
    if not call.done or call.answer is None:
        return []
    return [call.answer] if isinstance(call.answer, Lease) else list(call.answer.leases)
