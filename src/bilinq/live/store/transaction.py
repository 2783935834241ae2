"""What an operation sees of a database: statements with named parameters, the same text for SQLite and PostgreSQL."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

Row = tuple[Any, ...]
PARAMETER = re.compile(r"(?<![:\w]):([a-z]\w*)")
"""A parameter `:name`, which is no cast `::name`."""

TYPES = {int: "bigint", str: "text", float: "double precision"}


class Bulk(NamedTuple):
    """A statement to carry out for each of many rows, faster than one by one.

    Its parameters are the fields of `row`, a NamedTuple class; it inserts with `SELECT :name, ... {rows}` and updates with
    `UPDATE ... SET ... {rows} WHERE {key}`, where `key` is like "job.id = :id". A database that takes all rows at once puts
    their source where `{rows}` stands.
    """

    sql: str
    row: type[Row]
    key: str = ""

    def types(self) -> dict[str, str]:
        """Return the SQL type of each field of a row, in order."""
        return {name: _type(hint) for name, hint in get_type_hints(self.row).items()}


class Transaction(ABC):
    """Reads and writes that happen together or not at all. SQL names its parameters `:name`."""

    dialect: Literal["sqlite", "postgresql"]

    @abstractmethod
    def rows(self, sql: str, /, **params: Any) -> list[Row]:
        """Return the rows that a query finds."""

    @abstractmethod
    def among(self, sql: str, values: Sequence[int] | Sequence[str], /, **params: Any) -> list[Row]:
        """Return the rows that a query finds where `{among}` stands behind the column that is to be one of `values`."""

    @abstractmethod
    def run(self, sql: str, /, **params: Any) -> int:
        """Carry out a statement; return how many rows it changed."""

    @abstractmethod
    def many(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Carry out a statement once for each set of parameters."""

    @abstractmethod
    def each(self, bulk: Bulk, rows: Sequence[Row]) -> None:
        """Carry out `bulk` for all `rows`, of which no two may concern the same row."""


def _type(hint: Any) -> str:
    return next(TYPES[kind] for kind in get_args(hint) or (hint,) if kind in TYPES)
