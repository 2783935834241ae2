"""Who serves whose jobs, shares by weight, and limits of namespaces."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest
from databases import stored
from slotless import ready, run
from tenants import Tenants, tenants

from bilinq.live.http import app
from bilinq.live.http.endpoint import RateLimit
from bilinq.live.keys import LOCAL
from bilinq.live.settings import ServiceSettings, live_policies
from bilinq.live.store.class_tables import all_namespaces
from bilinq.live.wire.access import NamespaceInfo
from bilinq.live.wire.messages import LARGEST
from bilinq.scheduler.shares import SLACK

pytest_plugins = ("databases",)

EVERY_POLICY = sorted({*live_policies()} - {"max-weight"})
"""All policies but the one that leaves short queues waiting, by design."""


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_a_server_gets_jobs_of_the_namespaces_of_its_key_only(policy: str, sqlite_url: str) -> None:
    """The servers wait together; each gets all jobs that it may serve, and nothing else, also after a restart."""
    settings = {"policy": policy, "work_conserving": policy in ("look-ahead", "sabr")}
    keys = {"a": {"a"}, "b": {"b"}, "both": {"a", "b"}, "all": {"a", "b", "default"}}

    async def work() -> None:
        async with tenants(sqlite_url, **settings) as one:
            await one.key("both", ["work"], "a", "b")
            servers = {key: await one.register(key, key) for key in keys}
            for key in ("a", "b", "all"):
                await one.submit(key, *["of default" if key == "all" else f"of {key}"] * 20)
            got = await self_service(one, servers, 25)
            saved = one.keys
        async with tenants(sqlite_url, **settings) as one:
            one.keys = saved
            got += await self_service(one, servers, 35)
        for key, payload in got:
            assert payload.removeprefix("of ") in keys[key], f"{key} got a job {payload}"
        assert Counter(payload for _, payload in got) == {"of a": 20, "of b": 20, "of default": 20}
        assert {key for key, _ in got} == set(keys)

    run(work())


async def self_service(one: Tenants, servers: dict[str, str], number: int) -> list[tuple[str, str]]:
    """Let all servers ask in turn until so many jobs are done; return which key got which payload."""
    got: list[tuple[str, str]] = []
    while len(got) < number:
        before = len(got)
        for key, server in servers.items():
            lease = await one.lease(key, server) if len(got) < number else None
            if lease is not None:
                got.append((key, lease["job"]["payload"]))
                end = {"fence": lease["fence"], "reward": 0.5}
                await one.done(key, "POST", f"/v1/leases/{lease['lease']}/finish", end)
        assert len(got) > before, f"no server got a job after {Counter(got)}"
    return got


def test_servers_that_wait_together_are_kept_apart(database_url: str) -> None:
    """Both poll when the job of b comes: only the server of b may get it, whatever the scheduler prefers."""

    async def work() -> None:
        async with tenants(database_url, slot=0.02) as one:
            servers = {key: await one.register(key, key) for key in ("a", "b")}
            for _ in range(10):
                waits = {
                    key: asyncio.ensure_future(one.done(key, "POST", f"/v1/servers/{server}/lease?wait=0.4"))
                    for key, server in servers.items()
                }
                await asyncio.sleep(0.02)
                await one.submit("b", "of b")
                leases = dict(zip(waits, await asyncio.gather(*waits.values()), strict=True))
                assert leases["a"] is None
                lease = leases["b"]
                end = {"fence": lease["fence"], "reward": 0.5}
                await one.done("b", "POST", f"/v1/leases/{lease['lease']}/finish", end)

    run(work())


def test_jobs_that_no_server_may_serve_are_reported(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, and for as long as it is so in the list of namespaces."""

    async def work() -> None:
        async with tenants(sqlite_url) as one:
            server = await one.register("a", "own")
            await one.submit("b", "waits")
            for _ in range(3):
                assert await one.lease("a", server) is None
            [space] = (await one.done("b", "GET", "/v1/namespaces"))["namespaces"]
            assert (space["queued"], space["served"]) == (1, False)
            await one.register("b", "own")
            [space] = (await one.done("b", "GET", "/v1/namespaces"))["namespaces"]
            assert space["served"]

    run(work())
    told = [one.getMessage() for one in caplog.records if "no server may serve" in one.getMessage()]
    assert told == ["no server may serve the jobs of a namespace, so they wait: namespace=b"]


