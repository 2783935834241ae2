"""OpenAI's client and its API: whole answers, streams, tools, embeddings, models, and fields that pass through."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from gateway_stand import CODER, SEA, SMALL, Stand

TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand() as one:
        yield one


def test_a_whole_answer_has_the_gateway_s_id_and_its_back_end_in_a_header(stand: Stand) -> None:
    raw = stand.client().chat.completions.with_raw_response.create(model="auto", messages=SEA)
    answer = raw.parse()
    assert answer.id.startswith("chatcmpl-") and raw.headers["x-request-id"] == answer.id
    assert raw.headers["x-bilinq-backend"] == answer.model in stand.fakes
    assert answer.usage is not None and answer.usage.completion_tokens > 0
    assert "score " in str(answer.choices[0].message.content)


def test_streams_arrive_in_parts_with_one_id_and_usage_only_if_asked_for(stand: Stand) -> None:
    both: list[dict[str, Any]] = [{}, {"stream_options": {"include_usage": True}}]
    for options in both:
        parts: list[Any] = list(stand.ask(stream=True, **options))
        assert len({part.id for part in parts}) == 1 and parts[0].id.startswith("chatcmpl-")
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert text.startswith("score ") and parts[-1 - bool(options)].choices[0].finish_reason == "stop"
        assert any(part.usage for part in parts) == bool(options)
        assert all(part.choices for part in parts[: -1 if options else None])


def test_tools_are_called_in_whole_answers_and_streams(stand: Stand) -> None:
    call = stand.ask(tools=[TOOL]).choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Paris"}')
    parts = list(stand.ask(tools=[TOOL], stream=True))
    calls = [one for part in parts if part.choices for one in part.choices[0].delta.tool_calls or ()]
    assert [one.function.name for one in calls] == ["weather"]


def test_the_asynchronous_client_asks_many_at_once(stand: Stand) -> None:
    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{stand.address}/v1", api_key="none", max_retries=0) as client:
            return list(
                await asyncio.gather(*(client.chat.completions.create(model="auto", messages=SEA) for _ in range(40)))
            )

    answers = asyncio.run(ask())
    assert len({answer.id for answer in answers}) == 40


def test_completions_and_embeddings(stand: Stand) -> None:
    client = stand.client()
    assert "score " in client.completions.create(model="auto", prompt="Once upon a time").choices[0].text
    parts = list(client.completions.create(model="auto", prompt=["Once", "twice"], stream=True))
    assert "score " in "".join(part.choices[0].text for part in parts)
    assert len(client.embeddings.create(model="auto", input=["a", "b", "c"]).data) == 3
    assert len(client.embeddings.create(model="small", input="a").data) == 1


def test_unknown_fields_pass_through_both_ways(stand: Stand) -> None:
    answer = stand.ask(model="small", extra_body={"top_k": 7, "guided": {"a": [1, 2.5, None]}})
    assert stand.fakes["small"].counts.last["top_k"] == 7
    assert stand.fakes["small"].counts.last["guided"] == {"a": [1, 2.5, None]}
    assert stand.fakes["small"].counts.last["model"] == "small"
    assert answer.choices[0].fake is True


def test_models_are_those_of_the_back_ends_and_auto(stand: Stand) -> None:
    client = stand.client()
    assert [model.id for model in client.models.list()] == ["auto", "small", "coder", "large", "reader"]
    assert client.models.retrieve("coder").id == "coder"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.code == "model_not_found"


def test_fakes_tell_other_routers_that_they_are_well_and_which_model_they_have(stand: Stand) -> None:
    address = stand.gateway.config.backend[0].url.removesuffix("/v1")
    before = stand.asked
    well, models, other = (httpx.get(address + path, trust_env=False) for path in ("/health", "/v1/models", "/other"))
    assert (well.status_code, models.json()["data"][0]["id"], other.status_code) == (200, "small", 404)
    assert stand.asked == before, "these are no requests"


def test_a_caller_chooses_by_name_by_list_and_by_tag() -> None:
    changes: dict[str, dict[str, Any]] = {
        "small": {"tags": ("cheap",), "region": "eu"},
        "coder": {"tags": ("cheap",)},
        "large": {"model": "big-7"},
    }
    with Stand(changes=changes) as stand:
        for _ in range(6):
            stand.ask("reader")
        assert stand.asked == {"small": 0, "coder": 0, "large": 0, "reader": 6}
        for model in ("small,coder", "cheap"):
            for _ in range(6):
                stand.ask(model)
        assert stand.asked["large"] == 0 and stand.asked["reader"] == 6
        stand.post("/v1/chat/completions", {"model": ["large"], "messages": SEA})
        assert stand.asked["large"] == 1 and stand.fakes["large"].counts.last["model"] == "big-7"
        stand.ask(extra_headers={"x-bilinq-tags": "cheap, eu"})
        assert stand.asked["small"] + stand.asked["coder"] == 13 and stand.fakes["small"].counts.last["messages"] == SEA
        for model, tags, status in (("none", "", 404), ("auto", "cold", 400), ("large", "cheap", 400)):
            refused = stand.post("/v1/chat/completions", {"model": model, "messages": SEA}, **{"x-bilinq-tags": tags})
            assert refused.status_code == status, refused.text


def test_context_and_features_decide_who_is_eligible() -> None:
    changes: dict[str, dict[str, Any]] = {"small": {"context": 50, "features": ()}, "coder": {"features": ("tools",)}}
    with Stand([SMALL, CODER], changes=changes) as stand:
        for _ in range(4):
            stand.ask(messages=[{"role": "user", "content": "word " * 100}])
            stand.ask(tools=[TOOL])
            stand.ask(max_tokens=60)
        assert stand.asked == {"small": 0, "coder": 12}
        for body, reason in (
            ({"response_format": {"type": "json_object"}}, "none has json"),
            ({"max_tokens": 200_000}, "the longest context has 128000"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "none has vision"),
        ):
            refused = stand.post("/v1/chat/completions", {"messages": SEA, **body})
            assert refused.status_code == 400 and reason in refused.json()["error"]["message"]
