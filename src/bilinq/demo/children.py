"""Processes of the demo: tasks they get on a pipe, and an end when the pipe is closed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Self, TypeVar

import msgspec
from msgspec import Struct


class Serve(Struct, frozen=True):
    """Be a service for a fleet, with these options of `bilinq serve`."""

    fleet: str
    options: dict[str, Any]


class Work(Struct, frozen=True):
    """Be the servers of some classes of a fleet."""

    fleet: str
    server_classes: list[str]
    url: str
    key: str


class Target(Struct, frozen=True):
    """A service that jobs go to."""

    url: str
    key: str


class Load(Struct, frozen=True):
    """Send the same jobs to each of the targets."""

    fleet: str
    targets: list[Target]
    seed: int | None = None


class Opened(Struct, frozen=True, tag=True):
    """The database is the service's: here are keys for it; `rewards` is how many it has learnt from before."""

    about: str
    servers: dict[str, int]
    rewards: int
    admin: str
    work: str
    submit: str
    read: str


class Ready(Struct, frozen=True, tag=True):
    """The service answers at `url`."""

    url: str


class Failed(Struct, frozen=True, tag=True):
    """It could not start; `error` is for the user to read."""

    error: str


T = TypeVar("T")
GRACE = 5.0
"""Seconds that a process takes to end by itself before it is made to."""


def read_task(kind: type[T]) -> T:
    """Wait for the task and return it; end the process if the demo is over before."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise SystemExit(0)
    return msgspec.json.decode(line, type=kind)


def at_end(stop: Callable[[], None]) -> None:
    """Call `stop`, from another thread, when the demo is over; if the process is still there after a grace, end it."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):  # not by the buffered file, whose lock stops the interpreter from ending
            pass
        stop()
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def terminate() -> None:
    """Send this process the signal that ends it in order."""
    os.kill(os.getpid(), signal.SIGTERM)


LOCAL = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
"""What keeps calls to this machine from being sent to a proxy."""
SOON, TOO_OFTEN = 30.0, 3
"""Seconds within which a process must not end, and how many times in a row it must not."""
LOOK_EVERY = 0.02
"""Seconds between two looks whether a process has ended."""


class Child:
    """A module of the demo as a process of its own, in a process group of its own so that Ctrl-C reaches only the demo."""

    def __init__(self, module: str, log: BinaryIO, grace: float) -> None:
        self.module, self.grace = module, grace
        self._command = [sys.executable, "-P", "-m", f"bilinq.demo.{module}"]
        self._log, self._hasty = log, 0
        self._start()

    def _start(self) -> None:
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, process_group=0, bufsize=0,
            env={name: value for name, value in os.environ.items() if not name.startswith("BILINQ_")} | LOCAL,
        )  # fmt: skip

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def tell(self, task: msgspec.Struct) -> None:
        """Hand over its task."""
        self._task = task
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is noticed elsewhere
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")

    def hear(self, kind: Any) -> Any:
        """Wait for a line of it and return what it says, or None if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return msgspec.json.decode(line, type=kind) if line else None

    def start_again(self) -> None:
        """Start it once more, with the same task; raise if it has ended soon after its start time and again."""
        self._hasty = self._hasty + 1 if time.monotonic() - self._began < SOON else 0
        if self._hasty == TOO_OFTEN:
            raise ChildProcessError(f"a process of the demo ({self.module}) ends again and again")
        self.kill()
        self._start()
        self.tell(self._task)

    def release(self) -> None:
        """Close the lifeline, at which it ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End it now, if it has not ended, and close what leads to it."""
        if not self.ended:
            self._process.kill()
        self._process.wait()
        self.release()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Children:
    """All processes of a demo; at the end of the block none is left. Those that may take less time end first."""

    def __init__(self, log: BinaryIO) -> None:
        self._log = log
        self._started: list[Child] = []

    def start(self, module: str, grace: float) -> Child:
        """Start a process that may take `grace` seconds to end."""
        child = Child(module, self._log, grace)
        self._started.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for grace in sorted({child.grace for child in self._started}):
            _end([child for child in self._started if child.grace == grace], grace)


def _end(group: list[Child], grace: float) -> None:
    """Let processes end side by side, and make those end that take too long."""
    end = time.monotonic() + grace
    for child in group:
        child.release()
    while time.monotonic() < end and not all(child.ended for child in group):
        time.sleep(LOOK_EVERY)
    for child in group:
        child.kill()
