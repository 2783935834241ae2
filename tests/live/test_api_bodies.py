"""Bodies of requests share a bound on memory, at the leader and at a follower, which looks at no key."""

import asyncio
from typing import Any

import pytest
from asgi import Answer, Request
from fake_service import make_fake

from bilinq.live.http import bodies

PART = bytes(1000)


class Slow:
    """A request whose body arrives part by part, as the test wants."""

    def __init__(self, app: Any, key: str, length: int | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        headers |= {} if length is None else {"Content-Length": str(length)}
        self.request = Request("POST", "/v1/jobs", headers=headers)
        self.parts: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self.task = asyncio.create_task(app(self.request.scope, self.receive, self.request.send))

    async def receive(self) -> dict[str, Any]:
        body, more = await self.parts.get()
        return {"type": "http.request", "body": body, "more_body": more}

    async def add(self, body: bytes, more: bool = True) -> None:
        self.parts.put_nowait((body, more))
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def answer(self) -> Answer | None:
        if not self.task.done():
            return None
        self.task.result()
        start, body = self.request.sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers, body["body"])


@pytest.mark.parametrize("following", [False, True])
def test_bodies_that_arrive_slowly_share_a_bound_and_the_oldest_makes_room(
    following: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bodies just short of their last byte would keep 16,000 bytes; there is room for 10,000."""

    async def scenario() -> None:
        app, service = make_fake(max_body=4096)
        key = service.add_key("submit")
        service.following, service.leader = following, "http://127.0.0.1:9"
        slow = [Slow(app, key) for _ in range(4)]
        for one in slow:
            for _ in range(4):
                await one.add(PART)
        first = slow[0].answer
        assert first is not None and (first.status, first.headers["retry-after"]) == (429, "1")
        assert "too many bytes" in first.json["detail"]
        assert [one.answer and one.answer.status for one in slow] == [429, 429, None, None]
        await slow[2].add(b"", more=False)
        await asyncio.wait_for(slow[2].task, 5.0)
        assert slow[2].answer and slow[2].answer.status == (503 if following else 400)  # no JSON, or no leader there
        late = Slow(app, key)
        for _ in range(4):
            await late.add(PART)
        assert slow[3].answer is late.answer is None
        for one in (slow[3], late):
            one.task.cancel()

    monkeypatch.setattr(bodies, "MOST_BYTES", 10_000)
    asyncio.run(scenario())


@pytest.mark.parametrize("following", [False, True])
def test_a_body_that_is_declared_too_large_is_refused_before_it_arrives(following: bool) -> None:
    async def scenario() -> None:
        app, service = make_fake(max_body=4096)
        service.following, service.leader = following, "http://127.0.0.1:9"
        one = Slow(app, service.add_key("submit"), 5000)
        await asyncio.wait_for(one.task, 5.0)
        assert one.answer and one.answer.status == 413

    asyncio.run(scenario())
