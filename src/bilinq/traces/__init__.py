"""Traces: cluster-data-2019 and plain reward tables become a Problem with its arrivals."""

from bilinq.traces.digest import Digest
from bilinq.traces.reward_model import RewardTable, Scale
from bilinq.traces.rewards import gpu_table, reward_table
from bilinq.traces.shards import batches

__all__ = ["Digest", "RewardTable", "Scale", "batches", "gpu_table", "reward_table"]
