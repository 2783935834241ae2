"""bilinq: a scheduler that learns which kind of job pays best on which kind of server while every queue stays short.

A public name is imported when it is first asked for, so that `bilinq --help` does not wait for NumPy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilinq import client as client
    from bilinq import distributed as distributed
    from bilinq import lab as lab
    from bilinq import theory as theory
    from bilinq import traces as traces
    from bilinq.allocation import Allocation, allocate
    from bilinq.assignment import assign
    from bilinq.errors import BadInput, BilinqError, NotSolved, UnstableLoad
    from bilinq.live.classes import JobClass, RewardRange, ServerClass
    from bilinq.live.scheduler import Assignment, Scheduler
    from bilinq.oracle import Oracle, oracle
    from bilinq.policies import (
        Exact,
        FirstCome,
        FixedPoint,
        Greedy,
        KnownRewards,
        MaxWeight,
        Policy,
        Random,
        Rounds,
        Sabr,
        StaticSplit,
        UgdaOl,
    )
    from bilinq.problem import Problem
    from bilinq.simulation.records import Runs
    from bilinq.simulation.simulate import simulate

__all__ = [
    "Allocation", "Assignment", "BadInput", "BilinqError", "Exact", "FirstCome", "FixedPoint", "Greedy", "JobClass",
    "KnownRewards", "MaxWeight", "NotSolved", "Oracle", "Policy", "Problem", "Random", "RewardRange", "Rounds", "Runs",
    "Sabr", "Scheduler", "ServerClass", "StaticSplit", "UgdaOl", "UnstableLoad", "allocate", "assign", "oracle",
    "simulate",
]  # fmt: skip

_HOMES = {
    "allocation": ("Allocation", "allocate"),
    "assignment": ("assign",),
    "errors": ("BadInput", "BilinqError", "NotSolved", "UnstableLoad"),
    "live.classes": ("JobClass", "RewardRange", "ServerClass"),
    "live.scheduler": ("Assignment", "Scheduler"),
    "oracle": ("Oracle", "oracle"),
    "policies": (
        "Exact", "FirstCome", "FixedPoint", "Greedy", "KnownRewards", "MaxWeight", "Policy", "Random", "Rounds", "Sabr",
        "StaticSplit", "UgdaOl",
    ),
    "problem": ("Problem",),
    "simulation": ("Runs", "simulate"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("client", "distributed", "lab", "theory", "traces")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"bilinq.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'bilinq' has no attribute {name!r}")
    value = getattr(import_module(f"bilinq.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


class _Package(ModuleType):
    """The package; importing its module `oracle` does not hide its function of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
