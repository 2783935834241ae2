"""Problems in JSON and TOML files, chosen by suffix; keys are the arguments of `Problem`."""

import json
import tomllib
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bilinq.arrays import short
from bilinq.errors import BadInput, did_you_mean
from bilinq.problem.problem import Problem

REQUIRED = ("arrival_rate", "servers")
NAMES = ("job_names", "server_names")
FEATURES = ("job_features", "server_features")
NUMBERS = (*REQUIRED, *FEATURES, "theta", "mean_reward", "service_rate", "noise", "holding_cost")
MASK = "eligible"
KEYS = (*NUMBERS, MASK, *NAMES, "unbounded")


def load(path: str | PathLike[str]) -> Problem:
    """Read a problem from a `.json` or `.toml` file.

    The file contains a value for each argument of `Problem` that is set: a number, lists of numbers, a list of names, or
    for `eligible` lists of true and false.
    Every error in it raises `BadInput` with the file and the key.
    """
    file = Path(path)
    values = _read(file, _codec(file)[0])
    try:
        _check_keys(values)
        return Problem(**values)
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    except RecursionError:  # the parser goes deeper than what looks at the values
        raise BadInput(f"{file}: lists must not be nested as deep as they are") from None


def save(problem: Problem, path: str | PathLike[str]) -> None:
    """Write `problem` to a `.json` or `.toml` file that `load` reads back exactly."""
    file = Path(path)
    text = _codec(file)[1](_plain(problem))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file}: cannot be written; {error.strerror}") from None


def _codec(file: Path) -> tuple[Callable[[str], object], Callable[[dict[str, Any]], str]]:
    """Return the reader and the writer for the file's suffix."""
    codecs = {".json": (json.loads, _json), ".toml": (tomllib.loads, _toml)}
    if file.suffix.lower() not in codecs:
        raise BadInput(f"{file}: the name must end in .json or .toml; got {file.suffix!r}")
    return codecs[file.suffix.lower()]


def _read(file: Path, parse: Callable[[str], object]) -> dict[str, Any]:
    try:
        values = parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file}: is not valid {file.suffix[1:].upper()}; {error}") from None
    if not isinstance(values, dict):
        raise BadInput(f"{file}: must contain one table of keys and values; got {short(values)}")
    return values


def _check_keys(values: dict[str, Any]) -> None:
    for key, value in values.items():
        if key not in KEYS:
            raise BadInput(f"unknown key {key!r}{did_you_mean(key, KEYS)}; known are {', '.join(KEYS)}")
        if key in NUMBERS and not _numeric(value):
            raise BadInput(f"{key} must be a number or lists of numbers; got {short(value)}")
        if key in NAMES and not isinstance(value, list):
            raise BadInput(f"{key} must be a list of names; got {short(value)}")
    for key in REQUIRED:
        if key not in values:
            raise BadInput(f"missing key {key!r}")


def _numeric(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_numeric, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(problem: Problem) -> dict[str, Any]:
    """Return numbers and lists by key, without the default features of a table."""
    values = problem.arguments()
    if problem.theta is None:
        for key in FEATURES:
            if np.array_equal(values[key], np.eye(len(values[key]))):
                del values[key]
    plain = {key: values[key].tolist() for key in (*NUMBERS, MASK) if values.get(key) is not None}
    flags = {"unbounded": True} if problem.unbounded else {}
    return plain | {key: list(values[key]) for key in NAMES} | flags


def _json(values: dict[str, Any]) -> str:
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _toml(values: dict[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(values)
