"""The nodes on Ray: shards of them are actors that exchange loads, prices and rates in messages, without a barrier."""

from bilinq.distributed.on_ray.run import Moment, RayRun, solve

__all__ = ["Moment", "RayRun", "solve"]
