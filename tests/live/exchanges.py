"""A valid request for every route of the service, with the jobs, servers and leases that it needs."""

import json
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from memory_client import MemoryService, Wrong

LIMIT = 30.0  # seconds for a valid request, which only a service that hangs takes


class Example(NamedTuple):
    """A request: method, path with names in braces, query, and body; `$x` stands for a thing that exists."""

    method: str
    path: str
    query: Mapping[str, Any] = MappingProxyType({})
    body: Any = None


JOB: dict[str, Any] = {
    "class": "short", "payload": {"text": "hello", "numbers": [1, 2.5]}, "key": "k1", "units": 2, "features": [0.5, 1.0],
    "servers": ["gpu", "cpu"], "weight": 2.0, "deadline": 600.0, "not_before": 0.01, "max_attempts": 3, "tags": ["night"],
}  # fmt: skip
CLASS = {"features": [1.0, 0.3], "weight": 1.5, "holding_cost": 1.0, "backlog": 100_000, "retry_first": 0.0}
SETTINGS = {"target_wait": 3.0, "work_conserving": True, "exploration": "thompson", "weight": {"short": 2.0}}
FINISH = {"fence": "$fence", "reward": 0.5, "done": True, "result": {"text": "done"}}
SEARCH = {"class": "long", "tag": "night", "limit": 10}

EXAMPLES: dict[str, Example] = {
    "register": Example("POST", "/v1/servers", {}, {"class": "gpu", "name": "server 1"}),
    "list_servers": Example("GET", "/v1/servers"),
    "drain_server": Example("POST", "/v1/servers/{server}/drain"),
    "quarantine_server": Example("POST", "/v1/servers/{server}/quarantine"),
    "release_server": Example("POST", "/v1/servers/{server}/release"),
    "unregister": Example("DELETE", "/v1/servers/{spare}"),
    "lease": Example("POST", "/v1/servers/{server}/lease", {"wait": 0}),
    "finish": Example("POST", "/v1/leases/{lease}/finish", {}, FINISH),
    "extend": Example("POST", "/v1/leases/{lease}/extend", {}, {"fence": "$fence"}),
    "fail": Example("POST", "/v1/leases/{lease}/fail", {}, {"fence": "$fence", "error": "it broke"}),
    "work": Example("POST", "/v1/work", {}, {"finish": [{"lease": "$lease", **FINISH}], "lease": ["$server"], "wait": 0}),
    "submit": Example("POST", "/v1/jobs", {}, {"jobs": [JOB, {"class": "long"}]}),
    "list_jobs": Example("GET", "/v1/jobs", {"state": "queued", "key": "k1", "after": "j99", **SEARCH}),
    "get_job": Example("GET", "/v1/jobs/{job}"),
    "cancel_job": Example("DELETE", "/v1/jobs/{job}"),
    "get_decision": Example("GET", "/v1/jobs/{job}/decision"),
    "export_decisions": Example("GET", "/v1/decisions", {"after": "l1", "limit": 5}),
    "reward_job": Example("POST", "/v1/jobs/{job}/reward", {}, {"reward": 0.7, "key": "r1"}),
    "list_dead": Example("GET", "/v1/dead", {"after": "j99", "limit": 5}),
    "retry_dead": Example("POST", "/v1/dead/{job}/retry"),
    "cancel_jobs": Example("POST", "/v1/jobs/cancel", {"state": "queued", **SEARCH}),
    "retry_jobs": Example("POST", "/v1/jobs/retry", {"state": "dead", **SEARCH}),
    "get_settings_history": Example("GET", "/v1/settings/history", {"limit": 5}),
    "undo_settings": Example("POST", "/v1/settings/undo", {"change": 1}),
    "get_state": Example("GET", "/v1/state"),
    "get_classes": Example("GET", "/v1/classes"),
    "put_job_class": Example("PUT", "/v1/job-classes/long", {}, CLASS),
    "put_server_class": Example("PUT", "/v1/server-classes/cpu", {}, {"features": [0.2, 0.4]}),
    "get_settings": Example("GET", "/v1/settings"),
    "update_settings": Example("PATCH", "/v1/settings", {}, SETTINGS),
    "preview_settings": Example("POST", "/v1/settings/preview", {}, SETTINGS),
    "get_settings_deprecated": Example("GET", "/v1/knobs"),
    "update_settings_deprecated": Example("PATCH", "/v1/knobs", {}, SETTINGS),
    "preview_settings_deprecated": Example("POST", "/v1/knobs/preview", {}, {"V": 10.0}),
    "get_namespaces": Example("GET", "/v1/namespaces"),
    "put_namespace": Example(
        "PUT", "/v1/namespaces/team", {}, {"weight": 2.0, "rate": 9.0, "backlog": 9, "payload_bytes": 99, "running": 1}
    ),
    "create_key": Example(
        "POST", "/v1/keys", {}, {"scopes": ["read"], "name": "web", "namespace": "team", "days": 3.0, "namespaces": ["*"]}
    ),
    "list_keys": Example("GET", "/v1/keys"),
    "revoke_key": Example("DELETE", "/v1/keys/{prefix}"),
    "rotate_key": Example("POST", "/v1/keys/{prefix}/rotate", {}, {"grace": 60.0}),
    "get_audit": Example("GET", "/v1/audit", {"limit": 5}),
    "get_me": Example("GET", "/v1/me"),
    "get_history": Example("GET", "/v1/history", {"after": "1-1", "limit": 5}),
    "get_events": Example(
        "GET", "/v1/events", {"kind": "jobs", "after": "e0", "seconds": 0, "state": "done,dead", "tag": "night"}
    ),
    "get_leases": Example("GET", "/v1/leases", {"limit": 5}),
    "get_health": Example("GET", "/healthz"),
    "get_ready": Example("GET", "/readyz"),
    "get_metrics": Example("GET", "/metrics"),
    "get_openapi": Example("GET", "/openapi.json"),
}  # fmt: skip
"""By operation of the OpenAPI document."""


