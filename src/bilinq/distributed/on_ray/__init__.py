"""The nodes on Ray: shards of them are actors that exchange loads, prices and rates in messages, without a barrier."""

from bilinq.distributed.on_ray.cluster import joined
from bilinq.distributed.on_ray.run import RayRun, RunProgress, solve

__all__ = ["RayRun", "RunProgress", "joined", "solve"]
