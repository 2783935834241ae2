"""The router answers OpenAI's own client: whole answers, streams, tools, models, and pinned back ends."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from llm_router.fakes import TOKENS
from router_stand import Stand

README = Path(__file__).parents[2] / "examples" / "llm_router" / "README.md"
SEA: Any = [{"role": "user", "content": "Tell me about the sea."}]
WEATHER: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand(cards={"small": {"tools": False}, "reader": {"context": 5000}}) as stand:
        yield stand


@pytest.fixture
def client(stand: Stand) -> openai.OpenAI:
    return stand.client()


def test_a_whole_answer(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=SEA)
    answer = raw.parse()
    assert (answer.choices[0].message.content or "").startswith("score ")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.completion_tokens == TOKENS[False][1]
    assert answer.model == f"{raw.headers['x-router-backend']}-1"


@pytest.mark.parametrize("with_usage", [False, True])
def test_a_stream(stand: Stand, client: openai.OpenAI, with_usage: bool) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if with_usage else {}
    parts = list(client.chat.completions.create(model="auto", messages=SEA, stream=True, **options))
    choices = [part.choices[0] for part in parts if part.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    assert 0.0 < float(text.removeprefix("score ")) < 1.0
    assert choices[-1].finish_reason == "stop"
    usage = [part.usage for part in parts if part.usage]
    assert [one.prompt_tokens for one in usage] == ([TOKENS[False][0]] if with_usage else [])


def test_a_stream_is_events_up_to_done(stand: Stand) -> None:
    body = {"messages": SEA, "stream": True}
    answer = httpx.post(f"{stand.address}/v1/chat/completions", json=body, trust_env=False)
    assert answer.headers["content-type"] == "text/event-stream"
    *events, done, rest = answer.text.split("\n\n")
    assert all(event.startswith('data: {"') for event in events)
    assert (done, rest) == ("data: [DONE]", "")


def test_tools_go_where_they_are_taken(client: openai.OpenAI, stand: Stand) -> None:
    before = stand.fakes["small"].asked
    for _ in range(8):
        answer = client.chat.completions.create(model="auto", messages=SEA, tools=WEATHER)
        calls: Any = answer.choices[0].message.tool_calls
        assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", '{"city": "Paris"}')]
        assert answer.choices[0].finish_reason == "tool_calls"
    assert stand.fakes["small"].asked == before


def test_tools_in_a_stream(client: openai.OpenAI) -> None:
    parts = list(client.chat.completions.create(model="auto", messages=SEA, tools=WEATHER, stream=True))
    calls: list[Any] = [call for part in parts for call in part.choices[0].delta.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", '{"city": "Paris"}')]
    assert parts[-1].choices[0].finish_reason == "tool_calls"


def test_what_is_too_long_goes_where_it_fits(client: openai.OpenAI, stand: Stand) -> None:
    before = stand.fakes["reader"].asked
    long: Any = [{"role": "user", "content": [{"type": "text", "text": "la " * 5000}]}]
    for _ in range(8):
        client.chat.completions.create(model="auto", messages=long, max_tokens=2000)
    assert stand.fakes["reader"].asked == before


@pytest.mark.parametrize("name", ["coder", "coder-1"])
def test_a_back_end_is_pinned_by_its_name_or_model(client: openai.OpenAI, stand: Stand, name: str) -> None:
    for _ in range(4):
        assert client.chat.completions.create(model=name, messages=SEA).model == "coder-1"
    assert stand.fakes["coder"].last["model"] == "coder-1"


def test_an_unknown_model_is_routed(client: openai.OpenAI) -> None:
    assert client.chat.completions.create(model="gpt-of-tomorrow", messages=SEA).model.endswith("-1")


def test_other_settings_reach_the_back_end(client: openai.OpenAI, stand: Stand) -> None:
    client.chat.completions.create(model="large", messages=SEA, temperature=0.3, seed=7, stop=["x"])
    sent = stand.fakes["large"].last
    assert (sent["temperature"], sent["seed"], sent["stop"]) == (0.3, 7, ["x"])


def test_the_readme_s_block_runs(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    exec(found[1].replace("http://127.0.0.1:8080", stand.address))
    assert capsys.readouterr().out.startswith("score 0.")


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["auto", "small-1", "coder-1", "large-1", "reader-1"]
    assert client.models.retrieve("coder-1").id == "coder-1"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_health_and_state(stand: Stand, client: openai.OpenAI) -> None:
    client.chat.completions.create(model="large", messages=SEA)
    assert httpx.get(f"{stand.address}/healthz", trust_env=False).json() == {"status": "ok"}
    state = httpx.get(f"{stand.address}/v1/router", trust_env=False).json()
    assert state["waiting"] == {"anybody": 0}
    assert state["backends"]["large"]["busy"] == 0
    assert state["backends"]["large"]["seconds"] > 0.0
    assert set(state["believed"]["short prose"]) == {"small", "coder", "large", "reader"}
