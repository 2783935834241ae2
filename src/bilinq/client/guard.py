"""A process that ends commands whose worker is gone, even one that was killed and could do nothing more.

Run as a script by `Command`. On its standard input a process group says "+123" before it begins, and the worker "-123" once
that has ended. When the input ends, so has the worker.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable

GRACE = 2.0
"""Seconds between asking a process group to end and ending it."""


def watch(lines: Iterable[str]) -> set[int]:
    """Return the process groups that have begun and not ended when `lines` are over."""
    groups: set[int] = set()
    for line in lines:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    return groups


def end(groups: Iterable[int], number: signal.Signals) -> bool:
    """Send a signal to process groups and return whether one of them is still there."""
    found = False
    for group in groups:
        try:
            os.killpg(group, number)
            found = True
        except (ProcessLookupError, PermissionError):
            pass
    return found


def main() -> None:
    """Watch, then end what is left."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = watch(sys.stdin)
    if end(groups, signal.SIGTERM):
        time.sleep(GRACE)
        end(groups, signal.SIGKILL)


if __name__ == "__main__":
    main()
