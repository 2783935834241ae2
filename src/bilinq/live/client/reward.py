"""The reward of a command that ended well: from the exit code alone, from its duration, or from its last line."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from bilinq.errors import BadInput
from bilinq.live.client.held import Done

RULES = ("exit", "duration", "last-line")


class Ended(NamedTuple):
    """How a command ended: after how many seconds, and with which last line of output."""

    seconds: float
    last_line: str


class Reward(ABC):
    """A rule for rewards."""

    @abstractmethod
    def __call__(self, ended: Ended) -> Done:
        """Return what came of the job."""


@dataclass(frozen=True)
class ExitReward(Reward):
    """The highest reward for every command that exits with 0."""

    high: float

    def __call__(self, ended: Ended) -> Done:
        """Return the highest reward."""
        return Done(self.high)


@dataclass(frozen=True)
class DurationReward(Reward):
    """The shorter the better: `high` for no time at all, the middle of the range for `half` seconds, never below `low`."""

    low: float
    high: float
    half: float

    def __call__(self, ended: Ended) -> Done:
        """Return low + (high - low) 2^(-seconds / half)."""
        return Done(self.low + (self.high - self.low) * 2.0 ** (-ended.seconds / self.half))


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    reward: float | None = None
    done: bool | None = None
    result: Any = None


class LastLineReward(Reward):
    """What the command says in its last line: a number, or an object with "reward", "done" and "result"."""

    def __call__(self, ended: Ended) -> Done:
        """Read the line."""
        try:
            line = msgspec.json.decode(ended.last_line, type=_Line | float)
        except ValueError as error:
            raise BadInput(
                f'the last line must be a number or an object with "reward", "done" and "result"; '
                f"got {ended.last_line[:200]!r} ({error})"
            ) from None
        return Done(line) if isinstance(line, float) else Done(line.reward, line.done, line.result)


def reward_of(rule: str, low: float, high: float, half: float) -> Reward:
    """Return the rule of that name."""
    if rule not in RULES:
        raise BadInput(f"reward must be one of {', '.join(RULES)}; got {rule!r}")
    if not -float("inf") < low < high < float("inf"):
        raise BadInput(f"low must be below high, both finite; got {low} and {high}")
    if not 0 < half < float("inf"):
        raise BadInput(f"half must be a positive number of seconds; got {half}")
    return {"exit": ExitReward(high), "duration": DurationReward(low, high, half), "last-line": LastLineReward()}[rule]
