"""One connection to a database, which is also the transaction that is under way on it."""

from abc import abstractmethod

from bilinq.live.store.transaction import Transaction


class Connection(Transaction):
    """A connection that one thread at a time uses.

    `wrote` tells that the transaction has changed something since it was last set to False, and `lost` that the
    connection is of no more use.
    """

    def __init__(self) -> None:
        self.wrote = False
        self.lost = False

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Make the transaction durable: on disk when this returns."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo the transaction, if one is under way."""

    def tidy(self) -> None:
        """Do, between two transactions, what nobody should wait for; never raises."""

    @abstractmethod
    def check(self) -> None:
        """Raise if the connection is gone."""

    @abstractmethod
    def fault(self, error: Exception) -> str | None:
        """Say what befell the database, and set `lost` if need be; None if `error` is the operation's own doing."""

    @abstractmethod
    def close(self) -> None:
        """Close; never raises."""