def test_a_job_that_comes_back_stays_in_its_namespace(sqlite_url: str) -> None:
    async def work() -> None:
        async with tenants(sqlite_url) as one:
            servers = {key: await one.register(key, key) for key in ("a", "b")}
            await one.submit("a", "of a")
            lease = await one.lease("a", servers["a"])
            await one.done("a", "POST", f"/v1/leases/{lease['lease']}/fail", {"fence": lease["fence"]})
            assert await one.lease("b", servers["b"]) is None
            one.service.replica.fail("for this test")
            await ready(one.service)
            assert await one.lease("b", servers["b"]) is None
            assert (await one.lease("a", servers["a"]))["job"]["payload"] == "of a"

    run(work())


async def served(one: Tenants, number: int) -> str:
    """Return the payloads of the next jobs of a server that serves all namespaces, one after the other."""
    server, got = await one.register("all", "shared"), ""
    for _ in range(number):
        lease = await one.lease("all", server)
        got += lease["job"]["payload"]
        await one.done("all", "POST", f"/v1/leases/{lease['lease']}/finish", {"fence": lease["fence"], "reward": 0.5})
    return got


def test_namespaces_take_turns_by_their_weights_under_a_policy_of_slots(sqlite_url: str) -> None:
    """Both have jobs all the time; a has three times the weight, and three quarters of the services."""

    async def work() -> None:
        async with tenants(sqlite_url, policy="sabr") as one:
            await one.done("all", "PUT", "/v1/namespaces/a", {"weight": 3.0})
            await one.submit("a", *["a"] * 200)
            await one.submit("b", *["b"] * 200)
            assert Counter(await served(one, 60)) == {"a": 45, "b": 15}

    run(work())


@pytest.mark.parametrize(("weight", "expected"), [(3.0, 45), (1.0, 30), (1.0 / 3.0, 15)])
def test_namespaces_share_servers_by_their_weights(weight: float, expected: int, sqlite_url: str) -> None:
    """Of 60 services, as the default policy shares them; all jobs of b are older, and worth the same."""

    async def work() -> None:
        async with tenants(sqlite_url) as one:
            await one.done("all", "PUT", "/v1/namespaces/a", {"weight": weight})
            await one.submit("b", *["b"] * 60)
            await one.submit("a", *["a"] * 60)
            found = Counter(await served(one, 60))
            assert abs(found["a"] - expected) <= SLACK + 1.0

    run(work())


def test_running_keeps_servers_for_a_namespace_with_less_weight(sqlite_url: str) -> None:
    """Two servers, of which a may use one only."""

    async def work() -> None:
        async with tenants(sqlite_url) as one:
            await one.done("all", "PUT", "/v1/namespaces/a", {"weight": 3.0, "running": 1})
            await one.submit("a", *["a"] * 20)
            await one.submit("b", *["b"] * 20)
            first = await one.lease("all", await one.register("all", "first"))
            assert first["job"]["payload"] == "a"
            assert await served(one, 20) == "b" * 20

    run(work())


def test_the_backlog_of_a_class_is_that_of_each_namespace(sqlite_url: str) -> None:
    """A namespace that has filled a class blocks nobody else, and tells nobody how much it has submitted."""

    async def work() -> None:
        async with tenants(sqlite_url, backlog=3) as one:
            await one.submit("a", *["a"] * 3)
            body = {"jobs": [{"class": "a"}] * 4}
            refused = await one.ask("b", "POST", "/v1/jobs", body)
            assert (refused.status_code, "has room for 3 more jobs; got 4" in refused.text) == (429, True)
            assert len(await one.submit("b", *["b"] * 3)) == 3
            for key in ("a", "b"):
                assert (await one.ask(key, "POST", "/v1/jobs", {"jobs": [{"class": "a"}]})).status_code == 429

    run(work())


