"""The calls of the API, one method each, shared by both clients."""

import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from bilinq.client.transport import Call, Flow, Limits, Pause, talk
from bilinq.errors import BadInput, Conflict
from bilinq.live.wire import messages as m
from bilinq.live.wire import samples as w

LONGEST_REASON = 2000
"""Characters that the service takes as the reason of a failure."""


def new_key() -> str:
    """Return a key or name that nobody else has."""
    return secrets.token_hex(16)


def as_json(name: str, value: Any) -> Any:
    """Return `value` ready to send; NaN and infinity are refused, for they are no JSON and would silently become null."""
    if value is None or isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.Raw(json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{name} must be JSON: {error}") from None


def as_reward(value: float | None) -> float | None:
    """Return a reward that is finite, or None."""
    if value is not None and not math.isfinite(value):
        raise BadInput(f"reward must be finite; got {value}")
    return value


def as_reason(text: str) -> str:
    """Return the text without what the service refuses: NUL, lone surrogates and more than 2,000 characters."""
    return text.replace("\0", " ").encode(errors="replace").decode()[:LONGEST_REASON]


T = TypeVar("T")
ENDED = ("done", "dead", "cancelled")
"""States that a job does not leave by itself."""
LOOK_FIRST, LOOK_LAST = 0.05, 1.0
"""Seconds between looks at a job that is waited for: at first, and in the end."""


def submit(
    limits: Limits, job_class: str, payload: Any = None, *, key: str | None = None, units: int = 1
) -> Flow[m.JobRef]:
    """Submit one job and return its id and state.

    With the same `key` again, the same job comes back and nothing is submitted twice, not even by another process.
    """
    refs = yield from submit_all(limits, [m.NewJob(job_class, payload, key, units)])
    return refs[0]


def submit_all(limits: Limits, jobs: Iterable[m.NewJob]) -> Flow[list[m.JobRef]]:
    """Submit up to 1,000 jobs, all or none, and return their ids and states in the same order."""
    given = list(jobs)
    if not given:
        return []
    ready = [
        msgspec.structs.replace(job, key=job.key or new_key(), payload=as_json("payload", job.payload)) for job in given
    ]
    answer = yield from _post(limits, "/v1/jobs", m.Submit(ready), m.Submitted)
    return answer.jobs


def job(limits: Limits, id: str) -> Flow[m.Job]:
    """Return a job as it is now, with its history."""
    return _get(limits, f"/v1/jobs/{_part('id', id)}", m.Job)


def jobs(
    limits: Limits, *, state: m.JobState | None = None, job_class: str | None = None, key: str | None = None,
    after: str | None = None, limit: int | None = None,
) -> Flow[m.JobPage]:  # fmt: skip
    """Return some jobs, newest first, or the one submitted under `key`; pass the answer's `after` to get the next ones."""
    query = {"state": state, "class": job_class, "key": key, "after": after, "limit": limit}
    return _get(limits, "/v1/jobs", m.JobPage, query)


def cancel(limits: Limits, id: str) -> Flow[m.Job]:
    """Cancel a job that has not ended and return it; one that is cancelled already stays so."""
    try:
        return (yield from talk(limits, Call("DELETE", f"/v1/jobs/{_part('id', id)}", _reader(m.Job))))
    except Conflict:
        found = yield from job(limits, id)
        if found.state == "cancelled":
            return found
        raise


def wait(limits: Limits, id: str, seconds: float = 3600.0) -> Flow[m.Job]:
    """Return the job when it is done, dead or cancelled, or as it is after some seconds."""
    end = time.monotonic() + seconds
    pause = LOOK_FIRST
    while True:
        found = yield from job(limits, id)
        left = end - time.monotonic()
        if found.state in ENDED or left <= 0:
            return found
        yield Pause(min(pause, left))
        pause = min(1.5 * pause, LOOK_LAST)


def register(limits: Limits, server_class: str, name: str | None = None) -> Flow[m.ServerInfo]:
    """Register a server, or find it by its name, and return it. Without a name it gets one that nobody else has."""
    return _post(limits, "/v1/servers", m.NewServer(server_class, name or new_key()), m.ServerInfo)


def servers(limits: Limits) -> Flow[list[m.ServerInfo]]:
    """Return the servers registered by this key, or, if it has scope read or admin, all servers."""
    return _get(limits, "/v1/servers", list[m.ServerInfo])


def unregister(limits: Limits, id: str) -> Flow[None]:
    """Take a server away; a job that it holds goes back to its queue."""
    return talk(limits, Call("DELETE", f"/v1/servers/{_part('id', id)}", _nothing, removes=True))


def lease(limits: Limits, server: str, wait: float = 10.0) -> Flow[m.Lease | None]:
    """Wait up to `wait` seconds for a job for the server and return its lease, or None."""
    query = {"wait": f"{wait:g}"}
    path = f"/v1/servers/{_part('server', server)}/lease"
    return talk(limits, Call("POST", path, _reader_or_none(m.Lease), query=query, wait=wait))


def extend(limits: Limits, lease: str, fence: int) -> Flow[m.Deadline]:
    """Ask for more time for a lease and return how much there is."""
    return _post(limits, f"/v1/leases/{_part('lease', lease)}/extend", m.Extend(fence), m.Deadline)


def finish(
    limits: Limits, lease: str, fence: int, reward: float | None = None, *, done: bool | None = None, result: Any = None
) -> Flow[m.Finished]:
    """End a lease; without `done` one unit was served, without `reward` nothing is learnt."""
    body = m.Finish(fence, as_reward(reward), done, as_json("result", result))
    return _post(limits, f"/v1/leases/{_part('lease', lease)}/finish", body, m.Finished)


def fail(limits: Limits, lease: str, fence: int, error: str = "") -> Flow[m.Finished]:
    """Give a lease back as failed; the job has one attempt less."""
    return _post(limits, f"/v1/leases/{_part('lease', lease)}/fail", m.Fail(fence, as_reason(error)), m.Finished)


def work(
    limits: Limits, finish: Sequence[m.WorkFinish] = (), lease: Sequence[str] = (), wait: float = 0.0
) -> Flow[m.Worked]:
    """End several leases and wait up to `wait` seconds for jobs for several servers, in one call."""
    ends = [
        msgspec.structs.replace(end, reward=as_reward(end.reward), result=as_json("result", end.result))
        for end in finish
    ]
    body = m.Work(ends, list(lease), wait)
    return talk(limits, Call("POST", "/v1/work", _reader(m.Worked), msgspec.json.encode(body), wait=wait))


def state(limits: Limits) -> Flow[m.State]:
    """Return everything at a glance: queues, servers, what is allocated, what has been learnt."""
    return _get(limits, "/v1/state", m.State)


def dead(limits: Limits, *, after: str | None = None, limit: int | None = None) -> Flow[m.JobPage]:
    """Return some jobs that failed too often, newest first."""
    return _get(limits, "/v1/dead", m.JobPage, {"after": after, "limit": limit})


def retry(limits: Limits, id: str) -> Flow[m.Retried]:
    """Queue a dead job again. Not repeated after a lost answer: by then the job may have died once more."""
    return talk(limits, Call("POST", f"/v1/dead/{_part('id', id)}/retry", _reader(m.Retried), repeatable=False))


def classes(limits: Limits) -> Flow[m.Classes]:
    """Return all classes."""
    return _get(limits, "/v1/classes", m.Classes)


def put_job_class(limits: Limits, job_class: m.JobClassInfo) -> Flow[m.JobClassInfo]:
    """Add or change a class of jobs and return it."""
    return _put(limits, f"/v1/job-classes/{_part('name', job_class.name)}", job_class)


def put_server_class(limits: Limits, server_class: m.ServerClassInfo) -> Flow[m.ServerClassInfo]:
    """Add or change a class of servers and return it."""
    return _put(limits, f"/v1/server-classes/{_part('name', server_class.name)}", server_class)


def settings(limits: Limits) -> Flow[m.SettingsInfo]:
    """Return the settings that can change while the service runs."""
    return _get(limits, "/v1/knobs", m.SettingsInfo)


def preview(limits: Limits, update: m.SettingsUpdate) -> Flow[w.Prediction]:
    """Return what the theory predicts for other settings; nothing changes."""
    return _post(limits, "/v1/knobs/preview", update, w.Prediction)


def history(limits: Limits, *, after: str | None = None, limit: int | None = None) -> Flow[w.History]:
    """Return moments of the last hour, those after the one of id `after`, or the newest `limit` of them."""
    return _get(limits, "/v1/history", w.History, {"after": after, "limit": limit})


def leases(limits: Limits, *, limit: int | None = None) -> Flow[list[w.RecentLease]]:
    """Return recent leases, newest first."""
    answer = yield from _get(limits, "/v1/leases", w.Leases, {"limit": limit})
    return answer.leases


def update_settings(limits: Limits, update: m.SettingsUpdate) -> Flow[m.SettingsInfo]:
    """Change some settings and return all."""
    return talk(limits, Call("PATCH", "/v1/knobs", _reader(m.SettingsInfo), msgspec.json.encode(update)))


def create_key(limits: Limits, key: m.NewKey) -> Flow[m.CreatedKey]:
    """Make a key, which is shown only now. Not repeated after a lost answer: that would make two."""
    call = Call("POST", "/v1/keys", _reader(m.CreatedKey), msgspec.json.encode(key), repeatable=False)
    return talk(limits, call)


def keys(limits: Limits) -> Flow[list[m.KeyInfo]]:
    """Return what is known of all keys."""
    answer = yield from _get(limits, "/v1/keys", m.Keys)
    return answer.keys


def revoke_key(limits: Limits, prefix: str) -> Flow[m.KeyInfo]:
    """Revoke a key and return what is known of it; one that is revoked already stays so."""
    try:
        return (yield from talk(limits, Call("DELETE", f"/v1/keys/{_part('prefix', prefix)}", _reader(m.KeyInfo))))
    except Conflict:
        for info in (yield from keys(limits)):
            if info.prefix == prefix and info.revoked is not None:
                return info
        raise


def rotate_key(limits: Limits, prefix: str, grace: float = 0.0) -> Flow[m.CreatedKey]:
    """Make a key in the place of another, which expires after `grace` seconds. Not repeated after a lost answer."""
    path = f"/v1/keys/{_part('prefix', prefix)}/rotate"
    call = Call("POST", path, _reader(m.CreatedKey), msgspec.json.encode(m.Rotate(grace)), repeatable=False)
    return talk(limits, call)


def audit(limits: Limits, *, limit: int | None = None) -> Flow[list[m.AuditEntry]]:
    """Return admin actions, newest first."""
    answer = yield from _get(limits, "/v1/audit", m.Audit, {"limit": limit})
    return answer.entries


def _part(name: str, value: str) -> str:
    """Return a part of a path, quoted."""
    if not value:
        raise BadInput(f"{name} must not be empty")
    return quote(value, safe="")


def _get(limits: Limits, path: str, answer: type[T], query: dict[str, Any] | None = None) -> Flow[T]:
    given = {key: str(value) for key, value in (query or {}).items() if value is not None}
    return talk(limits, Call("GET", path, _reader(answer), query=given))


def _post(limits: Limits, path: str, body: msgspec.Struct, answer: type[T]) -> Flow[T]:
    return talk(limits, Call("POST", path, _reader(answer), msgspec.json.encode(body)))


def _put(limits: Limits, path: str, body: T) -> Flow[T]:
    return talk(limits, Call("PUT", path, _reader(type(body)), msgspec.json.encode(body)))


def _reader(answer: type[T]) -> Callable[[bytes], T]:
    return lambda body: msgspec.json.decode(body, type=answer)


def _reader_or_none(answer: type[T]) -> Callable[[bytes], T | None]:
    return lambda body: msgspec.json.decode(body, type=answer) if body else None


def _nothing(body: bytes) -> None:
    """Read nothing."""
