"""The output of a command: passed on as it comes, and its last line kept."""

import asyncio
import os
from contextlib import suppress
from typing import BinaryIO, Self

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
