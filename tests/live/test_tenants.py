"""A namespace is a boundary: every route, called with the key of another namespace, with the ids of what is not its own."""

import asyncio
from typing import Any

import httpx
import pytest
from slotless import run
from tenants import ALL, SECRET, Tenants, fill, opened, tenants
from test_api_scopes import name

from bilinq.live.http.app import ROUTES

pytest_plugins = ("databases",)

SEES = {"fence": "{fence}"}
CROSSED: dict[str, tuple[str, Any, int]] = {
    "POST /v1/servers": ("/v1/servers", {"class": "x", "name": SECRET}, 201),  # a server of its own
    "GET /v1/servers": ("/v1/servers", None, 200),
    "DELETE /v1/servers/{id}": ("/v1/servers/{server}", None, 404),
    "POST /v1/servers/{id}/lease": ("/v1/servers/{server}/lease", None, 404),
    "POST /v1/servers/{id}/drain": ("/v1/servers/{server}/drain", None, 404),
    "POST /v1/servers/{id}/quarantine": ("/v1/servers/{server}/quarantine", None, 404),
    "POST /v1/servers/{id}/release": ("/v1/servers/{server}/release", None, 404),
    "POST /v1/leases/{lease}/finish": ("/v1/leases/{lease}/finish", SEES | {"reward": 0.0}, 404),
    "POST /v1/leases/{lease}/extend": ("/v1/leases/{lease}/extend", SEES, 404),
    "POST /v1/leases/{lease}/fail": ("/v1/leases/{lease}/fail", SEES | {"error": "x"}, 404),
    "POST /v1/work": ("/v1/work", {"lease": ["{server}"]}, 404),
    "POST /v1/jobs": ("/v1/jobs", {"jobs": [{"class": "b", "payload": 1, "key": SECRET}]}, 201),  # its own key
    "GET /v1/jobs": ("/v1/jobs", None, 200),
    "GET /v1/jobs/{id}": ("/v1/jobs/{queued}", None, 404),
    "DELETE /v1/jobs/{id}": ("/v1/jobs/{queued}", None, 404),
    "POST /v1/jobs/{id}/reward": ("/v1/jobs/{done}/reward", {"reward": 0.0}, 404),
    "GET /v1/jobs/{id}/decision": ("/v1/jobs/{leased}/decision", None, 404),
    "GET /v1/decisions": ("/v1/decisions", None, 200),
    "POST /v1/jobs/cancel": (f"/v1/jobs/cancel?tag={SECRET}", None, 200),
    "POST /v1/jobs/retry": ("/v1/jobs/retry?state=dead", None, 200),
    "GET /v1/dead": ("/v1/dead", None, 200),
    "POST /v1/dead/{id}/retry": ("/v1/dead/{dead}/retry", None, 404),
    "GET /v1/state": ("/v1/state", None, 200),
    "GET /v1/classes": ("/v1/classes", None, 200),
    "PUT /v1/job-classes/{name:path}": ("/v1/job-classes/a", {"features": [0.0, 0.0]}, 403),
    "PUT /v1/server-classes/{name:path}": ("/v1/server-classes/x", {"features": [0.0, 0.0]}, 403),
    "GET /v1/settings": ("/v1/settings", None, 200),
    "GET /v1/settings/history": ("/v1/settings/history", None, 403),
    "POST /v1/settings/undo": ("/v1/settings/undo", None, 403),
    "PATCH /v1/settings": ("/v1/settings", {"target_wait": 9.0}, 403),
    "POST /v1/settings/preview": ("/v1/settings/preview", {"target_wait": 9.0}, 403),
    "GET /v1/knobs": ("/v1/knobs", None, 200),
    "PATCH /v1/knobs": ("/v1/knobs", {"target_wait": 9.0}, 403),
    "POST /v1/knobs/preview": ("/v1/knobs/preview", {"target_wait": 9.0}, 403),
    "GET /v1/namespaces": ("/v1/namespaces", None, 200),
    "PUT /v1/namespaces/{name}": ("/v1/namespaces/a", {"backlog": 1}, 403),
    "POST /v1/keys": ("/v1/keys", {"scopes": ["read"], "namespace": "a"}, 403),
    "GET /v1/keys": ("/v1/keys", None, 200),
    "DELETE /v1/keys/{prefix}": ("/v1/keys/{prefix}", None, 404),
    "POST /v1/keys/{prefix}/rotate": ("/v1/keys/{prefix}/rotate", {}, 404),
    "GET /v1/audit": ("/v1/audit", None, 200),
    "GET /v1/me": ("/v1/me", None, 200),
    "GET /v1/history": ("/v1/history", None, 200),
    "GET /v1/events": ("/v1/events?seconds=0", None, 200),
    "GET /v1/leases": ("/v1/leases", None, 200),
    "GET /healthz": ("/healthz", None, 200),
    "GET /readyz": ("/readyz", None, 200),
    "GET /openapi.json": ("/openapi.json", None, 200),
    "GET /metrics": ("/metrics", None, 200),
}
"""For each route a request of tenant b for what belongs to tenant a, and the status of the response."""
MORE = [
    ("GET", f"/v1/jobs?key={SECRET}", None, 200),
    ("GET", f"/v1/jobs?tag={SECRET}", None, 200),
    ("GET", "/v1/jobs/{done}", None, 404),
    ("GET", "/v1/jobs/{leased}", None, 404),
    ("DELETE", "/v1/jobs/{leased}", None, 404),
    ("POST", "/v1/jobs/cancel?state=leased", None, 200),
    ("POST", "/v1/jobs/cancel?class=a", None, 200),
    ("POST", "/v1/leases/{ended lease}/finish", {"fence": 1, "reward": 0.75, "result": SECRET}, 409),
    ("POST", "/v1/work", {"finish": [{"lease": "{lease}", "fence": "{fence}", "reward": 0.0}]}, 200),
    ("POST", "/v1/keys", {"scopes": ["read"], "namespace": "b", "namespaces": ["a"]}, 403),
    ("POST", "/v1/keys", {"scopes": ["work"], "namespace": "b", "namespaces": ["*"]}, 403),
    ("POST", "/v1/keys", {"scopes": ["fleet"], "namespace": "b"}, 403),
    ("GET", "/v1/namespaces?limit=1", None, 422),
    ("GET", "/v1/events?kind=jobs&after=e0&seconds=0", None, 200),
    ("GET", f"/v1/events?kind=jobs&after=e0&seconds=0&tag={SECRET}&state=done,dead", None, 200),
]


