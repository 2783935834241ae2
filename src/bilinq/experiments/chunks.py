"""Running a sweep: cells in chunks of replications over all cores, every finished cell stored at once.

Replication k of a cell belongs to chunk c = k // 50, which is one call of `simulate` with seed `seed` * 1000003 + c;
its problem is drawn with the problem's `seed` + k. So k alone decides what it is: neither the number of workers nor
the number of replications changes it, and more replications extend fewer.
"""

import os
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, as_completed
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from bilinq.arrays import Array, count, one_of
from bilinq.errors import BadInput
from bilinq.experiments import on_ray, results
from bilinq.experiments.plan import Cell, Sweep
from bilinq.experiments.processes import pool_of
from bilinq.experiments.results import Result
from bilinq.experiments.specs import make_arrivals, make_problems
from bilinq.simulation import simulate

CHUNK = 50
"""Replications in one call of `simulate`; part of what a replication is, so not a setting."""
SEED_STEP = 1_000_003
"""Distance between the seeds of two sweeps in seeds of chunks: more chunks than any cell has."""

Progress = Callable[[int, int], None]
"""Called as progress(replications done, replications in all)."""


class Chunk(NamedTuple):
    """A part of a cell: which one, what it measured, and the seconds it took."""

    number: int
    samples: dict[str, Array]
    seconds: float


Task: TypeAlias = tuple[Cell, int]
"""A cell and the number of one of its chunks."""
Chunks: TypeAlias = Generator[tuple[Task, Chunk], None, None]
Work: TypeAlias = Callable[[list[Task]], Chunks]


def run(
    sweep: Sweep,
    out: str | PathLike[str],
    workers: int | None = None,
    progress: Progress | None = None,
    *,
    fresh: bool = False,
    engine: str = "processes",
    address: str | None = None,
) -> list[Result]:
    """Run the cells that `out` does not hold yet and return the results of all, in the order of `sweep.cells()`.

    Parameters
    ----------
    sweep : Sweep
    out : path
        Folder for one JSON file per finished cell. A cell is found again by its settings and bilinq's version.
    workers : int, optional
        Processes, one for each core unless given; with 1 everything runs in this process. With more, a script must
        guard its own start with ``if __name__ == "__main__":``, as for all of `multiprocessing`. On Ray, the most chunks
        at a time.
    progress : callable, optional
        Told replications done and in all.
    fresh : bool
        Run all cells, even finished ones.
    engine : {"processes", "ray"}
        Where to run: here, or on a Ray cluster. The results are the same, bit for bit.
    address : str, optional
        Of the Ray cluster, as in `distributed.on_ray.joined`; a Ray of our own on this machine unless given.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C; the cells finished by then are stored.
    """
    folder, work = Path(out), _engine(engine, None if workers is None else count("workers", workers), address)
    cells = sweep.cells()
    done = {} if fresh else {cell.key: found for cell in cells if (found := results.find(cell, folder))}
    todo = [cell for cell in cells if cell.key not in done]
    for result in _run_cells(todo, work, progress):
        results.save(result, folder)
        done[result.cell.key] = result
    return [done[cell.key] for cell in cells]


def n_chunks(cell: Cell) -> int:
    """Return the number of chunks of a cell."""
    replications: int = cell.settings["replications"]
    return -(-replications // CHUNK)


def run_chunk(cell: Cell, number: int) -> Chunk:
    """Run replications 50 `number` to 50 `number` + 49 of a cell, as far as it has them."""
    began = time.perf_counter()
    settings = cell.settings
    mine = range(number * CHUNK, min((number + 1) * CHUNK, settings["replications"]))
    problems = make_problems(settings["problem"], mine)
    try:
        runs = simulate(problems, cell.make_policy(), slots=settings["slots"], replications=len(mine),
                        seed=settings["seed"] * SEED_STEP + number,
                        arrivals=make_arrivals(settings["arrivals"]))  # fmt: skip
    except BadInput as error:
        raise BadInput(f"{cell.label}: {error}") from None
    if not runs.complete:
        raise KeyboardInterrupt  # `simulate` returned what it had; half a chunk is no chunk
    return Chunk(number, results.measure(runs), time.perf_counter() - began)


def _engine(engine: str, workers: int | None, address: str | None) -> Work:
    """Return what runs chunks, in any order."""
    if one_of("engine", engine, ("processes", "ray")) == "ray":
        return lambda tasks: on_ray.results(run_chunk, tasks, workers, address)
    if address is not None:
        raise BadInput(f"address is for the engine 'ray'; got {address!r} with {engine!r}")
    processes = workers or os.cpu_count() or 1
    return lambda tasks: _work(tasks, min(processes, len(tasks)))


def _run_cells(cells: list[Cell], work: Work, progress: Progress | None) -> Iterator[Result]:
    """Yield each cell's result as soon as its last chunk is done."""
    tasks = [(cell, number) for cell in cells for number in range(n_chunks(cell))]
    total, finished = sum(cell.settings["replications"] for cell in cells), 0
    parts: dict[str, list[Chunk]] = {cell.key: [] for cell in cells}
    with closing(work(tasks)) as finished_chunks:
        for (cell, _), chunk in finished_chunks:
            parts[cell.key].append(chunk)
            finished += len(chunk.samples["regret"])
            if len(parts[cell.key]) == n_chunks(cell):
                yield _joined(cell, parts.pop(cell.key))
            if progress:
                progress(finished, total)


def _joined(cell: Cell, chunks: list[Chunk]) -> Result:
    ordered = sorted(chunks, key=lambda chunk: chunk.number)
    names = ordered[0].samples
    samples = {name: np.concatenate([chunk.samples[name] for chunk in ordered]) for name in names}
    return Result(cell, samples, sum(chunk.seconds for chunk in ordered), found=False)


def _work(tasks: list[Task], workers: int) -> Chunks:
    """Yield finished chunks, in any order."""
    if workers <= 1:
        for task in tasks:
            yield task, run_chunk(*task)
        return
    with pool_of(workers) as pool:
        futures: dict[Future[Chunk], Task] = {pool.submit(run_chunk, *task): task for task in tasks}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
