"""Commands of the operating system as jobs: rewards, output, start and end."""

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple, Self, TypeAlias

import msgspec

from bilinq.client import guard
from bilinq.client.held import Done, HeldJob
from bilinq.errors import BadInput

log = logging.getLogger(__name__)

RULES = ("exit", "duration", "last-line")
SECRET = ("BILINQ_KEY", "BILINQ_KEY_FILE")  # variables that commands do not get


class CommandEnd(NamedTuple):
    """The end of a command: its duration in seconds and its last line of output."""

    seconds: float
    last_line: str


RewardRule: TypeAlias = Callable[[CommandEnd], Done]
"""A function that returns the result of a job for the end of its command, if that exited with 0."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    reward: float | None = None
    done: bool | None = None
    result: Any = None


def last_line_reward(end: CommandEnd) -> Done:
    """Return the result in the last line of output: a number, or an object with "reward", "done" and "result"."""
    try:
        line = msgspec.json.decode(end.last_line, type=_Line | float)
    except ValueError as error:
        raise BadInput(
            f'the last line must be a number or an object with "reward", "done" and "result"; '
            f"got {end.last_line[:200]!r} ({error})"
        ) from None
    return Done(line) if isinstance(line, float) else Done(line.reward, line.done, line.result)


def reward_rule(name: str, low: float, high: float, half: float) -> RewardRule:
    """Return a rule by name.

    `exit` is always `high`; `duration` is a `DurationReward`; `last-line` is `last_line_reward`.
    """
    if name not in RULES:
        raise BadInput(f"reward must be one of {', '.join(RULES)}; got {name!r}")
    if not -float("inf") < low < high < float("inf"):
        raise BadInput(f"low must be below high, both finite; got {low} and {high}")
    if not 0 < half < float("inf"):
        raise BadInput(f"half must be a positive number of seconds; got {half}")
    if name == "exit":
        return lambda end: Done(high)
    return DurationReward(low, high, half) if name == "duration" else last_line_reward


class DurationReward:
    """Rewards for short durations, low + (high - low) 2^(-seconds / half).

    It logs one warning if the first durations are so far from `half` that their rewards hardly differ.
    """

    FIRST = 20  # durations after which it compares their median with `half`
    SHORT, LONG = 0.05, 5.0  # medians relative to `half`, at which 3 % of the range of rewards are left

    def __init__(self, low: float, high: float, half: float) -> None:
        self._low, self._high, self._half = low, high, half
        self._seconds: list[float] = []

    def __call__(self, end: CommandEnd) -> Done:
        if len(self._seconds) < self.FIRST:
            self._seconds.append(end.seconds)
            if len(self._seconds) == self.FIRST:
                self._compare(sorted(self._seconds)[self.FIRST // 2])
        return Done(self._low + (self._high - self._low) * 2.0 ** (-end.seconds / self._half))

    def _compare(self, median: float) -> None:
        if not self.SHORT <= median / self._half <= self.LONG:
            log.warning(
                "rewards hardly differ, so the service learns little; give all workers a --half near the median duration",
                extra={"median": round(median, 3), "half": self._half},
            )


TAIL = 1 << 18  # bytes at the end of the output that are searched for its last line
CHUNK = 1 << 16
DRAIN = 1.0  # seconds to read the rest of the output after the command; another process may keep the pipe open


class Tee:
    """A pipe whose write end belongs to a command; its output is copied to `target`."""

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
        """Close the write end in this process, when the command has it."""
        if self._open:
            os.close(self.write_end)
        self._open = False

    async def last_line(self) -> str:
        """Return the last line that is not blank, after all output was copied."""
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
        with suppress(OSError):  # nobody reads the output of the worker; the job continues
            self._target.write(chunk)
            self._target.flush()


BEGIN = """trap '' PIPE; echo "+$$" >&0 2>/dev/null; trap - PIPE; exec "$@" <"$0" """
"""What a shell does before it becomes the command: it reports its process id to the guard, through standard input.

So the guard knows every command whenever the worker is killed. If the guard was killed, the command runs without it.
"""


class Command:
    """Runs a command for each job, in a process group of its own that ends with the job and with the worker.

    The command gets the payload as JSON on its standard input, and BILINQ_JOB_ID, BILINQ_JOB_CLASS, BILINQ_UNITS_LEFT,
    BILINQ_ATTEMPTS and BILINQ_FENCE in its environment, but not the key of the worker. Its output goes to the output of
    the worker. An exit code other than 0, a signal, or more than `limit` seconds is a failure.
    """

    def __init__(self, words: Sequence[str], reward: RewardRule, limit: float | None = None) -> None:
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
        assert self._guard.stdin is not None
        self._pipe = self._guard.stdin
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
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
                raise ChildProcessError(f"stopped after {self._limit:g} s, the limit") from None
            finally:
                await _end(process)
                with suppress(BrokenPipeError):  # the guard was killed
                    self._pipe.write(f"-{process.pid}\n".encode())
            last_lines = await output.last_line(), await errors.last_line()
        if process.returncode:
            raise ChildProcessError(": ".join(filter(None, (_words(process.returncode), last_lines[1]))))
        return self._reward(CommandEnd(seconds, last_lines[0]))

    async def _start(self, held: HeldJob, output: Tee, errors: Tee) -> Process:
        with TemporaryFile() as payload:
            payload.write(msgspec.json.encode(held.payload))
            payload.seek(0)
            process = await asyncio.create_subprocess_exec(
                "sh", "-c", BEGIN, f"/dev/fd/{payload.fileno()}", *self._words, stdin=self._pipe,
                stdout=output.write_end, stderr=errors.write_end, pass_fds=(payload.fileno(),), env=_environment(held),
                start_new_session=True,
            )  # fmt: skip
        output.hand_over()
        errors.hand_over()
        return process


async def _end(process: Process) -> None:
    """End what is left of the process group: first by SIGTERM if the command still runs, then by SIGKILL."""
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
    about = {
        "BILINQ_JOB_ID": held.id, "BILINQ_JOB_CLASS": held.job_class, "BILINQ_UNITS_LEFT": str(held.units_left),
        "BILINQ_ATTEMPTS": str(held.attempts), "BILINQ_FENCE": str(held.fence),
    }  # fmt: skip
    return {name: value for name, value in os.environ.items() if name not in SECRET} | about


def _words(code: int) -> str:
    if code > 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
