"""`bilinq serve` as a process of its own, and load on it from another."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.live.load import Plan, Told
from bilinq.arrays import IntArray

CONFIG = """
work_conserving = true
rate = 0
""" + "".join(
    f'[[{kind}_class]]\nname = "{kind}{k}"\nfeatures = [1.0, {k / number}]\n'
    for kind, number in (("job", 4), ("server", 2))
    for k in range(number)
)
"""Four classes of jobs and two of servers; everything else as it comes, but no limit on the rate of a key."""

STEAL = 7
"""The place of stolen time in the first line of /proc/stat."""

LOAD = "from bench.live.load import main; main()"


class Serving:
    """A service that runs."""

    def __init__(self, address: str, pid: int, key: str) -> None:
        self.host, port = address.removeprefix("http://").rsplit(":", 1)
        self.port, self.pid, self.key = int(port), pid, key

    def load(self, **plan: Any) -> Told:
        """Put load on the service and return what came of it, after checks that all was done."""
        made = Plan(self.host, self.port, self.key, **plan)
        before, machine = self._cpu(), _machine()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "told.json"
            subprocess.run([sys.executable, "-c", LOAD, msgspec.json.encode(made).decode(), str(file)], check=True)
            told = msgspec.json.decode(file.read_bytes(), type=Told)
        told.service = self._cpu() - before
        spent = _machine() - machine
        told.stolen = float(spent[STEAL] / max(spent.sum(), 1))
        if told.submitted != made.jobs or (made.agents and told.done != made.jobs):
            raise AssertionError(f"{made.jobs} jobs were to be done; {told.submitted} submitted, {told.done} done")
        return told

    def resident(self) -> float:
        """Return how many MB of memory the service has."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _cpu(self) -> float:
        """Return how many seconds of CPU the service has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine() -> IntArray:
    """Return what the machine has done with its time so far, in ticks: work of several kinds, nothing, and time stolen."""
    return np.array(Path("/proc/stat").read_text().partition("\n")[0].split()[1:9], np.int64)


@contextmanager
def serving(database: str, *options: str) -> Iterator[Serving]:
    """A service on `database`, which must hold no jobs yet."""
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
            told = child.stdout.readline()
            if not told:
                raise AssertionError(log.read_text())
            yield Serving(told.split()[-1], child.pid, made.stdout.strip())
        finally:
            child.terminate()
            child.wait(30.0)
            child.stdout.close()  # type: ignore[union-attr]
