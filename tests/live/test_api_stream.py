"""Streams: how they begin, how they end, and that nothing is left open."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from asgi import Request, request
from fake_service import FakeService, FakeWatch, make_fake

from bilinq.errors import Unavailable


class Endless(FakeWatch):
    """A watch whose stream sends something at once, and then every hundredth of a second."""

    def __init__(self, error: Exception | None = None, after: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.error, self.after, self.padding = error, after, b" " * padding
        self.open = 0

    async def events(
        self, view: frozenset[str] | None, after: str | None, limit: int | None
    ) -> AsyncGenerator[bytes, None]:
        self.open += 1
        try:
            for number in range(1_000_000):
                if self.error is not None and number >= self.after:
                    raise self.error
                yield b":%d%b\n\n" % (number, self.padding)
                await asyncio.sleep(0.01)
        finally:
            self.open -= 1


def make(watch: FakeWatch) -> tuple[Any, FakeService, str]:
    app, service = make_fake(watch=watch)
    return app, service, service.add_key("read")


def body(one: Request) -> bytes:
    return b"".join(part["body"] for part in one.sent[1:])


def test_it_ends_when_the_client_disconnects() -> None:
    async def scenario() -> None:
        watch = Endless()
        app, _, key = make(watch)
        one = request("GET", "/v1/events", None, key)
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        await asyncio.sleep(0.1)
        assert watch.open == 1
        one.gone.set()
        await asyncio.wait_for(task, 1.0)
        assert watch.open == 0
        assert body(one).startswith(b":0\n\n:1\n\n")

    asyncio.run(scenario())


def test_it_ends_in_time_and_at_once() -> None:
    async def scenario() -> None:
        watch = Endless()
        app, _, key = make(watch)
        found = await request("GET", "/v1/events?seconds=0", None, key).run(app)
        assert (found.status, found.body) == (200, b":0\n\n")
        found = await request("GET", "/v1/events?seconds=0.1", None, key).run(app)
        assert found.body.startswith(b":0\n\n:1\n\n")
        assert watch.open == 0

    asyncio.run(scenario())


def test_head_begins_no_stream() -> None:
    async def scenario() -> None:
        watch = Endless()
        app, _, key = make(watch)
        found = await request("HEAD", "/v1/events", None, key).run(app)
        assert (found.status, found.body, watch.open) == (200, b"", 0)

    asyncio.run(scenario())


def test_an_error_is_a_problem_at_first_and_later_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        app, _, key = make(Endless(Unavailable("not now"), after=0))
        found = await request("GET", "/v1/events", None, key).run(app)
        assert (found.status, found.json["detail"]) == (503, "not now")
        app, _, key = make(Endless(ZeroDivisionError("secret"), after=2))
        found = await request("GET", "/v1/events", None, key).run(app)
        assert (found.status, found.body) == (200, b":0\n\n:1\n\n")

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["a stream failed"]


def test_it_ends_when_the_key_does() -> None:
    async def scenario() -> None:
        app, service, key = make(Endless())
        one = request("GET", "/v1/events", None, key)
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        await asyncio.sleep(0.05)
        service.known.clear()
        await asyncio.wait_for(task, 1.0)
        assert one.sent[-1] == {"type": "http.response.body", "body": b""}

    asyncio.run(scenario())
