"""Limits of a request: size, rate, and how long it may wait for a job."""

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest
from asgi import Request, ask, request
from fake_service import FakeService, make_fake
from hypothesis import given
from hypothesis import strategies as st

from bilinq.errors import BadInput, Busy
from bilinq.live.http.bodies import check_nesting
from bilinq.live.http.endpoint import RateLimit, decoder
from bilinq.live.http.routing import BadJson
from bilinq.live.wire.messages import NewServer, Submit

LIMIT = 2048


def upload(key: str, parts: list[bytes | None], length: int | None = None) -> Request:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    return Request("POST", "/v1/jobs", parts, headers | ({} if length is None else {"Content-Length": str(length)}))


def body_of(size: int) -> bytes:
    start, end = b'{"jobs": [{"class": "short", "payload": "', b'"}]}'
    return start + b"x" * (size - len(start) - len(end)) + end


def answer_to(build: Any) -> tuple[Any, Request, FakeService]:
    async def scenario() -> tuple[Any, Request, FakeService]:
        app, service = make_fake(max_body=LIMIT)
        one = build(service.add_key("admin"))
        return await one.run(app), one, service

    return asyncio.run(scenario())


def test_a_body_of_the_largest_size_is_accepted_whole_or_in_parts() -> None:
    body = body_of(LIMIT)
    for parts in ([body], [body[:1], body[1:1000], b"", body[1000:]]):
        answer, _, _ = answer_to(lambda key, parts=parts: upload(key, list(parts), LIMIT))
        assert answer.status == 201


def test_a_body_with_too_large_a_declared_length_is_not_read() -> None:
    for length in (LIMIT + 1, 10**30):
        answer, one, _ = answer_to(lambda key, length=length: upload(key, [body_of(LIMIT)], length))
        assert (answer.status, answer.json["type"]) == (413, "urn:bilinq:too-large")
        assert answer.headers["connection"] == "close"
        assert len(one.left) == 1


def test_a_body_without_a_length_is_cut_off_while_it_streams() -> None:
    parts: list[bytes | None] = [b" " * 512] * 100
    answer, one, _ = answer_to(lambda key: upload(key, parts))
    assert answer.status == 413
    assert len(one.left) == 100 - 5


def test_a_client_that_disconnects_while_it_sends_submits_nothing() -> None:
    async def scenario() -> None:
        app, service = make_fake()
        one = upload(service.add_key("admin"), [body_of(100)[:50], None])
        await app(one.scope, one.receive, one.send)
        assert one.sent == []
        assert service.all_jobs == {}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "text", ['[{"a": [[]]}]', '{"a": "[[[[[[", "b": "\\"[[[["}', "[[[[], [], {}]]]", "[], " * 50, '"' + "[" * 200 + '"']
)
def test_shallow_texts_pass(text: str) -> None:
    check_nesting(text.encode(), 4)


@pytest.mark.parametrize("text", ["[[[[[]]]]]", '[{"a": [[{}]]}]', '["]", ["]", ["]", ["]", ["]"]]]]]', "[[[[["])
def test_deep_texts_do_not(text: str) -> None:
    with pytest.raises(BadJson, match="4 deep"):
        check_nesting(text.encode(), 4)


