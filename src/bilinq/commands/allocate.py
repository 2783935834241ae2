"""`bilinq allocate`: the data of one slot in a JSON file, and its allocation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from bilinq.commands.shared import Json, print_json, read_text, source_name
from bilinq.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

    from bilinq.allocation import Allocation

NUMBERS, ROWS = "a list of numbers", "a list of rows of numbers"
KEYS: dict[str, tuple[str, Any]] = {
    "queue": (NUMBERS, list[float]), "reward": (ROWS, list[list[float]]),
    "capacity": (NUMBERS, list[float]), "V": ("a number", float), "gamma": ("a number", float),
    "weight": (NUMBERS, list[float]), "limit": (NUMBERS, list[float | None]),
    "eligible": ("a list of rows of true and false", list[list[bool]]), "duration": (ROWS, list[list[float]]),
}  # fmt: skip
"""The keys of a request with their rules, in words and as types."""
OPTIONAL = ("weight", "limit", "eligible", "duration")


def allocate(file: Annotated[str, Argument(help="A JSON file, or - for standard input.")], json: Json = False) -> None:
    """Share the servers of one slot among the waiting jobs.

    The file contains {"queue": [..], "reward": [[..]], "capacity": [..], "V": x, "gamma": x} and optionally
    "weight": [..], "limit": [..], where null means no limit, "eligible": [[true, false, ..]], the pairs that may be
    used, and "duration": [[..]], the server time of a service. With --json the output is
    {"expected": [[..]], "price": [..], "residual": x}.
    """
    import bilinq

    request = _read(file)
    try:
        found = bilinq.allocate(**request)
    except BadInput as error:
        raise BadInput(f"{source_name(file)}: {error}") from None
    if json:
        print_json({"expected": found.expected, "price": found.price, "residual": found.residual}, indent=None)
        return
    from bilinq.commands.tables import show

    show(_table(request, found))


def _read(source: str) -> dict[str, Any]:
    """Return the arguments of `bilinq.allocate`; errors name the file, the key, the rule and the value."""
    from msgspec import ValidationError, convert

    from bilinq.arrays import short

    name = source_name(source)
    values = _decode(read_text(source), name)
    for key in values:
        if key not in KEYS:
            got = f"{key!r} (value {short(values[key])}){did_you_mean(key, KEYS)}"
            raise BadInput(f"{name}: unknown key {got}; known are {', '.join(KEYS)}")
    for key, (rule, kind) in KEYS.items():
        if key not in values and key not in OPTIONAL:
            raise BadInput(f"{name}: missing key {key!r}; it must be {rule}")
        try:
            values |= {key: convert(values[key], kind)} if key in values else {}
        except ValidationError:
            raise BadInput(f"{name}: {key} must be {rule}; got {short(values[key])}") from None
    if "limit" in values:
        values["limit"] = [math.inf if entry is None else entry for entry in values["limit"]]
    return values


def _decode(text: str, name: str) -> dict[str, Any]:
    from msgspec import DecodeError, json

    from bilinq.arrays import short

    try:
        values = json.decode(text)
    except (DecodeError, RecursionError) as error:
        raise BadInput(f"{name}: is not valid JSON; {error}") from None
    if not isinstance(values, dict):
        raise BadInput(f"{name}: must contain one object with keys {', '.join(KEYS)}; got {short(values)}")
    return values


def _table(request: dict[str, Any], found: Allocation) -> Table:
    """Return what each job class (rows) gets of each server class (columns), with sums, servers in use and prices."""
    import numpy as np
    from rich.table import Table

    table = Table(title="Expected allocation", caption=f"residual {found.residual:.1e}", show_footer=True)
    table.add_column("job class", footer="used\nof\nprice")
    table.add_column("queue", justify="right")
    used = (found.expected * np.array(request.get("duration", 1.0))).sum(axis=0)
    for j, servers in enumerate(request["capacity"]):
        footer = f"{used[j]:.3f}\n{servers:g}\n{found.price[j]:.3f}"
        table.add_column(f"server {j + 1}", footer, justify="right")
    table.add_column("sum", f"{used.sum():.3f}\n{sum(request['capacity']):g}", justify="right")
    for i, row in enumerate(found.expected):
        cells = [f"{y:.3f}" if y else "·" for y in row]
        table.add_row(f"job {i + 1}", f"{request['queue'][i]:g}", *cells, f"{row.sum():.3f}")
    return table
