"""Processes of the demo: each gets its task through a pipe, and ends when the pipe is closed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, BinaryIO, Self, TypeVar

import msgspec
from msgspec import Struct


class ServeTask(Struct, frozen=True):
    """Run a service for a fleet, with these options of `bilinq serve`."""

    fleet: str
    options: dict[str, Any]


class WorkTask(Struct, frozen=True):
    """Run the workers of some server classes of a fleet."""

    fleet: str
    server_classes: list[str]
    url: str
    key: str


class Target(Struct, frozen=True):
    """A service that gets jobs, and a key to submit them."""

    url: str
    key: str


class LoadTask(Struct, frozen=True):
    """Submit the same jobs to each of the targets."""

    fleet: str
    targets: list[Target]
    seed: int | None = None


class Opened(Struct, frozen=True, tag=True):
    """The service has opened its database: the fleet, keys for the API, and the number of rewards learnt earlier."""

    about: str
    servers: dict[str, int]
    rewards: int
    admin: str
    work: str
    submit: str
    read: str


class Ready(Struct, frozen=True, tag=True):
    """The service accepts requests at `url`."""

    url: str


class Failed(Struct, frozen=True, tag=True):
    """The service could not start; `error` is the message for the user."""

    error: str


T = TypeVar("T")
GRACE = 5.0  # seconds for a process to end by itself before it is killed
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that end the demo


def read_task(kind: type[T]) -> T:
    """Wait for the task and return it; end the process if the demo ends before."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise SystemExit(0)
    return msgspec.json.decode(line, type=kind)


def at_end(stop: Callable[[], None]) -> None:
    """Call `stop` from another thread when the demo ends; if the process still runs `GRACE` seconds later, end it."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):  # the lock of the buffered file would keep the interpreter from ending
            pass
        stop()
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def terminate() -> None:
    """Send this process the signal for a clean end."""
    os.kill(os.getpid(), signal.SIGTERM)


LOCAL = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
"""Environment that keeps requests to this machine away from a proxy."""
SOON, TOO_OFTEN = 30.0, 3
"""A process that ends within `SOON` seconds of its start, `TOO_OFTEN` times in a row, is not started again."""
POLL_EVERY = 0.02  # seconds between checks whether processes have ended


class Child:
    """A process that runs a module of the demo, in a process group of its own so that Ctrl-C reaches only the demo."""

    def __init__(self, name: str, log: BinaryIO, grace: float) -> None:
        self.name, self.grace = name, grace
        module, *words = name.split()
        self._command = [sys.executable, "-P", "-m", f"bilinq.demo.{module}", *words]
        self._log, self._early_ends = log, 0
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

    def send(self, task: msgspec.Struct) -> None:
        """Send its task to the process."""
        self._task = task
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended; whoever watches it notices
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")

    def receive(self, kind: Any) -> Any:
        """Wait for a message of the process and return it, or None if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return msgspec.json.decode(line, type=kind) if line else None

    def start_again(self) -> None:
        """Start the process again with the same task; raise if it has ended too often soon after its start."""
        self._early_ends = self._early_ends + 1 if time.monotonic() - self._began < SOON else 0
        if self._early_ends == TOO_OFTEN:
            raise ChildProcessError(f"a process of the demo ({self.name}) keeps ending soon after its start")
        self.kill()
        with _signals_delayed():
            self._start()
        self.send(self._task)

    def release(self) -> None:
        """Close its input, so that it ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """Kill the process if it still runs, and close its pipes."""
        if not self.ended:
            self._process.kill()
        self._process.wait()
        self.release()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Children:
    """All processes of a demo; at the end of the block none is left. Those with the shortest grace end first."""

    def __init__(self, log: BinaryIO) -> None:
        self._log = log
        self._started: list[Child] = []

    def start(self, name: str, grace: float) -> Child:
        """Start the process of a module with arguments; it gets `grace` seconds to end."""
        with _signals_delayed():
            child = Child(name, self._log, grace)
            self._started.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for grace in sorted({child.grace for child in self._started}):
            _end([child for child in self._started if child.grace == grace], grace)


@contextmanager
def _signals_delayed() -> Iterator[None]:
    """Handle signals after the block: one that arrives while a process starts would leave it running."""
    arrived: list[tuple[int, FrameType | None]] = []
    handlers = {int(number): found for number in SIGNALS if callable(found := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda *signalled: arrived.append(signalled))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if arrived:
        handlers[arrived[0][0]](*arrived[0])


def _end(group: list[Child], grace: float) -> None:
    """Let processes end at the same time, and kill those that take too long."""
    end = time.monotonic() + grace
    for child in group:
        child.release()
    while time.monotonic() < end and not all(child.ended for child in group):
        time.sleep(POLL_EVERY)
    for child in group:
        child.kill()
