"""Plain values for JSON: arrays as lists, records as dictionaries, NaN and infinities as null."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Return `value` made of dictionaries, lists, text, finite numbers and None alone.

    Examples
    --------
    >>> plain({"price": np.array([0.5, np.inf]), "steps": np.int64(3)})
    {'price': [0.5, None], 'steps': 3}
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def to_json(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON text."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)
