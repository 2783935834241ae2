"""What a back end has answered, put together from a whole body or from the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .errors import Failed
from .events import DONE
from .kind import length

CHARACTERS = 4.0
"""Characters of a token, roughly, where the back end does not tell the number of tokens."""


@dataclass(slots=True)
class Call:
    """A tool that the model wants called; arguments are JSON text."""

    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """The first choice of an answer, and what it took.

    Attributes
    ----------
    text : str
    calls : dict of Call
        By their place in the answer.
    finish_reason : str, optional
        None where the stream ended early.
    usage : mapping
        `prompt_tokens` and `completion_tokens` where the back end tells them.
    seconds : float
        Time at the back end.
    """

    text: str = ""
    calls: dict[int, Call] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    ended: bool = False

    def take(self, data: bytes) -> None:
        """Take in a whole answer or an event of a stream; raise `Failed` if it is none or tells of an error."""
        if data == DONE:
            self.ended = True
            return
        try:
            self._take(msgspec.json.decode(data))
        except (AttributeError, TypeError, LookupError, ValueError, RecursionError):
            raise Failed("the answer is no chat completion") from None

    def tokens(self, body: Mapping[str, Any]) -> tuple[float, float]:
        """Return the tokens of prompt and answer, as told or guessed from their length."""
        said = len(self.text) + sum(len(call.arguments) for call in self.calls.values())
        told, made = self.usage.get("prompt_tokens"), self.usage.get("completion_tokens")
        return (
            float(told) if isinstance(told, int) else length(body) / CHARACTERS,
            float(made) if isinstance(made, int) else said / CHARACTERS,
        )

    def _take(self, whole: dict[str, Any]) -> None:
        if whole.get("error"):
            raise Failed(f"the answer tells of an error: {whole['error']}"[:200])
        self.usage = whole.get("usage") or self.usage
        for choice in whole["choices"]:
            if choice.get("index", 0) == 0:
                self._add(choice.get("delta") or choice.get("message") or {})
                self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _add(self, message: dict[str, Any]) -> None:
        self.text += message.get("content") or ""
        for place, part in enumerate(message.get("tool_calls") or ()):
            call = self.calls.setdefault(part.get("index", place), Call())
            function = part.get("function") or {}
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or ""
