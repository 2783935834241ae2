"""One simulation of the lab: what decides its numbers, and the key it is found by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bilinq.arrays import count
from bilinq.jsonable import to_json
from bilinq.lab.runs.setting import Setting
from bilinq.policies import Policy
from bilinq.problem import Problem

PACKAGE = Path(__file__).parents[2]
UNRELATED = ("lab", "commands", "cli.py")
"""Parts of the package that cannot change what a run gives; `lab/runs`, which can, is not among them."""


@dataclass(frozen=True)
class Run:
    """A policy in a setting.

    Attributes
    ----------
    setting : Setting
    policy : Policy
        A dataclass of plain values, like all policies of bilinq.
    slots, replications, seed : int
    by_class : bool
        Whether the record also keeps the queue of every job class over time.
    """

    setting: Setting
    policy: Policy
    slots: int
    replications: int
    seed: int
    by_class: bool = False

    def __post_init__(self) -> None:
        count("slots", self.slots)
        count("replications", self.replications)
        count("seed", self.seed, least=0)

    @cached_property
    def key(self) -> str:
        """A hash of all that decides the result: these settings, bilinq's code, and NumPy's version."""
        text = to_json([spelled(self), code_digest(), version("numpy")])
        return hashlib.sha256(text.encode()).hexdigest()[:20]


def spelled(value: Any) -> Any:
    """Return `value` as lists, text and numbers that no different value shares, the kinds of objects included.

    Examples
    --------
    >>> from bilinq.simulation import Poisson
    >>> spelled((1.5, None, Poisson()))
    [1.5, None, ['Poisson']]
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [spelled(entry) for entry in value]
    if isinstance(value, Problem):
        return ["Problem", spelled(list(value.arguments().items()))]
    if is_dataclass(value):
        parts = [[field.name, spelled(getattr(value, field.name))] for field in fields(value)]
        return [type(value).__name__, *parts]
    raise TypeError(f"a run may hold dataclasses, arrays and plain values; got {type(value).__name__}")


@cache
def code_digest() -> str:
    """Return a hash of the source files that decide what a run gives: after an edit no old run is found."""
    digest = hashlib.sha256(version("bilinq").encode())
    for source in sorted(PACKAGE.rglob("*.py")):
        place = source.relative_to(PACKAGE)
        if place.parts[0] not in UNRELATED or place.parts[:2] == ("lab", "runs"):
            digest.update(place.as_posix().encode() + source.read_bytes())
    return digest.hexdigest()
