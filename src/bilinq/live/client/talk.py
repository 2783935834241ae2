"""One call, asked until it is answered: what to send, when to ask again, when to give up. Nothing here touches a network.

A flow is a generator that yields what it wants done (`Ask`, `Pause`), is sent what came of it, and returns its result.
`Client` and `AsyncClient` differ only in how they do an `Ask` and a `Pause`.
"""

import inspect
import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, get_args

from bilinq.errors import Away, BilinqError, Busy, NotKnown, Refused
from bilinq.live.client.answers import Answer, refusal

T = TypeVar("T")

FIRST_PAUSE = 0.1
"""Seconds before the second try; each further pause is twice as long."""
LONGEST_PAUSE = 5.0
"""Seconds that no pause exceeds, unless the service asks for more."""


@dataclass(frozen=True)
class Limits:
    """How long a call may take: `total` seconds with all tries, `attempt` for one answer; waiting for work comes on top."""

    url: str
    total: float
    attempt: float


@dataclass(frozen=True)
class Call(Generic[T]):
    """What to ask.

    If it is not `repeatable`, it is asked again only when it surely was not carried out. If it `removes` something and an
    answer was lost, not to find it any more is what was wanted.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    body: bytes | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    wait: float = 0.0
    repeatable: bool = True
    removes: bool = False


class Ask(NamedTuple):
    """Send this and wait for the answer, `seconds` at most."""

    call: Call[Any]
    seconds: float


class Pause(NamedTuple):
    """Do nothing for some seconds."""

    seconds: float


class Lost(NamedTuple):
    """There was no answer; if it was `sent`, the service may have done what was asked."""

    why: str
    sent: bool


Reply: TypeAlias = Answer | Lost | None
Flow: TypeAlias = Generator[Ask | Pause, Reply, T]


def talk(limits: Limits, call: Call[T]) -> Flow[T]:
    """Return what the service answers, asking again as long as that is safe, of use, and within the limits."""
    start = time.monotonic()
    end = start + limits.total + call.wait
    tries, doubt = 0, False
    told: BilinqError | None = None
    while True:
        left = max(end - time.monotonic(), 0.001)
        reply = yield Ask(call, min(limits.attempt + call.wait, left))
        tries += 1
        error = _judge(limits, reply)
        if isinstance(reply, Answer) and (error is None or (call.removes and doubt and isinstance(error, NotKnown))):
            return _read(limits, call, reply)
        assert error is not None
        if not _worth_asking_again(call, reply, error):
            raise error
        doubt = doubt or isinstance(error, Away)
        pause = _pause(error, tries) if isinstance(reply, Answer) else backoff(tries)
        told = error if isinstance(reply, Answer) else told
        if time.monotonic() + pause >= end:
            cut_short = left < limits.attempt + call.wait  # then what the service said before tells more
            raise _given_up(told or error if cut_short else error, tries, time.monotonic() - start)
        yield Pause(pause)


def backoff(tries: int) -> float:
    """Return seconds to wait after `tries` failures in a row: doubling up to a limit, with chance so that crowds spread."""
    return random.uniform(0.5, 1.0) * min(FIRST_PAUSE * 2.0 ** min(tries - 1, 16), LONGEST_PAUSE)


def _judge(limits: Limits, reply: Reply) -> BilinqError | None:
    """Return the error that a reply stands for, or None for a good answer."""
    if isinstance(reply, Answer):
        return refusal(reply, limits.url)
    assert isinstance(reply, Lost)
    return Away(f"{'no answer from' if reply.sent else 'cannot reach'} {limits.url}: {reply.why}")


def _worth_asking_again(call: Call[Any], reply: Reply, error: BilinqError) -> bool:
    """Return whether a later try may do better and cannot do harm."""
    if isinstance(error, Busy):
        return True
    unsent = isinstance(reply, Lost) and not reply.sent
    return isinstance(error, Away) and (call.repeatable or unsent)


def _pause(error: BilinqError, tries: int) -> float:
    """Return seconds until the next try: never before the time that the service named."""
    named = error.retry_after if isinstance(error, (Busy, Away)) else 0.0
    return named * random.uniform(1.0, 1.2) if named > 0 else backoff(tries)


def _given_up(error: BilinqError, tries: int, seconds: float) -> BilinqError:
    """Return the same error, saying how often and how long was tried."""
    if tries > 1 and isinstance(error, (Busy, Away)):
        return type(error)(f"{error} (tried {tries} times in {seconds:.1f} s)", error.retry_after)
    return error


def _read(limits: Limits, call: Call[T], answer: Answer) -> T:
    """Return the body as what it should be, or say that this is not our service."""
    try:
        return call.read(answer.body)
    except ValueError as error:
        raise Refused(
            f"{limits.url} answered {call.method} {call.path} with {answer.status} and something unexpected ({error}); "
            f"is it a bilinq service?"
        ) from None


def signature_of_method(build: Callable[..., Any]) -> inspect.Signature:
    """Return how a flow is called as a method of a client, for `help` and editors: no limits, and its result returned."""
    signature = inspect.signature(build)
    first, *rest = signature.parameters.values()
    result = get_args(signature.return_annotation)[-1]
    return signature.replace(
        parameters=[first.replace(name="self", annotation=first.empty), *rest], return_annotation=result
    )
