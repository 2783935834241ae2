"""Where the function of a worker runs: in threads, or as coroutines on a loop of their own; never where heartbeats run."""

import asyncio
import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

from bilinq.client.held import HeldJob, Served, ending, failing
from bilinq.live.wire.messages import WorkFinish

log = logging.getLogger("bilinq.worker")

STOPPED = "the worker was stopped"
"""Why a job comes back that was interrupted."""

Function: TypeAlias = Callable[[HeldJob], Served] | Callable[[HeldJob], Awaitable[Served]]


class Runner(ABC):
    """Calls a function for one job after the other, several at a time."""

    @abstractmethod
    def start(self, held: HeldJob) -> Future[WorkFinish]:
        """Begin to serve a job; the future tells how its lease ends and never fails."""

    @abstractmethod
    def interrupt(self, held: HeldJob) -> None:
        """Ask the function to stop, if it can be asked; the future still tells when it has ended."""

    @abstractmethod
    async def close(self, seconds: float) -> None:
        """End everything, waiting some seconds at most."""


def runner_of(function: Function, servers: int) -> Runner:
    """Return what runs the function."""
    call = type(function).__call__  # of an object with such a method; of a function it is not a coroutine
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        return Coroutines(function)
    return Threads(function, servers)


class Threads(Runner):
    """Runs a plain function in up to `most` threads, which do not keep the process alive."""

    def __init__(self, function: Callable[[HeldJob], Any], most: int) -> None:
        self._function = function
        self._most = most
        self._count = 0
        self._todo: SimpleQueue[tuple[HeldJob, Future[WorkFinish]] | None] = SimpleQueue()

    def start(self, held: HeldJob) -> Future[WorkFinish]:
        """Hand the job to a thread."""
        if self._count < self._most:
            self._count += 1
            threading.Thread(target=self._work, name=f"bilinq-{self._count}", daemon=True).start()
        future: Future[WorkFinish] = Future()
        self._todo.put((held, future))
        return future

    def interrupt(self, held: HeldJob) -> None:
        """Do nothing: a thread cannot be stopped; the function may look at `held.lost`."""

    async def close(self, seconds: float) -> None:
        """Let every thread end when its function returns."""
        for _ in range(self._count):
            self._todo.put(None)

    def _work(self) -> None:
        while (task := self._todo.get()) is not None:
            held, future = task
            end = self._serve(held)
            if future.set_running_or_notify_cancel():
                future.set_result(end)

    def _serve(self, held: HeldJob) -> WorkFinish:
        try:
            return ending(held, self._function(held))
        except BaseException as error:
            return _failed(held, error)


class Coroutines(Runner):
    """Runs a coroutine function on an event loop in a thread of its own."""

    def __init__(self, function: Callable[[HeldJob], Any]) -> None:
        self._function = function
        self._tasks: dict[HeldJob, asyncio.Task[WorkFinish]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bilinq-coroutines", daemon=True)
        self._thread.start()

    def start(self, held: HeldJob) -> Future[WorkFinish]:
        """Start a task."""
        future: Future[WorkFinish] = Future()
        self._loop.call_soon_threadsafe(self._begin, held, future)
        return future

    def interrupt(self, held: HeldJob) -> None:
        """Cancel the task."""
        self._loop.call_soon_threadsafe(self._cancel, held)

    async def close(self, seconds: float) -> None:
        """Cancel all tasks, wait until they have ended, and stop the loop."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._cancel_all(seconds), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, held: HeldJob, future: Future[WorkFinish]) -> None:
        task = self._tasks[held] = self._loop.create_task(self._serve(held))
        task.add_done_callback(partial(self._end, held, future))

    async def _serve(self, held: HeldJob) -> WorkFinish:
        try:
            return ending(held, await self._function(held))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return _failed(held, error)

    def _end(self, held: HeldJob, future: Future[WorkFinish], task: asyncio.Task[WorkFinish]) -> None:
        del self._tasks[held]
        if future.set_running_or_notify_cancel():
            future.set_result(failing(held, STOPPED) if task.cancelled() else task.result())

    def _cancel(self, held: HeldJob) -> None:
        if held in self._tasks:
            self._tasks[held].cancel()

    async def _cancel_all(self, seconds: float) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)


def _failed(held: HeldJob, error: BaseException) -> WorkFinish:
    """Log and return the failure of a function; a command's exit code needs no stack trace."""
    end = failing(held, error)
    log.warning("%s failed: %s", held, end.error, exc_info=None if isinstance(error, ChildProcessError) else error)
    return end
