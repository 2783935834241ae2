"""Fake back ends with known strengths: how good, how fast and how dear each is for each kind of request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec import json

from .answer import Answer
from .backend import Backend
from .card import Card, Strengths
from .kind import KINDS, Kind, classify

SPREAD = 0.2
"""How far a score may be from its mean."""
SECONDS = {False: 1.5, True: 3.0}
"""Mean seconds of short and of long requests at a model of slowness one."""
TOKENS = {False: (300, 300), True: (2000, 600)}
"""Tokens of prompt and answer of short and of long requests."""


class Fake(NamedTuple):
    """A model: its card, how slow it is, and its mean score for short prose, with what code, length and tools add."""

    card: Card
    slowness: float
    prose: float
    code: float
    long: float
    tools: float
    long_code: float = 0.0

    def score(self, kind: Kind) -> float:
        """Return the mean score."""
        extra = self.code * kind.code + self.long * kind.long + self.tools * kind.tools
        return float(np.clip(self.prose + extra + self.long_code * (kind.long and kind.code), 0.02, 0.98))

    def seconds(self, kind: Kind) -> float:
        """Return the mean duration."""
        return SECONDS[kind.long] * self.slowness

    def price(self, kind: Kind) -> float:
        """Return the price."""
        return self.card.price(*TOKENS[kind.long])


def card(name: str, price_in: float, price_out: float, slots: int, **strengths: float) -> Card:
    """Return the card of a fake model; its address is set where it listens."""
    url = "http://127.0.0.1:9000/v1"
    return Card(name, url, f"{name}-1", price_in, price_out, slots=slots, strengths=Strengths(**strengths))


FAKES = (
    Fake(
        card("small", 0.0001, 0.0004, 6, prose=0.7, code=0.4, long=0.3, tools=0.2), 0.6, 0.80, -0.30, -0.30, -0.35, 0.10
    ),
    Fake(
        card("coder", 0.0005, 0.0015, 6, prose=0.5, code=0.9, long=0.5, tools=0.8), 1.0, 0.70, 0.22, -0.10, 0.00, -0.12
    ),
    Fake(card("large", 0.0025, 0.0100, 5, prose=0.9, code=0.9, long=0.8, tools=0.9), 1.5, 0.93, 0.00, -0.03, 0.02),
    Fake(card("reader", 0.0006, 0.0020, 5, prose=0.8, code=0.5, long=0.9, tools=0.3), 1.1, 0.80, -0.25, 0.12, -0.30),
)
SHARE = dict(zip(KINDS, (0.30, 0.12, 0.20, 0.10, 0.10, 0.04, 0.10, 0.04), strict=True))
"""How much of the traffic each kind is."""


class Draws:
    """The chance in what a fake does: a score around its mean and a duration, from a seed."""

    def __init__(self, fake: Fake, seed: int) -> None:
        self.fake, self._rng = fake, np.random.default_rng(seed)

    def score(self, kind: Kind) -> float:
        """Return a score; its mean is exactly the fake's."""
        mean = self.fake.score(kind)
        return mean + min(SPREAD, mean, 1.0 - mean) * self._rng.uniform(-1.0, 1.0)

    def seconds(self, kind: Kind) -> float:
        """Return a duration."""
        return self.fake.seconds(kind) * self._rng.gamma(4.0, 0.25)


def completion(body: Mapping[str, Any], model: str, score: float, kind: Kind, began: float) -> dict[str, Any]:
    """Return an answer, created when it `began`, in which the score stands to read; tools that are offered are called."""
    message: dict[str, Any] = {"role": "assistant", "content": f"score {score:.6f}"}
    if kind.tools:
        function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"city": "Paris"}'}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    reason, (told, made) = "tool_calls" if kind.tools else "stop", TOKENS[kind.long]
    usage = {"prompt_tokens": told, "completion_tokens": made, "total_tokens": told + made}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    about = {"id": "chatcmpl-1", "object": "chat.completion", "created": began, "model": model}
    return {**about, "choices": [choice], "usage": usage}


def read_score(body: Mapping[str, Any], answer: Answer) -> float:
    """Return the score that a fake has written into its answer: the judge of demo, tests and comparison."""
    found = re.search(r"score ([\d.]+)", answer.text)
    return float(found[1]) if found else 0.0


class FakeBackend(Backend):
    """A fake without a network, for simulations."""

    def __init__(self, fake: Fake, seed: int) -> None:
        self._draws = Draws(fake, seed)

    async def ask(self, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        """Yield a whole answer after its time."""
        kind, began = classify(body), asyncio.get_running_loop().time()
        await asyncio.sleep(self._draws.seconds(kind))
        yield json.encode(completion(body, self._draws.fake.card.model, self._draws.score(kind), kind, began))
