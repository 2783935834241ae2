"""The runs of a contest: one router on one seed, what is kept of it, and the folder from which a contest goes on."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from bilinq.arrays import Array, short
from bilinq.errors import BadInput, BilinqError
from bilinq.experiments.run import canonical, code_digest
from bilinq.experiments.workers import Workers
from bilinq.jsonable import to_json
from bilinq.routing.peers import PeerScore
from bilinq.routing.records import Replay
from bilinq.routing.replay import replay
from bilinq.routing.router import Router
from bilinq.routing.workload import Workload

Measured = dict[str, float]
Progress = Callable[[int, int], None]  # called as progress(replays done, replays that are planned)
KEPT = 64  # workloads in memory; a contest has one for each seed


@dataclass(frozen=True, eq=False)
class ContestRun:
    """A contestant, with a value of its number, on a seed."""

    name: str
    router: Router
    seed: int


def measure_run(workload: Workload, run: ContestRun) -> Measured:
    """Replay a run and return its measures; an error names the contestant."""
    try:
        return measured(replay(workload, run.router, run.seed))
    except BadInput as error:
        raise BadInput(f"contestant {run.name!r}, seed {run.seed}: {error}") from None
    except Exception as error:  # a router may be the user's own, and raise anything
        kind = type(error).__name__
        raise BilinqError(f"contestant {run.name!r}, seed {run.seed}: {kind}: {error}") from error


def measured(run: Replay) -> Measured:
    """Return the measures of a replay; all jobs count, from the first.

    "fairness" is Jain's index of the mean waits of classes, one if they are equal; "worst_class" is the largest of them
    over the mean wait of all jobs. Times are NaN if a job neither started nor left at its deadline.
    """
    found = run.summary()
    waits = np.array([one["wait"] for one in found["classes"].values()])
    waits = waits[~np.isnan(waits)]
    forgotten = bool((np.isnan(run.start) & ~run.expired).any())
    times = ("wait", "wait_p95", "wait_p99", "sojourn", "sojourn_p95")
    return {
        "reward": found["reward"], **{name: np.nan if forgotten else found[name] for name in times},
        "fairness": jain(waits), "worst_class": _ratio(float(waits.max(initial=0.0)), found["wait"]),
        "growth": found["growth"], "growth_error": found["growth error"],
        "complete": found["complete"] / found["jobs"], "seconds_per_decision": found["seconds per decision"],
    }  # fmt: skip


def jain(values: Array) -> float:
    """Return Jain's index of values (n,) of at least zero: one if all are equal, 1/n if all but one are zero."""
    squares = float(values @ values)
    return float(values.sum()) ** 2 / (values.size * squares) if squares > 0.0 else 1.0


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0.0 else 1.0


class ContestRunner:
    """Computes runs on workers, each once; with a folder, what an earlier contest finished is read from there."""

    def __init__(
        self, workload: Callable[[int], Workload], workers: Workers, folder: Path | None, progress: Progress | None
    ) -> None:
        self.workload = lru_cache(KEPT)(workload)
        self._digest = lru_cache(None)(lambda seed: workload_digest(self.workload(seed)))
        self._workers, self._folder, self._progress = workers, folder, progress
        self.done = self.computed = 0
        self.planned = 0
        """Replays in all, for reports of progress; the contest sets it, and lowers it when a search ends early."""

    def results(self, runs: Iterable[ContestRun]) -> list[Measured]:
        """Return the measures of runs, in their order."""
        wanted = list(runs)
        found = {run: self._stored(run) for run in wanted}
        todo = [(self.workload(run.seed), run) for run, measures in found.items() if measures is None]
        self._count(len(wanted) - len(todo))
        with closing(self._workers.results(measure_run, todo)) as results:
            for (_, run), measures in results:
                found[run] = measures
                self._keep(run, measures)
                self.computed += 1
                self._count(1)
        return [measures for measures in found.values() if measures is not None]

    def _count(self, number: int) -> None:
        self.done += number
        if self._progress is not None and number:
            self._progress(self.done, max(self.planned, self.done))

    def _stored(self, run: ContestRun) -> Measured | None:
        if self._folder is None:
            return None
        try:
            stored = json.loads(self._file(run).read_text(encoding="utf-8"))["measures"]
            return {name: np.nan if value is None else float(value) for name, value in stored.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # not there, or not complete

    def _keep(self, run: ContestRun, measures: Measured) -> None:
        if self._folder is None:
            return
        file = self._file(run)
        part = file.with_suffix(f".{os.getpid()}.part")
        text = {"contestant": run.name, "router": repr(run.router), "seed": run.seed, "measures": measures}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_text(to_json(text), encoding="utf-8")
            part.replace(file)
        except OSError as error:
            raise BadInput(f"{file}: cannot be written; {error.strerror}") from None

    def _file(self, run: ContestRun) -> Path:
        assert self._folder is not None
        return self._folder / f"{run_key(run, self._digest(run.seed))}.json"


def run_key(run: ContestRun, workload: str) -> str:
    """Return a hash of all that decides the measures: router, seed, workload, the code of both, and versions."""
    try:
        settings = canonical(run.router)
    except TypeError as error:
        raise BadInput(
            f"contestant {run.name!r}: to keep its runs in a folder, its router must be a dataclass of plain values; {error}"
        ) from None
    versions = [_version(name) for name in ("numpy", "scipy", *sorted(_packages(run.router)))]
    text = to_json([settings, sorted(_own_code(run.router)), run.seed, workload, code_digest(), versions])
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _own_code(value: Any) -> set[str]:
    """Return the source of the classes, outside of bilinq, of a router and of its settings."""
    kinds = [
        kind for kind in type(value).__mro__ if kind.__module__.partition(".")[0] not in ("bilinq", "builtins", "abc")
    ]
    return {_source(kind) for kind in kinds}.union(*map(_own_code, _parts(value)))


def _packages(value: Any) -> set[str]:
    """Return the other libraries that the scores of a router need."""
    own = {value.package} if isinstance(value, PeerScore) else set()
    return own.union(*map(_packages, _parts(value)))


def _parts(value: Any) -> list[Any]:
    """Return the dataclasses among the settings of a router."""
    settings = [getattr(value, part.name) for part in fields(value)] if is_dataclass(value) else []
    inner = [one for part in settings for one in (part.values() if isinstance(part, dict) else [part])]
    return [one for one in inner if is_dataclass(one)]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed in at a prompt
        return f"{kind.__module__}.{kind.__qualname__}"


def workload_digest(workload: Workload) -> str:
    """Return a hash of the content of a workload."""
    digest = hashlib.sha256()
    for name, value in workload.arguments().items():
        if isinstance(value, np.ndarray):
            digest.update(f"{name} {value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes())
        else:
            plain = dict(value) if name == "servers" else value
            digest.update(f"{name} {plain!r} ".encode())
    return digest.hexdigest()


def seeded(workload: Workload | Callable[[int], Workload]) -> Callable[[int], Workload]:
    """Return a function from seed to workload: the given one, checked, or the jobs in another order for each seed."""
    if isinstance(workload, Workload):
        return workload.shuffled
    if not callable(workload):
        raise BadInput(f"workload must be a Workload or a function of a seed that returns one; got {short(workload)}")

    def made(seed: int) -> Workload:
        found = workload(seed)
        if not isinstance(found, Workload):
            raise BadInput(f"workload({seed}) must return a Workload; got {short(found)}")
        return found

    return made
