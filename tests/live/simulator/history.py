"""The history of a simulation: every call of an actor with its response, every fault, and what the service logs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from typing import Any

from msgspec import Struct

from bilinq.errors import BilinqError
from simulator.world import World


@dataclass
class Call:
    """A call of an actor: what was asked when, and what came back; `end` is None for a call that never returned.

    `last` is when a service last handled one of its requests, which may be later: a request may be late or repeated. It is
    None if none arrived.
    """

    actor: str
    what: str
    about: tuple[Any, ...]
    start: float
    end: float | None = None
    answer: Any = None
    error: str | None = None
    detail: str = ""
    last: float | None = None

    @property
    def done(self) -> bool:
        """Whether the call was acknowledged."""
        return self.end is not None and self.error is None


current: ContextVar[Call | None] = ContextVar("current", default=None)
"""The call that the present task makes or handles."""


@dataclass
class History:
    """All calls in the order in which they began, and a line for everything that happened."""

    world: World
    calls: list[Call] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    calm: float = inf
    """When the last fault has ended."""

    def note(self, who: str, what: str) -> None:
        """Add a line."""
        self.lines.append(f"{self.world.now:12.6f}  {who:<12} {what}")

    async def call(self, actor: str, what: str, about: tuple[Any, ...], work: Coroutine[Any, Any, Any]) -> Call:
        """Await a call and record it; return it also if the service refused it."""
        call = Call(actor, what, about, self.world.now)
        current.set(call)
        self.calls.append(call)
        self.note(actor, f"{what} {_words(about)}")
        try:
            call.answer = await work
        except BilinqError as error:
            call.error, call.detail = type(error).__name__, str(error)
        call.end = self.world.now
        self.note(actor, f"{what} {_words(about)} -> {call.error or _words(call.answer)}")
        return call

    def digest(self) -> str:
        """Return a short text that differs for different histories."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


SHOWN = ("id", "name", "payload", "lease", "job", "state", "held", "refused", "error", "repeated", "finished", "leases")
"""Fields of messages that a history shows, if they are there and not empty."""


def _words(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_words, value))
    if isinstance(value, Struct):
        return " ".join(_words(shown) for name in SHOWN if (shown := getattr(value, name, None)))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Errors(logging.Handler):
    """Adds what the service logs to a history; exceptions that it did not expect are errors of the process."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.WARNING)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        thread = self._history.world.thread
        if thread is None or not thread.process.alive:  # what a killed process does on the way out
            return
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
            thread.process.report(text)
        self._history.note(thread.process.name, f"log: {text}")
