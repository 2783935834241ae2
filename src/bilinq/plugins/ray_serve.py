"""A request router for Ray Serve: `BilinqRequestRouter`, and `RewardLog` for deployments that know what an answer was worth.

Ray Serve asks for replicas and sends the request to one that has room; if none has, it asks again. The router answers with
the replica that the scheduler chose, and with the others that have room as a second choice. A request waits for a better
replica at most `patience` seconds; `request_queue` says why. Every handle and every proxy of an application has a router of
its own, which learns from the requests that it has sent; how busy a replica is, it learns from Ray Serve.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from importlib import import_module
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple

from bilinq.arrays import count, non_negative, scalar
from bilinq.errors import BadInput, NotInstalled
from bilinq.plugins.places import Server
from bilinq.plugins.request_queue import Counts, RequestQueue

try:
    from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
except ModuleNotFoundError:
    raise NotInstalled("bilinq[serve] is not installed; run: pip install 'bilinq[serve]'", name="ray") from None

STATS = "bilinq"  # the key of a replica's routing stats
MOST_SENT = 100_000  # requests whose end is awaited; further ones push out the oldest, which may have been cancelled


class _Sent(NamedTuple):
    """A request that has a replica: its number, the name of the replica, and when it was chosen."""

    request: int
    server: str
    since: float


class _Ended(NamedTuple):
    """A request that has ended: its number, what is subtracted from its quality, and the quality that is known."""

    request: int
    spent: float
    quality: float | None


class BilinqRequestRouter(RequestRouter):
    """Routes the requests of a deployment by bilinq's scheduler; `RequestRouterConfig` names it.

    Ray Serve passes `request_router_kwargs` to `initialize_state`, so they are plain values: functions are given as
    "package.module:name".
    """

    def initialize_state(
        self,
        *,
        features: str | None = None,
        kind: str | None = None,
        second: float = 0.01,
        rewards: bool = False,
        keep: int = 10_000,
        **settings: Any,
    ) -> None:
        """Prepare the router.

        Parameters
        ----------
        features : "module:function", optional
            Returns numbers that describe a request, given its `PendingRequest`, always as many.
        kind : "module:function", optional
            Returns a name for what a replica is, given the `RunningReplica`; replicas of a kind share what is learnt.
            Default: its node, so that machines are learnt.
        second : float
            Quality that a second is worth. The reward of an answer is quality - second * seconds.
        rewards : bool
            Whether replicas report qualities with a `RewardLog`; without it each answer has quality 1.
        keep : int
            How many answers can get a reward later.
        **settings
            Arguments of `RequestQueue` and `bilinq.Scheduler`: `patience`, `lifetime`, `target_wait`, `seed`.
        """
        self._make_features, self._kind = _named("features", features), _named("kind", kind) or _node
        self._second, self._rewards = scalar("second", second, non_negative), rewards
        self._keep = count("keep", keep, least=0)
        self._queue = RequestQueue(reward=(-1.0, 1.0), keep=keep, **settings)
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self._names: set[str] = set()
        self._guard = Lock()

    @property
    def counts(self) -> Counts:
        """How requests got their replicas."""
        return self._queue.counts

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica, and as a second choice the others that have room."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # if all are full, Ray Serve waits before it asks again
        key = pending_request.metadata.internal_request_id
        self._drop(key)  # it was chosen before, and the replica had no room
        found = {_name(one.replica_id): one for one in candidate_replicas}
        choice = await self._queue.wait(
            [self._server(one) for one in candidate_replicas], self._features(pending_request)
        )
        if choice.request is not None:
            with self._guard:
                self._sent[key] = _Sent(choice.request, choice.server, monotonic())
                while len(self._sent) > MOST_SENT:
                    self._sent.popitem(last=False)
        chosen = found[choice.server]
        return [[chosen], [one for one in self.select_available_replicas(candidate_replicas) if one is not chosen]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Note where a request is; its end is reported by the result."""
        key, name = pending_request.metadata.internal_request_id, _name(replica_id)
        with self._guard:
            sent = self._sent.get(key)
        if sent is None:
            return
        replica = self.curr_replicas.get(replica_id)
        if sent.server != name and replica is not None:
            self._queue.move(sent.request, self._server(replica))
        public = pending_request.metadata.request_id
        result.add_done_callback(lambda outcome: self._end(key, public, isinstance(outcome, Exception)))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Note the end of a request where replicas never refuse, and Ray Serve does not call `on_request_routed`."""
        if not self._use_replica_queue_len_cache:
            self._end(internal_request_id, internal_request_id, False)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that are there, and learn the rewards that they report."""
        super().update_replicas(replicas)
        names = {_name(one.replica_id) for one in replicas}
        for gone in self._names - names:
            self._queue.withdraw(gone)
        self._names = names
        for one in replicas:
            for request, quality in (one.routing_stats or {}).get(STATS, ()):
                self._reward(request, quality)

    def _server(self, replica: RunningReplica) -> Server:
        busy = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return Server(_name(replica.replica_id), str(self._kind(replica)), max(replica.max_ongoing_requests, 1), busy)

    def _features(self, request: PendingRequest) -> Sequence[float] | None:
        return None if self._make_features is None else self._queue.call("features", self._make_features, request)

    def _drop(self, key: str) -> None:
        with self._guard:
            sent = self._sent.pop(key, None)
        if sent is not None:
            self._queue.drop(sent.request)

    def _end(self, key: str, public: str, failed: bool) -> None:
        """Learn from a request that has ended; it may be called from a thread of Ray."""
        with self._guard:
            sent = self._sent.pop(key, None)
        if sent is None:
            return
        spent = self._second * (monotonic() - sent.since)
        self._queue.finish(sent.request, None if failed or self._rewards else 1.0 - spent, failed=failed)
        if self._rewards and not failed:
            with self._guard:
                self._ended[public] = _Ended(sent.request, spent, None)
                while len(self._ended) > self._keep:
                    self._ended.popitem(last=False)

    def _reward(self, public: str, quality: float) -> None:
        """Learn the quality of an answer, unless it is known already."""
        with self._guard:
            ended = self._ended.get(public)
            if ended is None or ended.quality == quality:
                return
            self._ended[public] = ended._replace(quality=quality)
        self._queue.reward(ended.request, quality - ended.spent)


