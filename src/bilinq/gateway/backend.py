"""A back end over HTTP: it is sent a request's body, and answers in parts; what goes wrong has a name."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterable
from email.utils import parsedate_to_datetime
from time import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bilinq.gateway.answer import DONE, events
from bilinq.gateway.config import Backend, Endpoint
from bilinq.gateway.connections import Connection, Connections
from bilinq.gateway.errors import BackendFailed, BackendRefused
from bilinq.live import tracing

PATHS: dict[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions", "embeddings": "/embeddings"}
REFUSALS = frozenset({400, 405, 409, 411, 413, 415, 422})
"""Statuses that mean that the request is wrong; anything else but success means that the back end is."""
BUSY = frozenset({429, 503, 529})  # statuses of a back end that has too much to do
MOST_ERROR = 65_536  # bytes that are read of an error
LARGEST = 256 << 20  # bytes of an answer, beyond which a back end is broken
DRAIN = 0.05  # seconds in which a response must end after the last event of a stream
LONGEST_PAUSE = 300.0  # seconds that a back end can ask for


class Upstream:
    """Connections to one back end. Its key is sent to it and nowhere else, and is in no message."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._path = urlsplit(backend.url).path.rstrip("/")
        self._headers = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
        key = backend.secret()
        if key is not None:
            self._headers.append((b"authorization", f"Bearer {key}".encode()))
        self._connections = Connections(backend.url, kept=backend.concurrency)

    async def ask(self, endpoint: Endpoint, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        """Yield the answer: one part with all of it, or the data of each event if the body asks for a stream.

        Raises
        ------
        BackendFailed
            If it cannot answer, at any point.
        BackendRefused
            If the request is wrong.
        """
        content = msgspec.json.encode({**body, "model": self.backend.upstream_model})
        post = self._connections.post(self._path + PATHS[endpoint], tracing.handed_on(self._headers), content)
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self.backend.first_timeout):
                    response = await stack.enter_async_context(post)
                parts = self._in_time(response)
                if response.status != 200:
                    raise await _wrong(response, parts)
                if not body.get("stream"):
                    yield await _read(parts, LARGEST)
                    return
                async with contextlib.aclosing(events(parts)) as found:
                    async for data in found:
                        yield data
                        if data == DONE:
                            await _drain(found)
                            return
        except TimeoutError:
            raise BackendFailed("it was silent for too long") from None
        except OSError as error:
            raise BackendFailed((error.strerror or str(error) or type(error).__name__)[:200]) from None

    async def _in_time(self, response: Connection) -> AsyncGenerator[bytes]:
        """Yield the parts of a response; the first must come within one limit, and each further one within another."""
        parts, limit = response.parts(), self.backend.first_timeout
        while True:
            async with asyncio.timeout(limit):
                part = await anext(parts, None)
            if part is None:
                return
            yield part
            limit = self.backend.gap_timeout

    async def close(self) -> None:
        """Close all connections."""
        self._connections.close()


async def _read(parts: AsyncIterable[bytes], most: int) -> bytes:
    """Return all parts of a body of at most `most` bytes."""
    read, size = [], 0
    async for part in parts:
        read.append(part)
        size += len(part)
        if size > most:
            raise BackendFailed(f"an answer must have at most {most} bytes")
    return b"".join(read)


async def _drain(parts: AsyncIterable[bytes]) -> None:
    """Read what follows the end of a stream, usually nothing, so that the connection can be used again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN):
            async for _ in parts:
                pass


async def _wrong(response: Connection, parts: AsyncIterable[bytes]) -> BackendFailed | BackendRefused:
    """Return the error that a response without an answer means."""
    status = response.status
    said = b""
    async for part in parts:
        said = (said + part)[:MOST_ERROR]
    if status in REFUSALS:
        return BackendRefused(status, _error(said))
    headers = dict(response.headers)
    return BackendFailed(f"status {status}", busy=_pause(headers.get(b"retry-after")) if status in BUSY else None)


def _error(said: bytes) -> dict[str, Any]:
    """Return the error that a back end reports, in OpenAI's shape or another."""
    try:
        error = msgspec.json.decode(said)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"message": said.decode("utf-8", "replace")[:500] or "the back end refused the request"}
    return error if isinstance(error, dict) else {"message": str(error)[:500]}


def _pause(retry_after: bytes | None) -> float:
    """Return the seconds of Retry-After, given as a number or a date; zero if it is missing or unreadable."""
    text = (retry_after or b"").decode("latin-1")
    with contextlib.suppress(ValueError):
        seconds = float(text)
        return min(max(seconds, 0.0), LONGEST_PAUSE) if math.isfinite(seconds) else 0.0
    with contextlib.suppress(ValueError, TypeError):
        return min(max(parsedate_to_datetime(text).timestamp() - time(), 0.0), LONGEST_PAUSE)
    return 0.0
