"""Who may call what: every route with every kind of key, against a table written by hand from the description."""

import re
from collections.abc import Iterator

import msgspec
import pytest
from asgi import Request, ask_all, request
from fake_service import make_fake
from slotless import run, serving

from bilinq.live.http.app import ROUTES
from bilinq.live.http.openapi import BODIES
from bilinq.live.http.routing import Route
from bilinq.live.keys import SCOPES, Identity, make_key
from bilinq.live.wire.messages import NewServer

pytest_plugins = ("databases",)

WANTED = {
    "POST /v1/jobs": {"submit"},
    "GET /v1/jobs": {"submit", "read"},
    "GET /v1/jobs/{id}": {"submit", "read"},
    "DELETE /v1/jobs/{id}": {"submit"},
    "POST /v1/jobs/cancel": {"submit"},
    "POST /v1/jobs/retry": set(),
    "POST /v1/servers": {"work"},
    "GET /v1/servers": {"work", "read"},
    "DELETE /v1/servers/{id}": {"work"},
    "POST /v1/servers/{id}/lease": {"work"},
    "POST /v1/leases/{lease}/finish": {"work"},
    "POST /v1/leases/{lease}/extend": {"work"},
    "POST /v1/leases/{lease}/fail": {"work"},
    "POST /v1/work": {"work"},
    "GET /v1/state": {"read"},
    "GET /v1/dead": {"read"},
    "POST /v1/dead/{id}/retry": set(),
    "POST /v1/jobs/{id}/reward": {"submit", "work"},
    "GET /v1/jobs/{id}/decision": {"submit", "read"},
    "GET /v1/decisions": {"read"},
    "POST /v1/servers/{id}/drain": set(),
    "POST /v1/servers/{id}/quarantine": set(),
    "POST /v1/servers/{id}/release": set(),
    "GET /v1/classes": {"read"},
    "PUT /v1/job-classes/{name:path}": set(),
    "PUT /v1/server-classes/{name:path}": set(),
    "GET /v1/settings": {"read"},
    "PATCH /v1/settings": set(),
    "GET /v1/settings/history": set(),
    "POST /v1/settings/undo": set(),
    "GET /v1/knobs": {"read"},
    "PATCH /v1/knobs": set(),
    "GET /v1/namespaces": {"read"},
    "PUT /v1/namespaces/{name}": set(),
    "POST /v1/keys": set(),
    "GET /v1/keys": set(),
    "DELETE /v1/keys/{prefix}": set(),
    "POST /v1/keys/{prefix}/rotate": set(),
    "GET /v1/audit": set(),
    "GET /v1/history": {"read"},
    "GET /v1/events": {"read"},
    "GET /v1/leases": {"read"},
    "POST /v1/settings/preview": {"read"},
    "POST /v1/knobs/preview": {"read"},
    "GET /v1/me": {"submit", "work", "read"},
    "GET /metrics": {"read"},
}
"""Scopes that a route accepts, in addition to fleet, which every route accepts, and to admin."""
SHARED = {
    "PUT /v1/job-classes/{name:path}", "PUT /v1/server-classes/{name:path}", "PATCH /v1/settings", "PATCH /v1/knobs",
    "PUT /v1/namespaces/{name}", "GET /v1/settings/history", "POST /v1/settings/undo",
}  # fmt: skip
"""Routes that change what all namespaces share, and so do not accept admin."""

OPEN = {"GET /healthz", "GET /readyz", "GET /openapi.json"}


def name(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_every_route_is_in_the_table() -> None:
    assert sorted(map(name, ROUTES)) == sorted({*WANTED, *OPEN})


NEEDS_QUERY = {"POST /v1/jobs/cancel": "?class=short", "POST /v1/jobs/retry": "?state=dead"}


def requests_of(route: Route, keys: list[str | None]) -> Iterator[Request]:
    path = re.sub(r"{\w+(:path)?}", "x1", route.path) + NEEDS_QUERY.get(name(route), "")
    body = None if route.body is None else msgspec.to_builtins(BODIES[route.body])
    for key in keys:
        yield request(route.method, path, body, key)


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_a_route_opens_for_its_scopes_only(route: Route) -> None:
    app, service = make_fake()
    keys = [service.add_key(scope) for scope in SCOPES]
    answers = ask_all(app, requests_of(route, [None, make_key(), "bq_short", *keys]))
    statuses = [answer.status for answer in answers]
    if name(route) in OPEN:
        assert set(statuses) == {200}
        return
    assert statuses[:3] == [401, 401, 401]
    for answer in answers[:3]:
        assert answer.headers["www-authenticate"] == 'Bearer realm="bilinq"'
    opened = {scope for scope, status in zip(SCOPES, statuses[3:], strict=True) if status not in (401, 403)}
    assert opened == {*WANTED[name(route)], "fleet"} | ({"admin"} if name(route) not in SHARED else set())
    assert set(statuses[3:]) <= {200, 201, 204, 403, 404}


@pytest.mark.parametrize("route", [route for route in ROUTES if route.scopes is not None], ids=name)
def test_without_the_scope_the_body_is_not_even_read(route: Route) -> None:
    app, _ = make_fake()
    bad = request(route.method, re.sub(r"{\w+(:path)?}", "x1", route.path) + "?bad=1", b"{" * 10_000)
    (answer,) = ask_all(app, [bad])
    assert answer.status == 401
    assert bad.left


@pytest.mark.parametrize("header", ["Basic abc", "bq_x", "Bearer", "Bearer ", "Bearer  x y", "Bearer \xe9", "Token x"])
def test_other_kinds_of_authorization_are_refused(header: str) -> None:
    app, _ = make_fake()
    (answer,) = ask_all(app, [request("GET", "/v1/me", headers={"Authorization": header})])
    assert answer.status == 401
    assert header not in answer.body.decode()


def test_the_kind_of_authorization_may_be_written_in_any_case() -> None:
    app, service = make_fake()
    key = service.add_key("read")
    for kind in ("Bearer", "bearer", "BEARER"):
        (answer,) = ask_all(app, [request("GET", "/v1/me", headers={"Authorization": f"{kind} {key}"})])
        assert answer.status == 200


def test_a_key_with_a_changed_character_is_no_key() -> None:
    app, service = make_fake()
    key = service.add_key("admin")
    for place in (0, 5, 11, 20, 54):
        other = key[:place] + ("x" if key[place] != "x" else "y") + key[place + 1 :]
        (answer,) = ask_all(app, [request("GET", "/v1/me", None, other)])
        assert answer.status == 401


def test_a_worker_sees_its_own_servers_and_a_reader_all(sqlite_url: str) -> None:
    def caller(prefix: str, *scopes: str) -> Identity:
        return Identity(prefix, "default", frozenset(scopes))

    async def work() -> None:
        async with serving(sqlite_url) as service:
            one, two = caller("one", "work"), caller("two", "work", "submit")
            for who, name in ((one, "a"), (one, "b"), (two, "a")):
                await service.register(who, NewServer("x", name))
            sees = {
                who.prefix: [(server.id, server.name) for server in await service.servers(who)]
                for who in (one, two, caller("new", "work"), caller("eye", "read"), caller("boss", "admin"))
            }
            assert sees["one"] == [("s1", "a"), ("s2", "b")]
            assert sees["two"] == [("s3", "a")]
            assert sees["new"] == []
            assert sees["eye"] == sees["boss"] == [*sees["one"], *sees["two"]]

    run(work())
