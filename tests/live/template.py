"""Services that start quickly: a process that has loaded everything, and forks of it that serve.

In `bilinq serve` loading modules and kernels takes seconds; a fork has them already, and runs the same code.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import msgspec

from bilinq.live.settings import ServiceSettings

ORDER = msgspec.json.Encoder()


class Template:
    """Starts services, which log to `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("a") as file:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        assert self._line() == "loaded", log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, settings: ServiceSettings) -> "Copy":
        """Return a service that is starting."""
        assert self._process.stdin is not None
        self._process.stdin.write(ORDER.encode(settings).decode() + "\n")
        self._process.stdin.flush()
        return Copy(int(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Copy:
    """A service; it ends with its `with` block at the latest."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.handle = os.pidfd_open(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.handle >= 0:
            self.end(signal.SIGKILL)

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return not select.select([self.handle], [], [], 0.0)[0]

    def end(self, number: int, seconds: float = 20.0) -> None:
        """Send a signal and wait until the process is gone."""
        if self.alive:
            signal.pidfd_send_signal(self.handle, number)
        assert select.select([self.handle], [], [], seconds)[0], f"process {self.pid} does not end"
        os.close(self.handle)
        self.handle = -1


def main() -> None:
    """Load everything, then fork for each line of settings."""
    from bilinq.live.logs import log_to
    from bilinq.live.run import run  # noqa: F401
    from bilinq.live.service.configuration import warm_up

    warm_up(ServiceSettings())
    warm_up(ServiceSettings(policy="sabr"))
    log_to()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    print("loaded", flush=True)
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            _serve(msgspec.json.decode(line, type=ServiceSettings))
        print(pid, flush=True)


def _serve(settings: ServiceSettings) -> Any:
    import uvloop

    from bilinq.live.run import run

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        uvloop.run(run(settings, lambda _: None))
        code = 0
    except Exception as error:
        print(f"event=died error={str(error)!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
