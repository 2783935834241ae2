"""Where the chunks of runs are computed: in this process, in several, or on a Ray cluster, with the same results."""

import multiprocessing
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any, TypeAlias, TypeVar

from bilinq.arrays import count, one_of
from bilinq.errors import BadInput

Task = TypeVar("Task", bound=tuple[Any, ...])
Result = TypeVar("Result")
Finished: TypeAlias = Generator[tuple[Task, Result], None, None]
"""Tasks, the arguments of calls, each with what its call returned."""

ENGINES = ("processes", "ray")
AHEAD = 2  # tasks under way for each core of a Ray cluster: one that runs and one that waits

_CONTEXT = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")


class Workers(ABC):
    """Something that computes the results of many calls of one function."""

    @abstractmethod
    def results(self, function: Callable[..., Result], tasks: Sequence[Task]) -> Finished[Task, Result]:
        """Yield the results of calls in any order; other processes must be able to import `function`."""

    def map(self, function: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Return the results in order; the default computes them in this process."""
        return map(function, *arguments)


class InProcess(Workers):
    """This process alone."""

    def results(self, function: Callable[..., Result], tasks: Sequence[Task]) -> Finished[Task, Result]:
        for task in tasks:
            yield task, function(*task)


@dataclass(frozen=True)
class Processes(Workers):
    """A pool of processes; `start_workers` makes it."""

    pool: Executor

    def results(self, function: Callable[..., Result], tasks: Sequence[Task]) -> Finished[Task, Result]:
        """Yield results as they are finished; a single task runs in this process."""
        if len(tasks) == 1:
            yield from InProcess().results(function, tasks)
            return
        futures: dict[Future[Result], Task] = {self.pool.submit(function, *task): task for task in tasks}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()

    def map(self, function: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        return self.pool.map(function, *arguments)


@dataclass(frozen=True)
class RayTasks(Workers):
    """Tasks of a Ray cluster, `most` at a time; a call whose process died runs again.

    The default for `most` follows from the cluster's cores; the default `address` means a private Ray on this machine.
    """

    most: int | None = None
    address: str | None = None

    def results(self, function: Callable[..., Result], tasks: Sequence[Task]) -> Finished[Task, Result]:
        if not tasks:
            return
        from bilinq.distributed.on_ray.cluster import joined

        with joined(self.address, self.most) as ray, closing(self._finished(ray, function, tasks)) as found:
            yield from found

    def _finished(self, ray: Any, function: Callable[..., Result], tasks: Sequence[Task]) -> Finished[Task, Result]:
        """Keep as many calls under way as there are cores for; on any error, Ctrl-C too, they end at once."""
        remote = ray.remote(scheduling_strategy="SPREAD")(function)
        most = self.most or AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        running: dict[Any, Task] = {}
        try:
            for task in tasks:
                running[remote.remote(*task)] = task
                if len(running) >= most:
                    yield _next(ray, running)
            while running:
                yield _next(ray, running)
        finally:
            for call in running:
                ray.cancel(call, force=True)


def _next(ray: Any, running: dict[Any, Task]) -> tuple[Task, Any]:
    """Wait for one of the calls; return its task with what it returned, or raise what it raised."""
    (call, *_), _ = ray.wait(list(running), num_returns=1)
    try:
        return running.pop(call), ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


@contextmanager
def start_workers(
    engine: str = "processes", workers: int | None = None, address: str | None = None
) -> Iterator[Workers]:
    """Yield the workers of an engine; on any error, Ctrl-C too, processes that were started here end at once.

    Parameters
    ----------
    engine : {"processes", "ray"}
    workers : int, optional
        Processes; the default is one for each core, and with 1 everything runs in this process. With more, a script must
        guard its own start with ``if __name__ == "__main__":``, as for all of `multiprocessing`. On Ray, the most chunks
        at a time.
    address : str, optional
        Of the Ray cluster, host:port or "auto"; the default is a private Ray on this machine.
    """
    number = None if workers is None else count("workers", workers)
    if one_of("engine", engine, ENGINES) == "ray":
        yield RayTasks(number, address)
        return
    if address is not None:
        raise BadInput(f"address is for the engine 'ray'; got {address!r} with {engine!r}")
    processes = number or os.cpu_count() or 1
    if processes == 1:
        yield InProcess()
        return
    with _pool_of(processes) as pool:
        yield Processes(pool)


def preload(*modules: str) -> None:
    """Begin to load modules, in parallel to this process, into the process that workers are copied from."""
    if _CONTEXT.get_start_method() == "forkserver":
        _CONTEXT.set_forkserver_preload(list(modules))
        forkserver.ensure_running()


@contextmanager
def _pool_of(workers: int) -> Iterator[Executor]:
    """Yield a pool of processes; on any error, Ctrl-C too, they end at once."""
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(workers, _CONTEXT, _ignore_interrupt)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        for child in multiprocessing.active_children():
            if child not in others:
                child.terminate()
        pool.shutdown(cancel_futures=True)  # its thread ends with the processes; Python's exit would fail if it did not
        raise


def _ignore_interrupt() -> None:
    """Leave Ctrl-C, which the terminal sends to every process, to the process that started the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
