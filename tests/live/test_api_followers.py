"""Several processes on one PostgreSQL: followers forward requests to the leader, and one takes over when it dies."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi import request
from fake_service import make_fake
from process import Process, make_key, wait_for
from slotless import run, serving

from bilinq.live.service.replica import Replica
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store

pytest_plugins = ["databases"]

Answering = Callable[[httpx.Request], Awaitable[httpx.Response]]


def test_a_follower_responds_like_the_leader_and_takes_over(tmp_path: Path, postgres_url: str) -> None:
    key = make_key(postgres_url, "admin")
    with Process(tmp_path / "a", postgres_url) as leader, Process(tmp_path / "b", postgres_url) as follower:
        assert [process.events()[0]["leads"] for process in (leader, follower)] == ["True", "False"]
        with leader.client(key) as one, follower.client(key) as two:
            wait_for(lambda: two.get("/readyz").status_code == 200)
            job = two.post("/v1/jobs", json={"jobs": [{"class": "short", "key": "k"}]}).json()["jobs"][0]["id"]
            assert one.get(f"/v1/jobs/{job}").json() == two.get(f"/v1/jobs/{job}").json()
            refused = two.get("/v1/jobs/j999", headers={"X-Request-Id": "mine"})
            assert (refused.status_code, refused.json()["type"]) == (404, "urn:bilinq:not-known")
            assert refused.headers.get_list("x-request-id") == ["mine"]
            assert refused.headers.get_list("x-frame-options") == ["DENY"]
            assert two.get("/v1/jobs?limit=0").status_code == 422
            server = two.post("/v1/servers", json={"class": "gpu", "name": "a"}).json()["id"]
            gone = two.delete(f"/v1/servers/{server}")
            assert (gone.status_code, gone.content, "content-length" in gone.headers) == (204, b"", False)
            leader.child.kill()
            start = time.monotonic()
            wait_for(lambda: two.get("/readyz").status_code == 200)
            assert time.monotonic() - start < 5.0
            assert two.get(f"/v1/jobs/{job}").json()["state"] == "queued"
        assert follower.stop() == 0


def test_keys_are_not_created_beside_a_running_leader(tmp_path: Path, postgres_url: str) -> None:
    make_key(postgres_url, "admin")
    with Process(tmp_path / "a", postgres_url) as leader:
        with pytest.raises(AssertionError, match="another process leads"):
            make_key(postgres_url, "read")
        assert leader.stop() == 0


class Follower:
    """A fake that follows a leader at an address, without a network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Answering, **settings: Any) -> None:
        self.asked: list[httpx.Request] = []

        async def handle(asked: httpx.Request) -> httpx.Response:
            self.asked.append(asked)
            return await answer(asked)

        plain = httpx.AsyncClient
        monkeypatch.setattr(httpx, "AsyncClient", lambda **_: plain(transport=httpx.MockTransport(handle)))
        self.app, self.service = make_fake(**settings)
        self.service.following, self.service.leader = True, "http://leader:8000"


PATHS = ("/v1/jobs%2Fx?limit=2", "/v1/../v1/me", "/v1/./me", "/v1/me/..?a=/../b", "/v1/%2e%2e/me", '/v1/a"b', "//v1/me")


@pytest.mark.parametrize("path", PATHS)
def test_the_leader_gets_each_path_as_the_client_sent_it(path: str) -> None:
    """Also one with dots, for which nothing is served: a URL would be tidied up, and another path be asked for."""

    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n"))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        leader = await asyncio.start_server(ends, "127.0.0.1", 0)
        app, service = make_fake()
        service.following = True
        service.leader = f"http://127.0.0.1:{leader.sockets[0].getsockname()[1]}"
        async with leader:
            assert (await request("GET", path).run(app)).status == 204

    asked: list[bytes] = []
    asyncio.run(scenario())
    assert asked == [f"GET {path} HTTP/1.1\r\n".encode()]


def test_a_request_is_forwarded_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(asked: httpx.Request) -> httpx.Response:
        return httpx.Response(201, json={"a": 1}, headers={"x-request-id": "theirs", "retry-after": "3"})

    follower = Follower(monkeypatch, answer)
    follower.service.secret = "known to replicas"
    one = request("POST", "/v1/jobs%2Fx?limit=2", {"jobs": []}, "some key")
    found = asyncio.run(one.run(follower.app))
    (asked,) = follower.asked
    assert str(asked.url) == "http://leader:8000/v1/jobs%2Fx?limit=2"
    assert (asked.headers["authorization"], asked.content) == ("Bearer some key", b'{"jobs": []}')
    assert asked.headers["x-request-id"] == found.headers["x-request-id"] != "theirs"
    assert asked.headers["x-bilinq-forwarded"] == "known to replicas" and "x-bilinq-forwarded" not in found.headers
    assert (found.status, found.json, found.headers["retry-after"]) == (201, {"a": 1}, "3")


@pytest.mark.parametrize(("status", "lines"), [(200, 5), (403, 5), (401, 1), (404, 1), (405, 1)])
def test_a_follower_logs_what_the_leader_let_in(
    status: int, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(asked: httpx.Request) -> httpx.Response:
        return httpx.Response(status)

    follower = Follower(monkeypatch, answer, log_requests=True)
    with caplog.at_level(logging.INFO, "bilinq.live.http"):
        for _ in range(5):
            asyncio.run(request("GET", "/v1/jobs").run(follower.app))
    assert len(caplog.records) == lines


def test_all_processes_of_a_database_know_one_secret(database_url: str) -> None:
    async def scenario() -> None:
        found = []
        for _ in range(2):
            async with serving(database_url) as service:
                follower = Replica(ServiceSettings(), open_store(database_url, lead=False))
                async with asyncio.timeout(10.0), follower.finding_leader():
                    while follower.secret is None:
                        await asyncio.sleep(0.01)
                await follower.store.stop()
                found += [service.secret, follower.secret]
        assert len(set(found)) == 1 and len(found[0] or "") > 40

    run(scenario())


def test_without_a_leader_the_status_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(asked: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody there")

    follower = Follower(monkeypatch, answer)
    circle = {"X-Bilinq-Forwarded": "1"}
    answers = [asyncio.run(request("GET", "/v1/me", headers=headers).run(follower.app)) for headers in ({}, circle)]
    follower.service.leader = None
    answers.append(asyncio.run(request("GET", "/v1/me").run(follower.app)))
    for found in answers:
        assert (found.status, found.headers["retry-after"]) == (503, "1")
        assert found.json["type"] == "urn:bilinq:away"
    assert len(follower.asked) == 1
    assert asyncio.run(request("GET", "/healthz").run(follower.app)).status == 200


def test_a_poll_at_a_follower_ends_when_the_client_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    async def answer(asked: httpx.Request) -> httpx.Response:
        try:
            await asyncio.sleep(30.0)
        except asyncio.CancelledError:
            ended.append(True)
            raise
        return httpx.Response(204)

    async def scenario() -> None:
        follower = Follower(monkeypatch, answer)
        one = request("POST", "/v1/servers/s1/lease?wait=30", None, "key")
        task = asyncio.create_task(follower.app(one.scope, one.receive, one.send))
        await asyncio.sleep(0.05)
        one.gone.set()
        await asyncio.wait_for(task, 1.0)
        assert (ended, one.sent) == ([True], [])

    asyncio.run(scenario())