def filled(value: Any, things: Mapping[str, Any]) -> Any:
    """Return a body with what exists in place of `$name`."""
    if isinstance(value, dict):
        return {key: filled(one, things) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, things) for one in value]
    return things[value[1:]] if isinstance(value, str) and value.startswith("$") else value


def target(example: Example, things: Mapping[str, Any]) -> str:
    """Return path and query."""
    query = "&".join(f"{key}={quote(str(value), safe=',')}" for key, value in example.query.items())
    return example.path.format_map(things) + (f"?{query}" if query else "")


def request_bytes(method: str, url: str, key: str, id: str, body: bytes | None = None) -> bytes:
    """Return a plain request with an id, which its response repeats."""
    lines = [f"{method} {url} HTTP/1.1", "Host: a", f"Authorization: Bearer {key}", f"X-Request-Id: {id}"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + (body or b"")


async def ask(service: MemoryService, method: str, url: str, body: Any = None) -> Any:
    """Return the response to a valid request on a connection of its own; raise `Wrong` if it is refused."""
    client = service.connect()
    raw = None if body is None else json.dumps(body).encode()
    await client.send([request_bytes(method, url, service.key, "ask", raw)], LIMIT)
    await client.settle(LIMIT)
    answers = client.answers()
    await client.leave(LIMIT)
    if len(answers) != 1 or answers[0].status >= 400 or answers[0].headers["x-request-id"] != "ask":
        raise Wrong(f"a valid request, {method} {url}, gets {answers[:2]}")
    return json.loads(answers[0].body) if answers[0].body else None


async def make_things(service: MemoryService, rng: random.Random) -> dict[str, Any]:
    """Return the names of a new job, lease, two servers and key, for `target` and `filled`."""
    found: dict[str, Any] = {}
    for name, kind in (("server", "gpu"), ("spare", "cpu")):
        found[name] = (await ask(service, "POST", "/v1/servers", {"class": kind}))["id"]
    made = await ask(service, "POST", "/v1/jobs", {"jobs": [{"class": "short"}]})
    found["job"] = made["jobs"][0]["id"]
    lease = await ask(service, "POST", f"/v1/servers/{found['server']}/lease?wait=1")
    found |= {"lease": lease["lease"] if lease else "l1", "fence": lease["fence"] if lease else 1}
    created = await ask(service, "POST", "/v1/keys", {"scopes": ["read"], "name": f"spare {rng.random()}"})
    return found | {"prefix": created["info"]["prefix"]}
