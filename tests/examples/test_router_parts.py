"""Parts of the router by themselves: kinds, judges, rewards, events, slots, turns, and settings."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from llm_router.answer import Answer, Call
from llm_router.card import server_features
from llm_router.choosy import Choosy
from llm_router.config import load
from llm_router.errors import Failed
from llm_router.events import events
from llm_router.fakes import FAKES
from llm_router.judge import CUT_OFF, NO_CALL, WRONG_FORM, by_form, find_judge
from llm_router.kind import KINDS, LONG, classify
from llm_router.slots import FAILURES, FIRST_REST, LONGEST_REST, Slots
from llm_router.ticket import Ticket
from llm_router.worth import Worth
from numpy.linalg import matrix_rank

from bilinq.errors import BadInput

ROUTER = Path(__file__).parents[2] / "examples" / "llm_router"
TOOLS = [{"type": "function", "function": {"name": "weather"}}]


def body(text: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (body("Write a poem about autumn; make it rhyme."), "short prose"),
        (body("What is the class of 1984 about? Import duties rose."), "short prose"),
        (body("Why does this fail?\n```\nx = 1\n```"), "short code"),
        (body("def f(x):\n    return x\n\nimport os  # mend it"), "short code"),
        (body("Refactor this Python function for me."), "short code"),
        (body("x" * LONG), "long prose"),
        (body([{"type": "text", "text": "x" * LONG}, {"type": "image_url", "image_url": {}}]), "long prose"),
        (body("Is it raining?", tools=TOOLS), "short prose with tools"),
        (body(None, functions=[{}]), "short prose with tools"),
    ],
)
def test_kinds(asked: dict[str, Any], kind: str) -> None:
    assert str(classify(asked)) == kind


def test_features_can_tell_any_kind_from_any_other() -> None:
    assert matrix_rank([kind.features for kind in KINDS]) == len(KINDS)
    assert matrix_rank(server_features([fake.card for fake in FAKES])) == len(FAKES)


@pytest.mark.parametrize(
    ("answer", "more", "score"),
    [
        (Answer("Yes.", finish_reason="stop"), {}, 1.0),
        (Answer("  ", finish_reason="stop"), {}, 0.0),
        (Answer("Ye", finish_reason="length"), {}, CUT_OFF),
        (Answer("Y", finish_reason="content_filter"), {}, 0.0),
        (Answer("", {0: Call("weather", '{"city": "Rome"}')}, "tool_calls"), {"tools": TOOLS}, 1.0),
        (Answer("", {0: Call("weather", "{")}, "tool_calls"), {"tools": TOOLS}, WRONG_FORM),
        (Answer("", {0: Call("train", "{}")}, "tool_calls"), {"tools": TOOLS}, WRONG_FORM),
        (Answer("Sunny.", finish_reason="stop"), {"tools": TOOLS, "tool_choice": "required"}, NO_CALL),
        (Answer("Sunny.", finish_reason="stop"), {"tools": TOOLS}, 1.0),
        (Answer("{}", finish_reason="stop"), {"response_format": {"type": "json_object"}}, 1.0),
        (Answer("{", finish_reason="stop"), {"response_format": {"type": "json_object"}}, WRONG_FORM),
    ],
)
def test_the_judge_of_forms(answer: Answer, more: dict[str, Any], score: float) -> None:
    assert by_form(body("Hm?", **more), answer) == score


def test_a_judge_is_found_by_its_name() -> None:
    assert find_judge("llm_router.judge:by_form") is by_form
    for name in ("nothing:here", "llm_router.judge:nobody", "", "llm_router.judge"):
        with pytest.raises(BadInput, match="judge must name"):
            find_judge(name)


def test_rewards_stay_in_their_range() -> None:
    worth = Worth(second=0.1, money=2.0)
    assert worth.reward(0.9, seconds=2.0, price=0.1) == pytest.approx(0.5)
    assert worth.reward(0.9, seconds=20.0, price=0.1) == 0.0
    with pytest.raises(BadInput, match=r"score of a judge must be from 0 to 1; got 1\.5"):
        worth.reward(1.5, 0.0, 0.0)


def test_tokens_are_guessed_where_they_are_not_told() -> None:
    answer = Answer("x" * 40)
    assert answer.tokens(body("y" * 400)) == (100.0, 10.0)
    answer.usage = {"prompt_tokens": 7, "completion_tokens": 3}
    assert answer.tokens(body("y" * 400)) == (7.0, 3.0)


@pytest.mark.parametrize("nonsense", [b"<html>", b"[]", b"{}", b'{"choices": [1]}', b'{"error": {"message": "no"}}'])
def test_what_is_no_answer_is_a_failure(nonsense: bytes) -> None:
    with pytest.raises(Failed):
        Answer().take(nonsense)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_events_however_they_are_cut(size: int, end: bytes) -> None:
    sent = end.join(
        [b": ping", b"", b"data: one", b"", b"event: x", b"data:two", b"data: three", b"", b"data: cut off"]
    )

    async def parts() -> AsyncIterator[bytes]:
        for k in range(0, len(sent), size):
            yield sent[k : k + size]

    async def collected() -> list[bytes]:
        return [data async for data in events(parts())]

    assert asyncio.run(collected()) == [b"one", b"two\nthree"]


def test_a_back_end_rests_after_failures_and_is_tried_by_one() -> None:
    slots = Slots(4, patience=1.0)
    for _ in range(FAILURES - 1):
        slots.failed(now=10.0)
    assert slots.room(10.0) == 4
    slots.failed(now=10.0)
    assert (slots.room(10.0), slots.room(10.0 + FIRST_REST)) == (0, 1)
    for _ in range(50):
        slots.failed(now=20.0)
    assert (slots.room(19.9 + LONGEST_REST), slots.room(20.0 + LONGEST_REST)) == (0, 1)
    slots.worked()
    assert slots.room(20.0 + LONGEST_REST) == 4


def test_the_line_before_a_back_end_goes_by_patience() -> None:
    slots = Slots(4, patience=1.0)
    assert slots.longest_line == 0, "nobody knows yet how long a request takes"
    for seconds, line in ((2.0, 2), (0.5, 8), (0.01, 12)):
        slots.seconds = seconds
        assert slots.longest_line == line


def test_choosy_requests_take_turns_by_weight() -> None:
    async def served() -> str:
        choosy = Choosy({"a": 1.0, "b": 3.0})
        for tenant in "a" * 20 + "b" * 20:
            choosy.add(Ticket(tenant, KINDS[0], frozenset({"x"})))
        order = ""
        for _ in range(16):
            ticket = next(choosy.in_turn())
            choosy.serve(ticket)
            order += ticket.tenant
        assert len(choosy) == 24
        return order

    order = asyncio.run(served())
    assert (order.count("a"), order.count("b")) == (4, 12)


def test_the_example_s_settings() -> None:
    config = load(ROUTER / "router.toml")
    assert [card.name for card in config.backend] == ["small", "large"]
    assert config.weight == {"anybody": 1.0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ('host = "0.0.0.0"', "host must be a loopback address where there are no tenants; got '0.0.0.0'"),
        ('[[tenant]]\nname = "a"', "tenant 'a' must have either key_env or key_sha256"),
        ("prot = 1", "prot: is not a known field"),
        ("port = 70000", "port: expected int <= 65535"),
        ('[[backend]]\nname = "b"\nurl = "ftp://x"\nmodel = "m"', "backend[0].url"),
        ("backend = []", "backend: expected array of length >= 1"),
        ("port = ", "is not valid TOML"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, change: str, told: str) -> None:
    file = tmp_path / "router.toml"
    usual = '[[backend]]\nname = "b"\nurl = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
    file.write_text(change + "\n" + (usual if "backend" not in change else ""))
    with pytest.raises(BadInput) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: ") and told in str(caught.value)
