"""Digests as files: JSON with a version, read into records with errors that name the file and the key."""

import json
from dataclasses import is_dataclass
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from bilinq.arrays import short
from bilinq.errors import BadInput, did_you_mean
from bilinq.jsonable import plain

T = TypeVar("T")

SCHEMA = 1  # version of the file's layout; files of other versions are refused


def load(kind: type[T], path: str | PathLike[str]) -> T:
    """Read a digest; any fault is a `BadInput` that names the file and the key."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{file}: is not UTF-8 text; {error.reason} at byte {error.start}") from None
    return parse(kind, text, str(file))


def save(digest: object, path: str | PathLike[str]) -> None:
    """Write a digest that `load` reads back exactly."""
    file = Path(path)
    try:
        file.write_text(text(digest), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file}: cannot be written; {error.strerror}") from None


def document(digest: object) -> dict[str, Any]:
    """Return the digest as plain values, with the version of their layout."""
    return {"schema": SCHEMA, **plain(digest)}


def text(digest: object) -> str:
    """Return the digest as JSON text, one record a line."""
    lines = []
    for key, value in document(digest).items():
        shown = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value:
            shown = "[\n    " + ",\n    ".join(json.dumps(entry, ensure_ascii=False) for entry in value) + "\n  ]"
        lines.append(f"  {json.dumps(key)}: {shown}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def parse(kind: type[T], text: str, name: str) -> T:
    """Return the digest in a JSON text; `name` is the file's, for errors."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name}: is not valid JSON; {error}") from None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        found = values.get("schema") if isinstance(values, dict) else short(values)
        raise BadInput(f"{name}: schema must be {SCHEMA}, the version of a digest that is known here; got {found}")
    del values["schema"]
    try:
        digest: T = _record(kind, values, "")
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None
    return digest


def _value(kind: Any, value: Any, where: str) -> Any:
    """Return `value` as an instance of `kind`; raise an error that names what is at `where` instead."""
    if is_dataclass(kind):
        return _record(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise BadInput(f"{where} must be a list; got {short(value)}")
        return tuple(_value(get_args(kind)[0], entry, f"{where}[{k}]") for k, entry in enumerate(value))
    if NoneType in get_args(kind):
        return None if value is None else _value(get_args(kind)[0], value, where)
    try:
        return msgspec.convert(value, kind if kind in (int, float) else str)
    except msgspec.ValidationError:
        wanted = {int: "a whole number", float: "a number"}.get(kind, "text")
        raise BadInput(f"{where} must be {wanted}; got {short(value)}") from None


def _record(kind: Any, value: Any, where: str) -> Any:
    prefix = f"{where}." if where else ""
    if not isinstance(value, dict):
        raise BadInput(f"{where} must be an object; got {short(value)}")
    types = get_type_hints(kind)
    for key in value:
        if key not in types:
            raise BadInput(f"unknown key {prefix + key!r}{did_you_mean(key, types)}; known are {', '.join(types)}")
    for key in types:
        if key not in value:
            raise BadInput(f"missing key {prefix + key!r}")
    values = {key: _value(types[key], value[key], prefix + key) for key in types}
    try:
        return kind(**values)
    except BadInput as error:
        raise BadInput(f"{where}: {error}" if where else str(error)) from None
