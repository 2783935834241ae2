"""A service with jobs, servers and keys of two tenants, and calls to it over ASGI."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from slotless import serving

from bilinq.live.http.app import make_app
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.watch import Watcher
from bilinq.live.wire.access import NewKey

SECRET = "secret-of-a"
"""In everything of tenant a that has text: payloads, results, keys of jobs, errors, names of servers and of keys."""
ALL = ["submit", "work", "read", "admin"]


@dataclass
class Tenants:
    """A service; `ids` are those of what belongs to tenant a."""

    service: Service
    app: Any
    watch: Watcher
    keys: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    async def key(self, name: str, scopes: list[str], namespace: str, *others: str) -> str:
        """Create a key and remember it under a name."""
        new = NewKey(scopes, name, namespace, namespaces=list(others))  # type: ignore[arg-type]
        self.keys[name] = (await self.service.create_key(LOCAL, new)).key
        return self.keys[name]

    async def ask(self, key: str, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send a request with the key of a name."""
        headers = {"Authorization": f"Bearer {self.keys[key]}"}
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            return await client.request(method, path, json=body)

    async def done(self, key: str, method: str, path: str, body: Any = None) -> Any:
        """Return the body of a response, which must be a success."""
        answer = await self.ask(key, method, path, body)
        assert answer.is_success, answer.text
        return json.loads(answer.text) if answer.content else None

    async def submit(self, key: str, *payloads: Any, job_class: str = "a") -> list[str]:
        """Submit jobs and return their ids."""
        body = {"jobs": [{"class": job_class, "payload": payload} for payload in payloads]}
        return [job["id"] for job in (await self.done(key, "POST", "/v1/jobs", body))["jobs"]]

    async def register(self, key: str, name: str) -> str:
        """Register a server and return its id."""
        found: str = (await self.done(key, "POST", "/v1/servers", {"class": "x", "name": name}))["id"]
        return found

    async def lease(self, key: str, server: str) -> Any:
        """Return a lease for a server, or None."""
        return await self.done(key, "POST", f"/v1/servers/{server}/lease")


@asynccontextmanager
async def opened(database: str, **settings: Any) -> AsyncIterator[Tenants]:
    """A service without keys."""
    async with serving(database, **settings) as service:
        watch = Watcher(service.replica)
        yield Tenants(service, make_app(service, watch, service.replica.settings), watch)


@asynccontextmanager
async def tenants(database: str, **settings: Any) -> AsyncIterator[Tenants]:
    """A service with keys of two tenants, "a" and "b", and of the fleet, "all"."""
    async with opened(database, **settings) as made:
        await made.key("all", ["fleet"], "default")
        await made.key("a", ALL, "a")
        await made.key("b", ALL, "b")
        yield made


async def fill(one: Tenants) -> None:
    """Give tenant a something of every kind."""
    ids = one.ids
    ids["prefix"] = (await one.done("a", "POST", "/v1/keys", {"scopes": ["read"], "name": SECRET, "namespace": "a"}))[
        "info"
    ]["prefix"]
    ids["server"] = await one.register("a", SECRET)
    body = {"jobs": [{"class": "a", "payload": SECRET, "key": SECRET, "tags": [SECRET]}]}
    ids["done"] = (await one.done("a", "POST", "/v1/jobs", body))["jobs"][0]["id"]
    lease = await one.lease("a", ids["server"])
    end = {"fence": lease["fence"], "reward": 0.75, "result": SECRET}
    await one.done("a", "POST", f"/v1/leases/{lease['lease']}/finish", end)
    ids["ended lease"] = lease["lease"]
    [ids["dead"]] = await one.submit("a", SECRET)
    for _ in range(one.service.replica.settings.max_attempts):
        lease = await one.lease("a", ids["server"])
        await one.done("a", "POST", f"/v1/leases/{lease['lease']}/fail", {"fence": lease["fence"], "error": SECRET})
    ids["leased"], ids["queued"] = await one.submit("a", SECRET, SECRET)
    lease = await one.lease("a", ids["server"])
    assert lease["job"]["id"] == ids["leased"]
    ids["lease"], ids["fence"] = lease["lease"], lease["fence"]
