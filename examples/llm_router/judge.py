"""How good an answer is, from 0 to 1: a cheap judge that looks at its form, and where to put a better one."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

import msgspec

from bilinq.errors import BadInput

from .answer import Answer

CUT_OFF, NO_CALL, WRONG_FORM = 0.6, 0.3, 0.2
"""What an answer is worth that hit its length, that does not call the tool it must, and that is not well formed."""


class Judge(Protocol):
    """A function of request and answer; it may be a coroutine, and take its time: the client has its answer by then."""

    def __call__(self, body: Mapping[str, Any], answer: Answer) -> float | Awaitable[float]:
        """Return a score from 0 to 1."""
        ...


def by_form(body: Mapping[str, Any], answer: Answer) -> float:
    """Return 1 for an answer that is complete and of the form that was asked for.

    It cannot tell a right answer from a wrong one: give the router a judge that can, if only for some answers.
    """
    if answer.finish_reason == "content_filter" or not (answer.text.strip() or answer.calls):
        return 0.0
    if answer.calls and not all(_sound(call.name, call.arguments, body) for call in answer.calls.values()):
        return WRONG_FORM
    if _asks_json(body) and not answer.calls and not _is_json(answer.text):
        return WRONG_FORM
    if _must_call(body) and not answer.calls:
        return NO_CALL
    return CUT_OFF if answer.finish_reason == "length" else 1.0


def find_judge(name: str) -> Judge:
    """Return the function `module:name`."""
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"judge must name a function as module:function; got {name!r}: {error}") from None
    return cast(Judge, found)


def _sound(name: str, arguments: str, body: Mapping[str, Any]) -> bool:
    """Tell whether a call names a tool that was offered, with a JSON object of arguments."""
    offered = {tool.get("function", {}).get("name") for tool in body.get("tools") or () if isinstance(tool, dict)}
    return name in offered and _is_json(arguments or "{}", dict)


def _must_call(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    return choice == "required" or isinstance(choice, dict)


def _asks_json(body: Mapping[str, Any]) -> bool:
    wanted = body.get("response_format")
    return isinstance(wanted, dict) and wanted.get("type") in ("json_object", "json_schema")


def _is_json(text: str, kind: type = object) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), kind)
    except msgspec.DecodeError:
        return False
