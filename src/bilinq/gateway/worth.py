"""What an answer is worth: its quality, less what its price and its time cost; and how good an answer is by its form."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from bilinq.errors import BadInput
from bilinq.gateway.answer import Answer
from bilinq.gateway.config import Worth
from bilinq.gateway.request import wants_json

Judge = Callable[[Mapping[str, Any], Answer], float | Awaitable[float | None] | None]
"""A function of the body of a request and its answer: a score from 0 to 1, or None if it cannot tell."""

LOWEST, HIGHEST = -1.0, 1.0
"""The range of rewards: beyond a reward of -1, more time and money change nothing."""
FAILURE = 0.0  # the reward of a service that failed: nothing was gained, nothing is paid
CUT_OFF, NO_CALL, REFUSAL, WRONG_FORM = 0.6, 0.3, 0.3, 0.2
"""Quality of an answer that hit its limit, that does not call the tool that it must, that refuses, and that is malformed."""
REFUSED = re.compile(
    r"^\W*(i('m| am) (sorry|unable|not able)|sorry, (but )?i|i (can('|no)t|cannot|won't) (help|assist|do|provide|answer)"
    r"|as an ai( language)? model)",
    re.IGNORECASE,
)
LONGEST_REFUSAL = 600  # characters; a longer answer is more than a refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a reward, each in its own unit: quality from 0 to 1 and who said so, money, seconds.

    `source` is "rules", "judge", "feedback", or "filled" where the mean of what others said stands for it.
    """

    quality: float
    source: str
    price: float
    seconds: float
    first: float

    def reward(self, worth: Worth) -> float:
        """Return the reward.

        Examples
        --------
        >>> parts = Parts(quality=0.9, source="judge", price=0.004, seconds=2.0, first=0.5)
        >>> round(parts.reward(Worth(second=0.01, first_second=0.1, money=10.0)), 6)
        0.79
        """
        time = worth.second * self.seconds + worth.first_second * self.first
        return min(max(self.quality - worth.money * self.price - time, LOWEST), HIGHEST)

    def plain(self, worth: Worth) -> dict[str, Any]:
        """Return the parts and what each is worth, for logs and people."""
        return {
            "quality": self.quality, "quality_from": self.source, "price": self.price, "seconds": self.seconds,
            "first_token_seconds": self.first, "reward": self.reward(worth),
            "minus": {
                "price": worth.money * self.price, "seconds": worth.second * self.seconds,
                "first_token": worth.first_second * self.first,
            },
        }  # fmt: skip


def by_form(body: Mapping[str, Any], answer: Answer) -> float:
    """Return 1 for an answer that is complete and of the form that was asked for, less for one that is not.

    It cannot tell right from wrong: without a judge or feedback, the gateway finds the cheapest and fastest back end that
    answers in good form.
    """
    if answer.vectors:
        return 1.0
    if answer.finish_reason == "content_filter" or not (answer.text.strip() or answer.calls):
        return 0.0
    if answer.calls and not all(_sound(call.name, call.arguments, body) for call in answer.calls.values()):
        return WRONG_FORM
    if wants_json(body) and not answer.calls and not _is_json(answer.text):
        return WRONG_FORM
    if _must_call(body) and not answer.calls:
        return NO_CALL
    if len(answer.text) <= LONGEST_REFUSAL and not answer.calls and REFUSED.match(answer.text):
        return REFUSAL
    return CUT_OFF if answer.finish_reason == "length" else 1.0


def check_score(name: str, score: Any) -> float:
    """Return a score from 0 to 1, or raise."""
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0.0 <= score <= 1.0:
        raise BadInput(f"{name} must be a number from 0 to 1; got {score!r:.50}")
    return float(score)


def _sound(name: str, arguments: str, body: Mapping[str, Any]) -> bool:
    """Tell whether a call names a tool that was offered, with a JSON object of arguments."""
    tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict)]
    offered = {tool["function"].get("name") for tool in tools if isinstance(tool.get("function"), dict)}
    return name in offered and _is_json(arguments or "{}", dict)


def _must_call(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    return choice == "required" or isinstance(choice, dict)


def _is_json(text: str, kind: type = object) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), kind)
    except (msgspec.DecodeError, RecursionError):
        return False


class Means:
    """Running means by back end and kind of request, drawn towards those of the back end and of all.

    Parameters
    ----------
    start : float
        The mean before anything was seen.
    weight : float
        How many values the coarser mean counts for.
    window : float
        Values over which a mean is taken.

    Examples
    --------
    >>> means = Means(start=1.0)
    >>> for _ in range(20):
    ...     means.add("small", "short prose", 0.5)
    >>> 0.5 < means.get("small", "short prose") < means.get("small", "long code") < means.get("large", "long code") < 1.0
    True
    """

    def __init__(self, start: float, weight: float = 2.0, window: float = 200.0) -> None:
        self._start, self._weight, self._window = start, weight, window
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, backend: str, kind: str, value: float) -> None:
        """Add a value."""
        for key in self._keys(backend, kind):
            number, total = self._sums.get(key, (0.0, 0.0))
            fade = 1.0 - 1.0 / self._window
            self._sums[key] = fade * number + 1.0, fade * total + value

    def get(self, backend: str, kind: str) -> float:
        """Return the mean for a pair."""
        found = self._start
        for key in self._keys(backend, kind):
            number, total = self._sums.get(key, (0.0, 0.0))
            found = (total + self._weight * found) / (number + self._weight)
        return found

    def known(self, backend: str, kind: str | None = None) -> float:
        """Return how many recent values the mean of a back end rests on, of one kind or all."""
        return self._sums.get(backend if kind is None else f"{backend}\n{kind}", (0.0, 0.0))[0]

    def state(self) -> dict[str, tuple[float, float]]:
        """Return everything as plain values."""
        return dict(self._sums)

    def load(self, state: Mapping[str, tuple[float, float]]) -> None:
        """Take what `state` returned."""
        self._sums = {key: (float(number), float(total)) for key, (number, total) in state.items()}

    @staticmethod
    def _keys(backend: str, kind: str) -> tuple[str, str, str]:
        return "", backend, f"{backend}\n{kind}"
