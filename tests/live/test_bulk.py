"""Many jobs at once: cancel and retry by state, class and tag, in batches, audited, within namespaces."""

import asyncio
from typing import Any

import pytest
from asgi import ask
from fake_service import make_fake
from slotless import run
from tenants import Tenants, opened, tenants

from bilinq.errors import Unavailable
from bilinq.live.keys import LOCAL
from bilinq.live.service.bulk import JobFilter
from bilinq.live.store import Transaction
from bilinq.live.store.admin_tables import keep_ids

pytest_plugins = ("databases",)


async def submit(one: Tenants, count: int, key: str = "all", **job: Any) -> list[str]:
    """Submit equal jobs and return their ids."""
    body = {"jobs": [{"class": "a"} | job] * count}
    return [job["id"] for job in (await one.done(key, "POST", "/v1/jobs", body))["jobs"]]


async def die(one: Tenants, key: str, **job: Any) -> str:
    """Return a dead job: each of its attempts has failed."""
    [id] = await submit(one, 1, key, max_attempts=1, **job)
    server = await one.register(key, f"for {id}")
    lease = await one.lease(key, server)
    assert lease["job"]["id"] == id
    await one.done(key, "POST", f"/v1/leases/{lease['lease']}/fail", {"fence": lease["fence"], "error": "no good"})
    await one.done(key, "DELETE", f"/v1/servers/{server}")
    return id


async def states(one: Tenants, ids: list[str]) -> list[str]:
    return [(await one.done("all", "GET", f"/v1/jobs/{id}"))["state"] for id in ids]


async def audit(one: Tenants, key: str, what: str) -> list[str]:
    entries = (await one.done(key, "GET", "/v1/audit"))["entries"]
    return [entry["detail"] for entry in entries if entry["what"] == what]


def test_jobs_are_cancelled_by_state_class_and_tag(database_url: str) -> None:
    async def work() -> None:
        async with tenants(database_url) as one:
            plain, tagged = await submit(one, 2), await submit(one, 2, tags=["night"])
            other = await submit(one, 2, **{"class": "b"}, tags=["night"])
            server = await one.register("all", "s")
            leased = (await one.lease("all", server))["job"]["id"]
            assert leased == plain[0]
            asked = [("state=leased", 1), ("class=a&tag=night", 2), ("tag=day", 0), ("class=b&state=leased", 0)]
            for query, changed in asked:
                answer = await one.done("all", "POST", f"/v1/jobs/cancel?{query}")
                assert answer == {"changed": changed, "after": None}, query
            assert await states(one, [*plain, *tagged, *other]) == [
                "cancelled", "queued", "cancelled", "cancelled", "queued", "queued",
            ]  # fmt: skip
            assert await one.done("all", "POST", "/v1/jobs/cancel?class=a") == {"changed": 1, "after": None}
            state = await one.done("all", "GET", "/v1/state")
            assert [(job["queued"], job["leased"]) for job in state["job_classes"]] == [(0, 0), (2, 0)]
            assert state["counters"]["cancelled"] == 4
            assert await audit(one, "all", "cancel jobs") == [
                "1 with class a", "2 with class a, tag night", "1 with state leased",
            ]  # fmt: skip

    run(work())


def test_the_server_of_a_cancelled_job_is_free_and_its_old_lease_refused(database_url: str) -> None:
    async def work() -> None:
        async with tenants(database_url) as one:
            await submit(one, 1)
            server = await one.register("all", "s")
            lease = await one.lease("all", server)
            await one.done("all", "POST", "/v1/jobs/cancel?state=leased")
            answer = await one.ask("all", "POST", f"/v1/leases/{lease['lease']}/finish", {"fence": lease["fence"]})
            assert answer.status_code == 409
            [id] = await submit(one, 1)
            assert (await one.lease("all", server))["job"]["id"] == id

    run(work())


def test_a_batch_has_a_limit_and_says_where_to_go_on(database_url: str) -> None:
    async def work() -> None:
        async with tenants(database_url) as one:
            ids = await submit(one, 5)
            first = await one.done("all", "POST", "/v1/jobs/cancel?class=a&limit=2")
            assert first == {"changed": 2, "after": ids[3]}
            assert await states(one, ids) == ["queued"] * 3 + ["cancelled"] * 2
            newer = await submit(one, 1)
            second = await one.done("all", "POST", f"/v1/jobs/cancel?class=a&limit=2&after={first['after']}")
            assert second == {"changed": 2, "after": ids[1]}
            assert await states(one, newer) == ["queued"], "it is newer than where the first call began"
            again = [await one.done("all", "POST", "/v1/jobs/cancel?class=a&limit=2") for _ in range(2)]
            assert again == [{"changed": 2, "after": ids[0]}, {"changed": 0, "after": None}]
            assert (await one.done("all", "GET", "/v1/jobs?state=queued"))["jobs"] == []

    run(work())


