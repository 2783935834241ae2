"""What an answer of the service means: the errors of `bilinq.errors`, from status and application/problem+json."""

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from bilinq.errors import Away, BadInput, BilinqError, Busy, Clash, NoKey, NotAllowed, NotKnown, Refused, Stale
from bilinq.live.messages import Problem

ERRORS: dict[int, type[BilinqError]] = {
    400: BadInput, 401: NoKey, 403: NotAllowed, 404: NotKnown, 409: Clash, 413: BadInput, 415: BadInput, 422: BadInput,
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
        return Away(text, _retry_after(answer))
    if problem is None:
        return Refused(f"{text}; is it a bilinq service?")
    return KINDS.get(_kind(problem), ERRORS.get(answer.status, Refused))(text)


def _problem(answer: Answer) -> Problem | None:
    """Return what the service says is wrong; None if somebody else answered."""
    try:
        return msgspec.json.decode(answer.body, type=Problem)
    except ValueError:
        return None


def _kind(problem: Problem) -> str:
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
