"""Limits on what a request may cost: size and nesting of its body, and how often a key may ask."""

import re
import time
from collections.abc import Callable

from bilinq.errors import Busy
from bilinq.live.api.asgi import Receive
from bilinq.live.api.problems import BadJson, Gone, TooLarge

NESTING = 100
"""Deepest nesting of lists and objects in a body."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


async def read_body(receive: Receive, length: bytes | None, most: int) -> bytes:
    """Return the body of at most `most` bytes; one that is too large is refused as soon as that is seen."""
    if length is not None and length.isdigit() and int(length[:20]) > most:
        raise TooLarge(f"body must have at most {most} bytes; got {int(length[:20])}")
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise TooLarge(f"body must have at most {most} bytes; got more")
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def check_nesting(body: bytes, most: int = NESTING) -> None:
    """Raise if lists and objects in the JSON text `body` are nested more than `most` deep.

    What the parser can just take in might be too deep for a later call to write out again.
    """
    if body.count(b"[") + body.count(b"{") <= most:
        return
    brackets = _TEXT.sub(b"", body).translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(most):
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise BadJson(f"body must not nest lists and objects more than {most} deep, and must close each of them")


class Rate:
    """A bucket of tokens for each key: `per_second` flow in, up to a second's worth; 0 is no limit."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self.most = max(per_second, 1.0)
        self.clock = clock
        self.buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> None:
        """Take a token for a request of `key`, or raise `Busy` with the time until there is one."""
        if not self.per_second:
            return
        now = self.clock()
        tokens, then = self.buckets.get(key, (self.most, now))
        tokens = min(self.most, tokens + (now - then) * self.per_second)
        if tokens < 1.0:
            raise Busy(
                f"the key {key} may ask {self.per_second:g} times a second; it asked more often",
                retry_after=(1.0 - tokens) / self.per_second,
            )
        self.buckets[key] = (tokens - 1.0, now)