def test_every_route_is_in_the_table() -> None:
    assert sorted(map(name, ROUTES)) == sorted(CROSSED)


def filled(value: Any, ids: dict[str, str]) -> Any:
    """Return a path or a body with ids in place of their names in braces."""
    if isinstance(value, dict):
        return {key: filled(one, ids) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, ids) for one in value]
    if not isinstance(value, str):
        return value
    return ids["fence"] if value == "{fence}" else value.format(**ids)


async def seen_by_a(one: Tenants) -> list[Any]:
    """Return all that tenant a can see that another must not change."""
    paths = (
        "/v1/jobs",
        "/v1/dead",
        "/v1/servers",
        "/v1/keys",
        "/v1/audit",
        "/v1/leases",
        "/v1/namespaces",
        "/v1/classes",
    )
    found = [await one.done("a", "GET", path) for path in paths]
    state = await one.done("a", "GET", "/v1/state")
    jobs = [await one.done("a", "GET", f"/v1/jobs/{one.ids[kind]}") for kind in ("done", "dead", "leased", "queued")]
    return [*found, {key: value for key, value in state.items() if key != "now"}, *jobs]


def test_no_route_crosses_the_boundary(database_url: str) -> None:
    async def work() -> None:
        async with tenants(database_url) as one:
            await fill(one)
            before = await seen_by_a(one)
            asked = [(*key.split(" ")[:1], *CROSSED[key]) for key in sorted(CROSSED)]
            for method, path, body, status in [*asked, *MORE]:
                answer = await one.ask("b", method, filled(path, one.ids), filled(body, one.ids))
                assert answer.status_code == status, f"{method} {path}: {answer.text}"
                check_silent(method, path, answer, one)
            assert await seen_by_a(one) == before
            assert before[0]["jobs"] and before[1]["jobs"] and before[2] and before[5]["leases"]

    run(work())


def check_silent(method: str, path: str, answer: httpx.Response, one: Tenants) -> None:
    """Fail if a response to tenant b has something of tenant a."""
    text = answer.text.replace(answer.headers.get("x-request-id", "-"), "")
    if path not in ("/v1/servers", "/v1/jobs") and f"key={SECRET}" not in path:  # where b used the same words itself
        assert SECRET not in text, f"{method} {path}: {text}"
    if answer.is_success:
        for kind in ("done", "dead", "leased", "queued", "prefix"):
            assert f'"{one.ids[kind]}"' not in text, f"{method} {path} names a's {kind}: {text}"
        assert '"namespace":"a"' not in text, f"{method} {path}: {text}"