def test_dead_jobs_are_retried_with_all_attempts_and_without_deadline(database_url: str) -> None:
    async def work() -> None:
        async with tenants(database_url) as one:
            dead = [
                await die(one, "all", tags=["night"], deadline=3600.0),
                await die(one, "all"),
                await die(one, "all"),
            ]
            assert await one.done("all", "POST", "/v1/jobs/retry?tag=night") == {"changed": 1, "after": None}
            job = await one.done("all", "GET", f"/v1/jobs/{dead[0]}")
            assert (job["state"], job["attempts"], job["deadline"], job["tags"]) == ("queued", 0, None, ["night"])
            assert await one.done("all", "POST", "/v1/jobs/retry?state=dead&limit=1") == {
                "changed": 1,
                "after": dead[2],
            }
            rest = await one.done("all", "POST", f"/v1/jobs/retry?state=dead&limit=2&after={dead[2]}")
            assert rest == {"changed": 1, "after": None}
            assert (await one.done("all", "GET", "/v1/dead"))["jobs"] == []
            server, served = await one.register("all", "s"), []
            for _ in dead:
                lease = await one.lease("all", server)
                served.append(lease["job"]["id"])
                await one.done("all", "POST", f"/v1/leases/{lease['lease']}/finish", {"fence": lease["fence"]})
            assert sorted(served) == dead
            assert await audit(one, "all", "retry jobs") == [
                "1 with state dead", "1 with state dead", "1 with tag night",
            ]  # fmt: skip
            assert "bilinq_jobs_dead 0" in await one.service.metrics(LOCAL)

    run(work())


@pytest.mark.parametrize("many", [False, True])
def test_a_job_is_served_also_if_who_retried_it_hung_up(
    database_url: str, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """It was queued in the database only, and waited until the service was started again."""

    async def work() -> None:
        async with tenants(database_url) as one:
            id, server, loop = await die(one, "all"), await one.register("all", "s"), asyncio.get_running_loop()
            calls = one.service.retry_jobs(LOCAL, JobFilter()) if many else one.service.retry(LOCAL, id)
            call = asyncio.ensure_future(calls)

            def hang_up(tx: Transaction, name: str) -> None:
                loop.call_soon_threadsafe(call.cancel)
                keep_ids(tx, name)

            monkeypatch.setattr("bilinq.live.service.bulk.keep_ids", hang_up)
            with pytest.raises(asyncio.CancelledError):
                await call
            await one.service.replica.write(lambda tx: None)
            assert (await one.lease("all", server))["job"]["id"] == id

    run(work())


def test_jobs_of_other_namespaces_are_not_touched(database_url: str) -> None:
    async def work() -> None:
        async with tenants(database_url) as one:
            dead = await die(one, "b")
            own, others = await submit(one, 2, "a", tags=["x"]), await submit(one, 2, "b", tags=["x"])
            for query in ("tag=x", "class=a", "state=queued"):
                await one.done("a", "POST", f"/v1/jobs/cancel?{query}")
            assert await one.done("a", "POST", "/v1/jobs/retry?state=dead") == {"changed": 0, "after": None}
            assert await states(one, [*own, *others, dead]) == ["cancelled"] * 2 + ["queued"] * 2 + ["dead"]
            assert await audit(one, "a", "cancel jobs") == ["2 with tag x"]
            assert await audit(one, "b", "cancel jobs") == []
            await submit(one, 1, "a")
            assert (await one.done("all", "POST", "/v1/jobs/cancel?class=a"))["changed"] == 3
            assert await audit(one, "b", "cancel jobs") == ["2 with class a"]
            assert await audit(one, "a", "cancel jobs") == ["1 with class a", "2 with tag x"]

    run(work())


def test_changes_survive_a_restart(database_url: str) -> None:
    async def work() -> None:
        async with opened(database_url) as one:
            await one.key("all", ["fleet"], "default")
            dead = await die(one, "all")
            gone, kept = await submit(one, 2), await submit(one, 1, **{"class": "b"})
            await one.done("all", "POST", "/v1/jobs/cancel?class=a")
            await one.done("all", "POST", "/v1/jobs/retry?state=dead")
        async with opened(database_url) as two:
            two.keys = one.keys
            assert await states(two, [dead, *gone, *kept]) == ["queued", "cancelled", "cancelled", "queued"]
            state = await two.done("all", "GET", "/v1/state")
            assert [job["queued"] for job in state["job_classes"]] == [1, 1]

    run(work())


def test_a_batch_that_cannot_be_stored_changes_nothing(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit entry is in the same transaction as the jobs."""

    async def work() -> None:
        async with tenants(database_url) as one:
            ids = await submit(one, 3)

            def broken(*_: Any) -> None:
                raise OSError("the disk is full")

            monkeypatch.setattr("bilinq.live.service.bulk.add_audit", broken)
            with pytest.raises((OSError, Unavailable)):
                await one.service.cancel_jobs(LOCAL, JobFilter(job_class="a"))
            monkeypatch.undo()
            async with asyncio.timeout(20.0):
                while not one.service.ready:
                    await asyncio.sleep(0.01)
            assert await states(one, ids) == ["queued"] * 3
            assert (await one.done("all", "POST", "/v1/jobs/cancel?class=a"))["changed"] == 3

    run(work())


@pytest.mark.parametrize("path", ["/v1/jobs/cancel", "/v1/jobs/retry"])
def test_a_call_without_a_filter_is_refused(path: str) -> None:
    app, service = make_fake()
    key = service.add_key("admin")
    for query in ("", "?limit=5", "?after=j9"):
        answer = ask(app, "POST", path + query, None, key)
        assert (answer.status, answer.json["field"]) == (422, "state")
    body = ask(app, "POST", path + "?class=a", {"tag": "x"}, key, {"Content-Length": "12"})
    assert (body.status, body.json["field"]) == (422, "body")
    assert "query" in body.json["detail"]
    for query in ("?state=done", "?limit=1001&class=a", "?kind=a"):
        assert ask(app, "POST", path + query, None, key).status == 422
    assert service.calls == []
    answer = ask(app, "POST", path + "?class=a&tag=t&after=j9&limit=7", None, key, headers={"Content-Length": "0"})
    assert answer.json == {"changed": 0, "after": None}
    assert service.calls == [(path.removeprefix("/v1/jobs/") + "_jobs", JobFilter(None, "a", "t", "j9", 7))]
