"""What a sweep file asks for: policies, a problem, a grid, and the cells they make.

```toml
name = "traffic"              # the file's own name unless given
slots = 500
replications = 100            # 10 unless given
seed = 1                      # 0 unless given
arrivals = "bernoulli"        # or "poisson", "markov-modulated"

[problem]                     # arguments of Problem.synthetic; replication k draws its own with seed + k
job_classes = 10              # or: file = "problem.toml", one problem for all, relative to this file
seed = 7                      # instances = "fixed" gives all replications the one drawn with seed

[[policy]]                    # one or more; a name, a kind, and the options of that kind
name = "paper's radius"
kind = "sabr"
V = 57.99
radius = "paper"

[grid]                        # optional: every combination; keys are dotted paths into the tables above
"problem.traffic" = [0.5, 1.0]
"policy.V" = [20.0, 58.0]     # set in every policy
```
"""

import copy
import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from bilinq.arrays import count, short
from bilinq.errors import BadInput
from bilinq.experiments.specs import make_arrivals, make_problems
from bilinq.policies import Policy
from bilinq.policies.registry import make_policy

DEFAULTS: dict[str, Any] = {"replications": 10, "seed": 0, "arrivals": "bernoulli"}
PLAIN = ("slots", *DEFAULTS)
KEYS = ("name", *PLAIN, "problem", "policy", "grid")


@dataclass(frozen=True, eq=False)
class Cell:
    """One policy in one setting: what a sweep runs, stores and finds again.

    Attributes
    ----------
    policy : str
        The policy's name in the file.
    varied : dict
        The grid's keys with this cell's values.
    settings : dict
        All that decides the result: slots, replications, seed, arrivals, problem and policy.
    """

    policy: str
    varied: dict[str, Any]
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        """The policy's name and what the grid varies."""
        return ", ".join([self.policy, *(f"{key} = {value}" for key, value in self.varied.items())])

    @property
    def key(self) -> str:
        """A fingerprint of the settings, of the problem file's content, and of bilinq's version."""
        identity = copy.deepcopy(self.settings) | {"bilinq": version("bilinq")}
        if "file" in identity["problem"]:
            content = Path(identity["problem"]["file"]).read_bytes()
            identity["problem"]["file"] = hashlib.sha256(content).hexdigest()
        text = json.dumps(identity, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def make_policy(self) -> Policy:
        """Return the cell's policy."""
        options = {key: value for key, value in self.settings["policy"].items() if key not in ("name", "kind")}
        return make_policy(self.settings["policy"]["kind"], options)

    def check(self) -> None:
        """Raise `BadInput` if these settings describe nothing that can run."""
        try:
            for key, least in (("slots", 1), ("replications", 1), ("seed", 0)):
                count(key, self.settings[key], least)
            make_arrivals(self.settings["arrivals"])
            make_problems(self.settings["problem"], range(1))
            self.make_policy()
        except BadInput as error:
            raise BadInput(f"{self.label}: {error}") from None


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep file's content: settings common to all cells, the policies, and the grid.

    Attributes
    ----------
    name : str
    common : dict
        Slots, replications, seed, arrivals and the problem.
    policies : tuple of dict
        Name, kind and options of each policy.
    grid : dict
        Dotted paths and the values to try.
    """

    name: str
    common: dict[str, Any]
    policies: tuple[dict[str, Any], ...]
    grid: dict[str, list[Any]]

    def cells(self) -> tuple[Cell, ...]:
        """Return every policy in every combination of the grid, policies last, checked."""
        cells = tuple(self._combine())
        seen: set[str] = set()
        for cell in cells:
            cell.check()
            if cell.key in seen:
                raise BadInput(f"{cell.label}: the same cell twice; the grid and the policies must not repeat one")
            seen.add(cell.key)
        return cells

    def _combine(self) -> Iterator[Cell]:
        for values in itertools.product(*self.grid.values()):
            varied = dict(zip(self.grid, values, strict=True))
            for policy in self.policies:
                settings = copy.deepcopy(self.common) | {"policy": copy.deepcopy(policy)}
                for path, value in varied.items():
                    _put(settings, path, value)
                yield Cell(policy["name"], varied, settings)


def load(path: str | PathLike[str]) -> Sweep:
    """Read a sweep from a TOML file and check every cell of it.

    Whatever is wrong is a `BadInput` that names the file, the key or the cell, the rule and the value.
    """
    file = Path(path)
    try:
        sweep = _parse(tomllib.loads(file.read_text(encoding="utf-8")), file)
        sweep.cells()
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror}") from None
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    except ValueError as error:  # of tomllib, and of text that is not UTF-8
        raise BadInput(f"{file}: is not valid TOML; {error}") from None
    return sweep


def _parse(table: dict[str, Any], file: Path) -> Sweep:
    for key in table:
        if key not in KEYS:
            raise BadInput(f"unknown key {key!r}; known are {', '.join(KEYS)}")
    for key in ("slots", "policy"):
        if key not in table:
            raise BadInput(f"missing key {key!r}")
    common = DEFAULTS | {key: table[key] for key in PLAIN if key in table}
    common["problem"] = _table("problem", table.get("problem", {}))
    if isinstance(common["problem"].get("file"), str):
        common["problem"]["file"] = str(file.parent / common["problem"]["file"])
    name = table.get("name", file.stem)
    if not isinstance(name, str):
        raise BadInput(f"name must be text; got {short(name)}")
    return Sweep(name, common, _policies(table["policy"]), _grid(_table("grid", table.get("grid", {}))))


def _table(key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{key} must be a table; got {short(value)}")
    return value


def _policies(given: object) -> tuple[dict[str, Any], ...]:
    """Return the policies, each with a name of its own (its kind unless given)."""
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
