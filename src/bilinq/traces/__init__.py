"""Traces: cluster-data-2019 and plain reward tables become a Problem with its arrivals."""

from bilinq.traces.digest import Digest
from bilinq.traces.gpus import gpu_table
from bilinq.traces.rewards import RewardTable, Scale, reward_table
from bilinq.traces.shards import batches

__all__ = ["Digest", "RewardTable", "Scale", "batches", "gpu_table", "reward_table"]
