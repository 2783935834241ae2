"""What is known of a request, as numbers for the scheduler: its kind, its form, and its words or an embedding."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
import zlib
from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from bilinq.arrays import Array
from bilinq.errors import BadInput
from bilinq.gateway.request import Request

log = logging.getLogger("bilinq.gateway")

LONG = 1000.0  # estimated tokens of a prompt from which on it is long
LOOKED_AT = 4000  # characters at either end of a text in which signs of code and words are looked for
WORDS = 16  # hashed features of words; with those of form 32 in all, the most of which the scheduler learns squares too
EMBEDDED = 48  # most numbers of an embedding; longer ones are projected at random, always in the same way
SIGNS = 2  # different signs of code from which on a request is about code; a fenced block alone is enough

CODE = re.compile(
    r"```|^[ \t]*(def|class|import|from|const|let|func|fn|public|private|#include|SELECT|Traceback)\b"
    r"|[{;][ \t]*$|\b(python|javascript|typescript|rust|golang|java|sql|regex|stack ?trace|refactor|unit tests?)\b",
    re.MULTILINE | re.IGNORECASE,
)
WORD = re.compile(r"[^\W\d_]{2,}")
ENGLISH = frozenset(
    ("the", "of", "and", "to", "in", "is", "that", "for", "it", "with", "as", "on", "be", "this", "are")
)
OTHERS = frozenset(
    ("der", "die", "und", "das", "ist", "le", "la", "les", "et", "des", "est", "el", "los", "por", "que")
)
"""Frequent words of English and of some other languages: hints, no detection."""

KINDS = (
    *(" ".join(parts).rstrip() for parts in product(("short", "long"), ("prose", "code"), ("", "with tools"))),
    "embeddings",
)
"""The kinds of requests for which the page shows what was learnt; within a kind, requests differ by their features."""


def kind_of(request: Request) -> str:
    """Return the kind of a request, one of `KINDS`."""
    if request.endpoint == "embeddings":
        return "embeddings"
    length = "long" if request.prompt_tokens >= LONG else "short"
    about = "code" if code_signs(request.text) >= SIGNS else "prose"
    return f"{length} {about} with tools" if "tools" in request.needs else f"{length} {about}"


def code_signs(text: str) -> int:
    """Return how many different signs of code a text has; a fenced block counts as enough."""
    signs = {found.group().strip().lower() for found in CODE.finditer(_ends(text))}
    return max(len(signs), SIGNS if "```" in signs else 0)


def form(request: Request) -> list[float]:
    """Return the features of form: length, code, language, what it needs, turns, and the limit of the answer."""
    text = _ends(request.text)
    words, signs = [word.lower() for word in WORD.findall(text)], code_signs(request.text)
    size, number = max(len(text), 1), max(len(words), 1)
    return [
        math.log1p(request.prompt_tokens),
        math.log1p(len(request.asked)),
        float(signs >= SIGNS),
        min(signs, 8.0),
        sum(map(text.count, "{}()[];=<>")) / size,
        sum(map(str.isdigit, text)) / size,
        len(text.encode("utf-8", "replace")) / size,
        sum(word in ENGLISH for word in words) / number,
        sum(word in OTHERS for word in words) / number,
        float("?" in request.asked),
        float("tools" in request.needs),
        float("vision" in request.needs),
        float("json" in request.needs),
        math.log1p(request.turns),
        math.log1p(request.max_tokens or 0.0),
        float(request.endpoint == "completions"),
    ]


def hashed(text: str) -> list[float]:
    """Return the words of a text as `WORDS` numbers: signed hashing, the same in every process.

    Examples
    --------
    >>> hashed("a poem about the sea") == hashed("a poem about the sea"), len(hashed(""))
    (True, 16)
    """
    found = [0.0] * WORDS
    words = WORD.findall(_ends(text).lower())
    for word in words:
        number = zlib.crc32(word.encode("utf-8", "replace"))
        found[number % WORDS] += 1.0 if number & 0x10000 else -1.0
    scale = 1.0 / math.sqrt(max(len(words), 1))
    return [scale * value for value in found]


class Features:
    """Makes the features of requests: those of form, and hashed words or what an embedding function returns.

    The function gets the text that was asked and returns numbers, always as many; it may be a coroutine. A plain function
    runs in a thread. If it fails, the request counts as an average one.
    """

    def __init__(self, embedding: str | None = None) -> None:
        self._function = None if embedding is None else find_function("embedding", embedding)
        self._size: int | None = None

    @property
    def signature(self) -> str:
        """What stored features must have been made with to be used again."""
        return (
            f"form 16, hashed {WORDS}" if self._function is None else f"form 16, embedding of {self._function.__name__}"
        )

    @property
    def slow(self) -> bool:
        """Whether features take time, so that they must be awaited."""
        return self._function is not None

    def quick(self, request: Request) -> Array:
        """Return the features of a request without an embedding."""
        return np.array(form(request) + hashed(request.asked))

    async def embedded(self, request: Request) -> Array | None:
        """Return the features of a request with its embedding, or None if that failed."""
        assert self._function is not None
        try:
            numbers = np.asarray(await call(self._function, request.asked), np.float64).ravel()
            if not numbers.size or not np.isfinite(numbers).all() or self._size not in (None, numbers.size):
                rule = "embedding must return finite numbers, always as many"
                raise BadInput(f"{rule}; got {numbers.size} after {self._size or 'none'}")
        except Exception as error:
            log.warning(
                "an embedding failed; the request counts as an average one", extra={"reason": repr(error)[:200]}
            )
            return None
        self._size = numbers.size
        return np.concatenate([form(request), projected(numbers)])


def projected(numbers: Array) -> Array:
    """Return at most `EMBEDDED` numbers: all, or a random projection that depends on their number only."""
    if numbers.size <= EMBEDDED:
        return numbers
    directions = np.random.default_rng(numbers.size).standard_normal((EMBEDDED, numbers.size))
    return np.asarray(directions @ numbers / math.sqrt(numbers.size))


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a user's function returns: a coroutine is awaited, a plain function runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    found = await asyncio.to_thread(function, *arguments)
    return await found if inspect.isawaitable(found) else found


def find_function(setting: str, name: str) -> Callable[..., Any]:
    """Return the function `module:name` of a setting."""
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"{setting} must name a function as module:function; got {name!r}: {error}") from None
    if not callable(found):
        raise BadInput(
            f"{setting} must name a function as module:function; got {name!r}, which is {type(found).__name__}"
        )
    made: Callable[..., Any] = found
    return made


def _ends(text: str) -> str:
    return text if len(text) <= 2 * LOOKED_AT else f"{text[:LOOKED_AT]}\n{text[-LOOKED_AT:]}"
