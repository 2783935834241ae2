"""Sweeps: every combination of policies and settings that a TOML file describes; `docs/howto-sweep.md` has the format."""

from __future__ import annotations

import copy
import itertools
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilinq.arrays import Array, short
from bilinq.display import in_notebook
from bilinq.errors import BadInput, did_you_mean
from bilinq.experiments.run import PlannedRun, Progress, execute, load_run
from bilinq.experiments.settings import make_setting
from bilinq.experiments.workers import start_workers
from bilinq.policies.registry import make_policy
from bilinq.simulation.records import Interval, interval

if TYPE_CHECKING:
    from bilinq.experiments.record import Record

DEFAULTS: dict[str, Any] = {"replications": 10, "seed": 0, "arrivals": "bernoulli"}
PLAIN = ("slots", *DEFAULTS)
MOST_CELLS = 100_000
KEYS = ("name", *PLAIN, "problem", "policy", "grid")


@dataclass(frozen=True, eq=False)
class Cell:
    """One policy in one combination of the grid.

    `policy` is its name in the file and `varied` contains the grid's keys with this cell's values. `settings` are slots,
    replications, seed, arrivals, problem and policy, as in the file.
    """

    policy: str
    varied: dict[str, Any]
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        """The policy's name and what the grid varies."""
        return ", ".join([self.policy, *(f"{key} = {value}" for key, value in self.varied.items())])

    @cached_property
    def run(self) -> PlannedRun:
        """The run that these settings describe; raises `BadInput`, with the label, if they describe none."""
        given = self.settings
        options = {key: value for key, value in given["policy"].items() if key not in ("name", "kind")}
        try:
            run = PlannedRun(
                setting=make_setting(given["problem"], given["arrivals"]),
                policy=make_policy(given["policy"]["kind"], options),
                slots=given["slots"],
                replications=given["replications"],
                seed=given["seed"],
                keep="samples",
                label=self.label,
            )
            run.check_size(run.setting.example)
            return run
        except BadInput as error:
            raise BadInput(f"{self.label}: {error}") from None

    @property
    def key(self) -> str:
        """The key of the run: a hash of all that decides its numbers."""
        return self.run.key


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep file's content: settings common to all cells, the policies, and the grid.

    The common settings are slots, replications, seed, arrivals and the problem. A policy has a name, a kind and options.
    The grid has dotted paths and the values to try.
    """

    name: str
    common: dict[str, Any]
    policies: tuple[dict[str, Any], ...]
    grid: dict[str, list[Any]]

    def cells(self) -> tuple[Cell, ...]:
        """Return every policy in every combination of the grid, policies last, checked."""
        self._check_size()
        cells = tuple(self._combine())
        seen: set[tuple[str, str]] = set()
        for cell in cells:
            if (cell.policy, cell.key) in seen:
                raise BadInput(f"{cell.label}: the same cell twice; the grid and the policies must not repeat one")
            seen.add((cell.policy, cell.key))
        return cells

    def _check_size(self) -> None:
        size = math.prod(map(len, self.grid.values())) * len(self.policies)
        if size > MOST_CELLS:
            raise BadInput(f"grid and policies must have at most {MOST_CELLS:,} cells; got {size:,}")

    def _combine(self) -> Iterator[Cell]:
        for values in itertools.product(*self.grid.values()):
            varied = dict(zip(self.grid, values, strict=True))
            for policy in self.policies:
                settings = copy.deepcopy(self.common) | {"policy": copy.deepcopy(policy)}
                for path, value in varied.items():
                    _put(settings, path, value)
                yield Cell(policy["name"], varied, settings)


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a cell.

    `samples` are (replications,) arrays: final regret, and time averages of queue, holding cost, reward and wait.
    `seconds` is computing time, summed over the processes that shared it, and `found` whether an earlier run made it.
    """

    cell: Cell
    samples: dict[str, Array]
    seconds: float
    found: bool

    @classmethod
    def of(cls, cell: Cell, record: Record, found: bool) -> Result:
        """Return the result of a cell whose run has this record."""
        kept = {name: record.samples[name] for name in ("regret", "queue", "holding_cost", "reward", "wait")}
        return cls(cell, kept | {"reward": kept["reward"] / cell.run.slots}, record.seconds, found)

    def summary(self) -> dict[str, Interval]:
        """Return means with 95 % intervals."""
        return {name: interval(values) for name, values in self.samples.items()}

    def document(self) -> dict[str, Any]:
        """Return the result for programs, without the samples."""
        about = {"policy": self.cell.policy, "varied": self.cell.varied, "settings": self.cell.settings}
        return {"key": self.cell.key, **about, **self.summary(), "seconds": self.seconds, "found": self.found}


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
    """Run the cells that `out` does not contain yet and return the results of all, in the order of `sweep.cells()`.

    Parameters
    ----------
    sweep : Sweep
    out : path
        Folder for one file per finished cell, which the next call finds again.
    progress : callable, optional
        Called with the slots done and in all, where each replication counts. Default: a bar in notebooks.
    fresh : bool
        Run all cells, even finished ones.
    engine, workers, address
        Where to run, see `start_workers`. The results are the same, bit for bit.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C; the cells finished by then are stored.
    """
    folder, cells = Path(out), sweep.cells()
    with start_workers(engine, workers, address) as team, in_notebook(progress, "slots") as report:
        made = execute([cell.run for cell in cells], folder, team, report, fresh=fresh)
    return [Result.of(cell, load_run(cell.run, folder), found=cell.key not in made) for cell in cells]


