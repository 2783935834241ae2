"""Scheduling policies: the abstract `Policy`, SABR and the policies that it is compared with."""

from bilinq.policies.allocators import Allocator, Demand, Exact
from bilinq.policies.baselines import CMu, FirstCome, Greedy, MaxWeight, Random, StaticSplit
from bilinq.policies.fair import FairPolicy, KnownRewards, Sabr, UgdaOl
from bilinq.policies.nodes import FixedPoint, Rounds
from bilinq.policies.policy import Policy

__all__ = [
    "Allocator", "CMu", "Demand", "Exact", "FairPolicy", "FirstCome", "FixedPoint", "Greedy", "KnownRewards", "MaxWeight",
    "Policy", "Random", "Rounds", "Sabr", "StaticSplit", "UgdaOl",
]  # fmt: skip
