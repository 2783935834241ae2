"""Values for JSON: arrays as lists, records as dictionaries, NaN and infinities as null."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np


def plain(value: object) -> Any:
    """Return `value` as dictionaries, lists, text, finite numbers, booleans and None.

    Examples
    --------
    >>> plain({"price": np.array([0.5, np.inf]), "steps": np.int64(3)})
    {'price': [0.5, None], 'steps': 3}
    """
    return json.loads(msgspec.json.encode(value, enc_hook=_known_to_msgspec))


def to_json(value: object, indent: int | None = None) -> str:
    """Return `value` as JSON text."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False)


def _known_to_msgspec(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)
