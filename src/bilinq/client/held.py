"""Jobs that a worker holds, and rewards that commands report."""

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import msgspec

from bilinq.client.calls import as_json, as_reason, as_reward
from bilinq.errors import BadInput
from bilinq.live.wire.messages import Lease, WorkFinish


@dataclass(frozen=True)
class Done:
    """What came of serving a job, where a reward alone does not say it.

    Attributes
    ----------
    reward : float, optional
        In the service's declared range; without it nothing is learnt.
    done : bool, optional
        Whether the job is done, however many units it had; without it one unit was served.
    result : any JSON
        Kept with the job.
    """

    reward: float | None = None
    done: bool | None = None
    result: Any = None


class HeldJob:
    """A job that a worker holds.

    Attributes
    ----------
    id, job_class : str
    payload : any JSON
    units_left, attempts : int
        Services that it still needs, and how often one failed.
    lease, server : str
    fence : int
        Rises with every lease; hand it on to what must tell an old holder of a job from a new one.
    """

    def __init__(self, lease: Lease) -> None:
        self.id = lease.job.id
        self.job_class = lease.job.job_class
        self.payload = lease.job.payload
        self.units_left = lease.job.units_left
        self.attempts = lease.job.attempts
        self.lease = lease.lease
        self.server = lease.server
        self.fence = lease.fence
        self.seconds = lease.seconds
        self._lost = threading.Event()

    @property
    def lost(self) -> bool:
        """Whether the lease has ended, so that somebody else may serve the job and what this function returns is dropped."""
        return self._lost.is_set()

    def lose(self) -> None:
        """Note that the lease has ended."""
        self._lost.set()

    def wait_lost(self, seconds: float) -> bool:
        """Wait some seconds, or until the lease is lost, and return whether it is."""
        return self._lost.wait(seconds)

    def __repr__(self) -> str:
        return f"HeldJob({self.id}, {self.job_class!r}, lease {self.lease})"


Served: TypeAlias = float | Done | None


def ending(held: HeldJob, served: Any) -> WorkFinish:
    """Return how a lease ends whose function returned `served`."""
    done = served if isinstance(served, Done) else Done(served)
    reward = done.reward
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, Real)):
        raise BadInput(f"a worker's function must return a number, None or Done; got {type(reward).__name__}")
    number = None if reward is None else as_reward(float(reward))
    return WorkFinish(held.lease, held.fence, number, done.done, as_json("result", done.result))


def failing(held: HeldJob, error: BaseException | str) -> WorkFinish:
    """Return how a lease ends whose function raised `error`."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return WorkFinish(held.lease, held.fence, error=as_reason(text))


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
