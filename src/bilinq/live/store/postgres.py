"""A store in PostgreSQL: who holds the advisory lock leads, and holds it on the connection that writes."""

from os import PathLike
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bilinq.errors import BadInput, Unavailable
from bilinq.live.store import copies
from bilinq.live.store.connection import Connection
from bilinq.live.store.postgres_connection import PostgresConnection, first_line
from bilinq.live.store.store import Store

DEFAULTS = {
    "application_name": "bilinq",
    "connect_timeout": 3,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 4000,
    "target_session_attrs": "read-write",
}
"""A network that is gone is noticed within 4 s; the URL may say otherwise."""
LOCK = "SELECT pg_try_advisory_lock(hashtextextended('bilinq ' || current_schema(), 0))"
"""One leader for each schema of each database."""


class PostgresStore(Store):
    """A store in the database at `url`."""

    shared = True

    def __init__(self, url: str, *, lead: bool) -> None:
        try:
            self._parameters: dict[str, Any] = {**DEFAULTS, **conninfo_to_dict(url)}
        except psycopg.Error:  # whose message may show a password
            raise BadInput("database must be like postgresql://user:password@host:port/name; got another URL") from None
        self._candidate: PostgresConnection | None = None
        super().__init__(lead)

    async def backup(self, path: str | PathLike[str]) -> None:
        """Refuse: PostgreSQL has its own means."""
        raise BadInput(f"backup copies SQLite files only; use pg_dump to write {path}")

    async def restore(self, path: str | PathLike[str] | None, *, force: bool) -> None:
        """Let numbers go on after those that were used since the backup; pg_restore has brought the rest."""
        if path is not None:
            raise BadInput(f"file must be left out with PostgreSQL; use pg_restore to read {path} first")
        await self._take_lead(wait=False, stubborn=False)
        await self.write(lambda tx: copies.leave_gap(tx, "by pg_restore"))

    def _connect_writer(self) -> Connection | None:
        """Return the connection if it gets the lock; else keep it for the next attempt."""
        candidate = self._candidate or self._connect(writes=True)
        self._candidate = None
        try:
            locked = candidate.rows(LOCK)[0][0]
            candidate.commit()
        except psycopg.Error as error:
            candidate.close()
            raise Unavailable(f"the database cannot be locked: {first_line(error)}") from error
        if locked:
            return candidate
        self._candidate = candidate
        return None

    def _connect_reader(self) -> Connection:
        return self._connect(writes=False)

    def _connect(self, *, writes: bool) -> PostgresConnection:
        try:
            return PostgresConnection(make_conninfo(**self._parameters), writes=writes)
        except psycopg.Error as error:
            raise Unavailable(f"the database cannot be reached: {first_line(error)}") from error

    def _release(self) -> None:
        """Close the connection that waits for the lock; one that has it gives it back by closing."""
        if self._candidate is not None:
            self._candidate.close()
            self._candidate = None
