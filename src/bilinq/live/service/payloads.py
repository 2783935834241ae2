"""Payloads and results as JSON texts, and digests that tell two bodies apart."""

from hashlib import blake2b
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder(order="deterministic")
_decode = msgspec.json.decode


def to_text(value: Any) -> str:
    """Return JSON text, the same for equal values."""
    return _encoder.encode(value).decode()


def from_text(text: str | None) -> Any:
    """Return the value of a JSON text, or None."""
    return None if text is None else _decode(text)


def digest(*values: Any) -> str:
    """Return a short text that differs for different values."""
    return blake2b(_encoder.encode(values), digest_size=16).hexdigest()
