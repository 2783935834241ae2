"""What goes wrong: bad requests, keys, back ends that fail in every way, clients that leave, and too much at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import httpx
import openai
import pytest
from llm_router.config import Tenant
from llm_router.fakes import FAKES
from router_stand import Stand, wait_for

SEA: Any = [{"role": "user", "content": "Tell me about the sea."}]
SMALL, CODER = FAKES[:2]


@pytest.fixture
def two() -> Iterator[Stand]:
    """Two back ends that are given up after a second without an answer."""
    with Stand(SMALL, CODER, cards={name: {"timeout": 1.0} for name in ("small", "coder")}) as stand:
        yield stand


def test_errors_have_openai_s_shape(two: Stand) -> None:
    client = two.client()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="auto", messages=[])
    assert (caught.value.param, caught.value.type) == ("messages", "invalid_request_error")
    url = f"{two.address}/v1/chat/completions"
    for content, kind, status in (
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"messages": [{"content": "\xff"}]}', "application/json", 400),
        (b'{"messages": [{}], "stream": "yes"}', "application/json", 400),
        (b'{"messages": [{}], "max_tokens": "many"}', "application/json", 400),
        (b'{"messages": [{}]}', "text/plain", 415),
        (b" " * (17 << 20), "application/json", 413),
    ):
        answer = httpx.post(url, content=content, headers={"Content-Type": kind}, trust_env=False)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert httpx.get(url, trust_env=False).json()["error"]["code"] == "unknown_url"
    assert httpx.get(url, headers={"Host": "evil.example"}, trust_env=False).status_code == 403
    assert two.fakes["small"].asked == two.fakes["coder"].asked == 0


def test_only_keys_of_tenants_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "secret a")
    tenants = (Tenant("a", key_env="A_KEY"), Tenant("b", key_sha256=sha256(b"secret b").hexdigest()))
    with Stand(SMALL, tenant=tenants) as stand:
        for key in ("secret a", "secret b"):
            assert stand.client(key).chat.completions.create(model="auto", messages=SEA).choices
        with pytest.raises(openai.AuthenticationError) as caught:
            stand.client("secret c").chat.completions.create(model="auto", messages=SEA)
        assert caught.value.code == "invalid_api_key"
        for path in ("/v1/models", "/v1/router"):
            assert httpx.get(stand.address + path, trust_env=False).status_code == 401
        assert httpx.get(f"{stand.address}/healthz", trust_env=False).status_code == 200


def test_what_a_back_end_refuses_is_told_as_it_came(two: Stand) -> None:
    for fake in two.fakes.values():
        fake.trouble = "refuses"
    with pytest.raises(openai.BadRequestError) as caught:
        two.client().chat.completions.create(model="auto", messages=SEA)
    assert (caught.value.param, caught.value.code) == ("temperature", "bad_value")
    assert two.fakes["small"].asked + two.fakes["coder"].asked == 1, "another back end would refuse it as well"


@pytest.mark.parametrize("trouble", ["down", "busy", "hangs", "talks nonsense"])
@pytest.mark.parametrize("stream", [False, True])
def test_another_back_end_answers_where_one_fails(two: Stand, trouble: Any, stream: bool) -> None:
    two.fakes["small"].trouble = trouble
    client, small = two.client(), two.fakes["small"]
    while not small.asked:  # the scheduler tries both soon
        answer: Any = client.chat.completions.create(model="auto", messages=SEA, stream=stream)
        text = "".join(part.choices[0].delta.content or "" for part in answer) if stream else str(answer)
        assert "score " in text
    state = httpx.get(f"{two.address}/v1/router", trust_env=False).json()
    assert state["backends"]["small"] | {"busy": 0, "in_line": 0, "failures": 1} == state["backends"]["small"]
    assert (state["backends"]["small"]["rests"] > 20.0) == (trouble == "busy"), "as long as it asked for"


def test_a_failure_teaches_the_lowest_reward_and_a_rest(two: Stand) -> None:
    """After three failures in a row nobody is sent there for a while."""
    two.fakes["small"].trouble = "down"
    client = two.client()
    for _ in range(40):
        client.chat.completions.create(model="auto", messages=SEA)
    asked = two.fakes["small"].asked
    state = httpx.get(f"{two.address}/v1/router", trust_env=False).json()
    believed = state["believed"]["short prose"]
    assert 1 <= asked <= 10
    assert believed["small"]["mean"] < 0.3 < believed["coder"]["mean"]


def test_an_error_where_nobody_can_answer(two: Stand) -> None:
    for fake in two.fakes.values():
        fake.trouble = "down"
    with pytest.raises(openai.InternalServerError) as caught:
        two.client().chat.completions.create(model="auto", messages=SEA)
    assert (caught.value.status_code, caught.value.code) == (502, "backend_failed")
    assert [fake.asked for fake in two.fakes.values()] == [1, 1]


def test_a_pinned_request_goes_nowhere_else(two: Stand) -> None:
    two.fakes["small"].trouble = "down"
    with pytest.raises(openai.InternalServerError):
        two.client().chat.completions.create(model="small", messages=SEA)
    assert two.fakes["coder"].asked == 0


def test_a_stream_that_breaks_off_is_told_and_not_repeated(two: Stand) -> None:
    for fake in two.fakes.values():
        fake.trouble = "cuts"
    with pytest.raises(openai.APIError, match="ended early"):
        list(two.client().chat.completions.create(model="auto", messages=SEA, stream=True))
    assert sum(fake.asked for fake in two.fakes.values()) == 1
    assert all(slots.busy == 0 for slots in two.router.dispatcher.slots.values())


@pytest.fixture
def one() -> Iterator[Stand]:
    """A back end with one slot and no line, which hangs, before which two requests may wait."""
    with Stand(SMALL, cards={"small": {"slots": 1}}, backlog=2) as stand:
        stand.fakes["small"].trouble = "hangs"
        yield stand


def leave_soon(stand: Stand, stream: bool = False, model: str = "auto") -> None:
    """Ask, and go away after a moment."""
    body, patience = {"messages": SEA, "stream": stream, "model": model}, httpx.Timeout(5.0, read=0.3)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{stand.address}/v1/chat/completions", json=body, timeout=patience, trust_env=False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_slot(one: Stand, stream: bool) -> None:
    leave_soon(one, stream)
    wait_for(lambda: one.fakes["small"].gone == 1)
    assert one.router.dispatcher.slots["small"].busy == 0
    one.fakes["small"].trouble = None
    assert one.client().chat.completions.create(model="auto", messages=SEA).choices


@pytest.mark.parametrize("model", ["auto", "small"])
def test_a_client_that_leaves_while_it_waits_is_forgotten(one: Stand, model: str) -> None:
    client = one.client()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.chat.completions.create, model=model, messages=SEA)
        wait_for(lambda: one.fakes["small"].active == 1)
        leave_soon(one, model=model)
        wait_for(lambda: one.router.dispatcher.lines.waiting == 0)
        one.fakes["small"].trouble = None
        assert first.result().choices
    assert one.fakes["small"].asked == 1, "who left is not served"
    assert client.chat.completions.create(model=model, messages=SEA).choices


def test_too_many_who_wait_are_told_to_come_back(one: Stand) -> None:
    client = one.client()
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(client.chat.completions.create, model="auto", messages=SEA)]
        wait_for(lambda: one.fakes["small"].active == 1)
        asked += [pool.submit(client.chat.completions.create, model="auto", messages=SEA) for _ in range(2)]
        wait_for(lambda: one.router.dispatcher.lines.waiting == 2)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="auto", messages=SEA)
        assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "requests")
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
        one.fakes["small"].trouble = None
        assert all(one.result().choices for one in asked)
    assert one.fakes["small"].most == 1, "never more at a time than it has slots"
