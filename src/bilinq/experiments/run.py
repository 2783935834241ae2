"""Runs: what decides their numbers, the key they are found by, and how they are executed and stored.

Replication k of a run belongs to chunk c = k // 50, which is one call of `simulate` with seed `seed` * 1000003 + c; its
problem depends on k. So neither the number of workers nor the number of replications changes a replication, and more
replications extend fewer.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bilinq.arrays import count
from bilinq.errors import BadInput, UnprovedRadius
from bilinq.experiments.record import Kept, Record, exists, joined, load, measure, save
from bilinq.experiments.settings import SEED_STEP, Setting
from bilinq.experiments.workers import InProcess, Workers
from bilinq.jsonable import to_json
from bilinq.problem import Problem
from bilinq.simulation.simulate import MOST_REPLICATIONS, MOST_SLOTS, check_size, simulate

if TYPE_CHECKING:
    from bilinq.policies import Policy

CHUNK = 50  # replications in one call of `simulate`; part of what a replication is, so not a setting

PACKAGE = Path(__file__).parents[1]
UNRELATED = ("client", "commands", "demo", "display.py", "lab", "live", "style.py")
RELATED = (Path("lab/trace.py"), Path("lab/replays.py"))
"""Parts of the package that cannot change the result of a run, and the files in them that can."""

Progress = Callable[[int, int], None]  # called as progress(slots done, slots in all), where each replication counts


@dataclass(frozen=True)
class Planned(ABC):
    """Replications of an experiment, planned: a frozen dataclass of plain values that decide the result.

    Error messages name the run by its `label`, which does not change the key.
    """

    _: KW_ONLY
    slots: int
    replications: int
    seed: int
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        count("slots", self.slots, most=MOST_SLOTS)
        count("replications", self.replications, most=MOST_REPLICATIONS)
        count("seed", self.seed, least=0)

    @abstractmethod
    def chunk(self, number: int) -> Record:
        """Return the record of the replications `members(number)`."""

    def members(self, number: int) -> range:
        """Return the replications of a chunk, 50 `number` to 50 `number` + 49, as far as the run has them."""
        return range(number * CHUNK, min((number + 1) * CHUNK, self.replications))

    @cached_property
    def key(self) -> str:
        """A hash of all that decides the result: these settings, bilinq's code, and NumPy's version."""
        text = to_json([canonical(self), code_digest(), version("numpy")])
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def work(self) -> int:
        """Slots to simulate, over all replications."""
        return self.replications * self.slots

    @property
    def chunks(self) -> range:
        """The numbers of the chunks."""
        return range(-(-self.replications // CHUNK))


@dataclass(frozen=True)
class PlannedRun(Planned):
    """A policy in a setting; the policy is a dataclass of plain values, like all policies of bilinq.

    `keep` decides what the record contains.
    """

    setting: Setting
    policy: Policy
    _: KW_ONLY
    keep: Kept = "paths"

    def check_size(self, example: Problem) -> None:
        """Raise `BadInput` if a chunk of this run, with problems like `example`, would fill the memory."""
        size, rates = min(self.replications, CHUNK), example.arrival_rate
        check_size(self.slots, size, len(rates), size * float(rates.sum()))

    def chunk(self, number: int) -> Record:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnprovedRadius)  # each chunk would repeat it
            found = simulate(
                self.setting.problems(self.seed, self.members(number)),
                self.policy,
                slots=self.slots,
                seed=self.seed * SEED_STEP + number,
                arrivals=self.setting.arrivals(),
                service=self.setting.service,
                capacity=self.setting.capacity(),
                rewards=self.setting.reward_law(),
                progress=_silent,
            )
        if not found.complete:
            raise KeyboardInterrupt  # `simulate` returned what it had; part of a chunk is no chunk
        return measure(found, self.keep, time.perf_counter() - began)


def canonical(value: Any) -> Any:
    """Return `value` as lists, text and numbers that no different value shares, with the class names of objects.

    Examples
    --------
    >>> from bilinq.simulation import Poisson
    >>> canonical((1.5, None, Poisson()))
    [1.5, None, ['Poisson']]
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [canonical(entry) for entry in value]
    if isinstance(value, dict):
        return ["dict", *([key, canonical(value[key])] for key in sorted(value))]
    if isinstance(value, Problem):
        return ["Problem", canonical(list(value.arguments().items()))]
    if is_dataclass(value):
        parts = [[part.name, canonical(getattr(value, part.name))] for part in fields(value) if part.compare]
        return [type(value).__name__, *parts]
    raise TypeError(f"a run may contain dataclasses, arrays and plain values; got {type(value).__name__}")


@cache
def code_digest() -> str:
    """Return a hash of the version and the source files that decide the result of a run, so that edits change its key."""
    digest = hashlib.sha256(version("bilinq").encode())
    for source in sorted(PACKAGE.rglob("*.py")):
        place = source.relative_to(PACKAGE)
        if place.parts[0] not in UNRELATED or place in RELATED:
            digest.update(place.as_posix().encode() + source.read_bytes())
    return digest.hexdigest()


def execute(
    runs: Iterable[Planned],
    folder: Path,
    workers: Workers | None = None,
    progress: Progress | None = None,
    *,
    fresh: bool = False,
) -> set[str]:
    """Run what `folder` does not contain yet and return the keys of these runs; `load_run` then finds every record.

    Runs start in the given order, and equal ones run once. With `fresh`, finished runs are repeated. The default for
    `workers` is this process.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C; the runs finished by then are stored.
    """
    wanted = {run.key: run for run in runs}
    todo = [run for run in wanted.values() if fresh or not exists(_file(run, folder))]
    for run, record in _records(todo, workers or InProcess(), progress):
        save(record, _file(run, folder))
    return {run.key for run in todo}


def load_run(run: Planned, folder: Path) -> Record:
    """Return the record of a run that `execute` stored."""
    return load(_file(run, folder))


def run_chunk(run: Planned, number: int) -> Record:
    """Run replications 50 `number` to 50 `number` + 49, as far as the run has them."""
    try:
        return run.chunk(number)
    except BadInput as error:
        raise BadInput(f"{run.label}: {error}" if run.label else str(error)) from None


def _silent(done: int, total: int) -> None:
    """Show no progress: that of all runs together is shown."""


def _records(
    runs: list[Planned], workers: Workers, progress: Progress | None
) -> Generator[tuple[Planned, Record], None, None]:
    """Yield each run's record as soon as its last chunk is done."""
    tasks = [(run, number) for run in runs for number in run.chunks]
    parts: dict[str, dict[int, Record]] = {run.key: {} for run in runs}
    total, finished = sum(run.work for run in runs), 0
    with closing(workers.results(run_chunk, tasks)) as results:
        for (run, number), part in results:
            mine = parts[run.key]
            mine[number] = part
            if len(mine) == len(run.chunks):
                yield run, joined([mine[k] for k in run.chunks])
                del parts[run.key]
            finished += part.replications * run.slots
            if progress:
                progress(finished, total)


def _file(run: Planned, folder: Path) -> Path:
    return folder / f"{run.key}.npz"
