"""bilinq: a scheduler that learns which kind of job pays best on which kind of server while every queue stays short.

A public name is imported when it is first used, so that `bilinq --help` does not wait for NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilinq import client as client
    from bilinq import distributed as distributed
    from bilinq import lab as lab
    from bilinq import routing as routing
    from bilinq import theory as theory
    from bilinq import traces as traces
    from bilinq.allocation import Allocation, allocate
    from bilinq.assignment import assign
    from bilinq.errors import BadInput, BilinqError, NotSolved, UnstableLoad
    from bilinq.policies.allocators import Exact
    from bilinq.policies.baselines import FirstCome, Greedy, MaxWeight, Random, StaticSplit
    from bilinq.policies.fair import KnownRewards, Sabr, UgdaOl
    from bilinq.policies.nodes import FixedPoint, Rounds
    from bilinq.policies.policy import Policy
    from bilinq.problem import Problem
    from bilinq.problem.oracle import Oracle, oracle
    from bilinq.routing import Outage, Replay, Router, SchedulerRouter, Workload, replay
    from bilinq.routing.contest import contest
    from bilinq.routing.contest_result import Contest
    from bilinq.routing.evaluate import Estimate, evaluate
    from bilinq.scheduler import Assignment, JobClass, RewardRange, Scheduler, ServerClass
    from bilinq.simulation import Runs, simulate
    from bilinq.texts import text_features

__all__ = [
    "Allocation", "Assignment", "BadInput", "BilinqError", "Contest", "Estimate", "Exact", "FirstCome", "FixedPoint",
    "Greedy", "JobClass", "KnownRewards", "MaxWeight", "NotSolved", "Oracle", "Outage", "Policy", "Problem", "Random",
    "Replay", "RewardRange", "Rounds", "Router", "Runs", "Sabr", "Scheduler", "SchedulerRouter", "ServerClass",
    "StaticSplit", "UgdaOl", "UnstableLoad", "Workload", "allocate", "assign", "contest", "evaluate", "oracle", "replay",
    "simulate", "text_features",
]  # fmt: skip

_HOMES = {
    "allocation": ("Allocation", "allocate"),
    "assignment": ("assign",),
    "errors": ("BadInput", "BilinqError", "NotSolved", "UnstableLoad"),
    "policies": (
        "Exact", "FirstCome", "FixedPoint", "Greedy", "KnownRewards", "MaxWeight", "Policy", "Random", "Rounds", "Sabr",
        "StaticSplit", "UgdaOl",
    ),
    "problem": ("Problem",),
    "problem.oracle": ("Oracle", "oracle"),
    "routing": ("Outage", "Replay", "Router", "SchedulerRouter", "Workload", "replay"),
    "routing.contest": ("contest",),
    "routing.contest_result": ("Contest",),
    "routing.evaluate": ("Estimate", "evaluate"),
    "scheduler": ("Assignment", "JobClass", "RewardRange", "Scheduler", "ServerClass"),
    "simulation": ("Runs", "simulate"),
    "texts": ("text_features",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {name: name for name in ("client", "distributed", "lab", "routing", "theory", "traces")} | {
    "ray_cluster": "distributed.on_ray.cluster", "sweep": "experiments.sweep",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("bilinq")
    if name in _MODULES:
        return import_module(f"bilinq.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module 'bilinq' has no attribute {name!r}")
    value = getattr(import_module(f"bilinq.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
