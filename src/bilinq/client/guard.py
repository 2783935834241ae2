"""A process that ends the commands of a worker that has ended, even of one that was killed.

`Command` runs it as a script. Its standard input gets "+123" from each process group before it begins, and "-123" from the
worker after it has ended. When the input ends, the worker has ended.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable

GRACE = 2.0  # seconds between SIGTERM and SIGKILL


def watch(lines: Iterable[str]) -> set[int]:
    """Return the process groups that have begun and not ended after all `lines`."""
    groups: set[int] = set()
    for line in lines:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    return groups


def end(groups: Iterable[int], number: signal.Signals) -> bool:
    """Send a signal to process groups and return whether at least one still exists."""
    found = False
    for group in groups:
        try:
            os.killpg(group, number)
            found = True
        except (ProcessLookupError, PermissionError):
            pass
    return found


def main() -> None:
    """Wait for the end of the worker, then end its process groups."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = watch(sys.stdin)
    if end(groups, signal.SIGTERM):
        time.sleep(GRACE)
        end(groups, signal.SIGKILL)


if __name__ == "__main__":
    main()
