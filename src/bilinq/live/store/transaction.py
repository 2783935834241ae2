"""What operations see of a database, and the connection behind it. The SQL is the same for SQLite and PostgreSQL."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_type_hints

Row = tuple[Any, ...]
R = TypeVar("R", bound=Row)
PARAMETER = re.compile(r"(?<![:\w]):([a-z]\w*)")  # a parameter `:name`, but not a cast `::name`

TYPES = {int: "bigint", str: "text", float: "double precision"}


class Bulk(NamedTuple, Generic[R]):
    """A statement for many rows at once, faster than one statement for each row; call it to run it.

    Its parameters are the fields of `row`, a NamedTuple class. It inserts with `SELECT :name, ... {rows}` and updates
    with `UPDATE ... SET ... {rows} WHERE {key}`, where `key` is like "job.id = :id". A database that receives all rows
    in one statement replaces `{rows}` by their source.
    """

    sql: str
    row: type[R]
    key: str = ""

    def __call__(self, tx: "Transaction", rows: Sequence[R]) -> None:
        if rows:
            tx.each(self, rows)

    def types(self) -> dict[str, str]:
        """Return the SQL type of each field of a row, in order."""
        return {name: _type(hint) for name, hint in get_type_hints(self.row).items()}


def _type(hint: Any) -> str:
    return next(TYPES[kind] for kind in get_args(hint) or (hint,) if kind in TYPES)


class Transaction(ABC):
    """Reads and writes that happen together or not at all. SQL names its parameters `:name`."""

    dialect: Literal["sqlite", "postgresql"]

    @abstractmethod
    def rows(self, sql: str, /, **params: Any) -> list[Row]:
        """Return the rows that a query finds."""

    @abstractmethod
    def among(self, sql: str, values: Sequence[int] | Sequence[str], /, **params: Any) -> list[Row]:
        """Run a statement with `column {among}` where the column must be one of `values`; return the rows it finds."""

    @abstractmethod
    def run(self, sql: str, /, **params: Any) -> int:
        """Run a statement; return the number of rows that it changed."""

    @abstractmethod
    def each(self, bulk: Bulk[R], rows: Sequence[R]) -> None:
        """Run `bulk` for all `rows`, no two of which may concern the same row of the table."""


class DatabaseConnection(Transaction):
    """A connection that one thread at a time uses; it is also the transaction in progress on it.

    `wrote` is True if the transaction changed something since it was last set to False; `lost` is True if the
    connection can no longer be used, and `stalled` if that is because the database did not answer in time.
    """

    def __init__(self) -> None:
        self.wrote = False
        self.lost = False
        self.stalled = False

    def allow(self, seconds: float) -> None:
        """Let the database be silent for so many seconds; a file cannot be left while it is silent."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction; it is on disk when this returns."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo the transaction, if one is in progress."""

    def tidy(self) -> None:
        """Do maintenance between two transactions; takes no longer than a commit, and never raises."""

    @abstractmethod
    def check(self) -> None:
        """Raise if the connection is lost."""

    @abstractmethod
    def fault(self, error: Exception) -> str | None:
        """Return what is wrong with the database, and set `lost` if needed; None if the operation caused `error`."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; never raises."""
