"""`bilinq.plugins.litellm` in LiteLLM's own Router, in front of fake back ends on the loopback."""

import asyncio
import inspect
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from math import log
from types import ModuleType
from typing import Any, ClassVar

import pytest

import bilinq
from bilinq.errors import BadInput, BilinqError
from bilinq.plugins.litellm import BilinqRouting, text_features

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched
pytestmark = pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class")
QUESTION = [{"role": "user", "content": "What is 2 + 2?"}]


class Backend(BaseHTTPRequestHandler):
    """Answers as models do: `good` and `cheap` at once, `slow` after a while, `broken` never, `strict` refuses."""

    protocol_version = "HTTP/1.1"
    served: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        model = request["model"]
        with self.lock:
            self.served[model] += 1
            number = sum(self.served.values())
        if model in ("broken", "strict"):
            return self.reply({"error": {"message": "no", "type": "test"}}, 500 if model == "broken" else 400)
        if model == "slow":
            time.sleep(0.05)
        message = {"role": "assistant", "content": model}
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        head = {"id": f"answer-{number}", "created": 1, "model": model}
        if request.get("stream"):
            return self.stream(head | {"object": "chat.completion.chunk"}, model)
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return self.reply(head | {"object": "chat.completion", "choices": choices, "usage": usage})

    def reply(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, head: dict[str, Any], text: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for finish in (None, None, "stop"):
            delta = {"role": "assistant", "content": text}
            chunk = head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_callbacks() -> Iterator[None]:
    yield
    litellm = import_module("litellm")
    litellm.callbacks.clear()
    for name in ("success_callback", "failure_callback", "_async_success_callback", "_async_failure_callback"):
        getattr(litellm, name).clear()


def router(backend: str, *models: str, price: dict[str, float] | None = None, **settings: Any) -> Any:
    """Return LiteLLM's Router with one deployment for each model in the group "any"."""
    deployments = [
        {
            "model_name": "any",
            "litellm_params": {
                "model": f"openai/{name}", "api_base": backend, "api_key": "none", "max_parallel_requests": 2,
                "input_cost_per_token": (price or {}).get(name, 0.0), "output_cost_per_token": 0.0,
            },
            "model_info": {"id": name},
        }
        for name in models
    ]  # fmt: skip
    settings = {"num_retries": 0, "disable_cooldowns": True} | settings
    return import_module("litellm").Router(model_list=deployments, **settings)


async def ask(routed: Any, times: int, **more: Any) -> list[str]:
    """Ask one after the other; return which model answered."""
    found = []
    for _ in range(times):
        answer = await routed.acompletion("any", messages=QUESTION, **more)
        found.append(answer.choices[0].message.content)
        await learnt()
    return found


async def learnt() -> None:
    """Let LiteLLM call its callbacks, which it does in the background."""
    await asyncio.sleep(0.005)


async def until(done: Any) -> None:
    for _ in range(2000):
        if done():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("this should have happened within ten seconds")


def test_it_has_the_methods_of_the_documented_class() -> None:
    base = import_module("litellm.types.router").CustomRoutingStrategyBase
    for name in ("async_get_available_deployment", "get_available_deployment"):
        theirs, mine = (inspect.signature(getattr(one, name)) for one in (base, BilinqRouting))
        assert list(theirs.parameters) == list(mine.parameters)
    assert isinstance(BilinqRouting().callback, import_module("litellm.integrations.custom_logger").CustomLogger)


def test_it_learns_the_better_model_from_a_judge(backend: str) -> None:
    def judge(kwargs: Any, response: Any) -> float:
        return 0.9 if response.choices[0].message.content == "good" else 0.3

    routed = router(backend, "cheap", "good")
    routing = BilinqRouting(judge=judge, seed=1).attach(routed)
    found = asyncio.run(ask(routed, 30))
    assert found[-15:].count("good") >= 13
    assert routing.counts.scheduled == 30 and routing.counts.errors == routing.counts.unknown == 0


def test_two_strategies_in_one_process_learn_from_their_own_requests_only(backend: str) -> None:
    """LiteLLM calls the callbacks of all strategies for every request of every Router."""
    routers = [router(backend, "good"), router(backend, "cheap")]
    strategies = [BilinqRouting(seed=seed, patience=30.0).attach(one) for seed, one in enumerate(routers)]

    async def run() -> None:
        await asyncio.gather(*(one.acompletion("any", messages=QUESTION) for one in routers for _ in range(10)))
        await asyncio.gather(*(one.acompletion("any", messages=QUESTION) for one in routers[:1] for _ in range(5)))
        await until(lambda: not any(one.queue._requests for one in strategies))

    asyncio.run(run())
    assert [one.counts.scheduled for one in strategies] == [15, 10]
    assert [one.counts.unknown for one in strategies] == [0, 0]


def test_outcomes_of_another_strategy_are_not_learnt(backend: str) -> None:
    """A callback may come late, after its strategy was replaced: its number may be that of a request of the next one."""
    routed = router(backend, "good")
    first, second = BilinqRouting(), BilinqRouting().attach(routed)
    asked: dict[str, Any] = {}

    async def run() -> None:
        first._router = routed
        await first.async_get_available_deployment("any", QUESTION, request_kwargs=asked)
        await second.async_get_available_deployment("any", QUESTION, request_kwargs={})

    asyncio.run(run())
    call = {"litellm_params": {"metadata": asked["metadata"], "model_info": {"id": "good"}}}
    second.ended(call, None, 0.1, False)
    assert len(second.queue._requests) == 1 and second.counts.unknown == 0
    first.ended(call, None, 0.1, False)
    assert not first.queue._requests and first.counts.unknown == 0


def test_it_learns_price_and_failures_without_a_judge(backend: str) -> None:
    routed = router(backend, "cheap", "good", "broken", price={"good": 0.001, "cheap": 0.0}, num_retries=3)
    routing = BilinqRouting(dollar=20.0, seed=1).attach(routed)
    Backend.served.clear()
    found = asyncio.run(ask(routed, 30))
    assert found[-15:].count("cheap") >= 13, "an answer of the other costs 0.01 dollars"
    assert Backend.served["broken"] <= 12, "each failure was retried elsewhere"
    assert routing.queue.waiting == 0 and not routing.queue._requests


def test_feedback_comes_later_by_the_id_of_the_response(backend: str) -> None:
    routed = router(backend, "cheap", "good")
    routing = BilinqRouting(judge=lambda kwargs, response: None, seed=2, keep=30).attach(routed)

    async def run() -> list[str]:
        found = []
        for _ in range(40):
            answer = await routed.acompletion("any", messages=QUESTION)
            found.append(answer.choices[0].message.content)
            await until(lambda name=answer.id: routing.feedback(name, 0.9 if found[-1] == "good" else 0.2))
        return found

    found = asyncio.run(run())
    assert found[-15:].count("good") >= 13
    assert len(routing._answers) == 30
    assert not routing.feedback("another", 0.5)
    with pytest.raises(BadInput, match=r"^quality must be from 0 to 1; got 2$"):
        routing.feedback("another", 2.0)


def test_many_requests_at_once_keep_to_the_places(backend: str) -> None:
    """Two deployments with two places each: the fifth request waits; all are answered, and all places are free again."""
    routed = router(backend, "slow", "good")
    routing = BilinqRouting(patience=30.0, seed=1).attach(routed)
    most = 0

    async def one() -> str:
        nonlocal most
        answer = await routed.acompletion("any", messages=QUESTION)
        most = max(most, max(routing.queue._places.busy(name) for name in ("slow", "good")))
        return str(answer.choices[0].message.content)

    async def run() -> list[str]:
        found = await asyncio.gather(*(one() for _ in range(40)))
        await until(lambda: not routing.queue._requests)
        return list(found)

    assert len(asyncio.run(run())) == 40
    assert most <= 2 and routing.counts.scheduled == 40 and routing.queue.waiting == 0


def test_streams_and_calls_that_are_not_asynchronous_are_learnt_too(backend: str) -> None:
    routed = router(backend, "good")
    routing = BilinqRouting().attach(routed)

    async def stream() -> str:
        parts = await routed.acompletion("any", messages=QUESTION, stream=True)
        text = "".join([part.choices[0].delta.content or "" async for part in parts])
        await until(lambda: not routing.queue._requests)
        return text

    assert asyncio.run(stream()) == "goodgoodgood"
    assert routed.completion("any", messages=QUESTION).choices[0].message.content == "good"
    end = time.monotonic() + 10.0
    while routing.queue._requests and time.monotonic() < end:
        time.sleep(0.005)
    assert not routing.queue._requests and routing.counts.scheduled == 2


def test_a_refused_request_is_no_failure_of_the_deployment(backend: str) -> None:
    routed = router(backend, "strict")
    routing = BilinqRouting().attach(routed)
    errors = import_module("litellm.exceptions")

    async def run() -> None:
        for _ in range(5):
            with pytest.raises(errors.BadRequestError):
                await routed.acompletion("any", messages=QUESTION)
            await until(lambda: not routing.queue._requests)

    asyncio.run(run())
    assert routing.queue.scheduler.paused == {}


def test_errors_of_functions_of_the_user_never_reach_a_request(backend: str) -> None:
    def wrong(*arguments: Any) -> Any:
        raise ZeroDivisionError

    routed = router(backend, "good")
    routing = BilinqRouting(features=wrong, judge=wrong).attach(routed)
    assert asyncio.run(ask(routed, 2)) == ["good", "good"]
    assert routing.counts.errors == 4


def test_a_named_deployment_is_left_to_litellm(backend: str) -> None:
    routed = router(backend, "good", "cheap")
    routing = BilinqRouting().attach(routed)
    answer = asyncio.run(routed.acompletion("cheap", messages=QUESTION))  # the id of a deployment
    assert answer.choices[0].message.content == "cheap" and routing.counts.scheduled == 0


def test_the_callback_attaches_to_the_router_of_the_proxy(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy calls this hook before each request; its own requirements are not installed here, so it is a module."""
    proxy = ModuleType("litellm.proxy.proxy_server")
    routed = router(backend, "good")
    vars(proxy)["llm_router"] = routed
    monkeypatch.setitem(sys.modules, proxy.__name__, proxy)
    routing = BilinqRouting()

    async def run() -> None:
        for _ in range(2):
            data: dict[str, Any] = {}
            await routing.callback.async_pre_call_hook(
                user_api_key_dict=None, cache=None, data=data, call_type="completion"
            )
            assert await ask(routed, 1) == ["good"]

    asyncio.run(run())
    assert routing.counts.scheduled == 2


def test_features_are_finite_and_always_as_many() -> None:
    texts = ["", "hello?", "def f(x):\n    return 1;\n", "Grüße 123"]
    found = [text_features(text, {"tools": [1], "max_tokens": 5}) for text in texts]
    assert found == [[*bilinq.text_features(text), 1.0, log(6.0)] for text in texts]
    assert text_features("", {}) == [*bilinq.text_features(""), 0.0, 0.0]


def test_what_is_missing_or_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"^router must be a litellm.Router of version 1.109 or later; got int$"):
        BilinqRouting().attach(1)
    with pytest.raises(BadInput, match=r"^dollar must be "):
        BilinqRouting(dollar=-1.0)
    for name in [one for one in sys.modules if one.startswith("litellm.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(
        BilinqError, match=r"^bilinq\[litellm\] is not installed; run: pip install 'bilinq\[litellm\]'$"
    ):
        BilinqRouting()
