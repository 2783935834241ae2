"""The parts one by one: settings and their errors, features, rules about answers, means, retry pauses, events."""

import asyncio
import doctest
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bilinq.errors import BadInput
from bilinq.gateway import backend, fakes, features, worth
from bilinq.gateway.answer import Answer, events
from bilinq.gateway.config import Config, load
from bilinq.gateway.errors import ApiError, BackendFailed
from bilinq.gateway.request import parse

BACKEND = '[[backend]]\nname = "a"\nurl = "http://127.0.0.1:9/v1"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "backend"),
        ("prot = 1\n" + BACKEND, r"'prot' is not a setting \(did you mean 'port'\?\)"),
        (BACKEND + "price_inn = 1", r"'price_inn' in \[backend\] is not a setting \(did you mean 'price_in'\?\)"),
        (BACKEND + "price_in = -1", "price_in"),
        (BACKEND + 'features = ["tols"]', "features"),
        (BACKEND + BACKEND, r"names of \[\[backend\]\] must differ; got a, a"),
        (BACKEND.replace('"a"', '"auto"'), "name of a backend must not be 'auto'"),
        ('host = "0.0.0.0"\n' + BACKEND, "host must be a loopback address"),
        (BACKEND + '[[tenant]]\nname = "t"', "either key_env or key_sha256"),
        (BACKEND + '[[tenant]]\nname = "t"\nkey_env = "K"\nbackends = ["b"]', "names, tags or regions"),
        ('database = "mysql://x"\n' + BACKEND, "database"),
        ("port = ", "is not valid TOML"),
    ],
)
def test_errors_in_settings_name_the_setting_and_the_rule(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        load(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_or_key_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="bilinq init gateway"):
        load(tmp_path / "none.toml")
    file = tmp_path / "gateway.toml"
    file.write_text(BACKEND + 'key_env = "NO_SUCH_KEY"')
    with pytest.raises(BadInput, match="NO_SUCH_KEY_FILE"):
        load(file).backend[0].secret()


def chat(text: str, **others: Any) -> Any:
    return parse("chat", "a", msgspec.json.encode({"messages": [{"role": "user", "content": text}], **others}), {})


def test_kinds_and_features_of_requests() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    for text, others, kind in (
        ("Tell me about the sea.", {}, "short prose"), ("Fix: ```x = 1```", {"tools": [tool]}, "short code with tools"),
        ("word " * 1000, {}, "long prose"), ("import os\ndef f():\n    pass\n" * 300, {}, "long code"),
    ):  # fmt: skip
        assert features.kind_of(chat(text, **others)) == kind
    made = features.Features()
    one, same = made.quick(chat("the sea and the sky")), made.quick(chat("the sea and the sky"))
    other = made.quick(chat("el mar y los cielos", response_format={"type": "json_object"}, max_tokens=5))
    assert one.size == 32 and np.isfinite(one).all() and (one == same).all() and (one != other).sum() > 5
    assert made.quick(chat("")).size == made.quick(chat("海" * 20_000)).size == 32


def test_sessions_are_what_conversations_have_in_common() -> None:
    first = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    more = [*first, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Go on"}]
    one, two = (parse("chat", "a", msgspec.json.encode({"messages": some}), {}) for some in (first, more))
    named = parse("chat", "a", msgspec.json.encode({"messages": first}), {b"x-bilinq-session": b"mine"})
    assert one.session == two.session != chat("Hello").session and named.session == "a:mine"
    assert (one.turns, two.turns) == (1, 2)


@pytest.mark.parametrize(
    ("text", "others", "reason", "score"),
    [
        ("Fine.", {}, "stop", 1.0), ("", {}, "stop", 0.0), ("Fi", {}, "length", 0.6), ("Fine.", {}, "content_filter", 0.0),
        ("I'm sorry, but I can't help with that.", {}, "stop", 0.3), ("I cannot help it: " + "la " * 400, {}, "stop", 1.0),
        ("{}", {"response_format": {"type": "json_object"}}, "stop", 1.0),
        ("no", {"response_format": {"type": "json_object"}}, "stop", 0.2),
        ("No tool.", {"tool_choice": "required"}, "stop", 0.3),
    ],
)  # fmt: skip
def test_rules_about_the_form_of_answers(text: str, others: dict[str, Any], reason: str, score: float) -> None:
    answer = Answer()
    answer.take(msgspec.json.encode({"choices": [{"message": {"content": text}, "finish_reason": reason}]}), "x")
    assert worth.by_form({"messages": [], **others}, answer) == score


def test_rules_about_tools() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    for name, arguments, score in (("f", "{}", 1.0), ("g", "{}", 0.2), ("f", "{", 0.2), ("f", "[]", 0.2)):
        call = {"function": {"name": name, "arguments": arguments}}
        answer = Answer()
        message = {"content": None, "tool_calls": [call]}
        answer.take(msgspec.json.encode({"choices": [{"message": message, "finish_reason": "tool_calls"}]}), "x")
        assert worth.by_form({"tools": [tool]}, answer) == score


def test_events_are_cut_out_of_bytes_however_they_come() -> None:
    stream = b': comment\n\ndata: {"a":1}\n\ndata: x\r\n\r\nevent: e\ndata: 1\ndata: 2\n\ndata: cut off'

    async def found(size: int) -> list[bytes]:
        async def parts() -> AsyncGenerator[bytes]:
            for k in range(0, len(stream), size):
                yield stream[k : k + size]

        return [data async for data in events(parts())]

    for size in (1, 2, 3, 7, 1000):
        assert asyncio.run(found(size)) == [b'{"a":1}', b"x", b"1\n2"]


@pytest.mark.parametrize(
    "said", [b"[]", b"7", b"{", b'{"choices": 3}', b'{"choices": [7]}', b'{"a": 1}', b'{"error": {"m": 1}}']
)
def test_what_is_no_answer_is_a_failure(said: bytes) -> None:
    with pytest.raises(BackendFailed):
        Answer().take(said, "x")


def test_pauses_that_back_ends_ask_for() -> None:
    for header, seconds in ((b"3", 3.0), (b"1e9", 300.0), (b"-1", 0.0), (b"nan", 0.0), (b"soon", 0.0), (None, 0.0)):
        assert backend._pause(header) == seconds
    assert backend._pause(b"Wed, 21 Oct 2065 07:28:00 GMT") == 300.0


def test_errors_never_ask_for_a_pause_below_a_second_or_above_a_minute() -> None:
    for seconds, header in ((0.1, b"1"), (7.2, b"8"), (1e9, b"60")):
        assert ApiError(429, "later", retry_after=seconds).headers == [(b"retry-after", header)]


def test_the_settings_that_init_writes_are_valid_and_complete() -> None:
    from importlib.resources import files

    text = (files("bilinq.gateway") / "gateway.toml").read_text()
    shown = (files("bilinq.gateway") / "gateway.toml").read_text() + (
        Path(__file__).parents[2] / "docs/gateway.md"
    ).read_text()
    for name in Config.__struct_fields__:
        assert name in shown, name
    assert text.count("[[backend]]") == 2


def test_examples_of_the_docstrings_run() -> None:
    for module in (fakes, features, worth):
        assert doctest.testmod(module).failed == 0


def test_the_error_of_a_back_end_need_not_be_text() -> None:
    assert backend._error(b'{"error": "\xff"}') == {"message": '{"error": "\ufffd"}'}
