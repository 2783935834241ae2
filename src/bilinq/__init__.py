"""bilinq: a scheduler that learns which kind of job pays best on which kind of server while every queue stays short."""

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
from bilinq.simulation import Runs, simulate

__all__ = [
    "Allocation", "Assignment", "BadInput", "BilinqError", "Exact", "FirstCome", "FixedPoint", "Greedy", "JobClass",
    "KnownRewards", "MaxWeight", "NotSolved", "Oracle", "Policy", "Problem", "Random", "RewardRange", "Rounds", "Runs",
    "Sabr", "Scheduler", "ServerClass", "StaticSplit", "UgdaOl", "UnstableLoad", "allocate", "assign", "oracle",
    "simulate",
]  # fmt: skip
