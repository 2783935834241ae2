"""Errors as OpenAI's API tells them."""

from __future__ import annotations

import math
from typing import Any

from msgspec import json


class ApiError(Exception):
    """What a client is told: a status, and `{"error": {"message", "type", "param", "code"}}`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        self.error = {"message": message, "type": type, "param": param, "code": code}

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        return json.encode({"error": self.error})

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers beside those of the content."""
        if self.retry_after is None:
            return []
        return [(b"retry-after", str(math.ceil(min(max(self.retry_after, 1.0), 60.0))).encode())]


class Refused(ApiError):
    """What a back end answered to a request that it holds for wrong; told as it came."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(status, str(error.get("message", "the back end refused the request")))
        self.error |= error


class Failed(Exception):
    """A back end could not answer, which another one may."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


def bad(message: str, param: str | None = None) -> ApiError:
    """Return the error for a request that breaks a rule."""
    return ApiError(400, message, param=param)


def busy(backlog: int, retry_after: float) -> ApiError:
    """Return the error for a tenant with too many waiting requests."""
    message = f"at most {backlog} requests of a tenant may wait; try again later"
    return ApiError(429, message, type="requests", code="rate_limit_exceeded", retry_after=retry_after)


def no_backend(reason: str) -> ApiError:
    """Return the error for a request that no back end could answer."""
    return ApiError(502, f"no back end could answer: {reason}", type="server_error", code="backend_failed")
