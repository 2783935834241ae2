"""What stands in for `time`, `threading`, `random`, `secrets` and `sqlite3` in all modules of bilinq during a simulation.

The code under test stays as it is: only the names of these modules in its own modules are bound to something else.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import secrets
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, Self

import bilinq.client
import bilinq.live
from simulator.world import Thread, World

_world: World | None = None


def world() -> World:
    """Return the world that is being simulated."""
    assert _world is not None, "no simulation runs"
    return _world


@contextmanager
def simulated(one: World, connect: Callable[..., sqlite3.Connection]) -> Iterator[None]:
    """Let the modules of bilinq use the clocks, threads and random numbers of a world, and databases by `connect`."""
    global _world
    replaced = {id(real): stand_in for real, stand_in in _stand_ins(connect)}
    changed: list[tuple[Any, str, Any]] = []
    _world = one
    try:
        for module in _modules():
            for name, value in list(vars(module).items()):
                if id(value) in replaced:
                    changed.append((module, name, value))
                    setattr(module, name, replaced[id(value)])
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)
        _world = None


def _modules() -> list[Any]:
    """Return all modules of bilinq, those of service and client loaded so that none comes later."""
    for package in (bilinq.live, bilinq.client):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    return [module for name, module in sys.modules.items() if name.split(".")[0] == "bilinq"]


def _stand_ins(connect: Callable[..., sqlite3.Connection]) -> Iterator[tuple[Any, Any]]:
    yield time, _like(
        time, time=lambda: world().process.wall(), time_ns=lambda: int(world().process.wall() * 1e9),
        monotonic=lambda: world().process.monotonic(), perf_counter=lambda: world().process.monotonic(),
        thread_time=lambda: world().now, sleep=lambda seconds: world().pause(seconds),
    )  # fmt: skip
    yield (
        threading,
        _like(threading, Thread=StartedThread, Lock=Lock, RLock=ReentrantLock, Condition=Condition, Event=Event),
    )
    names = ("random", "uniform", "choice", "randint", "shuffle", "randrange")
    yield random, _like(random, **{name: _drawn(name) for name in names})
    yield secrets, _like(
        secrets, choice=_drawn("choice"), randbits=_drawn("getrandbits"), token_bytes=_drawn("randbytes"),
        token_hex=lambda size=32: world().process.random.randbytes(size).hex(),
        token_urlsafe=lambda size=32: "".join(world().process.random.choices("abcdefgh", k=-(-size * 4 // 3))),
    )  # fmt: skip
    yield sqlite3, _like(sqlite3, connect=connect)
    yield ThreadPoolExecutor, Pool


def _like(module: Any, **changed: Any) -> SimpleNamespace:
    return SimpleNamespace(**vars(module) | changed)


def _drawn(name: str) -> Callable[..., Any]:
    return lambda *arguments, **named: getattr(world().process.random, name)(*arguments, **named)


def _here() -> Thread:
    thread = world().thread
    assert thread is not None, "only a process has threads"
    return thread


class StartedThread:
    """Stands in for `threading.Thread`."""

    def __init__(
        self, group: None = None, target: Callable[..., object] = lambda: None, name: str = "thread",
        args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, *, daemon: bool | None = None,
    ) -> None:  # fmt: skip
        self.name, self.daemon = name, daemon
        self._work = partial(target, *args, **kwargs or {})
        self._over = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        self._thread = Thread(world().process, self._run, self.name)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._over.set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.ended


class Waiting:
    """Threads that wait for something, first come, first served."""

    def __init__(self) -> None:
        self._threads: deque[Thread] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; return whether another thread has ended that, rather than the time limit."""
        thread = _here()
        self._threads.append(thread)
        woken = thread.sleep(inf if timeout is None else world().now + max(timeout, 0.0), wakeable=True)
        if not woken:
            self._threads.remove(thread)
        return woken

    def end(self, number: int) -> None:
        """Let the first threads go on."""
        while self._threads and number > 0:
            self._threads.popleft().wake()
            number -= 1


class Lock:
    """Stands in for `threading.Lock`."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: Thread | None = None
        self._depth = 0
        self._waiting = Waiting()

    def acquire(self, blocking: bool = True, timeout: float = -1.0) -> bool:
        while self._depth and not (self.reentrant and self._owner is _here()):
            if not blocking:
                return False
            self._waiting.wait()
        self._owner, self._depth = _here(), self._depth + 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._waiting.end(1)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ReentrantLock(Lock):
    """Stands in for `threading.RLock`."""

    reentrant = True


class Condition(ReentrantLock):
    """Stands in for `threading.Condition`."""

    def __init__(self, lock: None = None) -> None:
        super().__init__()
        self._notified = Waiting()

    def wait(self, timeout: float | None = None) -> bool:
        self.release()
        try:
            return self._notified.wait(timeout)
        finally:
            self.acquire()

    def notify(self, n: int = 1) -> None:
        self._notified.end(n)

    def notify_all(self) -> None:
        self._notified.end(sys.maxsize)


class Event:
    """Stands in for `threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiting = Waiting()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiting.end(sys.maxsize)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or self._waiting.wait(timeout)


class Pool:
    """Stands in for `ThreadPoolExecutor`: at most so many threads at a time, started when there is work."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "pool") -> None:
        self._most, self._name = max_workers, thread_name_prefix
        self._running = 0
        self._queue: deque[Callable[[], None]] = deque()
        self._idle = Event()

    def start(self, work: Callable[[], None]) -> None:
        """Do some work as soon as a thread is free; it does not raise."""
        self._queue.append(work)
        if self._running < self._most:
            self._running += 1
            self._idle.clear()
            Thread(world().process, self._serve, self._name)

    def _serve(self) -> None:
        while self._queue:
            self._queue.popleft()()
        self._running -= 1
        if not self._running:
            self._idle.set()

    def shutdown(self, wait: bool = True) -> None:
        if wait and self._running:
            self._idle.wait()