def test_counts_are_those_of_the_own_namespace(database_url: str) -> None:
    """State, samples, metrics and namespaces of b are empty, those of a complete, and those of the fleet the sum."""

    async def work() -> None:
        async with tenants(database_url) as one:
            await fill(one)
            await one.submit("b", 1, 2, job_class="b")
            for key in ("a", "b", "all"):
                await one.ask(key, "GET", "/v1/history")  # the channel of a tenant begins with the first request
            one.watch._take_samples()
            states = {key: await one.done(key, "GET", "/v1/state") for key in ("a", "b", "all")}
            queued = {key: [kind["queued"] for kind in state["job_classes"]] for key, state in states.items()}
            assert queued == {"a": [1, 0], "b": [0, 2], "all": [1, 2]}
            assert [state["server_classes"][0]["busy"] for state in states.values()] == [1, 0, 1]
            assert states["b"]["counters"] == {"submitted": 2}
            assert states["a"]["counters"]["finished"] == states["all"]["counters"]["finished"] == 1
            assert [states[key]["reward_total"] for key in ("a", "b", "all")] == [0.75, 0.0, 0.75]
            assert states["b"]["expected"] == [] and states["b"]["slot"] == 0 < states["all"]["slot"]
            samples = {key: (await one.done(key, "GET", "/v1/history"))["moments"][-1] for key in states}
            assert [samples[key]["queued"] for key in states] == [[1, 0], [0, 2], [1, 2]]
            assert [samples[key]["busy"] for key in states] == [[1], [0], [1]]
            assert [samples[key]["slots"] > 0 for key in states] == [False, False, True]
            assert [samples[key]["wait_p50"] is None for key in states] == [False, True, False]
            pages = {key: (await one.ask(key, "GET", "/metrics")).text for key in states}
            assert 'bilinq_jobs_queued{job_class="a"} 0' in pages["b"]
            assert 'bilinq_jobs_queued{job_class="a"} 1' in pages["a"]
            assert 'bilinq_jobs_submitted_total{job_class="a"} 4' in pages["a"] and "bilinq_jobs_dead 1" in pages["a"]
            assert 'bilinq_servers{server_class="x",state="busy"} 0' in pages["b"]
            for page in (pages["a"], pages["b"]):
                assert "bilinq_slot_seconds" not in page and "process_" not in page and "http_answers" not in page
            assert "bilinq_slot_seconds" in pages["all"] and 'bilinq_jobs_queued{job_class="b"} 2' in pages["all"]
            for key, names in (("a", ["a"]), ("b", ["b"]), ("all", ["a", "b", "default"])):
                shown = (await one.done(key, "GET", "/v1/namespaces"))["namespaces"]
                assert [space["name"] for space in shown] == names
            sizes = {space["name"]: space["queued_bytes"] for space in shown}
            assert sizes == {"a": len(SECRET) + 2, "b": 2, "default": 0}

    run(work())


def test_a_key_of_several_namespaces_sees_these_and_no_others(sqlite_url: str) -> None:
    async def work() -> None:
        async with tenants(sqlite_url) as one:
            await fill(one)
            await one.submit("b", 1, 2, job_class="b")
            await one.submit("all", 1, job_class="b")
            await one.key("both", ["read"], "a", "b")
            await one.key("eye", ["read"], "a", "*")
            found = {key: await one.done(key, "GET", "/v1/jobs") for key in ("both", "eye", "all")}
            spaces = {key: {job["namespace"] for job in page["jobs"]} for key, page in found.items()}
            assert spaces == {"both": {"a", "b"}, "eye": {"a", "b", "default"}, "all": {"a", "b", "default"}}
            queued = {key: await one.done(key, "GET", "/v1/state") for key in found}
            assert [sum(kind["queued"] for kind in queued[key]["job_classes"]) for key in found] == [3, 4, 4]
            assert [lease["job"] for lease in (await one.done("both", "GET", "/v1/leases"))["leases"]][:1] == [
                one.ids["leased"]
            ]
            page = (await one.ask("both", "GET", "/metrics")).text
            assert 'bilinq_jobs_submitted_total{job_class="b"} 2' in page
            assert (await one.ask("eye", "GET", "/v1/settings/preview")).status_code == 405
            preview = await one.ask("eye", "POST", "/v1/settings/preview", {"target_wait": 9.0})
            assert preview.status_code == 200
            me = await one.done("both", "GET", "/v1/me")
            assert (me["namespaces"], me["whole"]) == (["a", "b"], False)
            assert (await one.done("eye", "GET", "/v1/me"))["namespaces"] == ["*"]
            assert (await one.ask("eye", "PATCH", "/v1/settings", {"target_wait": 9.0})).status_code == 403

    run(work())


