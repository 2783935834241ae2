"""The calls of the HTTP API, written once for both clients.

A call is a generator: it yields requests and pauses, is sent the responses, and returns its result. `Client` and
`AsyncClient` run the same generators, one by blocking and the other by awaiting.
"""

import inspect
import json
import math
import secrets
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial, wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, get_args, overload
from urllib.parse import quote

import msgspec

from bilinq.client.transport import ApiRequest, Link, Pause, Steps, exchange
from bilinq.errors import BadInput, Conflict
from bilinq.live.wire import access
from bilinq.live.wire import messages as m
from bilinq.live.wire import samples as w

if TYPE_CHECKING:
    from bilinq.client.clients import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")
SETTINGS_PATH = "/v1/settings"  # where the settings are that can change while the service runs
LONGEST_REASON = 2000  # characters of the reason of a failure that the service accepts
ENDED = ("done", "dead", "cancelled", "expired")  # states in which a job stays
FIRST_POLL, LAST_POLL = 0.05, 1.0  # seconds between polls for a job that is waited for: at first, and in the end


class ApiCall(Generic[P, T]):
    """A method of both clients: in `Client` it returns the result of the call, in `AsyncClient` a coroutine of it."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]], old_name: str | None = None) -> None:
        @wraps(steps)
        def method(client: "ApiCalls", /, *args: P.args, **kwargs: P.kwargs) -> Any:
            if old_name is not None:
                text = f"{old_name} is deprecated and will be removed in the next version; use {steps.__name__}"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
            return client._perform(partial(steps, client, *args, **kwargs))

        signature = inspect.signature(steps)
        result = get_args(signature.return_annotation)[-1]
        method.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
        self._steps, self._method = steps, method

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: "ApiCalls | None", owner: type) -> Callable[..., Any]:
        return self._method if client is None else MethodType(self._method, client)

    def deprecated(self, old_name: str) -> "ApiCall[P, T]":
        """Return the same call under an old name, which warns."""
        return ApiCall(self._steps, old_name)


class ApiCalls(ABC):
    """The methods that `Client` and `AsyncClient` share."""

    link: Link

    @abstractmethod
    def _perform(self, start: Callable[[], Steps[T]]) -> Any:
        """Run the steps of a call and return its result, or a coroutine of it."""

    def within(self, timeout: float) -> Self:
        """Return a client on the same connections whose calls take at most `timeout` seconds."""
        other = copy(self)
        other.link = replace(self.link, timeout=timeout)
        return other

    @ApiCall
    def submit(
        self, job_class: str, payload: Any = None, *, key: str | None = None, units: int = 1,
        features: Sequence[float] | None = None, servers: Sequence[str] | None = None, weight: float | None = None,
        deadline: float | None = None, not_before: float | None = None, max_attempts: int | None = None,
        tags: Sequence[str] = (),
    ) -> Steps[m.JobRef]:  # fmt: skip
        """Submit one job and return its id and state.

        A second call with the same `key`, also from another process, returns the same job and submits nothing. `features`
        describe this job, `servers` are the server classes that may serve it, `weight` is its priority. `not_before` and
        `deadline` are seconds from now: when it may start, and when it leaves the queue as `expired`.
        """
        job = m.NewJob(
            job_class=job_class, payload=payload, key=key, units=units,
            features=None if features is None else list(features), servers=None if servers is None else list(servers),
            weight=weight, deadline=deadline, not_before=not_before, max_attempts=max_attempts, tags=list(tags),
        )  # fmt: skip
        return (yield from self._submit([job]))[0]

    @ApiCall
    def submit_all(self, jobs: Iterable[m.NewJob]) -> Steps[list[m.JobRef]]:
        """Submit up to 1,000 jobs, all or none, and return their ids and states in the same order."""
        return self._submit(list(jobs))

    @ApiCall
    def job(self, id: str) -> Steps[m.Job]:
        """Return a job with its current state and its history."""
        return self._job(id)

    @ApiCall
    def jobs(
        self, *, state: m.JobState | None = None, job_class: str | None = None, tag: str | None = None,
        key: str | None = None, after: str | None = None, limit: int | None = None,
    ) -> Steps[m.JobPage]:  # fmt: skip
        """Return a page of jobs, newest first, or the job with that `key`; pass the `after` of a page for the next one."""
        query = {"state": state, "class": job_class, "tag": tag, "key": key, "after": after, "limit": limit}
        return self._get("/v1/jobs", m.JobPage, query)

    @ApiCall
    def decision(self, id: str) -> Steps[m.DecisionInfo]:
        """Return why a job was given to its server; for a job that waits, what a decision would rest on now."""
        return self._get(f"/v1/jobs/{_part('id', id)}/decision", m.DecisionInfo)

    @ApiCall
    def reward(self, id: str, reward: float, *, key: str | None = None) -> Steps[m.Rewarded]:
        """Reward a job that was finished, at any time later; another reward corrects the first.

        The same reward again changes nothing, and so does one with a `key` that was used before.
        """
        return self._post(f"/v1/jobs/{_part('id', id)}/reward", m.NewReward(reward, key), m.Rewarded)

    @ApiCall
    def cancel(self, id: str) -> Steps[m.Job]:
        """Cancel a job that has not ended and return it; a job that is already cancelled is no error."""
        try:
            return (yield from self._delete(f"/v1/jobs/{_part('id', id)}", m.Job))
        except Conflict:
            found = yield from self._job(id)
            if found.state == "cancelled":
                return found
            raise

    @ApiCall
    def cancel_jobs(
        self, *, state: Literal["queued", "leased"] | None = None, job_class: str | None = None, tag: str | None = None,
        after: str | None = None, limit: int | None = None,
    ) -> Steps[m.Changed]:  # fmt: skip
        """Cancel up to `limit` (1,000) jobs that match and have not ended, newest first; pass `after` for the next ones."""
        query = {"state": state, "class": job_class, "tag": tag, "after": after, "limit": limit}
        return self._change("/v1/jobs/cancel", query)

    @ApiCall
    def retry_jobs(
        self, *, state: Literal["dead"] | None = "dead", job_class: str | None = None, tag: str | None = None,
        after: str | None = None, limit: int | None = None,
    ) -> Steps[m.Changed]:  # fmt: skip
        """Queue up to `limit` (1,000) dead jobs again that match, newest first; pass `after` for the next ones."""
        query = {"state": state, "class": job_class, "tag": tag, "after": after, "limit": limit}
        return self._change("/v1/jobs/retry", query, repeatable=False)

    @ApiCall
    def wait(self, id: str, seconds: float = 3600.0) -> Steps[m.Job]:
        """Wait until the job is done, dead or cancelled, for at most `seconds`, and return it."""
        end = time.monotonic() + seconds
        pause = FIRST_POLL
        while True:
            found = yield from self._job(id)
            left = end - time.monotonic()
            if found.state in ENDED or left <= 0:
                return found
            yield Pause(min(pause, left))
            pause = min(1.5 * pause, LAST_POLL)

    @ApiCall
    def register(self, server_class: str, name: str | None = None) -> Steps[m.ServerInfo]:
        """Register a server, or find it by its name, and return it; without a name it gets a unique one."""
        return self._post("/v1/servers", m.NewServer(server_class, name or new_key()), m.ServerInfo)

    @ApiCall
    def servers(self) -> Steps[list[m.ServerInfo]]:
        """Return the servers registered by this key, or, if it has scope read, all servers of its namespaces."""
        return self._get("/v1/servers", list[m.ServerInfo])

    @ApiCall
    def drain(self, server: str) -> Steps[m.ServerInfo]:
        """Let a server finish its job and give it no other, until it is released; needs scope admin."""
        return self._hold(server, "drain")

    @ApiCall
    def quarantine(self, server: str) -> Steps[m.ServerInfo]:
        """Give a server that is suspect no job, until it is released; needs scope admin."""
        return self._hold(server, "quarantine")

    @ApiCall
    def release(self, server: str) -> Steps[m.ServerInfo]:
        """Give a server jobs again that was held, or paused after failures; needs scope admin."""
        return self._hold(server, "release")

    @ApiCall
    def unregister(self, id: str) -> Steps[None]:
        """Remove a server; if it has a job, the job returns to its queue."""
        return self._send(ApiRequest("DELETE", f"/v1/servers/{_part('id', id)}", lambda body: None, removes=True))

    @ApiCall
    def lease(self, server: str, wait: float = 10.0) -> Steps[m.Lease | None]:
        """Wait up to `wait` seconds for a job for the server and return its lease, or None."""
        query = {"wait": f"{wait:g}"}
        path = f"/v1/servers/{_part('server', server)}/lease"
        return self._send(ApiRequest("POST", path, _lease_or_none, query=query, wait=wait))

    @ApiCall
    def extend(self, lease: str, fence: int) -> Steps[m.Deadline]:
        """Extend a lease and return its new deadline."""
        return self._post(f"/v1/leases/{_part('lease', lease)}/extend", m.Extend(fence), m.Deadline)

    @ApiCall
    def finish(
        self, lease: str, fence: int, reward: float | None = None, *, done: bool | None = None, result: Any = None
    ) -> Steps[m.Finished]:
        """Finish a lease: without `done` one unit counts as served, without `reward` nothing is learnt."""
        body = m.Finish(fence, as_reward(reward), done, as_json("result", result))
        return self._post(f"/v1/leases/{_part('lease', lease)}/finish", body, m.Finished)

    @ApiCall
    def fail(self, lease: str, fence: int, error: str = "") -> Steps[m.Finished]:
        """Fail a lease: the job returns to its queue, or is dead after too many failures."""
        return self._post(f"/v1/leases/{_part('lease', lease)}/fail", m.Fail(fence, as_reason(error)), m.Finished)

    @ApiCall
    def work(
        self, finish: Sequence[m.WorkFinish] = (), lease: Sequence[str] = (), wait: float = 0.0
    ) -> Steps[m.Worked]:
        """Finish several leases and wait up to `wait` seconds for jobs for several servers, in one request."""
        ends = [
            msgspec.structs.replace(end, reward=as_reward(end.reward), result=as_json("result", end.result))
            for end in finish
        ]
        return self._post("/v1/work", m.Work(ends, list(lease), wait), m.Worked, wait=wait)

    @ApiCall
    def state(self) -> Steps[w.State]:
        """Return the state of the scheduler: queues, servers, allocation and learnt rewards."""
        return self._get("/v1/state", w.State)

    @ApiCall
    def dead(self, *, after: str | None = None, limit: int | None = None) -> Steps[m.JobPage]:
        """Return a page of dead jobs, which failed too often, newest first."""
        return self._get("/v1/dead", m.JobPage, {"after": after, "limit": limit})

    @ApiCall
    def retry(self, id: str) -> Steps[m.Retried]:
        """Queue a dead job again. Not retried after a lost response: the job may be dead again by then."""
        return self._send(ApiRequest("POST", f"/v1/dead/{_part('id', id)}/retry", _reader(m.Retried), repeatable=False))

    @ApiCall
    def classes(self) -> Steps[m.Classes]:
        """Return all job classes and server classes."""
        return self._get("/v1/classes", m.Classes)

    @ApiCall
    def put_job_class(self, job_class: m.JobClassInfo) -> Steps[m.JobClassInfo]:
        """Add or change a job class and return it."""
        return self._put(f"/v1/job-classes/{_part('name', job_class.name)}", job_class)

    @ApiCall
    def put_server_class(self, server_class: m.ServerClassInfo) -> Steps[m.ServerClassInfo]:
        """Add or change a server class and return it."""
        return self._put(f"/v1/server-classes/{_part('name', server_class.name)}", server_class)

    @ApiCall
    def namespaces(self) -> Steps[list[access.NamespaceState]]:
        """Return the namespaces that the key sees: weights, limits, and how many jobs wait and run."""
        return (yield from self._get("/v1/namespaces", access.Namespaces)).namespaces

    @ApiCall
    def put_namespace(self, namespace: access.NamespaceInfo) -> Steps[access.NamespaceInfo]:
        """Change weight and limits of a namespace and return them; the key needs scope fleet."""
        values = access.NamespaceValues(
            **{name: getattr(namespace, name) for name in access.NamespaceValues.__struct_fields__}
        )
        path = f"/v1/namespaces/{_part('name', namespace.name)}"
        return self._send(ApiRequest("PUT", path, _reader(access.NamespaceInfo), msgspec.json.encode(values)))

    @ApiCall
    def settings(self) -> Steps[m.SettingsInfo]:
        """Return the settings that can change while the service runs."""
        return self._get(SETTINGS_PATH, m.SettingsInfo)

    @ApiCall
    def preview(self, update: m.SettingsUpdate) -> Steps[w.Prediction]:
        """Return what the theory predicts for other settings; nothing changes."""
        return self._post(f"{SETTINGS_PATH}/preview", update, w.Prediction)

    @ApiCall
    def history(self, *, after: str | None = None, limit: int | None = None) -> Steps[w.History]:
        """Return samples of the last hour: those after the sample with id `after`, or the newest `limit`."""
        return self._get("/v1/history", w.History, {"after": after, "limit": limit})

    @ApiCall
    def leases(self, *, limit: int | None = None) -> Steps[list[w.RecentLease]]:
        """Return recent leases, newest first."""
        answer = yield from self._get("/v1/leases", w.Leases, {"limit": limit})
        return answer.leases

    @ApiCall
    def update_settings(self, update: m.SettingsUpdate) -> Steps[m.SettingsInfo]:
        """Change some settings and return all of them."""
        return self._send(ApiRequest("PATCH", SETTINGS_PATH, _reader(m.SettingsInfo), msgspec.json.encode(update)))

    @ApiCall
    def settings_history(self, *, limit: int | None = None) -> Steps[list[m.SettingsChange]]:
        """Return who changed which settings and when, newest first; the key needs scope fleet."""
        return (yield from self._get(f"{SETTINGS_PATH}/history", m.SettingsChanges, {"limit": limit})).changes

    @ApiCall
    def undo_settings(self, change: int | None = None) -> Steps[m.SettingsInfo]:
        """Undo the newest change that was not undone, only if it is `change` where that is given; return all settings.

        Not retried after a lost response unless `change` is given: that could undo two changes.
        """
        query, repeatable = _given({"change": change}), change is not None
        path, answer = f"{SETTINGS_PATH}/undo", _reader(m.SettingsInfo)
        return self._send(ApiRequest("POST", path, answer, query=query, repeatable=repeatable))

    @ApiCall
    def create_key(self, key: access.NewKey) -> Steps[access.CreatedKey]:
        """Create a key, which is never shown again. Not retried after a lost response: that would create two."""
        return self._post("/v1/keys", key, access.CreatedKey, repeatable=False)

    @ApiCall
    def keys(self) -> Steps[list[access.KeyInfo]]:
        """Return all keys: prefix, name, scopes and validity, never the key itself."""
        return self._keys()

    @ApiCall
    def revoke_key(self, prefix: str) -> Steps[access.KeyInfo]:
        """Revoke a key and return its description; a key that is already revoked is no error."""
        try:
            return (yield from self._delete(f"/v1/keys/{_part('prefix', prefix)}", access.KeyInfo))
        except Conflict:
            for info in (yield from self._keys()):
                if info.prefix == prefix and info.revoked is not None:
                    return info
            raise

    @ApiCall
    def rotate_key(self, prefix: str, grace: float = 0.0) -> Steps[access.CreatedKey]:
        """Create a key that replaces another, which expires after `grace` seconds. Not retried after a lost response."""
        path = f"/v1/keys/{_part('prefix', prefix)}/rotate"
        return self._post(path, access.Rotate(grace), access.CreatedKey, repeatable=False)

    @ApiCall
    def audit(self, *, limit: int | None = None) -> Steps[list[access.AuditEntry]]:
        """Return actions of administrators, newest first."""
        answer = yield from self._get("/v1/audit", access.Audit, {"limit": limit})
        return answer.entries

    knobs = settings.deprecated("knobs")
    turn = update_settings.deprecated("turn")

    def _submit(self, jobs: list[m.NewJob]) -> Steps[list[m.JobRef]]:
        if not jobs:
            return []
        ready = [
            msgspec.structs.replace(job, key=job.key or new_key(), payload=as_json("payload", job.payload))
            for job in jobs
        ]
        return (yield from self._post("/v1/jobs", m.Submit(ready), m.Submitted)).jobs

    def _job(self, id: str) -> Steps[m.Job]:
        return self._get(f"/v1/jobs/{_part('id', id)}", m.Job)

    def _keys(self) -> Steps[list[access.KeyInfo]]:
        return (yield from self._get("/v1/keys", access.Keys)).keys

    def _get(self, path: str, answer: type[T], query: dict[str, Any] | None = None) -> Steps[T]:
        return self._send(ApiRequest("GET", path, _reader(answer), query=_given(query or {})))

    def _change(self, path: str, query: dict[str, Any], *, repeatable: bool = True) -> Steps[m.Changed]:
        return self._send(ApiRequest("POST", path, _reader(m.Changed), query=_given(query), repeatable=repeatable))

    def _post(
        self, path: str, body: msgspec.Struct, answer: type[T], *, wait: float = 0.0, repeatable: bool = True
    ) -> Steps[T]:
        content = msgspec.json.encode(body)
        return self._send(ApiRequest("POST", path, _reader(answer), content, wait=wait, repeatable=repeatable))

    def _hold(self, server: str, how: str) -> Steps[m.ServerInfo]:
        return self._send(ApiRequest("POST", f"/v1/servers/{_part('server', server)}/{how}", _reader(m.ServerInfo)))

    def _delete(self, path: str, answer: type[T]) -> Steps[T]:
        return self._send(ApiRequest("DELETE", path, _reader(answer)))

    def _put(self, path: str, body: T) -> Steps[T]:
        return self._send(ApiRequest("PUT", path, _reader(type(body)), msgspec.json.encode(body)))

    def _send(self, request: ApiRequest[T]) -> Steps[T]:
        return exchange(self.link, request)


def new_key() -> str:
    """Return a unique key or name."""
    return secrets.token_hex(16)


def as_json(name: str, value: Any) -> Any:
    """Return `value` ready to send; NaN and infinity, which are no JSON, raise instead of becoming null."""
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


def _given(query: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in query.items() if value is not None}


def _part(name: str, value: str) -> str:
    if not value:
        raise BadInput(f"{name} must not be empty")
    return quote(value, safe="")


def _reader(answer: type[T]) -> Callable[[bytes], T]:
    return msgspec.json.Decoder(answer).decode


def _lease_or_none(body: bytes) -> m.Lease | None:
    return msgspec.json.decode(body, type=m.Lease) if body else None
