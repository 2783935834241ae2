"""`bilinq.plugins.ray_serve` in Ray Serve's own RequestRouter, with replicas that exist only as objects."""

import asyncio
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from bilinq.errors import BadInput, BilinqError
from bilinq.plugins.request_queue import Counts

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Ray Serve uses a way of Pydantic that is deprecated
    from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
    from ray.serve.request_router import PendingRequest, ReplicaID

    from bilinq.plugins.ray_serve import BilinqRequestRouter, RewardLog


def length(request: Any) -> list[float]:
    """Return the only feature of a request: its first argument."""
    return [float(request.args[0])]


def wrong(request: Any) -> list[float]:
    raise ZeroDivisionError


def machine(replica: Any) -> str:
    return str(replica.node_id)


class Replica:
    """A replica as routers see it."""

    def __init__(self, name: str, node: str, places: int = 2) -> None:
        self.replica_id = ReplicaID(name, DeploymentID("model", "app"))
        self.node_id, self.max_ongoing_requests = node, places
        self.availability_zone, self.multiplexed_model_ids = None, set[str]()
        self.routing_stats: dict[str, Any] = {}
        self.ongoing = 0

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return self.ongoing


class Result:
    """The result of a request, which calls back when it is there."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def end(self, outcome: object) -> None:
        for callback in self.callbacks:
            callback(outcome)


class Routed(NamedTuple):
    request: Any
    replica: Any
    result: Result


class Serve:
    """What Ray Serve does with its request router, without processes."""

    def __init__(self, *replicas: Replica, **settings: Any) -> None:
        self.router = BilinqRequestRouter(
            DeploymentID("model", "app"), DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True
        )
        self.router.initialize_state(**settings)
        self.number = 0
        self.replicas: list[Any] = list(replicas)
        self.router.update_replicas(self.replicas)

    async def send(self, size: float = 1.0) -> Routed:
        self.number += 1
        metadata = RequestMetadata(request_id=f"public-{self.number}", internal_request_id=f"inside-{self.number}")
        request = PendingRequest(args=[size], kwargs={}, metadata=metadata)
        replica: Any = await self.router._choose_replica_for_request(request)
        replica.ongoing += 1
        assert replica.ongoing <= replica.max_ongoing_requests
        self.router.on_new_queue_len_info(replica.replica_id, replica.ongoing)
        result: Any = Result()
        self.router.on_request_routed(request, replica.replica_id, result)
        return Routed(request, replica, result)

    def end(self, routed: Routed, outcome: object = "answer") -> None:
        routed.replica.ongoing -= 1
        self.router.on_new_queue_len_info(routed.replica.replica_id, routed.replica.ongoing)
        routed.result.end(outcome)


def nodes(found: list[Routed]) -> Counter[str]:
    return Counter(one.replica.node_id for one in found)


def test_it_learns_from_the_rewards_that_replicas_report() -> None:
    """Two machines with two replicas each: what is learnt about a machine holds for both of its replicas."""

    async def run() -> tuple[Counter[str], BilinqRequestRouter]:
        replicas = [Replica(f"{node}{k}", node) for node in ("good", "bad") for k in range(2)]
        serve = Serve(*replicas, rewards=True, seed=1, patience=1.0)
        logs = {one.replica_id: RewardLog() for one in replicas}
        found = []
        for _ in range(60):
            routed = await serve.send()
            found.append(routed)
            serve.end(routed)
            quality = 0.9 if routed.replica.node_id == "good" else 0.2
            logs[routed.replica.replica_id].add(quality, routed.request.metadata.request_id)
            routed.replica.routing_stats = logs[routed.replica.replica_id].stats()
            serve.router.update_replicas(serve.replicas)
        return nodes(found[-20:]), serve.router

    last, router = asyncio.run(run())
    assert last["good"] >= 18
    assert router.counts.errors == router.counts.unknown == 0 and not router._sent


def test_it_learns_failures_without_rewards_and_features_are_used() -> None:
    async def run() -> tuple[Counter[str], Counts]:
        serve = Serve(Replica("a", "works"), Replica("b", "fails"), features="test_ray_serve:length", seed=2)
        found = []
        for k in range(40):
            routed = await serve.send(k % 3)
            found.append(routed)
            serve.end(routed, RuntimeError() if routed.replica.node_id == "fails" else "answer")
        return nodes(found[-20:]), serve.router.counts

    last, counts = asyncio.run(run())
    assert last["works"] >= 19 and counts.errors == 0


def test_no_replica_gets_more_than_it_takes_and_all_requests_end() -> None:
    """60 requests at once on two replicas with two places each."""

    async def run() -> BilinqRequestRouter:
        serve = Serve(Replica("a", "one"), Replica("b", "two"), kind="test_ray_serve:machine", patience=10.0)

        async def one() -> None:
            routed = await serve.send()
            await asyncio.sleep(0.001)
            serve.end(routed)

        await asyncio.gather(*(one() for _ in range(60)))
        return serve.router

    router = asyncio.run(run())
    assert not router._sent and router._queue.waiting == 0 and not router._queue._requests
    assert router.counts.scheduled >= 60


def test_a_request_goes_to_another_replica_if_the_chosen_one_is_full() -> None:
    """Another proxy has filled one replica; the router does not know yet, and Ray Serve takes its second choice."""

    async def run() -> tuple[Routed, BilinqRequestRouter]:
        full, free = Replica("full", "one"), Replica("free", "two", places=1)
        serve = Serve(full, free, patience=0.0)
        await asyncio.sleep(0)
        full.ongoing = 2
        routed = await serve.send()
        return routed, serve.router

    routed, router = asyncio.run(run())
    assert routed.replica.node_id == "two"
    [sent] = router._queue._requests.values()
    assert sent.server is not None and "free" in sent.server


def test_errors_of_functions_of_the_user_never_reach_a_request() -> None:
    async def run() -> BilinqRequestRouter:
        serve = Serve(Replica("a", "one"), features="test_ray_serve:wrong")
        serve.end(await serve.send())
        return serve.router

    assert asyncio.run(run()).counts.errors == 1


def test_replicas_that_are_gone_are_forgotten() -> None:
    async def run() -> Serve:
        serve = Serve(Replica("a", "one"), Replica("b", "two"), patience=0.0)
        serve.end(await serve.send())
        serve.replicas.pop(0)
        serve.router.update_replicas(serve.replicas)
        assert (await serve.send()).replica.node_id == "two"
        return serve

    assert len(asyncio.run(run()).router._queue._places) == 1


def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"^features must name a function as 'module:name'; got 'nothing'"):
        asyncio.run(_started(features="nothing"))
    with pytest.raises(BadInput, match=r"^quality must be from 0 to 1; got 2$"):
        RewardLog().add(2.0, "a")
    monkeypatch.delitem(sys.modules, "bilinq.plugins.ray_serve")
    monkeypatch.setitem(sys.modules, "ray.serve.request_router", None)
    with pytest.raises(BilinqError, match=r"^bilinq\[serve\] is not installed; run: pip install 'bilinq\[serve\]'$"):
        __import__("bilinq.plugins.ray_serve")


async def _started(**settings: Any) -> Serve:
    return Serve(**settings)
