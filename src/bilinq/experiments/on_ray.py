"""Calls of one function as tasks of a Ray cluster, each as it would run here, finished in any order."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, TypeVar

from bilinq.distributed.on_ray.cluster import joined

Task = TypeVar("Task", bound=tuple[Any, ...])
Result = TypeVar("Result")

AHEAD = 2
"""Tasks under way for each core of the cluster: one that runs and one that waits."""


def results(
    function: Callable[..., Result], tasks: Sequence[Task], workers: int | None = None, address: str | None = None
) -> Generator[tuple[Task, Result], None, None]:
    """Yield tasks, the arguments of a call, with what the call returned; one whose process died runs again.

    Parameters
    ----------
    function : callable
        That the cluster's nodes can import.
    tasks : list of tuples
        Arguments of each call.
    workers : int, optional
        The most calls at a time; unless given as many as the cluster has cores.
    address : str, optional
        Of the cluster, as in `distributed.on_ray.joined`.
    """
    if not tasks:
        return
    with joined(address, workers) as ray, closing(_finished(ray, function, tasks, workers)) as found:
        yield from found


def _finished(
    ray: Any, function: Callable[..., Result], tasks: Sequence[Task], workers: int | None
) -> Generator[tuple[Task, Result], None, None]:
    """Keep as many calls under way as there are cores for; on any error, Ctrl-C too, they end at once."""
    remote = ray.remote(scheduling_strategy="SPREAD")(function)
    most = workers or AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)
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
