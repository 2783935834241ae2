"""Traces: cluster-data-2019, plain reward tables, and tables, speeds and requests of language models."""

from bilinq.traces.digest import Digest
from bilinq.traces.requests import RecordedRequests, load_azure_llm, load_mooncake
from bilinq.traces.reward_model import Earned, RewardTable, Scale
from bilinq.traces.rewards import gpu_table, reward_table
from bilinq.traces.routing_digest import TableDigest, digest_table
from bilinq.traces.routing_tables import RoutingTable, load_mmlu, load_paretobandit
from bilinq.traces.shards import batches
from bilinq.traces.speeds import Speeds, load_inference_bench, load_splitwise

__all__ = [
    "Digest", "Earned", "RecordedRequests", "RewardTable", "RoutingTable", "Scale", "Speeds", "TableDigest", "batches",
    "digest_table", "gpu_table", "load_azure_llm", "load_inference_bench", "load_mmlu", "load_mooncake",
    "load_paretobandit", "load_splitwise", "reward_table",
]  # fmt: skip
