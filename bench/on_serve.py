"""A real Ray Serve application with bilinq's request router: `python -m bench.on_serve [REQUESTS]`.

It starts a private Ray and a deployment whose replicas differ: half of them give good answers. It prints which share of the
requests the good ones got in each fifth of the run, with bilinq's router and with that of Ray Serve.
"""

import logging
import sys
import time
from collections import deque
from importlib import import_module
from typing import Any

from bilinq.distributed.on_ray import cluster
from bilinq.plugins.ray_serve import BilinqRequestRouter, RewardLog

REPLICAS, PLACES, IN_FLIGHT, PARTS = 4, 2, 4, 5
STATS_SECONDS = 0.5  # how often Ray Serve asks replicas for their rewards


class Model:
    """A replica; those whose rank is even give good answers."""

    def __init__(self) -> None:
        context: Any = import_module("ray.serve").get_replica_context()
        self.good = int(getattr(context.rank, "rank", context.rank)) % 2 == 0
        self.rewards = RewardLog()

    def __call__(self, question: int) -> bool:
        time.sleep(0.02)
        self.rewards.add(0.9 if self.good else 0.3)
        return self.good

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the qualities of the last answers."""
        return self.rewards.stats()


def kind(replica: Any) -> str:
    """Return the name of a replica: here each is a kind of its own, since all are on one machine."""
    return str(replica.replica_id.to_full_id_str())


def shares(name: str, requests: int, router: dict[str, Any]) -> list[float]:
    """Return the share of good answers in each part of a run."""
    serve, settings = import_module("ray.serve"), import_module("ray.serve.config")
    config = settings.RequestRouterConfig(request_routing_stats_period_s=STATS_SECONDS, **router)
    model: Any = serve.deployment(
        num_replicas=REPLICAS,
        max_ongoing_requests=PLACES,
        ray_actor_options={"num_cpus": 0},
        request_router_config=config,
    )(Model)
    handle = serve.run(model.bind(), name=name, route_prefix=None)
    answers, flying = list[bool](), deque[Any]()
    for k in range(requests):
        flying.append(handle.remote(k))
        if len(flying) == IN_FLIGHT:
            answers.append(flying.popleft().result())
        if k % (requests // PARTS) == 0:
            print(f"{name}: {k} of {requests} requests sent", file=sys.stderr, flush=True)
    answers += [one.result() for one in flying]
    size = requests // PARTS
    return [sum(answers[k * size : (k + 1) * size]) / size for k in range(PARTS)]


def main(requests: int) -> None:
    """Run both routers on a private Ray."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    settings = {"rewards": True, "kind": "bench.on_serve:kind", "patience": 1.0, "seed": 1}
    with cluster.joined(cpus=4):
        serve = import_module("ray.serve")
        serve.start(proxy_location="Disabled")
        ours = shares(
            "bilinq", requests, {"request_router_class": BilinqRequestRouter, "request_router_kwargs": settings}
        )
        theirs = shares("usual", requests, {})
        serve.shutdown()
    print("good answers by part of the run")
    for name, found in (("bilinq", ours), ("Ray Serve's", theirs)):
        print(f"{name:12}" + "".join(f"{100 * one:6.0f} %" for one in found))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
