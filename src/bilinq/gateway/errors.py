"""Errors in the shape of OpenAI's API, and what goes wrong at a back end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

LONGEST_RETRY = 60.0  # seconds that a client is asked to wait at most


class ApiError(Exception):
    """What a client gets: a status, and `{"error": {"message", "type", "param", "code"}}`."""

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
        self.error: dict[str, Any] = {"message": message, "type": type, "param": param, "code": code}

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        return msgspec.json.encode({"error": self.error})

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers beside those of the content."""
        if self.retry_after is None:
            return []
        seconds = math.ceil(min(max(self.retry_after, 1.0), LONGEST_RETRY))
        return [(b"retry-after", str(seconds).encode())]


class BackendRefused(ApiError):
    """A back end refused a request as wrong; the client gets its answer unchanged."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(status, str(error.get("message", "the back end refused the request")))
        self.error |= error


class BackendFailed(Exception):
    """A back end could not answer, which another one may.

    `busy` is the pause in seconds that it asked for (429 or 503), None if it failed in another way.
    """

    def __init__(self, reason: str, *, busy: float | None = None) -> None:
        super().__init__(reason)
        self.busy = busy


def bad(message: str, param: str | None = None) -> ApiError:
    """Return the error for a request that breaks a rule."""
    return ApiError(400, message, param=param)


def no_such_model(name: str, known: list[str]) -> ApiError:
    """Return the error for a model that nobody serves."""
    message = f"model must be auto, or one or more of {', '.join(known)}; got {name!r}"
    return ApiError(404, message, param="model", code="model_not_found")


def not_eligible(reason: str, param: str | None) -> ApiError:
    """Return the error for a request that no back end may serve."""
    return ApiError(400, f"no back end can serve this request: {reason}", param=param, code="no_eligible_backend")


def queue_full(backlog: int, retry_after: float) -> ApiError:
    """Return the error for a tenant with too many waiting requests."""
    message = f"at most {backlog} requests of a tenant may wait; try again later"
    return ApiError(429, message, type="requests", code="rate_limit_exceeded", retry_after=retry_after)


def out_of_budget(tenant: str, budget: float, retry_after: float) -> ApiError:
    """Return the error for a tenant whose budget of the day does not allow the request."""
    message = (
        f"the budget of tenant {tenant!r}, {budget:g} a day, does not allow this request before the next day (UTC)"
    )
    return ApiError(429, message, type="insufficient_quota", code="insufficient_quota", retry_after=retry_after)


def too_late(seconds: float) -> ApiError:
    """Return the error for a request whose deadline passed before anything was sent."""
    message = f"no answer began within the deadline of {seconds:g} seconds"
    return ApiError(504, message, type="server_error", code="deadline_exceeded")


def all_down(names: list[str], reason: str, retry_after: float) -> ApiError:
    """Return the error for a request whose back ends are all paused."""
    message = f"no back end is available: {', '.join(names)} failed and will be tried again in {retry_after:.0f} s"
    return ApiError(503, f"{message}; last error: {reason}" if reason else message, type="server_error",
                    code="no_backend_available", retry_after=retry_after)  # fmt: skip


def all_failed(reasons: Mapping[str, str]) -> ApiError:
    """Return the error for a request that every back end that was tried failed to answer, with the reason of each."""
    reason = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    return ApiError(502, f"no back end could answer: {reason}", type="server_error", code="backend_failed")


def broken_off(reason: str) -> ApiError:
    """Return the error that ends a stream whose back end failed after it had begun."""
    message = f"the back end broke off: {reason}; what was sent so far is not the whole answer"
    return ApiError(502, message, type="server_error", code="stream_broken")
