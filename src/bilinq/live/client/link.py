"""Where the service is, how to show who asks, and what httpx makes of a request: shared by both clients."""

import errno
import os
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from bilinq.errors import BadInput
from bilinq.live.client.answers import Answer
from bilinq.live.client.talk import Ask, Limits, Lost

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
