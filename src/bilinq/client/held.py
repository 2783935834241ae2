"""A job that a worker holds, and where its function runs: in threads or coroutines, never where heartbeats are sent."""

import asyncio
import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from numbers import Real
from queue import SimpleQueue
from typing import Any, TypeAlias

from bilinq.client.calls import as_json, as_reason, as_reward
from bilinq.errors import BadInput
from bilinq.live.wire.messages import Lease, WorkFinish

log = logging.getLogger("bilinq.worker")

STOPPED = "the worker was stopped"  # the error of a job that was interrupted


@dataclass(frozen=True)
class Done:
    """The result of serving a job, for functions that return more than a reward.

    Attributes
    ----------
    reward : float, optional
        Within the range of rewards of the service; without it nothing is learnt.
    done : bool, optional
        Whether the job is done, whatever its number of units; without it one unit counts as served.
    result : any JSON
        Stored with the job.
    """

    reward: float | None = None
    done: bool | None = None
    result: Any = None


class HeldJob:
    """A job that a worker holds.

    Attributes
    ----------
    id, job_class : str
    payload : any JSON
    units_left, attempts : int
        Number of services that it still needs, and of failed ones.
    lease, server : str
    fence : int
        Increases with every lease; pass it to systems that must reject an old holder of the job.
    """

    def __init__(self, lease: Lease) -> None:
        self.id = lease.job.id
        self.job_class = lease.job.job_class
        self.payload = lease.job.payload
        self.units_left = lease.job.units_left
        self.attempts = lease.job.attempts
        self.lease = lease.lease
        self.server = lease.server
        self.fence = lease.fence
        self.seconds = lease.seconds
        self._lost = threading.Event()

    @property
    def lost(self) -> bool:
        """Whether the lease has ended: another server may have the job, and what the function returns is dropped."""
        return self._lost.is_set()

    def lose(self) -> None:
        """Mark the lease as lost."""
        self._lost.set()

    def wait_lost(self, seconds: float) -> bool:
        """Wait until the lease is lost, at most `seconds`, and return whether it is."""
        return self._lost.wait(seconds)

    def __repr__(self) -> str:
        return f"HeldJob({self.id}, {self.job_class!r}, lease {self.lease})"


Served: TypeAlias = float | Done | None
Function: TypeAlias = Callable[[HeldJob], Served] | Callable[[HeldJob], Awaitable[Served]]


def ending(held: HeldJob, served: Any) -> WorkFinish:
    """Return the end of a lease whose function returned `served`."""
    done = served if isinstance(served, Done) else Done(served)
    reward = done.reward
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, Real)):
        raise BadInput(f"a worker's function must return a number, None or Done; got {type(reward).__name__}")
    number = None if reward is None else as_reward(float(reward))
    return WorkFinish(held.lease, held.fence, number, done.done, as_json("result", done.result))


def failing(held: HeldJob, error: BaseException | str) -> WorkFinish:
    """Return the end of a lease whose function raised `error`."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return WorkFinish(held.lease, held.fence, error=as_reason(text))


class Runner(ABC):
    """Calls the function of a worker for jobs, several at a time."""

    @abstractmethod
    def start(self, held: HeldJob) -> Future[WorkFinish]:
        """Start to serve a job; the result of the future is the end of its lease, and it never raises."""

    @abstractmethod
    def interrupt(self, held: HeldJob) -> None:
        """Ask the function to stop, if possible; the future is set when it has ended."""

    @abstractmethod
    async def close(self, seconds: float) -> None:
        """Stop everything; wait at most `seconds`."""


def runner_of(function: Function, servers: int) -> Runner:
    """Return a runner for the function."""
    call = type(function).__call__  # a coroutine only for an object whose `__call__` is one
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        return Coroutines(function)
    return Threads(function, servers)


class Threads(Runner):
    """Runs a plain function in up to `most` threads, which do not keep the process running."""

    def __init__(self, function: Callable[[HeldJob], Any], most: int) -> None:
        self._function = function
        self._most = most
        self._count = 0
        self._todo: SimpleQueue[tuple[HeldJob, Future[WorkFinish]] | None] = SimpleQueue()

    def start(self, held: HeldJob) -> Future[WorkFinish]:
        if self._count < self._most:
            self._count += 1
            threading.Thread(target=self._work, name=f"bilinq-{self._count}", daemon=True).start()
        future: Future[WorkFinish] = Future()
        self._todo.put((held, future))
        return future

    def interrupt(self, held: HeldJob) -> None:
        """Do nothing: a thread cannot be stopped; the function may check `held.lost`."""

    async def close(self, seconds: float) -> None:
        """Make each thread end when its function returns."""
        for _ in range(self._count):
            self._todo.put(None)

    def _work(self) -> None:
        while (task := self._todo.get()) is not None:
            held, future = task
            try:
                end = ending(held, self._function(held))
            except BaseException as error:
                end = _failed(held, error)
            if future.set_running_or_notify_cancel():
                future.set_result(end)


class Coroutines(Runner):
    """Runs a coroutine function on an event loop in a thread of its own."""

    def __init__(self, function: Callable[[HeldJob], Any]) -> None:
        self._function = function
        self._tasks: dict[HeldJob, asyncio.Task[WorkFinish]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bilinq-coroutines", daemon=True)
        self._thread.start()

    def start(self, held: HeldJob) -> Future[WorkFinish]:
        future: Future[WorkFinish] = Future()
        self._loop.call_soon_threadsafe(self._begin, held, future)
        return future

    def interrupt(self, held: HeldJob) -> None:
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
