"""Allocation requests: one slot's data in a JSON file, and what `allocate` answers."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from bilinq.allocation import Allocation, allocate
from bilinq.arrays import short
from bilinq.errors import BadInput

SHAPES = {"queue": 1, "reward": 2, "capacity": 1, "V": 0, "gamma": 0, "weight": 1, "limit": 1}
"""The keys of a request and how deep their lists are: a number, a list, a list of rows."""
OPTIONAL = ("weight", "limit")
WORDING = ("a number", "a list of numbers", "a list of rows of numbers")


def read(source: str) -> dict[str, Any]:
    """Return the checked arguments of `allocate` from a JSON file, or from standard input for "-".

    All keys of `SHAPES` but the optional ones must be there and no others; null in `limit` is no limit. Whatever is
    wrong is a `BadInput` that names the file, the key, the rule and the value.
    """
    name = "standard input" if source == "-" else source
    values = _parse(_text(source, name), name)
    for key in values:
        if key not in SHAPES:
            raise BadInput(f"{name}: unknown key {key!r} (value {short(values[key])}); known are {', '.join(SHAPES)}")
    for key, depth in SHAPES.items():
        if key not in values and key not in OPTIONAL:
            raise BadInput(f"{name}: missing key {key!r}; it must be {WORDING[depth]}")
        if key in values and not _fits(values[key], depth, empty=key == "limit"):
            raise BadInput(f"{name}: {key} must be {WORDING[depth]}; got {short(values[key])}")
    if "limit" in values:
        values["limit"] = [math.inf if entry is None else entry for entry in values["limit"]]
    return values


def answer(source: str) -> tuple[dict[str, Any], Allocation]:
    """Return the arguments that `source` holds and their allocation."""
    values = read(source)
    try:
        return values, allocate(**values)
    except BadInput as error:
        name = "standard input" if source == "-" else source
        raise BadInput(f"{name}: {error}") from None


def _text(source: str, name: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{name}: cannot be read; {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: is not UTF-8 text; {error.reason} at byte {error.start}") from None


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name}: is not valid JSON; {error}") from None
    if not isinstance(values, dict):
        raise BadInput(f"{name}: must hold one object with keys {', '.join(SHAPES)}; got {short(values)}")
    return values


def _fits(value: object, depth: int, empty: bool) -> bool:
    """Tell whether `value` is numbers in `depth` levels of lists; with `empty` null may stand for a number."""
    if depth:
        return isinstance(value, list) and all(_fits(entry, depth - 1, empty) for entry in value)
    return (isinstance(value, int | float) and not isinstance(value, bool)) or (empty and value is None)
