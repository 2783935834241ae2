"""`bilinq serve` as a process of its own, and requests to it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx
from typer.testing import CliRunner

from bilinq.commands import app as cli

CONFIG = """
slot = 0.02
retry_longest = 0.0
pause_longest = 0.0
work_conserving = true
rate = 0
[[job_class]]
name = "short"
features = [1.0, 0.2]
[[server_class]]
name = "gpu"
features = [0.3, 1.0]
"""


def make_key(database: str, *scopes: str, namespace: str = "default") -> str:
    """Return a new key, made by the command line in the database."""
    words = [word for scope in scopes for word in ("--scope", scope)]
    result = CliRunner().invoke(cli.app, ["keys", "create", *words, "--namespace", namespace, "--database", database])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def start(
    folder: Path, database: str, *options: str, environment: dict[str, str] | None = None, settings: str = CONFIG
) -> subprocess.Popen[str]:
    """Start a service that logs to `log.txt` in a folder, and shows its address on standard output once it is ready."""
    folder.mkdir(exist_ok=True)
    config = folder / "service.toml"
    config.write_text(settings)
    words = ["serve", "--config", str(config), "--database", database, "--port", "0", *options]
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "bilinq.commands.app", *words], stdout=subprocess.PIPE, stderr=log, text=True,
            env=os.environ | (environment or {}),
        )  # fmt: skip


class Process:
    """A service that listens at `address`; what it logs is in `log`."""

    def __init__(self, folder: Path, database: str, *options: str, environment: dict[str, str] | None = None,
                 settings: str = CONFIG) -> None:  # fmt: skip
        self.log = folder / "log.txt"
        self.child = start(folder, database, *options, environment=environment, settings=settings)
        assert self.child.stdout is not None
        self.told = self.child.stdout.readline()
        assert self.told, self.log.read_text()
        self.address = self.told.split()[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process in order and return its exit code."""
        self.child.send_signal(number)
        return self.child.wait(20.0)

    def client(self, key: str | None = None) -> httpx.Client:
        """Return a client that shows `key`."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=30.0, trust_env=False)

    def events(self) -> list[dict[str, str]]:
        """Return the log, line by line."""
        return [parse(line) for line in self.log.read_text().splitlines()]


def parse(line: str) -> dict[str, str]:
    """Return the pairs of a log line; raise if it is not made of pairs."""
    pairs, decoder = {}, json.JSONDecoder()
    while line:
        name, _, rest = line.partition("=")
        assert name.isidentifier(), line
        if rest.startswith('"'):
            pairs[name], end = decoder.raw_decode(rest)
        else:
            end = len(rest.partition(" ")[0])
            pairs[name] = rest[:end]
        line = rest[end + 1 :]
    return pairs


def wait_for(found: Any, seconds: float = 10.0) -> Any:
    """Return what `found()` returns as soon as that is true."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return value
