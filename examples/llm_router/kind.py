"""The kind of a request, read off its prompt: short or long, prose or code, with or without tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

LONG = 4000
"""Characters of all messages together from which on a request is long; about a thousand tokens."""

CODE = re.compile(
    r"```|^[ \t]*(def|class|import|from|const|let|func|fn|public|private|#include|SELECT|Traceback)\b"
    r"|[{;][ \t]*$|\b(python|javascript|typescript|rust|golang|java|sql|regex|stack ?trace|refactor|unit tests?)\b",
    re.MULTILINE | re.IGNORECASE,
)
LOOKED_AT = 2000
"""Characters at either end of what is asked in which signs of code are looked for."""
SIGNS = 2
"""Different signs of code from which on a request is about code; a fenced block is enough alone."""


class Kind(NamedTuple):
    """What sets requests apart for a model."""

    long: bool
    code: bool
    tools: bool

    def __str__(self) -> str:
        length, about = "long" if self.long else "short", "code" if self.code else "prose"
        return f"{length} {about} with tools" if self.tools else f"{length} {about}"

    @property
    def features(self) -> list[float]:
        """The job features u: a constant, what is true of the kind, and all products, so that any table can be learnt."""
        l, c, t = (float(flag) for flag in self)
        return [1.0, l, c, t, l * c, l * t, c * t, l * c * t]


KINDS = tuple(Kind(*flags) for flags in product((False, True), repeat=3))


def classify(body: Mapping[str, Any]) -> Kind:
    """Return the kind of a chat completion request.

    Examples
    --------
    >>> str(classify({"messages": [{"role": "user", "content": "Tell me about the sea."}]}))
    'short prose'
    >>> str(classify({"messages": [{"role": "user", "content": "Mend this: ```x = 1```"}], "tools": [{}]}))
    'short code with tools'
    """
    asked = "\n".join(texts(body, "user"))
    return Kind(length(body) >= LONG, is_code(asked), bool(body.get("tools") or body.get("functions")))


def is_code(text: str) -> bool:
    """Tell whether a text is about code: a fenced block, or several different signs."""
    ends = text if len(text) <= 2 * LOOKED_AT else f"{text[:LOOKED_AT]}\n{text[-LOOKED_AT:]}"
    signs = {found.group().strip().lower() for found in CODE.finditer(ends)}
    return "```" in signs or len(signs) >= SIGNS


def length(body: Mapping[str, Any]) -> int:
    """Return the characters of all messages."""
    return sum(map(len, texts(body)))


def texts(body: Mapping[str, Any], role: str | None = None) -> Iterator[str]:
    """Yield the texts of the messages, or of those of one role; contents may be text or lists of parts."""
    for message in body["messages"]:
        if role in (None, message.get("role")):
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            for part in parts:
                if isinstance(part, dict) and isinstance(part.get("text"), str):
                    yield part["text"]
