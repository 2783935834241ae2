"""Scheduling policies: the abstract `Policy`, SABR and what it is compared with."""

from bilinq.policies.baselines import Greedy, MaxWeight, Random, StaticSplit
from bilinq.policies.fair import FairPolicy, KnownRewards, Sabr, UgdaOl
from bilinq.policies.policy import Policy

__all__ = ["FairPolicy", "Greedy", "KnownRewards", "MaxWeight", "Policy", "Random", "Sabr", "StaticSplit", "UgdaOl"]
