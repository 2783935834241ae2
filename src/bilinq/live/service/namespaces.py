"""Settings of namespaces: weights and limits, and how much of them is in use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bilinq.errors import BadInput, Busy
from bilinq.live.keys import covers
from bilinq.live.metrics import Meters
from bilinq.live.service.outbox import to_text
from bilinq.live.service.tenants import NO_LIMITS, Books, in_use, takes_weights
from bilinq.live.store.admin_tables import add_audit
from bilinq.live.store.class_tables import put_namespace
from bilinq.live.wire.access import NamespaceInfo, Namespaces, NamespaceState

if TYPE_CHECKING:
    from bilinq.live.keys import Identity
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.slots import Slots
    from bilinq.live.store import Transaction
    from bilinq.live.store.job_tables import JobRow


class NamespaceSettings:
    """Returns and changes the settings of namespaces."""

    def __init__(self, replica: Replica, slots: Slots) -> None:
        self._replica, self._slots = replica, slots

    async def namespaces(self, who: Identity) -> Namespaces:
        """Return the namespaces that the caller sees, with their settings and what is in use."""
        memory = self._replica.memory
        names = sorted(in_use(memory.keys.values(), memory) if who.reach is None else who.reach)
        unused = Books("", Meters(), NO_LIMITS)
        served = {name for name in names if any(covers(serves, {name}) for serves in memory.servers.rights)}
        states = (
            _state(name, memory.limits.get(name, NO_LIMITS), memory.tenants.get(name, unused), name in served)
            for name in names
        )
        return Namespaces(list(states))

    async def put_namespace(self, who: Identity, one: NamespaceInfo) -> None:
        """Change the settings of a namespace; jobs that wait or run beyond a new limit stay."""
        memory = self._replica.memory
        if one.weight != 1.0 and not takes_weights(memory.scheduler):
            raise BadInput(f"weight must be 1 for policy {self._replica.settings.policy}; got {one.weight:g}")

        def store(tx: Transaction) -> None:
            put_namespace(tx, one)
            add_audit(tx, time.time(), who.prefix, "set", f"namespace {to_text(one)}", one.name)

        await self._replica.write(store)
        memory.set_limits(one)
        self._slots.hurry()

    def rate_of(self, namespace: str) -> float | None:
        """Return how many requests per second a namespace may send; None: any number."""
        limits = self._replica.memory.limits.get(namespace)
        return None if limits is None else limits.rate


def check_limits(books: Books, rows: Sequence[JobRow]) -> None:
    """Raise `Busy` unless a namespace has room for more jobs."""
    limits, name = books.limits, books.name
    if limits.backlog is not None and books.waiting + len(rows) > limits.backlog:
        room = max(limits.backlog - books.waiting, 0)
        raise Busy(f"namespace {name!r} has room for {room} more waiting jobs; got {len(rows)}", retry_after=1.0)
    if limits.payload_bytes is not None:
        size, room = sum(row.size for row in rows), max(limits.payload_bytes - books.bytes, 0)
        if size > room:
            raise Busy(f"namespace {name!r} has room for {room} more bytes of payload; got {size}", retry_after=1.0)


def _state(name: str, limits: NamespaceInfo, books: Books, served: bool) -> NamespaceState:
    return NamespaceState(
        name=name, weight=limits.weight, rate=limits.rate, backlog=limits.backlog,
        payload_bytes=limits.payload_bytes, running=limits.running, queued=books.waiting, queued_bytes=books.bytes,
        leased=books.running, dead=books.dead, served=served,
    )  # fmt: skip