def test_where_one_namespace_is_in_use_nothing_is_hidden(sqlite_url: str) -> None:
    async def work() -> None:
        async with tenants(sqlite_url) as one:
            await one.key("default", ["read"], "default")
            assert not (await one.done("default", "GET", "/v1/me"))["whole"]
        async with opened(sqlite_url + "2") as one:
            await one.key("default", ["read"], "default")
            assert (await one.done("default", "GET", "/v1/me"))["whole"]
            assert "bilinq_slot_seconds" in (await one.ask("default", "GET", "/metrics")).text
            stream = asyncio.ensure_future(one.ask("default", "GET", "/v1/events?seconds=5"))
            await asyncio.sleep(0.05)
            await one.key("new", ["read"], "new")
            one.watch._take_samples()
            assert '"slots"' not in (await asyncio.wait_for(stream, 3.0)).text  # it ends before the first sample

    run(work())


def test_an_admin_administers_its_own_namespace(sqlite_url: str) -> None:
    """Keys, dead jobs and the audit log of a are a's; keys that reach further are the fleet's."""

    async def work() -> None:
        async with tenants(sqlite_url) as one:
            await fill(one)
            await one.key("shared", ["work"], "a", "b")
            shared = (await one.done("shared", "GET", "/v1/me"))["prefix"]
            shown = {key: (await one.done(key, "GET", "/v1/keys"))["keys"] for key in ("a", "b", "all")}
            names = {key: {row["name"] for row in rows} for key, rows in shown.items()}
            assert names == {"a": {"a", SECRET}, "b": {"b"}, "all": {"all", "a", "b", "shared", SECRET}}
            for key in ("a", "b"):
                assert (await one.ask(key, "DELETE", f"/v1/keys/{shared}")).status_code == 404
                assert (await one.ask(key, "POST", f"/v1/keys/{shared}/rotate", {})).status_code == 404
            rotated = await one.done("a", "POST", f"/v1/keys/{one.ids['prefix']}/rotate", {})
            assert rotated["info"]["namespaces"] == ["a"]
            await one.done("a", "POST", f"/v1/dead/{one.ids['dead']}/retry")
            await one.done("all", "PUT", "/v1/namespaces/a", {"weight": 2.0})
            await one.done("all", "PATCH", "/v1/settings", {"target_wait": 9.0})
            audits = {key: (await one.done(key, "GET", "/v1/audit"))["entries"] for key in ("a", "b", "all")}
            what = {key: [entry["what"] for entry in rows] for key, rows in audits.items()}
            assert what["a"] == ["set", "retry", "rotate key", "create key", "create key", "create key"]
            assert what["b"] == ["create key"]
            assert len(what["all"]) == 10
            made = await one.done("all", "POST", f"/v1/keys/{shared}/rotate", {})
            assert made["info"]["namespaces"] == ["a", "b"]

    run(work())


def test_an_admin_acts_for_servers_only_where_it_may_see_their_jobs(sqlite_url: str) -> None:
    """A shared worker's key belongs to a; the admin of a must not read b's payloads through its server."""

    async def work() -> None:
        async with tenants(sqlite_url) as one:
            await one.key("shared", ["work"], "a", "b")
            await one.key("worker", ["work"], "a")
            server, own = await one.register("shared", "shared"), await one.register("worker", "own")
            await one.submit("b", "private to b")
            assert (await one.ask("a", "POST", f"/v1/servers/{server}/lease")).status_code == 403
            assert (await one.ask("a", "DELETE", f"/v1/servers/{server}")).status_code == 403
            lease = await one.lease("shared", server)
            assert lease["job"]["payload"] == "private to b"
            end = {"fence": lease["fence"], "reward": 1.0}
            assert (await one.ask("a", "POST", f"/v1/leases/{lease['lease']}/finish", end)).status_code == 403
            assert (await one.ask("a", "DELETE", f"/v1/servers/{own}")).status_code == 204
            assert (await one.done("shared", "POST", f"/v1/leases/{lease['lease']}/finish", end))["state"] == "done"

    run(work())


@pytest.mark.parametrize("scope", ALL)
def test_a_key_without_namespaces_of_its_own_choice_reaches_one(scope: str, sqlite_url: str) -> None:
    async def work() -> None:
        async with tenants(sqlite_url) as one:
            await one.key("plain", [scope], "b")
            assert (await one.done("plain", "GET", "/v1/me"))["namespaces"] == ["b"]

    run(work())
