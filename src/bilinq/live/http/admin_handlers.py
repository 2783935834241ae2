"""Handlers and routes of those who watch and run the service: state, history, events, settings, classes, keys, health."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TypeAlias

import msgspec
from msgspec import structs

from bilinq import jit
from bilinq.errors import Conflict, NoKey, Unavailable
from bilinq.live.http.endpoint import Stream, key_of
from bilinq.live.http.routing import ANY, EVENTS, OPEN, Request, Route, route
from bilinq.live.keys import SCOPES, shown_reach
from bilinq.live.metrics.page import CONTENT_TYPE
from bilinq.live.service.ended import EndedFilter
from bilinq.live.wire import access
from bilinq.live.wire import messages as m
from bilinq.live.wire.queries import (
    SAMPLE,
    AuditQuery,
    BadField,
    EventsQuery,
    HistoryQuery,
    LeasesQuery,
    Named,
    NoQuery,
    UndoQuery,
    convert,
    given,
)
from bilinq.live.wire.samples import History, Leases, Prediction, State, StreamEvent

READ, ADMIN, FLEET = ("read",), ("admin",), ("fleet",)
METRICS = "/metrics"

Parts: TypeAlias = AsyncGenerator[bytes, None]
View: TypeAlias = frozenset[str] | None  # the namespaces that a caller sees; None: all


async def put_job_class(request: Request[m.JobClassValues, NoQuery]) -> m.JobClassInfo:
    """Add or change a job class."""
    name, new = _class_name(request.path["name"], request.body.name), request.body
    wanted = m.JobClassInfo(**structs.asdict(new) | {"name": name})
    await request.service.put_class(request.who, wanted)
    return wanted


async def put_server_class(request: Request[m.ServerClassValues, NoQuery]) -> m.ServerClassInfo:
    """Add or change a server class."""
    wanted = m.ServerClassInfo(_class_name(request.path["name"], request.body.name), request.body.features)
    await request.service.put_class(request.who, wanted)
    return wanted


async def put_namespace(request: Request[access.NamespaceValues, NoQuery]) -> access.NamespaceInfo:
    """Change the weight and the limits of a namespace."""
    wanted: access.NamespaceInfo = convert(
        {"name": request.path["name"], **structs.asdict(request.body)}, access.NamespaceInfo
    )
    await request.service.put_namespace(request.who, wanted)
    return wanted


def _class_name(path: str, body: str | None) -> str:
    """Return the name in the path, after checking it and comparing it with the one in the body."""
    name: str = convert({"name": path}, Named).name
    if body is not None and body != name:
        raise Conflict(f"name must be that of the path, {name!r}; got {body!r}")
    return name


async def get_me(request: Request[None, NoQuery]) -> access.Me:
    """Return the scopes of the key in use."""
    who = request.who
    scopes = [scope for scope in SCOPES if scope in who.scopes]
    return access.Me(who.prefix, who.namespace, scopes, shown_reach(who.reach), request.service.view(who) is None)


async def get_history(request: Request[None, HistoryQuery]) -> msgspec.Raw:
    """Return the samples of the last hour."""
    return request.watch.history(
        request.service.view(request.who), given(request.query.after), given(request.query.limit)
    )


async def get_leases(request: Request[None, LeasesQuery]) -> Leases:
    """Return recent leases."""
    return request.watch.leases(request.service.view(request.who), request.query.limit)


async def get_events(request: Request[None, EventsQuery]) -> Stream:
    """Stream samples, state and leases as they change, or jobs as they end."""
    seen, query = request.header(b"last-event-id"), request.query
    after = given(query.after) if seen is None else seen.decode("latin-1")
    view = request.service.view(request.who)
    if query.kind == "jobs":
        events = request.watch.ended(_ended_filter(request), after)
    elif any(given(one) is not None for one in (query.state, query.job_class, query.tag)):
        raise BadField("kind", "must be jobs where state, class or tag is given")
    elif seen is None and after is not None and not re.match(SAMPLE, after):
        raise BadField("after", f"must be the id of a sample, such as 0a1b2c3d-12; got {after!r}")
    else:
        events = request.watch.events(view, after, given(query.limit))
    return Stream(_while_allowed(request, view, _for_some_time(events, given(query.seconds))))


def _ended_filter(request: Request[None, EventsQuery]) -> EndedFilter:
    query, states = request.query, given(request.query.state)
    if given(query.limit) is not None:
        raise BadField("limit", "is for samples; jobs that end are sent without one")
    named = None if states is None else frozenset(states.split(","))
    return EndedFilter(request.who.reach, named, given(query.job_class), given(query.tag))


async def _for_some_time(parts: Parts, seconds: float | None) -> Parts:
    """Yield the first part in any case, and others for `seconds`, or without end."""
    clock = asyncio.get_running_loop().time
    end = None if seconds is None else clock() + seconds
    async with aclosing(parts):
        yield await anext(parts)
        with suppress(StopAsyncIteration, TimeoutError):
            while True:
                yield await asyncio.wait_for(anext(parts), None if end is None else end - clock())


async def _while_allowed(request: Request[None, EventsQuery], view: View, parts: Parts) -> Parts:
    """Yield parts until the key is revoked or expires, or sees less than it did."""
    async with aclosing(parts):
        async for part in parts:
            try:
                who = request.service.identify(key_of(request.header(b"authorization")))
                who.require(*READ)
                if request.service.view(who) != view:
                    return
            except NoKey:
                return
            except Unavailable:
                pass  # keys cannot be checked at the moment
            yield part


async def get_health(request: Request[None, NoQuery]) -> m.HealthStatus:
    """Return that the process is alive and its parts work."""
    if not request.service.healthy:
        raise Unavailable("the service is not healthy; its log says why")
    return m.HealthStatus("ok")


async def get_ready(request: Request[None, NoQuery]) -> m.HealthStatus:
    """Return that requests are accepted."""
    if not request.service.ready:
        work = jit.compiling()
        raise Unavailable(
            f"the service is {f'starting: {work}' if work else 'starting, stopping, or without its database'}"
        )
    return m.HealthStatus("ready")


SETTINGS_ROUTES = (
    route("GET", "/v1/settings", "get_settings", lambda r: r.service.policy_settings(),
          "Show the settings of the policy", "state", READ, response=m.SettingsInfo),
    route("PATCH", "/v1/settings", "update_settings", lambda r: r.service.update_settings(r.who, r.body),
          "Change some settings of the policy", "admin", FLEET,
          body=m.SettingsUpdate, response=m.SettingsInfo, also=(404, 409)),
    route("POST", "/v1/settings/preview", "preview_settings", lambda r: r.watch.preview(r.service.view(r.who), r.body),
          "Predict the effect of other settings", "state", READ,
          body=m.SettingsUpdate, response=Prediction, also=(404,)),
)  # fmt: skip


def _old_path(new: Route) -> Route:
    """Return a route of the settings under its old path, which is kept for one version."""
    return replace(
        new, path=new.path.replace("/settings", "/knobs"), operation=f"{new.operation}_deprecated",
        summary=f"Old path of {new.method} {new.path}", deprecated=True,
    )  # fmt: skip


ADMIN_ROUTES = (
    route("GET", "/v1/settings/history", "get_settings_history", lambda r: r.service.settings_history(r.query.limit),
          "List changes of settings, newest first", "admin", FLEET, query=AuditQuery, response=m.SettingsChanges),
    route("POST", "/v1/settings/undo", "undo_settings",
          lambda r: r.service.undo_settings(r.who, given(r.query.change)),
          "Undo the newest change of settings that was not undone", "admin", FLEET,
          query=UndoQuery, response=m.SettingsInfo, also=(404, 409)),
    route("GET", "/v1/state", "get_state", lambda r: r.service.state(r.who),
          "Show queues, servers, allocation, learnt rewards and waits", "state", READ, response=State),
    route("GET", "/v1/classes", "get_classes", lambda r: r.service.classes(), "List classes", "state", READ,
          response=m.Classes),
    route("PUT", "/v1/job-classes/{name:path}", "put_job_class", put_job_class, "Add or change a job class", "admin",
          FLEET, body=m.JobClassValues, response=m.JobClassInfo, also=(409,)),
    route("PUT", "/v1/server-classes/{name:path}", "put_server_class", put_server_class, "Add or change a server class",
          "admin", FLEET, body=m.ServerClassValues, response=m.ServerClassInfo, also=(409,)),
    *SETTINGS_ROUTES,
    *map(_old_path, SETTINGS_ROUTES),
    route("GET", "/v1/namespaces", "get_namespaces", lambda r: r.service.namespaces(r.who),
          "List namespaces with their weights, limits and jobs", "state", READ, response=access.Namespaces),
    route("PUT", "/v1/namespaces/{name}", "put_namespace", put_namespace, "Change weight and limits of a namespace",
          "admin", FLEET, body=access.NamespaceValues, response=access.NamespaceInfo),
    route("POST", "/v1/keys", "create_key", lambda r: r.service.create_key(r.who, r.body),
          "Create a key, which is shown only once", "admin", ADMIN,
          body=access.NewKey, response=access.CreatedKey, status=201),
    route("GET", "/v1/keys", "list_keys", lambda r: r.service.keys(r.who), "List keys", "admin", ADMIN,
          response=access.Keys),
    route("DELETE", "/v1/keys/{prefix}", "revoke_key", lambda r: r.service.revoke_key(r.who, r.path["prefix"]),
          "Revoke a key", "admin", ADMIN, response=access.KeyInfo, also=(409,)),
    route("POST", "/v1/keys/{prefix}/rotate", "rotate_key",
          lambda r: r.service.rotate_key(r.who, r.path["prefix"], r.body),
          "Create a key that replaces another, which then expires", "admin", ADMIN,
          body=access.Rotate, response=access.CreatedKey, status=201, also=(409,)),
    route("GET", "/v1/audit", "get_audit", lambda r: r.service.audit(r.who, r.query.limit),
          "List admin actions, newest first", "admin", ADMIN, query=AuditQuery, response=access.Audit),
    route("GET", "/v1/me", "get_me", get_me, "Show the scopes of the key in use", "state", ANY, response=access.Me),
)  # fmt: skip

WATCH_ROUTES = (
    route("GET", "/v1/history", "get_history", get_history, "List samples of the last hour, oldest first", "state", READ,
          query=HistoryQuery, response=History),
    route("GET", "/v1/events", "get_events", get_events, "Follow samples, or jobs that end, as server-sent events", "state",
          READ, query=EventsQuery, response=StreamEvent, content_type=EVENTS),
    route("GET", "/v1/leases", "get_leases", get_leases, "List recent leases, newest first", "state", READ,
          query=LeasesQuery, response=Leases),
    route("GET", "/healthz", "get_health", get_health, "Show whether the process works", "open", OPEN,
          response=m.HealthStatus, also=(503,), local=True),
    route("GET", "/readyz", "get_ready", get_ready, "Show whether requests are accepted", "open", OPEN,
          response=m.HealthStatus, also=(503,)),
    route("GET", METRICS, "get_metrics", lambda r: r.service.metrics(r.who),
          "Show the metrics of this process, for Prometheus", "state", READ, response=str, local=True,
          content_type=CONTENT_TYPE),
)  # fmt: skip
