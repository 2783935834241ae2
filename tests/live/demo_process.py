"""`bilinq serve --demo` as a process, as a terminal starts it, and the processes that it has started."""

import fcntl
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx
from process import wait_for

PAGE = re.compile(r"(http://127\.0\.0\.1:\d+)/#key=(\S+)$")


class DemoProcess:
    """A demo with its database in `folder`; in a session of its own, like a command of a terminal."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        words = ["serve", "--demo", "--database", f"sqlite:///{folder}/demo.db", *options]
        self.child = subprocess.Popen(
            [sys.executable, "-m", "bilinq.commands.app", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.pids: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()

    def open(self) -> httpx.Client:
        """Wait until the demo prints the address of its dashboard, and return a client with the key of that address."""
        assert self.child.stdout is not None
        while not (self.lines and self.lines[-1].startswith("Dashboard: ")):
            line = self.child.stdout.readline()
            assert line, f"it has ended after {self.lines}\n{self.log()}"
            self.lines.append(line.rstrip("\n"))
        page = PAGE.search(self.lines[-1])
        assert page is not None
        self.lines.append(self.child.stdout.readline().rstrip("\n"))
        self.pids = self.children()
        return reach(page)

    def children(self) -> set[int]:
        """Return the processes that the demo has started and that still run."""
        return {int(stat[0]) for stat in _stats() if stat[3] == str(self.child.pid)}

    def named(self, module: str) -> list[int]:
        """Return those of them that run a module."""
        return sorted(pid for pid in self.children() if f"bilinq.demo.{module}" in _command(pid))

    def end(self, number: int, *, group: bool = False) -> tuple[int, float]:
        """Send a signal to the demo, or to all of its process group as Ctrl-C does; return exit code and seconds it took."""
        began = time.monotonic()
        os.killpg(self.child.pid, number) if group else self.child.send_signal(number)
        return self.child.wait(30.0), time.monotonic() - began

    def left(self) -> set[int]:
        """Return processes of the demo that are still there."""
        return {pid for pid in self.pids if _command(pid)}

    def log(self) -> str:
        """Return what its processes have logged."""
        return (self.folder / "demo.log").read_text()


def reach(page: re.Match[str]) -> httpx.Client:
    """Return a client for an address with a key, as the demo prints it."""
    headers = {"Authorization": f"Bearer {page[2]}"}
    return httpx.Client(base_url=page[1], headers=headers, timeout=30.0, trust_env=False)


def is_locked(file: Path) -> bool:
    """Return whether a process has the lock of a database."""
    lock_file = file.with_name(f"{file.name}.lock")
    if not lock_file.exists():
        return False
    with lock_file.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    stat = next(stat for stat in _stats() if stat[0] == str(pid))
    return (int(stat[13]) + int(stat[14])) / os.sysconf("SC_CLK_TCK")


def watch(client: httpx.Client, found: Any, seconds: float = 60.0) -> Any:
    """Return the state of the service as soon as `found` accepts it."""

    def check() -> Any:
        state = client.get("/v1/state").raise_for_status().json()
        return state if found(state) else None

    return wait_for(check, seconds)


def _stats() -> list[list[str]]:
    """Return the fields of /proc/PID/stat of all processes that have not ended."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = file.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = [name.partition(" ")[0], "", *rest.split()]
        if fields[2] != "Z":
            found.append(fields)
    return found


def _command(pid: int) -> str:
    """Return the command of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
