"""What a back end has answered, put together from a whole body or from the events of a stream."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bilinq.gateway.errors import BackendFailed
from bilinq.gateway.request import BYTES_PER_TOKEN, Request

END = re.compile(rb"\r?\n\r?\n")
DONE = b"[DONE]"
LONGEST_EVENT = 16 << 20  # bytes of an event, beyond which a back end is broken


@dataclass(slots=True)
class Call:
    """A tool that the model wants to call; arguments are JSON text."""

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
        None where a stream ended early.
    usage : mapping
        `prompt_tokens`, `completion_tokens` and others, where the back end reports them.
    seconds, first : float
        Time at the back end: in all, and until the first token.
    vectors : int
        Embeddings.
    hide_usage : bool
        Whether the gateway asked for usage at the end of a stream, which its caller does not expect.
    """

    text: str = ""
    calls: dict[int, Call] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    first: float = 0.0
    vectors: int = 0
    hide_usage: bool = False

    def take(self, data: bytes, own_id: str) -> bytes:
        """Take in a whole answer or an event of a stream; return it with the gateway's id, or b"" to hide it.

        Raises
        ------
        BackendFailed
            If it is no answer of OpenAI's API, or reports an error.
        """
        try:
            whole = msgspec.json.decode(data)
            if whole.get("error"):
                raise BackendFailed(f"the answer reports an error: {whole['error']}"[:200])
            self._take(whole)
        except (AttributeError, TypeError, LookupError, ValueError, RecursionError):
            raise BackendFailed("the answer is not one of OpenAI's API") from None
        if self.hide_usage and not whole.get("choices"):
            return b""
        if "id" not in whole:
            return data
        whole["id"] = own_id
        return msgspec.json.encode(whole)

    def tokens(self, request: Request) -> tuple[float, float, float]:
        """Return the tokens of prompt, answer, and the cached part of the prompt, as reported or else estimated."""
        said = len(self.text.encode("utf-8", "replace")) + sum(len(one.arguments) for one in self.calls.values())
        prompt = _count(self.usage.get("prompt_tokens"), request.prompt_tokens)
        made = _count(self.usage.get("completion_tokens"), said / BYTES_PER_TOKEN)
        return prompt, made, min(self.cached or 0.0, prompt)

    @property
    def cached(self) -> float | None:
        """Tokens of the prompt that the back end had cached; None if it does not report them."""
        details = self.usage.get("prompt_tokens_details")
        found = details.get("cached_tokens") if isinstance(details, dict) else None
        return float(found) if isinstance(found, int) else None

    def _take(self, whole: dict[str, Any]) -> None:
        usage = whole.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        if "choices" not in whole:
            self.vectors += len(whole["data"])
            self.finish_reason = "stop"
            return
        for choice in whole["choices"]:
            if choice.get("index", 0) == 0:
                self._add(choice.get("delta") or choice.get("message") or choice)
                self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _add(self, message: dict[str, Any]) -> None:
        self.text += message.get("content") or message.get("text") or ""
        for place, part in enumerate(message.get("tool_calls") or ()):
            call = self.calls.setdefault(part.get("index", place), Call())
            function = part.get("function") or {}
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or ""


def _count(reported: Any, estimate: float) -> float:
    return float(reported) if isinstance(reported, int) and reported >= 0 else estimate


async def events(parts: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """Yield the data of each server-sent event; comments, and an event that was cut off, are left out."""
    rest = b""
    async for part in parts:
        *whole, rest = END.split(rest + part)
        if len(rest) > LONGEST_EVENT:
            raise BackendFailed(f"an event of a stream must have at most {LONGEST_EVENT} bytes")
        for event in whole:
            if data := _data(event):
                yield data


def _data(event: bytes) -> bytes:
    """Return the data of an event, empty if it has none."""
    if event.startswith(b"data:") and b"\n" not in event:
        return event[5:].removeprefix(b" ")
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line.removeprefix(b"data:").removeprefix(b" ") for line in lines)


def event_of(data: bytes) -> bytes:
    """Return an event with this data, which has no line ends."""
    return b"data: " + data + b"\n\n"
