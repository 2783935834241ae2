"""What goes wrong: bad requests, keys, back ends that fail in every way, deadlines, clients that leave, too much at once."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import httpx
import openai
import pytest
from gateway_stand import CODER, SEA, SMALL, Stand, leave_soon, wait_for

from bilinq.gateway.config import ANYBODY, Tenant
from bilinq.gateway.dispatcher import Dispatcher, Ticket
from bilinq.gateway.errors import ApiError
from bilinq.gateway.features import KINDS

QUICK = {name: {"first_timeout": 0.5, "gap_timeout": 0.5} for name in ("small", "coder")}


@pytest.fixture
def two() -> Iterator[Stand]:
    """Two back ends that are given up after half a second of silence."""
    with Stand([SMALL, CODER], changes=QUICK) as stand:
        yield stand


def busy(stand: Stand) -> int:
    return stand.do(lambda gateway: sum(load.busy for load in gateway.dispatcher.loads.values()))


def test_errors_have_openai_s_shape(two: Stand) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        two.ask(messages=[])
    assert (caught.value.param, caught.value.type) == ("messages", "invalid_request_error")
    url = f"{two.address}/v1/chat/completions"
    for content, kind, status in (
        (b"{", "application/json", 400), (b"[]", "application/json", 400), (b"[" * 100_000, "application/json", 400),
        (b'{"messages": [{"content": "\xff"}]}', "application/json", 400),
        (b'{"messages": [{}], "stream": "yes"}', "application/json", 400),
        (b'{"messages": [{}], "max_tokens": "many"}', "application/json", 400),
        (b'{"messages": [{}], "max_tokens": 0}', "application/json", 400),
        (b'{"messages": [{}], "model": 7}', "application/json", 400),
        (b'{"messages": [{}], "tools": 7}', "application/json", 400),
        (b'{"messages": [{}]}', "text/plain", 415), (b" " * (17 << 20), "application/json", 413),
    ):  # fmt: skip
        answer = httpx.post(url, content=content, headers={"Content-Type": kind}, trust_env=False)
        assert answer.status_code == status, content[:50]
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    headers = {"Content-Type": "application/json"}
    said = httpx.post(f"{two.address}/v1/feedback", content=b'{"id": "\xff"}', headers=headers, trust_env=False)
    assert said.status_code == 400
    assert two.get("/v1/chat/completions").json()["error"]["code"] == "unknown_url"
    assert two.get("/v1/models", Host="evil.example").status_code == 403
    for path, body in (("/v1/embeddings", {}), ("/v1/completions", {"prompt": {}}), ("/v1/embeddings", {"input": []})):
        assert two.post(path, body).status_code == 400
    assert two.post("/v1/chat/completions", {"messages": SEA}, **{"x-bilinq-deadline": "soon"}).status_code == 400
    assert two.asked == {"small": 0, "coder": 0}


def test_bodies_that_can_just_be_read_are_too_deep(two: Stand) -> None:
    """At some of these depths a body can be read, and not be written again for a back end."""
    url, headers = f"{two.address}/v1/chat/completions", {"Content-Type": "application/json"}
    with httpx.Client(trust_env=False, headers=headers) as client:
        for depth in (101, *range(940, 1000)):
            body = b'{"messages": [{"role": "user", "content": "a"}], "tools": ' + b"[" * depth + b"]" * depth + b"}"
            assert client.post(url, content=body).status_code == 400, depth


def test_keys_and_scopes_of_tenants(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "key").write_text("secret b\n")
    monkeypatch.setenv("A_KEY", "secret a")
    monkeypatch.setenv("B_KEY_FILE", str(tmp_path / "key"))
    tenants = (
        Tenant(name="a", key_env="A_KEY", backends=("small",)), Tenant(name="b", key_env="B_KEY", scopes=("read",)),
        Tenant(name="c", key_sha256=sha256(b"secret c").hexdigest(), scopes=("admin",)),
    )  # fmt: skip
    with Stand([SMALL, CODER], tenant=tenants) as stand:
        answer = stand.ask(key="secret a")
        assert stand.ask(key="secret c").choices and stand.asked["coder"] <= 1
        with pytest.raises(openai.AuthenticationError) as caught:
            stand.ask(key="secret d")
        assert caught.value.code == "invalid_api_key"
        with pytest.raises(openai.PermissionDeniedError, match="lacks the scope submit"):
            stand.ask(key="secret b")
        why = f"/v1/requests/{answer.id}/decision"
        expected = {"/metrics": (403, 200, 200), "/v1/gateway": (403, 200, 200), why: (200, 200, 200)}
        for path, statuses in expected.items():
            found = [stand.get(path, Authorization=f"Bearer secret {one}").status_code for one in "abc"]
            assert tuple(found) == statuses, path
            assert stand.get(path).status_code == 401
        models = stand.get("/v1/models", Authorization="Bearer secret a").json()["data"]
        assert [one["id"] for one in models] == ["auto", "small"]
        with pytest.raises(openai.NotFoundError):
            stand.ask("coder", key="secret a")
        assert (
            stand.get("/healthz").status_code == stand.get("/readyz").status_code == stand.get("/").status_code == 200
        )


def test_what_a_back_end_refuses_is_passed_on_and_not_tried_elsewhere(two: Stand) -> None:
    for fake in two.fakes.values():
        fake.trouble = "refuse"
    with pytest.raises(openai.BadRequestError) as caught:
        two.ask()
    assert (caught.value.param, caught.value.code) == ("temperature", "fake_400")
    assert sum(two.asked.values()) == 1 and busy(two) == 0


@pytest.mark.parametrize("trouble", ["fail", "busy", "stall", "nonsense"])
@pytest.mark.parametrize("stream", [False, True])
def test_another_back_end_answers_while_nothing_was_sent(two: Stand, trouble: Any, stream: bool) -> None:
    two.fakes["small"].trouble = trouble
    for _ in range(20):  # the scheduler tries both soon
        answer = two.ask(stream=stream)
        text = "".join(part.choices[0].delta.content or "" for part in answer) if stream else str(answer)
        assert "score " in text
        if two.asked["small"]:
            break
    assert two.asked["small"] >= 1 and busy(two) == 0


def test_a_back_end_that_fails_is_paused_and_tried_again(two: Stand) -> None:
    two.fakes["small"].trouble = "fail"
    for _ in range(40):
        two.ask()
    assert 1 <= two.asked["small"] <= 12
    row = two.get("/v1/gateway").json()["learnt"][0]["cells"]
    assert row[0]["mean"] < row[1]["mean"], "failures are learnt"
    two.fakes["small"].trouble = None
    wait_for(lambda: two.ask("small,coder") and two.fakes["small"].counts.answered)


def test_a_back_end_that_asks_for_a_pause_gets_one(two: Stand) -> None:
    two.fakes["small"].trouble, two.fakes["small"].retry_after = "busy", 30.0
    for _ in range(20):
        two.ask()
    assert two.asked["small"] <= 1, "as long as it asked for"
    with pytest.raises(openai.InternalServerError) as caught:
        two.ask("small")
    if two.asked["small"]:
        assert caught.value.status_code == 503


def test_all_back_ends_down_is_a_clear_503_at_once(two: Stand) -> None:
    for fake in two.fakes.values():
        fake.trouble, fake.retry_after = "busy", 30.0
    with pytest.raises(openai.InternalServerError):
        two.ask()
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError) as caught:
        two.ask()
    assert caught.value.status_code == 503 and time.monotonic() - began < 5.0
    assert caught.value.code == "no_backend_available" and "small, coder" in caught.value.message
    assert 20 <= int(caught.value.response.headers["retry-after"]) <= 30
    assert two.get("/readyz").status_code == 503


def test_an_error_where_nobody_can_answer(two: Stand) -> None:
    for fake in two.fakes.values():
        fake.trouble = "fail"
    with pytest.raises(openai.InternalServerError) as caught:
        two.ask()
    assert (caught.value.status_code, caught.value.code) == (502, "backend_failed")
    assert all(f"{name}: status 500" in caught.value.message for name in ("small", "coder"))
    assert two.asked == {"small": 1, "coder": 1}, "each was tried once"
    with pytest.raises(openai.InternalServerError):
        two.ask("small")
    assert two.asked == {"small": 2, "coder": 1}, "a named one is the only one"


@pytest.mark.parametrize("trouble", ["break", "stall midway"])
def test_a_stream_that_breaks_off_is_reported_and_not_repeated(two: Stand, trouble: Any) -> None:
    for fake in two.fakes.values():
        fake.trouble = trouble
    parts = []
    with pytest.raises(openai.APIError, match="broke off"):
        for part in two.ask(stream=True):
            parts.append(part)
    assert parts and sum(two.asked.values()) == 1 and busy(two) == 0


@pytest.fixture
def one() -> Iterator[Stand]:
    """A back end with one slot that stalls, before which two requests may wait."""
    with Stand([SMALL], changes={"small": {"concurrency": 1}}, backlog=2) as stand:
        stand.fakes["small"].trouble = "stall"
        yield stand


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_slot(one: Stand, stream: bool) -> None:
    leave_soon(one, stream=stream)
    wait_for(lambda: one.fakes["small"].counts.gone == 1)
    wait_for(lambda: busy(one) == 0)
    one.fakes["small"].trouble = None
    assert one.ask().choices


def test_a_client_that_leaves_while_it_waits_is_forgotten(one: Stand) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(one.ask)
        wait_for(lambda: one.fakes["small"].counts.active == 1)
        leave_soon(one)
        wait_for(lambda: one.do(lambda gateway: gateway.dispatcher.waiting.total() == 0))
        one.fakes["small"].trouble = None
        assert first.result().choices
    assert one.asked == {"small": 1} and one.ask().choices


def test_a_full_queue_answers_429_with_retry_after(one: Stand) -> None:
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(one.ask) for _ in range(3)]
        wait_for(lambda: one.do(lambda gateway: gateway.dispatcher.waiting.total() == 2))
        with pytest.raises(openai.RateLimitError) as caught:
            one.ask()
        assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "requests")
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
        one.fakes["small"].trouble = None
        assert all(answer.result().choices for answer in asked)


def test_requests_that_come_at_once_count_as_waiting_only_without_a_back_end(one: Stand) -> None:
    """One slot and two places: of four requests in the same turn of the event loop one is refused, not two."""

    def ticket(k: int) -> Ticket:
        return Ticket(
            job=f"job {k}", tenant=ANYBODY, kind=KINDS[0], features=None, servers=("small",), cost={}, came=0.0
        )

    async def at_once(dispatcher: Dispatcher) -> list[Any]:
        placed = [asyncio.ensure_future(dispatcher.place(ticket(k))) for k in range(4)]
        await asyncio.sleep(0.2)
        ended = [each.exception() or each.result() if each.done() else "waits" for each in placed]
        for each in placed[1:3]:
            each.cancel()
        await asyncio.gather(*placed, return_exceptions=True)
        assert dispatcher.waiting.total() == 0
        return ended

    first, second, third, fourth = one.run(lambda gateway: at_once(gateway.dispatcher))
    assert (first, second, third) == ("small", "waits", "waits")
    assert isinstance(fourth, ApiError) and fourth.status == 429


def test_a_deadline_ends_what_has_not_begun(one: Stand) -> None:
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(one.ask, extra_headers={"x-bilinq-deadline": "0.5"}, stream=k == 1) for k in range(2)]
        for answer in both:  # one is at the back end, the other waits
            with pytest.raises(openai.InternalServerError, match=r"deadline of 0\.5 seconds"):
                answer.result()
    assert busy(one) == 0
    one.fakes["small"].trouble = None
    assert one.ask(extra_headers={"x-bilinq-deadline": "20"}).choices


def test_a_tenant_that_floods_does_not_block_another() -> None:
    tenants = tuple(Tenant(name=name, key_sha256=sha256(name.encode()).hexdigest()) for name in ("flood", "few"))
    stand_of_one = Stand([SMALL], tenant=tenants, changes={"small": {"concurrency": 2}}, speed=20.0)
    with stand_of_one as stand, ThreadPoolExecutor(max_workers=60) as pool:
        flood = [pool.submit(stand.ask, key="flood") for _ in range(50)]
        wait_for(lambda: stand.do(lambda gateway: gateway.dispatcher.waiting["flood"] >= 40))
        few = [pool.submit(stand.ask, key="few") for _ in range(4)]
        for answer in few:
            answer.result()
        assert stand.do(lambda gateway: gateway.dispatcher.waiting["flood"]) >= 20
        for answer in flood:
            answer.result()


def test_secrets_are_in_no_log_no_answer_and_no_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BACKEND_KEY", "topsecret-backend")
    monkeypatch.setenv("TENANT_KEY", "topsecret-tenant")
    caplog.set_level("DEBUG")
    changes = {name: {"key_env": "BACKEND_KEY", **QUICK[name]} for name in ("small", "coder")}
    tenants = (Tenant(name="a", key_env="TENANT_KEY", scopes=("admin",)),)
    file = tmp_path / "log.db"
    with Stand(
        [SMALL, CODER], changes=changes, tenant=tenants, database=f"sqlite:///{file}", log_requests=True
    ) as stand:
        troubles: tuple[Any, ...] = (None, "fail", "busy", "nonsense", "stall")
        for trouble in troubles:
            stand.fakes["small"].trouble = trouble
            answer = stand.post("/v1/chat/completions", {"messages": SEA}, Authorization="Bearer topsecret-tenant")
            assert "topsecret" not in answer.text + str(answer.headers)
        shown = [stand.get(path, Authorization="Bearer topsecret-tenant").text for path in ("/metrics", "/v1/gateway")]
        assert (
            stand.post("/v1/chat/completions", {"messages": SEA}, Authorization="Bearer topsecret-x").status_code == 401
        )
    assert "a back end failed" in caplog.text or stand.asked["small"] < 2
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert "topsecret" not in caplog.text + "".join(shown) and b"topsecret" not in kept and b"about the sea" not in kept