LARGE = 1 << 20  # bytes of the largest usual body
HOSTILE = {
    "brackets": b"[]" * (LARGE // 2),
    "deep and wide": b"[" * 99 + b"[],[[]]," * (LARGE // 8),
    "open texts": b'"[' * (LARGE // 2),
    "a text of quotes without end": b'{"V":1,"x":' + b"[" * 101 + b'"' + rb"\"" * (LARGE // 2),
    "backslashes": b"[" * 101 + b'"' + b"\\" * LARGE,
    "one integer": b'{"jobs":[{"class":"short","payload":' + b"1" * LARGE + b"}]}",
    "large integers": b'{"jobs":[{"class":"short","payload":[' + b",".join([b"1" * 4300] * 240) + b"]}]}",
    "long fractions": b'{"jobs":[{"class":"short","payload":['
    + b",".join([b"1." + b"1" * 800 + b"e-300"] * 1200)
    + b"]}]}",
    "a large exponent": b'{"jobs":[{"class":"short","payload":1e' + b"9" * LARGE + b"}]}",
    "an unknown field": b'{"' + b" - at `" * (LARGE // 7) + b'":1}',
    "the same field": b'{"jobs":1,' + b'"jobs":1,' * (LARGE // 9) + b'"jobs":1}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_no_body_takes_longer_than_others_of_its_size(body: bytes) -> None:
    """A body is read under the lock of the interpreter: meanwhile nobody else is answered."""
    decode, start = decoder(Submit), time.thread_time()
    assert decode is not None
    with contextlib.suppress(BadJson, BadInput):
        decode(body)
    assert time.thread_time() - start < 0.5


VALUES = st.recursive(
    st.text(st.sampled_from('[]{}"\\a'), max_size=6),
    lambda inner: st.lists(inner) | st.dictionaries(st.just("]"), inner),
)


@given(VALUES, st.integers(0, 5))
def test_depth_is_counted_outside_of_texts(value: Any, most: int) -> None:
    def depth(one: Any) -> int:
        inner = one.values() if isinstance(one, dict) else one
        return 0 if isinstance(one, str) else 1 + max(map(depth, inner), default=0)

    with pytest.raises(BadJson) if depth(value) > most else contextlib.nullcontext():
        check_nesting(json.dumps(value).encode(), most)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_may_send_so_many_requests_per_second() -> None:
    clock = Clock()
    rate = RateLimit(10.0, clock)
    for _ in range(10):
        rate.take("a")
    with pytest.raises(Busy, match="10 requests per second") as caught:
        rate.take("a")
    assert caught.value.retry_after == pytest.approx(0.1)
    rate.take("b")
    clock.now = 0.25
    rate.take("a")
    rate.take("a")
    with pytest.raises(Busy):
        rate.take("a")
    clock.now = 3600.0
    for _ in range(10):
        rate.take("a")
    with pytest.raises(Busy):
        rate.take("a")


def test_slow_rates_allow_one_and_zero_is_no_limit() -> None:
    clock = Clock()
    slow = RateLimit(0.1, clock)
    slow.take("a")
    with pytest.raises(Busy) as caught:
        slow.take("a")
    assert caught.value.retry_after == pytest.approx(10.0)
    free = RateLimit(0.0, clock)
    for _ in range(1000):
        free.take("a")


def test_above_the_rate_the_status_is_429() -> None:
    app, service = make_fake(rate=0.5)
    key, other = service.add_key("read"), service.add_key("read")
    assert ask(app, "GET", "/v1/me", key=key).status == 200
    answer = ask(app, "GET", "/v1/me", key=key)
    assert (answer.status, answer.json["type"]) == (429, "urn:bilinq:busy")
    assert answer.headers["retry-after"] == "2"
    assert ask(app, "GET", "/v1/me", key=other).status == 200
    assert ask(app, "GET", "/healthz").status == 200


def poll(service: FakeService, url: str = "/v1/servers/s1/lease?wait=30", body: Any = None) -> Request:
    one = request("POST", url, body, service.add_key("work"))
    if body is None:
        one.left = []
    return one


WORK = {"lease": ["s1"], "wait": 30.0}


@pytest.mark.parametrize(("url", "body"), [("/v1/servers/s1/lease?wait=30", None), ("/v1/work", WORK)])
def test_a_poll_is_withdrawn_when_the_client_disconnects(url: str, body: Any) -> None:
    async def scenario() -> None:
        app, service = make_fake()
        await service.register(service.identify(service.add_key("work")), _gpu())
        one = poll(service, url, body)
        task = asyncio.create_task(app(one.scope, one.receive, one.send))
        await asyncio.sleep(0.05)
        assert len(service.polls) == 1
        one.gone.set()
        await asyncio.wait_for(task, 1.0)
        assert (service.withdrawn, service.polls, one.sent) == (1, set(), [])

    asyncio.run(scenario())


@pytest.mark.parametrize(("url", "body"), [("/v1/servers/s1/lease?wait=30", None), ("/v1/work", WORK)])
def test_polls_end_early_when_the_service_stops(url: str, body: Any) -> None:
    async def scenario() -> None:
        app, service = make_fake()
        await service.register(service.identify(service.add_key("work")), _gpu())
        one = poll(service, url, body)
        task = asyncio.create_task(one.run(app))
        await asyncio.sleep(0.05)
        service.drain()
        answer = await asyncio.wait_for(task, 1.0)
        assert answer.status == (204 if body is None else 200)
        assert service.withdrawn == 0

    asyncio.run(scenario())


def test_a_poll_ends_when_its_time_is_up() -> None:
    async def scenario() -> None:
        app, service = make_fake()
        await service.register(service.identify(service.add_key("work")), _gpu())
        answer = await asyncio.wait_for(poll(service, "/v1/servers/s1/lease?wait=0.05").run(app), 1.0)
        assert answer.status == 204

    asyncio.run(scenario())


def test_errors_in_a_poll_are_reported() -> None:
    async def scenario() -> None:
        app, service = make_fake()
        answer = await asyncio.wait_for(poll(service).run(app), 1.0)
        assert answer.status == 404
        assert json.loads(answer.body)["detail"] == "there is no server 's1'"

    asyncio.run(scenario())


def _gpu() -> NewServer:
    return NewServer("gpu")
