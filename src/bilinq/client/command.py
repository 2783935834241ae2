"""Jobs as commands of the system: started, watched, logged and ended."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Self

import msgspec

from bilinq.client import guard
from bilinq.client.held import Done, Ended, HeldJob, Reward
from bilinq.errors import BadInput

TAIL = 1 << 18
"""Bytes at the end of the output in which its last line is looked for."""
CHUNK = 1 << 16
DRAIN = 1.0
"""Seconds for the rest of the output once the command has ended; somebody else may hold the pipe open."""


class Tee:
    """A pipe whose write end goes to a command; what comes out is written to `target`."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._tail = b""
        self._ended = asyncio.Event()

    def __enter__(self) -> Self:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        asyncio.get_running_loop().add_reader(self._read_end, self._read)
        self._open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.hand_over()
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)

    def hand_over(self) -> None:
        """Close the write end here, once the command has it."""
        if self._open:
            os.close(self.write_end)
        self._open = False

    async def last_line(self) -> str:
        """Return the last line that is not blank, when all output has been passed on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN):
                await self._ended.wait()
        lines = self._tail.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def _read(self) -> None:
        try:
            chunk = os.read(self._read_end, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._read_end)
            self._ended.set()
            return
        self._tail = (self._tail + chunk)[-TAIL:]
        with suppress(OSError):  # nobody reads the worker's output; the job goes on
            self._target.write(chunk)
            self._target.flush()


BEGIN = """trap '' PIPE; echo "+$$" >&0 2>/dev/null; trap - PIPE; exec "$@" <"$0" """
"""What a shell does before it becomes the command: it tells the guard, which is its standard input until then.

Thus the guard knows of every command, whenever the worker is killed; a guard that somebody killed is done without.
"""


class Command:
    """Runs a command for each job, in a process group of its own, which outlives neither the job nor the worker.

    The command gets the payload as JSON on its standard input, and BILINQ_JOB_ID, BILINQ_JOB_CLASS, BILINQ_UNITS_LEFT,
    BILINQ_ATTEMPTS and BILINQ_FENCE in its environment, but not the worker's key. What it writes goes to where the worker
    writes. An exit code other than 0, a signal, or more than `limit` seconds is a failure.
    """

    def __init__(self, words: Sequence[str], reward: Reward, limit: float | None = None) -> None:
        if not words or shutil.which(words[0]) is None:
            raise BadInput(f"command must be a program that can be run; got {' '.join(words[:1])!r}")
        if limit is not None and not limit > 0:
            raise BadInput(f"limit must be a positive number of seconds; got {limit}")
        self._words = words
        self._reward = reward
        self._limit = limit

    def __enter__(self) -> Self:
        script = [sys.executable, "-I", "-S", str(Path(guard.__file__))]
        nothing = subprocess.DEVNULL
        self._guard = subprocess.Popen(
            script, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, bufsize=0, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    async def __call__(self, held: HeldJob) -> Done:
        """Run the command and return its reward."""
        start = time.monotonic()
        with Tee(sys.stdout.buffer) as output, Tee(sys.stderr.buffer) as errors:
            process = await self._start(held, output, errors)
            try:
                async with asyncio.timeout(self._limit):
                    await process.wait()
                seconds = time.monotonic() - start
            except TimeoutError:
                raise ChildProcessError(f"ended after {self._limit:g} s, which is the limit") from None
            finally:
                await _end(process)
                self._tell_end(process)
            last_lines = await output.last_line(), await errors.last_line()
        if process.returncode:
            raise ChildProcessError(": ".join(filter(None, (_words(process.returncode), last_lines[1]))))
        return self._reward(Ended(seconds, last_lines[0]))

    async def _start(self, held: HeldJob, output: Tee, errors: Tee) -> Process:
        with TemporaryFile() as payload:
            payload.write(msgspec.json.encode(held.payload))
            payload.seek(0)
            process = await asyncio.create_subprocess_exec(
                "sh", "-c", BEGIN, f"/dev/fd/{payload.fileno()}", *self._words, stdin=self._guard.stdin,
                stdout=output.write_end, stderr=errors.write_end, pass_fds=(payload.fileno(),), env=_environment(held),
                start_new_session=True,
            )  # fmt: skip
        output.hand_over()
        errors.hand_over()
        return process

    def _tell_end(self, process: Process) -> None:
        """Tell the guard that a process group has ended."""
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.write(f"-{process.pid}\n".encode())


async def _end(process: Process) -> None:
    """End what is left of the process group: ask the command if it still runs, then kill."""
    try:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(guard.GRACE):
                    await process.wait()
    finally:
        _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _environment(held: HeldJob) -> dict[str, str]:
    """Return the environment of the command."""
    about = {
        "BILINQ_JOB_ID": held.id, "BILINQ_JOB_CLASS": held.job_class, "BILINQ_UNITS_LEFT": str(held.units_left),
        "BILINQ_ATTEMPTS": str(held.attempts), "BILINQ_FENCE": str(held.fence),
    }  # fmt: skip
    return {name: value for name, value in os.environ.items() if name != "BILINQ_KEY"} | about


def _words(code: int) -> str:
    """Return how a process ended."""
    if code > 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