def test_weights_need_a_policy_that_has_them(sqlite_url: str) -> None:
    async def work() -> None:
        async with tenants(sqlite_url) as one:
            await one.done("all", "PUT", "/v1/namespaces/a", {"weight": 3.0})
        async with tenants(sqlite_url, policy="first-come", work_conserving=False) as one:
            refused = await one.ask("all", "PUT", "/v1/namespaces/b", {"weight": 3.0})
            assert (refused.status_code, "weight must be 1 for policy first-come; got 3" in refused.text) == (422, True)
            await one.done("all", "PUT", "/v1/namespaces/b", {"running": 3})
            server = await one.register("a", "own")
            await one.submit("a", "served all the same")
            assert await one.lease("a", server) is not None

    run(work())


@pytest.mark.parametrize("limit", ["backlog", "payload_bytes", "running"])
def test_no_limit_is_larger_than_the_database_can_keep(database_url: str, limit: str) -> None:
    """A larger one failed in the database: status 500, and memory was loaded again."""

    async def work() -> None:
        async with tenants(database_url) as one:
            await one.done("all", "PUT", "/v1/namespaces/a", {limit: LARGEST})
            for larger in (LARGEST + 1, 2**64, 10**400):
                refused = await one.ask("all", "PUT", "/v1/namespaces/a", {limit: larger})
                assert (refused.status_code, refused.json()["field"]) == (422, limit)
                assert "<= 9223372036854775807" in refused.json()["detail"]
            assert one.service.ready and one.service.meters.recoveries == 0
            one.service.replica.fail("for this test")
            await ready(one.service)
            [space] = (await one.done("a", "GET", "/v1/namespaces"))["namespaces"]
            assert space[limit] == LARGEST

    run(work())


def test_limits_of_waiting_jobs(database_url: str) -> None:
    """Backlog and bytes count what waits; they free when jobs start, and other namespaces have their own."""

    async def work() -> None:
        async with tenants(database_url) as one:
            await one.done("all", "PUT", "/v1/namespaces/a", {"backlog": 3, "payload_bytes": 40})
            jobs = await one.submit("a", "1", "2")
            refused = await one.ask("a", "POST", "/v1/jobs", {"jobs": [{"class": "a"}, {"class": "b"}]})
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "namespace 'a' has room for 1 more waiting jobs; got 2" in refused.text
            large = await one.ask("a", "POST", "/v1/jobs", {"jobs": [{"class": "a", "payload": "é" * 20, "key": "k"}]})
            assert "has room for 34 more bytes of payload; got 42" in large.text
            await one.submit("b", *["x" * 50] * 10)
            server = await one.register("a", "own")
            assert await one.lease("a", server) is not None
            await one.done("a", "DELETE", f"/v1/jobs/{jobs[1]}")
            await one.submit("a", "y" * 38)
            assert (await one.ask("a", "POST", "/v1/jobs", {"jobs": [{"class": "a"}]})).status_code == 429
            [space] = (await one.done("a", "GET", "/v1/namespaces"))["namespaces"]
            assert (space["queued"], space["queued_bytes"], space["leased"]) == (1, 40, 1)
            one.service.replica.fail("for this test")
            await ready(one.service)
            assert (await one.done("a", "GET", "/v1/namespaces"))["namespaces"] == [space]

    run(work())


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_a_limit_of_running_jobs(policy: str, sqlite_url: str) -> None:
    """Of ten idle servers a gets two; the others serve b; when one of a's ends, the next of a starts, oldest first."""

    async def work() -> None:
        async with tenants(sqlite_url, policy=policy, work_conserving=policy in ("look-ahead", "sabr")) as one:
            await one.done("all", "PUT", "/v1/namespaces/a", {"running": 2})
            ids = [await one.register("all", f"number {k}") for k in range(10)]
            jobs = await one.submit("a", *range(10))
            await one.submit("b", *["b"] * 4)
            running = await granted(one, ids)
            assert Counter(lease["job"]["payload"] == "b" for lease in running) == {True: 4, False: 2}
            free = sorted(set(ids) - {lease["server"] for lease in running})
            assert await granted(one, free[:1]) == []
            first = next(lease for lease in running if lease["job"]["payload"] != "b")
            await one.done(
                "all", "POST", f"/v1/leases/{first['lease']}/finish", {"fence": first["fence"], "reward": 0.5}
            )
            [after] = await granted(one, free[:1])
            if policy != "first-come":  # which draws among jobs of the same slot
                assert {lease["job"]["id"] for lease in running if lease["job"]["payload"] != "b"} == set(jobs[:2])
                assert after["job"]["id"] == jobs[2]

    run(work())


