"""Virtual time: processes with an event loop and threads each, one step at a time, in an order that the seed decides.

A process is one event loop and any number of threads. All threads are greenlets: they run until they pause, and the next
step is that of the earliest event. Time passes only between steps, so idle time costs nothing. A killed process never runs
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from importlib import import_module
from itertools import count
from math import inf
from random import Random
from typing import Any, TypeVar, TypeVarTuple

greenlets: Any = import_module("greenlet")  # it has no types
Ended: type[BaseException] = greenlets.GreenletExit
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEP = 2e-5  # seconds that a callback of an event loop takes
LATENCY = 1e-4  # most seconds until another thread notices that it may go on
BOOT = 1_000.0  # most seconds on the monotonic clock of a machine at the start
EPOCH = 1_800_000_000.0  # the wall clock at the start


class World:
    """The clock, the events to come, and the processes. `thread` is the one that runs now, None between steps."""

    def __init__(self, seed: int) -> None:
        self.seed, self.now = seed, 0.0
        self.steps = 0
        self.thread: Thread | None = None
        self.processes: list[Process] = []
        self.errors: list[str] = []  # what a process has raised and nobody caught
        self._random = Random(f"{seed} order")
        self._events: list[tuple[float, float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._hub = greenlets.getcurrent()

    @property
    def process(self) -> Process:
        """The process that runs now."""
        assert self.thread is not None, "only a process may ask for this"
        return self.thread.process

    def random(self, name: str) -> Random:
        """Return random numbers for one purpose, so that those of another do not depend on it."""
        return Random(f"{self.seed} {name}")

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a time; what is due at the same time happens in random order."""
        heapq.heappush(self._events, (max(when, self.now), self._random.random(), next(self._numbers), action))

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Run all events up to a time, or until `stop` is true after one of them."""
        over = False

        def end() -> None:
            nonlocal over
            over = True

        self.at(until, end)
        while not over and not stop():
            self.now, _, _, action = heapq.heappop(self._events)
            action()

    def pause(self, seconds: float) -> None:
        """Let the current thread go on after some seconds."""
        thread = self.thread
        assert thread is not None
        until = self.now + seconds
        if until < self._events[0][0] and not thread.stopped:  # nobody else would run meanwhile
            self.now = until
            self.steps += 1
        else:
            thread.sleep(until)

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()


class Thread:
    """A thread of a process: a function that runs until it sleeps, and goes on when it is woken or its time has come."""

    def __init__(self, process: Process, work: Callable[[], object], name: str) -> None:
        self.process, self.world, self.name = process, process.world, name
        self.ended = False
        self.frozen = 0.0  # until when it does not run
        self._turn = 0  # counts sleeps: who wakes it from an earlier one is too late
        self._wakeable, self._woken = False, False
        self._greenlet = greenlets.greenlet(lambda: self._run(work), self.world._hub)
        process.threads.append(self)
        self._resume_at(self.world.now + process.random.uniform(0.0, LATENCY))

    @property
    def stopped(self) -> bool:
        """Whether it must not run now."""
        return not self.process.alive or max(self.frozen, self.process.frozen) > self.world.now

    def sleep(self, until: float, *, wakeable: bool = False) -> bool:
        """Let others run until a time, or until `wake`; return whether it was woken."""
        if not self.process.alive:
            raise Ended
        self._turn += 1
        self._wakeable, self._woken = wakeable, False
        if until < inf:
            self._resume_at(until)
        self.world._hub.switch()
        return self._woken

    def wake(self) -> None:
        """Let it go on soon, if it waits for that."""
        if self._wakeable:
            self._wakeable, self._woken = False, True
            self._resume_at(self.world.now)

    def kill(self) -> None:
        """End it where it is; what it still does on the way out reaches nobody."""
        if not self.ended:
            self._step(lambda: self._greenlet.throw(Ended))

    def _resume_at(self, when: float) -> None:
        turn = self._turn
        self.world.at(when, lambda: self._resume(turn))

    def _resume(self, turn: int) -> None:
        if turn != self._turn or self.ended or not self.process.alive:
            return
        thawed = max(self.frozen, self.process.frozen)
        if thawed > self.world.now:
            self.world.at(thawed, lambda: self._resume(turn))
            return
        self._turn += 1
        self._wakeable = False
        self._step(self._greenlet.switch)

    def _step(self, go: Callable[[], object]) -> None:
        world, loop = self.world, self.process.loop
        world.thread = self
        world.steps += 1
        asyncio._set_running_loop(loop if self is loop.thread else None)
        try:
            go()
        finally:
            world.thread = None
            asyncio._set_running_loop(None)

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Ended:
            pass
        except Exception as error:
            self.process.report(f"thread {self.name}: {type(error).__name__}: {error}")
        finally:
            self.ended = True
            if self.process.alive:
                self.process.threads.remove(self)


class Loop(asyncio.BaseEventLoop):
    """The event loop of a process: callbacks run in the order in which they were given, as asyncio promises."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._queue: deque[asyncio.Handle] = deque()
        self.thread = Thread(process, self._serve, "main")

    def _serve(self) -> None:
        world, queue = self._process.world, self._queue
        while self._process.alive:
            if not queue:
                self.thread.sleep(inf, wakeable=True)
                continue
            handle = queue.popleft()
            if not handle.cancelled():
                handle._run()
                world.pause(STEP)

    def time(self) -> float:
        return self._process.monotonic()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._add(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._process.world.at(when - self._process.boot, lambda: self._add(timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._process.report(f"{context.get('message')}: {type(error).__name__}: {error}")

    def _add(self, handle: asyncio.Handle) -> None:
        if self._process.alive and not handle.cancelled():
            self._queue.append(handle)
            self.thread.wake()

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon_threadsafe(_settle, future, None, error)
            else:
                self.call_soon_threadsafe(_settle, future, result, None)

        if executor is None:
            Thread(self._process, work, "executor")
        else:
            executor.start(work)
        return future


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():  # the caller was cancelled meanwhile
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Process:
    """A program that runs somewhere, with clocks of its own: `wall` may jump, `monotonic` never does."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive, self.frozen, self.jump = True, 0.0, 0.0
        self.random = world.random(f"process {name} {len(world.processes)}")
        self.boot = self.random.uniform(0.0, BOOT)
        self.threads: list[Thread] = []
        self.on_kill: list[Callable[[], None]] = []
        world.processes.append(self)
        self.loop = Loop(self)

    def monotonic(self) -> float:
        """Return the time since the machine was started."""
        return self.world.now + self.boot

    def wall(self) -> float:
        """Return the time that the machine believes it is."""
        return EPOCH + self.world.now + self.jump

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task of this process; may be called from outside."""
        task = asyncio.Task(work, loop=self.loop)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(f"a task failed: {type(error).__name__}: {error}")

    def report(self, error: str) -> None:
        """Note an error that nobody caught; a process that was killed has none."""
        if self.alive:
            self.world.errors.append(f"{self.name} at {self.world.now:.3f} s: {error}")

    def kill(self) -> None:
        """End it now: nothing that it does on the way out has an effect on others."""
        if not self.alive:
            return
        self.alive = False
        for thread in list(self.threads):
            thread.kill()
        for task in sorted(asyncio.all_tasks(self.loop), key=lambda task: (len(task.get_name()), task.get_name())):
            self.loop.thread._step(partial(_discard, task))
        for action in self.on_kill:
            action()
        self.loop.close()


def _discard(task: Any) -> None:
    """Let a task that will never go on end without a warning."""
    task._log_destroy_pending = False
    with contextlib.suppress(Exception):
        task.get_coro().close()
