"""Checks that what was acknowledged stays in effect: holds, classes, settings, late rewards, and deadlines of leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from crash_audit import Found

from bilinq.live.store import Transaction
from bilinq.live.store.class_tables import all_servers, current_classes, stored_settings
from bilinq.live.store.job_tables import LeaseRow
from bilinq.live.wire.messages import Lease
from simulator.history import Call, History

EXACT = 1e-3  # seconds to which times of the two clocks agree
OTHER_WORK = "the server asked for other work"  # the reason for which a lease of a worker that forgot it has failed
HOLDS = {"drain": "draining", "quarantine": "quarantined", "release": None}
"""What a server is after each call of an operator."""
Clocks = Callable[[float], list[float]]
"""Returns the times of the world at which the clock of a machine showed a wall time."""


@dataclass
class Stored:
    """What the database has at the end: which servers are held, the features of server classes, and settings."""

    held: dict[str, str | None]
    features: dict[str, list[float]]
    settings: dict[str, Any]

    def of(self, kind: str) -> Mapping[str, Any]:
        """Return the values of one kind by name."""
        kinds: dict[str, Mapping[str, Any]] = {"server": self.held, "class": self.features, "setting": self.settings}
        return kinds[kind]


def stored(tx: Transaction) -> Stored:
    """Return all of it."""
    features = {row.name: list(row.features) for row in current_classes(tx) if row.kind == "server"}
    return Stored({f"s{row.id}": row.held for row in all_servers(tx)}, features, stored_settings(tx))


class Write(NamedTuple):
    """A change of one thing to a value: between `start` and `last`, and known to be made from `end` on, if it ever was."""

    value: Any
    start: float = -inf
    last: float = -inf
    end: float | None = -inf

    @classmethod
    def of(cls, call: Call, value: Any) -> Write:
        """Return what a call may have changed."""
        assert call.last is not None
        return cls(value, call.start, max(call.last, call.end or 0.0), call.end if call.done else None)


def seen(writes: Sequence[Write], start: float = inf, end: float = inf) -> list[Any]:
    """Return the values that somebody may find who looks between two times.

    A value is not found any more once a write is known to be made that began after everything that could write this value.
    """
    found = []
    for one in writes:
        over = any(later.start > one.last and later.end is not None and later.end < start for later in writes)
        if one.start < end and not over and one.value not in found:
            found.append(one.value)
    return found


def lost_changes(history: History, found: Stored, first: Stored) -> Iterator[str]:
    """Each server, class and setting is as the last change has made it; `first` is how all was before."""
    changes: dict[tuple[str, str], list[Write]] = defaultdict(list)
    for call in history.calls:
        if call.last is None:
            continue
        if call.what in HOLDS:
            changes["server", call.about[0]].append(Write.of(call, HOLDS[call.what]))
        elif call.what == "put_server_class":
            changes["class", call.about[0].name].append(Write.of(call, call.about[0].features))
        elif call.what == "update_settings":
            changes["setting", "target_wait"].append(Write.of(call, call.about[0].target_wait))
    for (kind, name), writes in changes.items():
        before, here = (one.of(kind).get(name) for one in (first, found))
        here = before if kind == "setting" and name not in found.settings else here
        possible = seen([Write(before), *writes])
        if here not in possible:
            yield f"{kind} {name} is {here} at the end and must be one of {possible}"
    yield from _shown_servers(history, changes)


def _shown_servers(history: History, changes: dict[tuple[str, str], list[Write]]) -> Iterator[str]:
    """Who asks for the servers sees which are held."""
    for call in history.calls:
        for one in (call.answer or ()) if call.what == "servers" else ():
            held = None if one.held == "paused" else one.held
            possible = seen([Write(None), *changes.get(("server", one.id), [])], call.start, call.end or inf)
            if held not in possible:
                yield f"{one.id} was shown as {held} at {call.start:.3f} s and must be one of {possible}"


def served_while_held(history: History, found: Found, clocks: Clocks) -> Iterator[str]:
    """A server gets no job after the answer that it is held, until somebody asks to release it."""
    windows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for call in history.calls:
        if call.what in HOLDS and HOLDS[call.what] and call.done:
            free = [one for one in history.calls if one.what == "release" and one.about == call.about]
            released = min((one.start for one in free if (one.last or -inf) > call.start), default=inf)
            windows[call.about[0]].append((call.end or 0.0, released))
    for row in found.leases:
        for begin, end in windows[f"s{row.server}"]:
            if all(begin < at < end for at in clocks(row.granted)):
                yield f"s{row.server} was held from {begin:.3f} s and got l{row.id}"


def lost_rewards(history: History, found: Found) -> Iterator[str]:
    """A late reward that was acknowledged counts, and who reads the job sees it."""
    writes: dict[str, list[Write]] = defaultdict(list)
    for call in history.calls:
        if call.what == "reward" and call.last is not None:
            writes[call.about[0]].append(Write.of(call, call.about[1]))
    leases = {f"j{row.job}": row for row in found.leases if row.state == "finished"}  # the last one of each job
    rewards = {f"j{row.id}": row.reward for row in found.jobs}
    for job, some in writes.items():
        possible, here = seen(some), {rewards.get(job), leases[job].reward if job in leases else None}
        if any(one.end is not None for one in some) and not here <= set(possible):
            yield f"{job} was rewarded with one of {possible}; it and its lease have {here}"
    for call in history.calls:
        known = writes[call.about[0]] if call.what == "job" and call.done else []
        before = [one for one in known if one.end is not None and one.end < call.start]
        if before and call.answer.reward not in seen(known, call.start, call.end or inf):
            yield f"{call.about[0]} was rewarded with {before[-1].value} and has {call.answer.reward} at {call.start:.3f} s"


def early_ends(history: History, found: Found, times: Clocks) -> Iterator[str]:
    """A lease lasts as long as its worker was told, unless its worker or a client has ended it; then comes the next one."""
    until, extended = _deadlines(history, times)
    failed, cancelled = _ends_asked(history)
    of_job: dict[int, list[LeaseRow]] = defaultdict(list)
    for row in found.leases:
        name, ended = f"l{row.id}", [] if row.ended is None else times(row.ended)
        of_job[row.job].append(row)
        if row.state == "expired" and ended and max(ended) < until.get(name, -inf) - EXACT:
            yield f"{name} of j{row.job} expired at {max(ended):.3f} s and was to last until {until[name]:.3f} s"
        asked = name in failed or row.detail == OTHER_WORK if row.state == "failed" else f"j{row.job}" in cancelled
        if name in until and row.state in ("failed", "revoked") and not asked:
            yield f"{name} of j{row.job} is {row.state} ({row.detail}) and nobody has asked for that"
        at, seconds = extended.get(name, (-inf, 0.0))
        if max(times(row.deadline - seconds), default=inf) < at - EXACT:
            yield f"{name} was extended at {at:.3f} s and its deadline in the database is an earlier one"
    for rows in of_job.values():
        for one, other in pairwise(rows):
            ended = [] if one.ended is None else times(one.ended)
            if not ended or max(times(other.granted), default=inf) < min(ended) - EXACT:
                yield f"l{other.id} of j{one.job} was granted while l{one.id} was valid"


def _deadlines(history: History, times: Clocks) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Return until when each lease lasts by what its worker was told, and when it was last extended by how much."""
    until: dict[str, float] = {}
    extended: dict[str, tuple[float, float]] = {}
    for call in history.calls:
        for name, one in _told(call):
            at = min((at for at in times(one.deadline - one.seconds) if at >= call.start - EXACT), default=call.start)
            until[name] = max(until.get(name, -inf), at + one.seconds)
            if call.what == "extend":
                extended[name] = max(extended.get(name, (-inf, 0.0)), (at, one.seconds))
    return until, extended


def _told(call: Call) -> Iterator[tuple[str, Any]]:
    """Yield each lease that a call was given or has extended, with its time left."""
    if not call.done or call.answer is None:
        return
    if call.what == "extend":
        yield call.about[0], call.answer
    elif call.what in ("lease", "work"):
        yield from (
            (one.lease, one) for one in ([call.answer] if isinstance(call.answer, Lease) else call.answer.leases)
        )


def _ends_asked(history: History) -> tuple[set[str], set[str]]:
    """Return the leases that a worker wanted to fail, and the jobs that a client wanted to cancel."""
    failed = {call.about[0] for call in history.calls if call.what == "fail"}
    ends = [end for call in history.calls if call.what == "work" for end in call.about[0]]
    cancelled = {call.about[0] for call in history.calls if call.what == "cancel"}
    return failed | {end.lease for end in ends if end.error is not None}, cancelled
