"""What is known of a request, as numbers for the scheduler: its kind, its form, and an embedding if there is one."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from bilinq.arrays import Array
from bilinq.errors import BadInput
from bilinq.gateway.request import Request
from bilinq.texts import text_features

log = logging.getLogger("bilinq.gateway")

LONG = 1000.0  # estimated tokens of a prompt from which on it is long
FORM = "form 32"  # changes with the features of form: what was learnt from others is of no use
EMBEDDED = 48  # most numbers of an embedding; longer ones are projected at random, always in the same way

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
    about = "code" if request.about_code else "prose"
    return f"{length} {about} with tools" if "tools" in request.needs else f"{length} {about}"


def form(request: Request) -> list[float]:
    """Return the features of what was asked, and of the request: length, code, what it needs, turns, and its limit.

    They are 32, the most of which the scheduler learns squares too.
    """
    return [
        *text_features(request.asked),
        math.log1p(request.prompt_tokens),
        float(request.about_code),
        float("tools" in request.needs),
        float("vision" in request.needs),
        float("json" in request.needs),
        math.log1p(request.turns),
        math.log1p(request.max_tokens or 0.0),
        float(request.endpoint == "completions"),
    ]


class Features:
    """Makes the features of requests: those of form, and what an embedding function returns.

    The function gets the text that was asked and returns numbers, always as many; it may be a coroutine. A plain function
    runs in a thread. If it fails, the request counts as an average one.
    """

    def __init__(self, embedding: str | None = None) -> None:
        self._function = None if embedding is None else find_function("embedding", embedding)
        self._size: int | None = None

    @property
    def signature(self) -> str:
        """What stored features must have been made with to be used again."""
        return FORM if self._function is None else f"{FORM}, embedding of {self._function.__name__}"

    @property
    def slow(self) -> bool:
        """Whether features take time, so that they must be awaited."""
        return self._function is not None

    def quick(self, request: Request) -> Array:
        """Return the features of a request without an embedding."""
        return np.array(form(request))

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
