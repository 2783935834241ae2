"""Lines of CSV and JSON-lines files, one at a time; an error names the file, the line and the value."""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilinq.arrays import short
from bilinq.errors import BadInput


@dataclass(frozen=True, slots=True)
class Line:
    """One record of a file: its values by name, and the line on which it ends, counted from 1."""

    file: Path
    number: int
    values: Mapping[str, Any]

    def fault(self, message: str) -> BadInput:
        """Return the error that names the file and the line."""
        return BadInput(f"{self.file}: line {self.number}: {message}")

    def text(self, key: str) -> str:
        """Return the value of `key`, text that is not blank."""
        value = self._value(key)
        if not isinstance(value, str) or not value.strip():
            raise self.fault(f"{key} must be text; got {short(value)}")
        return value

    def number_of(self, key: str, least: float = 0.0) -> float:
        """Return the value of `key`, a finite number of at least `least`."""
        return self.as_number(key, self._value(key), least)

    def whole_number(self, key: str, least: int = 0) -> int:
        """Return the value of `key`, a whole number of at least `least`."""
        value = self.number_of(key, least)
        if value != int(value):
            raise self.fault(f"{key} must be a whole number; got {short(self.values[key])}")
        return int(value)

    def as_number(self, name: str, value: object, least: float = 0.0, most: float = math.inf) -> float:
        """Return `value` as a finite number between `least` and `most`; `name` is that of the error."""
        try:
            found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            found = math.nan
        if not (math.isfinite(found) and least <= found <= most):
            rule = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise self.fault(f"{name} must be a number {rule}; got {short(value)}")
        return found

    def record(self, key: str) -> Mapping[str, Any]:
        """Return the value of `key`, an object with at least one entry."""
        value = self._value(key)
        if not isinstance(value, dict) or not value:
            raise self.fault(f"{key} must be an object with entries; got {short(value)}")
        return value

    def _value(self, key: str) -> Any:
        if key not in self.values:
            raise self.fault(f"must have {key!r}; got only {', '.join(self.values)}")
        return self.values[key]


def csv_lines(path: Path, columns: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the records of a CSV file with a header, which must have the `columns`."""
    header: list[str] = []

    def parse(stream: Iterator[str]) -> Iterator[Line]:
        reader = csv.reader(stream, strict=True)
        header.extend(next(reader, []))
        _check_header(path, header, columns)
        for row in reader:
            if row and len(row) != len(header):
                raise BadInput(f"{path}: line {reader.line_num}: must have {len(header)} fields; got {len(row)}")
            if row:
                yield Line(path, reader.line_num, dict(zip(header, row, strict=True)))

    return _records(path, parse)


def json_lines(path: Path) -> Iterator[Line]:
    """Yield the records of a file with one JSON object a line; blank lines are skipped."""

    def parse(stream: Iterator[str]) -> Iterator[Line]:
        for number, text in enumerate(stream, 1):
            if not text.strip():
                continue
            try:
                values = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise BadInput(f"{path}: line {number}: must be a JSON object; {error}") from None
            if not isinstance(values, dict):
                raise BadInput(f"{path}: line {number}: must be a JSON object; got {short(values)}")
            yield Line(path, number, values)

    return _records(path, parse)


def _check_header(path: Path, header: Sequence[str], columns: Sequence[str]) -> None:
    if len(set(header)) < len(header):
        raise BadInput(f"{path}: line 1: columns must have names of their own; got {short(', '.join(header), 200)}")
    for column in columns:
        if column not in header:
            raise BadInput(f"{path}: line 1: must have a column {column!r}; got {short(', '.join(header), 200)}")


def _records(path: Path, parse: Callable[[Iterator[str]], Iterator[Line]]) -> Iterator[Line]:
    """Yield the records that `parse` finds in a file of UTF-8 text; a file without one is an error."""
    found = False
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for line in parse(stream):
                found = True
                yield line
    except OSError as error:
        raise BadInput(f"{path}: cannot be read; {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: must be UTF-8 text; {error.reason} at byte {error.start}") from None
    except csv.Error as error:
        raise BadInput(f"{path}: must be CSV; {error}") from None
    if not found:
        raise BadInput(f"{path}: must contain at least one record; got none")
