"""Running: chunks of replications over all cores, every finished run stored at once.

Replication k of a run belongs to chunk c = k // 50, which is one call of `simulate` with a seed of its own; its problem
depends on k. So k alone decides what it is: neither the number of workers nor the number of replications changes it.
"""

import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, as_completed
from contextlib import closing
from pathlib import Path

from bilinq.lab.runs.record import Record, exists, joined, load, measure, save
from bilinq.lab.runs.run import Run
from bilinq.lab.runs.setting import SEED_STEP
from bilinq.simulation import simulate

CHUNK = 50
"""Replications in one call of `simulate`; part of what a replication is, so not a setting."""

Progress = Callable[[int, int], None]
"""Called as progress(thousands of slots done, thousands in all)."""


def execute(
    runs: Iterable[Run],
    folder: Path,
    pool: Executor | None = None,
    progress: Progress | None = None,
    *,
    fresh: bool = False,
) -> None:
    """Run what `folder` does not hold yet; afterwards `load_run` finds the record of every run there.

    Parameters
    ----------
    runs : iterable of Run
        Equal ones are run once.
    folder : Path
        Where a file for each finished run is kept.
    pool : Executor, optional
        Processes to run in; everything runs in this process unless given.
    progress : callable, optional
    fresh : bool
        Run everything, even what is there.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C; the runs finished by then are stored.
    """
    wanted = {run.key: run for run in runs}
    todo = [run for run in wanted.values() if fresh or not exists(_file(run, folder))]
    for run, record in _records(todo, pool, progress):
        save(record, _file(run, folder))


def load_run(run: Run, folder: Path) -> Record:
    """Return the record of a run that `execute` stored."""
    return load(_file(run, folder))


def run_chunk(run: Run, number: int) -> Record:
    """Run replications 50 `number` to 50 `number` + 49, as far as the run has them."""
    began = time.perf_counter()
    mine = range(number * CHUNK, min((number + 1) * CHUNK, run.replications))
    found = simulate(
        run.setting.problems(run.seed, mine),
        run.policy,
        slots=run.slots,
        seed=run.seed * SEED_STEP + number,
        arrivals=run.setting.arrivals(),
        service=run.setting.service,
    )
    if not found.complete:
        raise KeyboardInterrupt  # `simulate` returned what it had; half a chunk is no chunk
    return measure(found, run.by_class, time.perf_counter() - began)


def _records(
    runs: list[Run], pool: Executor | None, progress: Progress | None
) -> Generator[tuple[Run, Record], None, None]:
    """Yield each run's record as soon as its last chunk is done, long runs first."""
    ordered = sorted(runs, key=_work, reverse=True)
    tasks = [(run, number) for run in ordered for number in range(_chunks(run))]
    parts: dict[str, dict[int, Record]] = {run.key: {} for run in runs}
    total, finished = sum(map(_work, runs)), 0
    with closing(_finished(tasks, pool)) as work:
        for run, number, part in work:
            mine = parts[run.key]
            mine[number] = part
            if len(mine) == _chunks(run):
                yield run, joined([mine[k] for k in sorted(mine)])
                del parts[run.key]
            finished += part.replications * run.slots
            if progress:
                progress(-(-finished // 1000), -(-total // 1000))


def _file(run: Run, folder: Path) -> Path:
    return folder / f"{run.key}.npz"


def _chunks(run: Run) -> int:
    return -(-run.replications // CHUNK)


def _work(run: Run) -> int:
    return run.replications * run.slots


def _finished(tasks: list[tuple[Run, int]], pool: Executor | None) -> Generator[tuple[Run, int, Record], None, None]:
    """Yield finished chunks, in any order."""
    if pool is None:
        for run, number in tasks:
            yield run, number, run_chunk(run, number)
        return
    futures: dict[Future[Record], tuple[Run, int]] = {pool.submit(run_chunk, *task): task for task in tasks}
    for future in as_completed(futures):
        yield *futures.pop(future), future.result()