class RewardLog:
    """The qualities of a replica's last answers, for its method `record_routing_stats`, which Ray Serve calls regularly.

    Routers need the setting `rewards`.
    """

    def __init__(self, keep: int = 1000) -> None:
        self._last: deque[tuple[str, float]] = deque(maxlen=count("keep", keep))

    def add(self, quality: float, request: str | None = None) -> None:
        """Note the quality of an answer, from 0 to 1; `request` is the id of Ray Serve, by default of the present one."""
        value = scalar("quality", quality)
        if not 0.0 <= value <= 1.0:
            raise BadInput(f"quality must be from 0 to 1; got {value:g}")
        if request is None:
            context: Any = import_module("ray.serve.context")
            request = str(context._get_serve_request_context().request_id)
        self._last.append((request, value))

    def stats(self) -> dict[str, list[tuple[str, float]]]:
        """Return what `record_routing_stats` should return."""
        return {STATS: list(self._last)}


def _name(replica: ReplicaID) -> str:
    return str(replica.to_full_id_str())


def _node(replica: RunningReplica) -> str:
    return replica.node_id or "node"


def _named(argument: str, path: str | None) -> Callable[[Any], Any] | None:
    """Return the function that "module:name" names, or None."""
    if path is None:
        return None
    module, _, name = path.partition(":")
    try:
        found: Callable[[Any], Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"{argument} must name a function as 'module:name'; got {path!r}, {error}") from None
    return found
