"""The standard input of a process of the demo: first its task, then nothing, until its end tells that the demo is over.

The pipe closes however the demo ends, by a kill as well, so no process outlives it for long.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

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
