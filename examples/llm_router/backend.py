"""Back ends: asked with a request's body, they answer in parts."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import msgspec

from bilinq.errors import BadInput

from .card import Card
from .errors import Failed, Refused
from .events import DONE, events

REFUSALS = frozenset({400, 405, 409, 411, 413, 415, 422})
"""Statuses that mean that the request is wrong; anything else that is no answer means that the back end is."""
CONNECT = 5.0
"""Seconds to connect."""


class Backend(ABC):
    """Something that answers chat completions."""

    @abstractmethod
    def ask(self, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        """Yield the answer: one part with all of it, or the data of each event if the body asks for a stream.

        Raises
        ------
        Failed
            If it cannot answer, at any point.
        Refused
            If the request is wrong.
        """

    async def close(self) -> None:  # noqa: B027, most have nothing to close
        """Close connections."""


class HttpBackend(Backend):
    """A back end at the address of its card."""

    def __init__(self, card: Card) -> None:
        headers = {"Accept-Encoding": "identity"}
        if card.key_env is not None:
            headers["Authorization"] = f"Bearer {secret(card.key_env)}"
        self._model, self._timeout, self._url = card.model, card.timeout, f"{card.url.rstrip('/')}/chat/completions"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(card.timeout, connect=CONNECT, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=card.slots),
            trust_env=False,
        )

    async def ask(self, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        """Yield the answer."""
        content = msgspec.json.encode({**body, "model": self._model})
        headers = {"Content-Type": "application/json"}
        try:
            async with self._client.stream("POST", self._url, content=content, headers=headers) as response:
                await _check(response)
                if not body.get("stream"):
                    yield await response.aread()
                    return
                async with contextlib.aclosing(events(response.aiter_bytes())) as found:
                    async for data in found:
                        yield data
                        if data == DONE:
                            return
        except httpx.TimeoutException:
            raise Failed(f"nothing came for {self._timeout:g} seconds") from None
        except httpx.HTTPError as error:
            raise Failed(str(error) or type(error).__name__) from None

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()


def secret(variable: str) -> str:
    """Return what an environment variable holds, or say that it is missing."""
    value = os.environ.get(variable)
    if not value:
        raise BadInput(f"key_env must name an environment variable that is set; got {variable!r}")
    return value


async def _check(response: httpx.Response) -> None:
    """Raise unless the back end answers."""
    if response.status_code == 200:
        return
    told = (await response.aread())[:65536]
    if response.status_code in REFUSALS:
        raise Refused(response.status_code, _error(told))
    raise Failed(f"status {response.status_code}", _seconds(response.headers.get("retry-after", "")))


def _error(told: bytes) -> dict[str, Any]:
    """Return the error that a back end tells, in OpenAI's shape or another."""
    try:
        error = msgspec.json.decode(told)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return {"message": told.decode("utf-8", "replace")[:500] or "the back end refused the request"}
    return error if isinstance(error, dict) else {"message": str(error)}


def _seconds(retry_after: str) -> float:
    with contextlib.suppress(ValueError):
        return max(float(retry_after), 0.0)
    return 0.0
