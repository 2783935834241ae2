"""What goes into requests, checked and made safe before it leaves."""

import json
import math
import secrets
from typing import Any

import msgspec

from bilinq.errors import BadInput

LONGEST_REASON = 2000
"""Characters that the service takes as the reason of a failure."""


def new_key() -> str:
    """Return a key or name that nobody else has."""
    return secrets.token_hex(16)


def as_json(name: str, value: Any) -> Any:
    """Return `value` ready to send; NaN and infinity are refused, for they are no JSON and would silently become null."""
    if value is None or isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.Raw(json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{name} must be JSON: {error}") from None


def as_reward(value: float | None) -> float | None:
    """Return a reward that is finite, or None."""
    if value is not None and not math.isfinite(value):
        raise BadInput(f"reward must be finite; got {value}")
    return value


def as_reason(text: str) -> str:
    """Return the text without what the service refuses: NUL, lone surrogates and more than 2,000 characters."""
    return text.replace("\0", " ").encode(errors="replace").decode()[:LONGEST_REASON]
