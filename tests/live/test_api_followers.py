"""Several processes on one PostgreSQL: followers forward requests to the leader, and one takes over when it dies."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from asgi import request
from fake_service import make_fake
from process import Process, make_key, wait_for

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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Answering) -> None:
        self.asked: list[httpx.Request] = []

        async def handle(asked: httpx.Request) -> httpx.Response:
            self.asked.append(asked)
            return await answer(asked)

        plain = httpx.AsyncClient
        monkeypatch.setattr(httpx, "AsyncClient", lambda **_: plain(transport=httpx.MockTransport(handle)))
        self.app, self.service = make_fake()
        self.service.following, self.service.leader = True, "http://leader:8000"


def test_a_request_is_forwarded_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(asked: httpx.Request) -> httpx.Response:
        return httpx.Response(201, json={"a": 1}, headers={"x-request-id": "theirs", "retry-after": "3"})

    follower = Follower(monkeypatch, answer)
    one = request("POST", "/v1/jobs%2Fx?limit=2", {"jobs": []}, "some key")
    found = asyncio.run(one.run(follower.app))
    (asked,) = follower.asked
    assert str(asked.url) == "http://leader:8000/v1/jobs%2Fx?limit=2"
    assert (asked.headers["authorization"], asked.content) == ("Bearer some key", b'{"jobs": []}')
    assert asked.headers["x-request-id"] == found.headers["x-request-id"] != "theirs"
    assert (found.status, found.json, found.headers["retry-after"]) == (201, {"a": 1}, "3")


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
