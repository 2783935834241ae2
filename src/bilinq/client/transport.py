"""How a client sends a request: retries and pauses as steps without I/O, and the arguments of httpx that carry them out."""

import errno
import math
import os
import random
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
from httpx import Response, codes

from bilinq import errors
from bilinq.errors import BadInput, BilinqError, Busy, NotFound, Refused, Starting, Unavailable
from bilinq.live.wire.messages import ProblemDetails
from bilinq.secret_files import read_secret

ERRORS: dict[int, type[BilinqError]] = {
    400: BadInput, 401: errors.NoKey, 403: errors.NotAllowed, 404: NotFound, 409: errors.Conflict, 413: BadInput,
    415: BadInput, 422: BadInput,
}  # fmt: skip
"""The error for each status; others are `Refused`."""
UNAVAILABLE = (408, 502, 503, 504)  # statuses of a service that is unavailable, or of a proxy that does not reach it
KINDS: dict[str, type[BilinqError]] = {"urn:bilinq:stale": errors.Stale, "urn:bilinq:no-such-path": Refused}
STARTING = "urn:bilinq:starting"  # the type of a problem that says that nothing was done
"""The error for each type of a problem, where the status is not precise enough."""


def refusal(response: Response, url: str) -> BilinqError | None:
    """Return the error that a response of the service at `url` means, or None for success."""
    if response.is_success:
        return None
    problem, status = _problem(response), response.status_code
    text = problem.detail if problem else f"{url} answered {status} {codes.get_reason_phrase(status)}".rstrip()
    if problem and problem.request and status >= 500:
        text += f" (request {problem.request})"
    if status == 429:
        return Busy(text, _retry_after(response))
    if status in UNAVAILABLE:
        kind = Starting if problem and problem.type == STARTING else Unavailable
        return kind(text, _retry_after(response))
    if problem is None:
        return Refused(f"{text}; is it a bilinq service?")
    return KINDS.get(problem.type, ERRORS.get(status, Refused))(text)


def _problem(response: Response) -> ProblemDetails | None:
    """Return the problem details of a response, or None if it has none and may be from another service."""
    try:
        return msgspec.json.decode(response.content, type=ProblemDetails)
    except ValueError:
        return None


def _retry_after(response: Response) -> float:
    """Return the seconds of Retry-After, given as a number or a date; zero if it is missing or unreadable."""
    text = response.headers.get("retry-after", "").strip()
    try:
        seconds = float(text) if text[:1].isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


T = TypeVar("T")

FIRST_PAUSE = 0.1  # seconds before the second attempt; each further pause is twice as long
LONGEST_PAUSE = 5.0  # maximum seconds of a pause, unless the service asks for more


@dataclass(frozen=True)
class ApiRequest(Generic[T]):
    """A request and how to read its response.

    If it is not `repeatable`, it is retried only if the service cannot have carried it out. If it `removes` something and
    a response was lost, "not found" on the next attempt means success. `wait` seconds of waiting for work are added to the
    time limits.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    body: bytes | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    wait: float = 0.0
    repeatable: bool = True
    removes: bool = False


class Attempt(NamedTuple):
    """A step: send the request and wait for the response, at most `seconds`."""

    request: ApiRequest[Any]
    seconds: float


class Pause(NamedTuple):
    """A step: do nothing for some seconds."""

    seconds: float


class NoAnswer(NamedTuple):
    """No response, and why; if the request was `sent`, the service may have carried it out."""

    why: str
    sent: bool


Reply: TypeAlias = Response | NoAnswer | None
Steps: TypeAlias = Generator[Attempt | Pause, Reply, T]


def exchange(link: "Link", request: ApiRequest[T]) -> Steps[T]:
    """Return what the service responds, with retries as long as they are safe, useful and within the time limits."""
    start = time.monotonic()
    end = start + link.timeout + request.wait
    tries, uncertain = 0, False
    answered: BilinqError | None = None
    while True:
        left = max(end - time.monotonic(), 0.001)
        reply = yield Attempt(request, min(link.attempt + request.wait, left))
        tries += 1
        error = _error_of(link, reply)
        removed = request.removes and uncertain and isinstance(error, NotFound)
        if isinstance(reply, Response) and (error is None or removed):
            return _read(link, request, reply)
        assert error is not None
        if not _worth_a_retry(request, reply, error):
            raise error
        uncertain = uncertain or isinstance(error, Unavailable)
        pause = _pause(error, tries) if isinstance(reply, Response) else backoff(tries)
        answered = error if isinstance(reply, Response) else answered
        if time.monotonic() + pause >= end:
            cut_short = left < link.attempt + request.wait  # then an earlier response says more than this timeout
            raise _given_up(answered or error if cut_short else error, tries, time.monotonic() - start)
        yield Pause(pause)


def backoff(tries: int) -> float:
    """Return seconds to wait after `tries` failures in a row: doubling up to a limit, randomised to spread many clients."""
    return random.uniform(0.5, 1.0) * min(FIRST_PAUSE * 2.0 ** min(tries - 1, 16), LONGEST_PAUSE)


def _error_of(link: "Link", reply: Reply) -> BilinqError | None:
    if isinstance(reply, Response):
        return refusal(reply, link.url)
    assert isinstance(reply, NoAnswer)
    return Unavailable(f"{'no response from' if reply.sent else 'cannot reach'} {link.url}: {reply.why}")


def _worth_a_retry(request: ApiRequest[Any], reply: Reply, error: BilinqError) -> bool:
    if isinstance(error, Busy | Starting):
        return True
    unsent = isinstance(reply, NoAnswer) and not reply.sent
    return isinstance(error, Unavailable) and (request.repeatable or unsent)


def _pause(error: BilinqError, tries: int) -> float:
    """Return seconds until the next attempt: never less than the service asks for."""
    named = error.retry_after if isinstance(error, (Busy, Unavailable)) else 0.0
    return named * random.uniform(1.0, 1.2) if named > 0 else backoff(tries)


def _given_up(error: BilinqError, tries: int, seconds: float) -> BilinqError:
    """Return the same error with the number of attempts and the time they took."""
    if tries > 1 and isinstance(error, (Busy, Unavailable)):
        return type(error)(f"{error} (tried {tries} times in {seconds:.1f} s)", error.retry_after)
    return error


def _read(link: "Link", request: ApiRequest[T], response: Response) -> T:
    try:
        return request.read(response.content)
    except ValueError as error:
        answered = f"{link.url} answered {request.method} {request.path} with {response.status_code}"
        raise Refused(f"{answered} and something unexpected ({error}); is it a bilinq service?") from None


DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT = 5.0  # seconds to connect
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""Errors before the request is sent."""


