"""How a client sends a call: requests, retries and pauses without I/O, and the HTTP connections that carry them."""

import errno
import inspect
import math
import os
import random
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, get_args
from urllib.parse import urlsplit

import httpx
import msgspec

from bilinq.errors import (
    BadInput,
    BilinqError,
    Busy,
    Conflict,
    NoKey,
    NotAllowed,
    NotFound,
    Refused,
    Stale,
    Unavailable,
)
from bilinq.live.wire.messages import ProblemDetails

ERRORS: dict[int, type[BilinqError]] = {
    400: BadInput, 401: NoKey, 403: NotAllowed, 404: NotFound, 409: Conflict, 413: BadInput, 415: BadInput, 422: BadInput,
}  # fmt: skip
"""The error of a status; others are `Refused`."""
AWAY = (408, 502, 503, 504)
"""Said by the service, or by a proxy that does not reach it."""
KINDS: dict[str, type[BilinqError]] = {"stale": Stale, "no-such-path": Refused}
"""The error of a problem's type, where the status does not tell."""


class Answer(NamedTuple):
    """An answer: status, headers with names in lower case, and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def refusal(answer: Answer, url: str) -> BilinqError | None:
    """Return the error that an answer of the service at `url` stands for, or None if it is a good one."""
    if 200 <= answer.status < 300:
        return None
    problem = _problem(answer)
    text = problem.detail if problem else f"{url} answered {_words(answer.status)}"
    if problem and problem.request and answer.status >= 500:
        text += f" (request {problem.request})"
    if answer.status == 429:
        return Busy(text, _retry_after(answer))
    if answer.status in AWAY:
        return Unavailable(text, _retry_after(answer))
    if problem is None:
        return Refused(f"{text}; is it a bilinq service?")
    return KINDS.get(_kind(problem), ERRORS.get(answer.status, Refused))(text)


def _problem(answer: Answer) -> ProblemDetails | None:
    """Return what the service says is wrong; None if somebody else answered."""
    try:
        return msgspec.json.decode(answer.body, type=ProblemDetails)
    except ValueError:
        return None


def _kind(problem: ProblemDetails) -> str:
    """Return the problem's type without what all types begin with."""
    return problem.type.removeprefix("urn:bilinq:")


def _words(status: int) -> str:
    """Return a status as people read it."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after(answer: Answer) -> float:
    """Return the seconds of Retry-After, given as a number or a date; zero if there is none that can be read."""
    text = answer.headers.get("retry-after", "").strip()
    try:
        seconds = float(text) if text[:1].isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


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
        if isinstance(reply, Answer) and (error is None or (call.removes and doubt and isinstance(error, NotFound))):
            return _read(limits, call, reply)
        assert error is not None
        if not _worth_asking_again(call, reply, error):
            raise error
        doubt = doubt or isinstance(error, Unavailable)
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
    return Unavailable(f"{'no answer from' if reply.sent else 'cannot reach'} {limits.url}: {reply.why}")


def _worth_asking_again(call: Call[Any], reply: Reply, error: BilinqError) -> bool:
    """Return whether a later try may do better and cannot do harm."""
    if isinstance(error, Busy):
        return True
    unsent = isinstance(reply, Lost) and not reply.sent
    return isinstance(error, Unavailable) and (call.repeatable or unsent)


def _pause(error: BilinqError, tries: int) -> float:
    """Return seconds until the next try: never before the time that the service named."""
    named = error.retry_after if isinstance(error, (Busy, Unavailable)) else 0.0
    return named * random.uniform(1.0, 1.2) if named > 0 else backoff(tries)


def _given_up(error: BilinqError, tries: int, seconds: float) -> BilinqError:
    """Return the same error, saying how often and how long was tried."""
    if tries > 1 and isinstance(error, (Busy, Unavailable)):
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


DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT = 5.0
"""Seconds to connect."""
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""What happens before a request leaves."""


@dataclass(frozen=True)
class Link:
    """A service and a key for it; `total` and `attempt` as in `Limits`."""

    url: str
    key: str = field(repr=False)
    total: float
    attempt: float
    verify: bool | ssl.SSLContext

    @classmethod
    def to(
        cls, url: str | None, key: str | None, timeout: float, attempt: float, verify: bool | ssl.SSLContext
    ) -> "Link":
        """Return a checked link; url and key come from BILINQ_URL and BILINQ_KEY if they are not given."""
        for name, seconds in (("timeout", timeout), ("attempt", attempt)):
            if not seconds > 0:
                raise BadInput(f"{name} must be a positive number of seconds; got {seconds}")
        place = url or os.environ.get("BILINQ_URL") or DEFAULT_URL
        secret = (key or os.environ.get("BILINQ_KEY") or "").strip()
        return cls(_checked_url(place), _checked_key(secret), timeout, attempt, verify)

    @property
    def limits(self) -> Limits:
        """What a call needs to know."""
        return Limits(self.url, self.total, self.attempt)

    def options(self) -> dict[str, Any]:
        """Return arguments for httpx's clients."""
        return {
            "base_url": self.url,
            "headers": {"authorization": f"Bearer {self.key}", "accept": "application/json", "user-agent": "bilinq"},
            "verify": self.verify,
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=64),
        }

    def request(self, ask: Ask) -> dict[str, Any]:
        """Return arguments for httpx's `request`."""
        call = ask.call
        headers = {} if call.body is None else {"content-type": "application/json"}
        timeout = httpx.Timeout(ask.seconds, connect=min(CONNECT, ask.seconds))
        return {
            "method": call.method, "url": call.path, "content": call.body, "params": dict(call.query) or None,
            "headers": headers, "timeout": timeout,
        }  # fmt: skip


def answer_of(response: httpx.Response) -> Answer:
    """Return an answer that was read."""
    return Answer(response.status_code, response.headers, response.content)


def lost(error: httpx.RequestError, ask: Ask) -> Lost:
    """Return why there is no answer."""
    if isinstance(error, httpx.TimeoutException):
        why = f"timed out after {ask.seconds:.3g} s" if not isinstance(error, UNSENT) else "timed out while connecting"
    else:
        why = _root(error)
    return Lost(why, sent=not isinstance(error, UNSENT))


def _root(error: BaseException) -> str:
    """Return what the operating system said, if it did; httpx and anyio wrap it differently."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            number = inner.errno or 0
            return os.strerror(number) if number in errno.errorcode else inner.strerror
        several = inner.exceptions if isinstance(inner, BaseExceptionGroup) else ()
        inner = several[0] if several else inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__


def _checked_url(text: str) -> str:
    """Return the address of a service without a slash at its end."""
    rule = "url must be an address such as http://127.0.0.1:8000, without user, query and fragment"
    try:
        url = httpx.URL(text)
        sound = urlsplit(text).port != 0 and text.isprintable() and " " not in text  # httpx lets more pass
    except (httpx.InvalidURL, TypeError, ValueError):
        raise BadInput(f"{rule}; got {text!r}") from None
    if url.userinfo:
        raise BadInput(f"{rule}; got one with a user")
    if not sound or url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise BadInput(f"{rule}; got {text!r}")
    return str(url).rstrip("/")


def _checked_key(key: str) -> str:
    """Return a key that may stand in a header; a bad one is not shown."""
    if not key:
        raise BadInput("key must be given, or BILINQ_KEY set in the environment; make one with `bilinq keys create`")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput("key must be of printable ASCII characters without blanks; this one is not shown")
    return key
