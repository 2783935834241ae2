"""A pool of processes that ends at once when something goes wrong."""

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver

_CONTEXT = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")


def get_ready(*modules: str) -> None:
    """Let a pool start sooner: a process that its own will be copies of begins to load modules, beside this one."""
    if _CONTEXT.get_start_method() == "forkserver":
        _CONTEXT.set_forkserver_preload(list(modules))
        forkserver.ensure_running()


@contextmanager
def pool_of(workers: int) -> Iterator[Executor]:
    """Give a pool of processes; on any error, Ctrl-C too, they end at once."""
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(workers, _CONTEXT, _ignore_interrupt)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        mine = [child for child in multiprocessing.active_children() if child not in others]
        pool.shutdown(wait=False, cancel_futures=True)
        for child in mine:
            child.terminate()
        raise


def _ignore_interrupt() -> None:
    """Leave Ctrl-C, which the terminal sends to every process, to the one that started the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