async def granted(one: Tenants, servers: list[str]) -> list[Any]:
    """Return the leases that idle servers get in a few slots."""
    found: list[Any] = []
    for _ in range(4):
        busy = {lease["server"] for lease in found}
        free = [server for server in servers if server not in busy]
        found += (await one.done("all", "POST", "/v1/work", {"lease": free}))["leases"]
    return found


def test_submissions_never_hold_up_heartbeats_and_finishes(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key, and its namespace, have used up their rates; the same key's calls as a worker are all accepted.

    The clock of the limits stands still, so that no token flows in while a slow machine works on the requests.
    """
    monkeypatch.setattr(app, "RateLimit", partial(RateLimit, clock=lambda: 0.0))

    async def work() -> None:
        async with tenants(sqlite_url, rate=30.0) as one:
            await one.done("all", "PUT", "/v1/namespaces/a", {"rate": 5.0, "backlog": 20})
            await one.key("sibling", ["read"], "a")
            server = await one.register("a", "own")
            await one.submit("a", "first")
            lease = await one.lease("a", server)
            statuses = [
                (await one.ask("a", "POST", "/v1/jobs", {"jobs": [{"class": "a"}]})).status_code for _ in range(60)
            ]
            assert statuses == [201] * 4 + [429] * 56
            other = await one.ask("sibling", "GET", "/v1/jobs")
            assert "namespace 'a' may send 5 requests per second; it sent more" in other.text
            refused = await one.ask("a", "GET", "/v1/jobs")
            assert "the key" in refused.text and "may send 30 requests per second; it sent more" in refused.text
            path, fence = f"/v1/leases/{lease['lease']}", {"fence": lease["fence"]}
            for _ in range(5):
                await one.done("a", "POST", f"{path}/extend", fence)
            assert (await one.done("a", "POST", f"{path}/finish", fence | {"reward": 0.5}))["state"] == "done"
            await one.submit("b", "not affected")
            await one.key("limits", ["fleet"], "a")
            for rate in (1e-6, 5.0):  # who has set too low a limit can correct it
                await one.done("limits", "PUT", "/v1/namespaces/a", {"rate": rate})

    run(work())


def test_settings_of_the_file_and_of_the_api_are_merged(database_url: str) -> None:
    """As with classes: what the API has set stays until the file changes."""
    first, second = NamespaceInfo("a", weight=2.0, backlog=7), NamespaceInfo("a", weight=2.0, backlog=8)

    async def work() -> None:
        async with tenants(database_url, namespace=(first,)) as one:
            assert one.service.replica.memory.limits == {"a": first}
            await one.service.put_namespace(LOCAL, NamespaceInfo("a", running=3))
            await one.service.put_namespace(LOCAL, NamespaceInfo("b", rate=3.5))
        async with tenants(database_url, namespace=(first,)) as one:
            assert one.service.replica.memory.limits["a"] == NamespaceInfo("a", running=3)
        async with tenants(database_url, namespace=(second,)) as one:
            assert one.service.replica.memory.limits == {"a": second, "b": NamespaceInfo("b", rate=3.5)}

    run(work())
    assert stored(database_url, all_namespaces) == [{"a": second, "b": NamespaceInfo("b", rate=3.5)}]


def test_a_namespace_is_named_once_in_a_file() -> None:
    with pytest.raises(ValueError, match="namespace: names must differ; got 'a' twice"):
        ServiceSettings(namespace=(NamespaceInfo("a"), NamespaceInfo("a")))