@dataclass(frozen=True)
class Link:
    """A service, a key for it, and time limits in seconds: `timeout` for a call with all retries, `attempt` for one try."""

    url: str
    key: str = field(repr=False)
    timeout: float
    attempt: float
    verify: bool | ssl.SSLContext

    @classmethod
    def to(
        cls, url: str | None, key: str | None, timeout: float, attempt: float, verify: bool | ssl.SSLContext
    ) -> "Link":
        """Return a checked link; defaults: BILINQ_URL, and BILINQ_KEY or the file that BILINQ_KEY_FILE names."""
        for name, seconds in (("timeout", timeout), ("attempt", attempt)):
            if not seconds > 0:
                raise BadInput(f"{name} must be a positive number of seconds; got {seconds}")
        place = url or os.environ.get("BILINQ_URL") or DEFAULT_URL
        secret = (key or read_secret("BILINQ_KEY") or "").strip()
        return cls(_checked_url(place), _checked_key(secret), timeout, attempt, verify)

    def options(self) -> dict[str, Any]:
        """Return arguments for the clients of httpx."""
        return {
            "base_url": self.url,
            "headers": {"authorization": f"Bearer {self.key}", "accept": "application/json", "user-agent": "bilinq"},
            "verify": self.verify,
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=64),
        }

    def request(self, attempt: Attempt) -> dict[str, Any]:
        """Return arguments for `request` of httpx."""
        one = attempt.request
        headers = {} if one.body is None else {"content-type": "application/json"}
        timeout = httpx.Timeout(attempt.seconds, connect=min(CONNECT, attempt.seconds))
        return {
            "method": one.method, "url": one.path, "content": one.body, "params": dict(one.query) or None,
            "headers": headers, "timeout": timeout,
        }  # fmt: skip


def no_answer(error: httpx.RequestError, seconds: float) -> NoAnswer:
    """Return why there is no response, after waiting for `seconds` if that timed out."""
    if isinstance(error, httpx.TimeoutException):
        why = f"timed out after {seconds:.3g} s" if not isinstance(error, UNSENT) else "timed out while connecting"
    else:
        why = _root(error)
    return NoAnswer(why, sent=not isinstance(error, UNSENT))


def _root(error: BaseException) -> str:
    """Return the message of the operating system if there is one; httpx and anyio wrap it differently."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            number = inner.errno or 0
            return os.strerror(number) if number in errno.errorcode else inner.strerror
        several = inner.exceptions if isinstance(inner, BaseExceptionGroup) else ()
        inner = several[0] if several else inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__


def _checked_url(text: str) -> str:
    """Return the address of a service without a trailing slash."""
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
    """Return a key that is valid in a header; the message does not show a bad one."""
    if not key:
        raise BadInput(
            "key must be given, or BILINQ_KEY or BILINQ_KEY_FILE be set; create one with `bilinq keys create`"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput("key must consist of printable ASCII characters without spaces; it is not shown here")
    return key