def load(path: str | PathLike[str]) -> Sweep:
    """Read a sweep from a TOML file and check every cell of it.

    Raises `BadInput` that names the file, the key or the cell, the rule and the value.
    """
    file = Path(path)
    try:
        sweep = _parse(tomllib.loads(file.read_text(encoding="utf-8")), file)
        sweep.cells()
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror}") from None
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    except (ValueError, RecursionError) as error:  # from tomllib, or from text that is not UTF-8
        raise BadInput(f"{file}: is not valid TOML; {error}") from None
    return sweep


def _parse(table: dict[str, Any], file: Path) -> Sweep:
    for key in table:
        if key not in KEYS:
            raise BadInput(f"unknown key {key!r}{did_you_mean(key, KEYS)}; known are {', '.join(KEYS)}")
    for key in ("slots", "policy"):
        if key not in table:
            raise BadInput(f"missing key {key!r}")
    common = DEFAULTS | {key: table[key] for key in PLAIN if key in table}
    common["problem"] = _table("problem", table.get("problem", {}))
    for key in ("file", "recorded"):
        if isinstance(common["problem"].get(key), str):
            common["problem"][key] = str(file.parent / common["problem"][key])
    name = table.get("name", file.stem)
    if not isinstance(name, str):
        raise BadInput(f"name must be text; got {short(name)}")
    return Sweep(name, common, _policies(table["policy"]), _grid(_table("grid", table.get("grid", {}))))


def _table(key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{key} must be a table; got {short(value)}")
    return value


def _policies(given: object) -> tuple[dict[str, Any], ...]:
    """Return the policies, each with a name of its own; the default is its kind."""
    if not isinstance(given, list) or not given:
        raise BadInput(f"policy must be one or more [[policy]] tables; got {short(given)}")
    policies: dict[str, dict[str, Any]] = {}
    for entry in given:
        policy = _table("policy", entry)
        if "kind" not in policy:
            raise BadInput(f"missing key 'kind' in policy {short(policy)}")
        policy = {"name": policy["kind"]} | policy
        if not isinstance(policy["name"], str) or policy["name"] in policies:
            raise BadInput(f"policy names must be text and differ; got {short(policy['name'])}")
        policies[policy["name"]] = policy
    return tuple(policies.values())


def _grid(given: dict[str, Any]) -> dict[str, list[Any]]:
    for path, values in given.items():
        head, dot, tail = path.partition(".")
        if not (path in PLAIN or (head in ("problem", "policy") and dot and tail not in ("", "name"))):
            places = ", ".join((*PLAIN, "problem.KEY", "policy.KEY"))
            raise BadInput(f"grid keys must be one of {places}, in quotes; got {path!r}")
        if not isinstance(values, list) or not values:
            raise BadInput(f"grid {path!r} must be a list of values; got {short(values)}")
    return given


def _put(settings: dict[str, Any], path: str, value: Any) -> None:
    *tables, key = path.split(".")
    place = settings
    for name in tables:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise BadInput(f"grid {path!r} must lead into a table; {name} is {short(place)}")
    place[key] = value
