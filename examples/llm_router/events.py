"""Server-sent events, cut out of bytes as they come."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, Mapping

from msgspec import json

END = re.compile(rb"\r?\n\r?\n")
DONE = b"[DONE]"


async def events(parts: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """Yield the data of each event; comments are left out, and so is an event that was cut off."""
    rest = b""
    async for part in parts:
        *whole, rest = END.split(rest + part)
        for event in whole:
            if data := data_of(event):
                yield data


def data_of(event: bytes) -> bytes:
    """Return the data of an event, empty if it has none."""
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line.removeprefix(b"data:").removeprefix(b" ") for line in lines)


def event_of(data: bytes) -> bytes:
    """Return an event with this data, which has no line ends."""
    return b"data: " + data + b"\n\n"


def error_event(error: Mapping[str, object]) -> bytes:
    """Return the event that tells of an error in the midst of a stream."""
    return event_of(json.encode({"error": error}))
