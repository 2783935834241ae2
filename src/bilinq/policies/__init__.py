"""Scheduling policies: the abstract `Policy`, SABR and what it is compared with."""

from bilinq.policies.baselines import FirstCome, Greedy, MaxWeight, Random, StaticSplit
from bilinq.policies.fair import FairPolicy, KnownRewards, Sabr, UgdaOl
from bilinq.policies.policy import Policy

__all__ = [
    "FairPolicy", "FirstCome", "Greedy", "KnownRewards", "MaxWeight", "Policy", "Random", "Sabr", "StaticSplit",
    "UgdaOl",
]  # fmt: skip
