"""The service as the HTTP API sees it: one method for each request, in the part that it concerns."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from bilinq.errors import Unavailable
from bilinq.live.keys import LOCAL, identify
from bilinq.live.service import views
from bilinq.live.service.bulk import BulkChanges
from bilinq.live.service.decisions import Decisions
from bilinq.live.service.inbox import Inbox
from bilinq.live.service.leadership import Leadership
from bilinq.live.service.namespaces import NamespaceSettings
from bilinq.live.service.recovery import Recovery
from bilinq.live.service.replica import Replica
from bilinq.live.service.settings_history import SettingsHistory
from bilinq.live.service.slots import Slots
from bilinq.live.service.tenants import view_of
from bilinq.live.service.workers import Workers
from bilinq.live.store.admin_tables import all_keys

if TYPE_CHECKING:
    from bilinq.live.keys import Identity
    from bilinq.live.service.tenants import View
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store import Store
    from bilinq.live.store.admin_tables import KeyRow
    from bilinq.live.wire.samples import State

FRESH = 5.0  # seconds after which a process that does not lead reads the keys again


class Service(Decisions, BulkChanges, Workers, SettingsHistory, NamespaceSettings):
    """A durable scheduler. It starts and stops the store that it is given."""

    healthy = True
    """Whether the process works; as long as it can answer, it does."""

    def __init__(self, settings: ServiceSettings, store: Store) -> None:
        self.replica = Replica(settings, store)
        self.slots, self.meters = Slots(self.replica), self.replica.meters
        self._leadership = Leadership(self.replica, self.slots, Recovery(self.replica), Inbox(self.replica, self))
        for part in (Decisions, BulkChanges, Workers, SettingsHistory, NamespaceSettings):
            part.__init__(self, self.replica, self.slots)
        self._kept: dict[str, KeyRow] | None = None
        self._read = float("-inf")

    @property
    def ready(self) -> bool:
        """Whether requests are served."""
        return self.replica.ready

    @property
    def following(self) -> bool:
        """Whether another process leads, to which requests must go."""
        return self.replica.following

    @property
    def leader(self) -> str | None:
        """Address of the leader where this process follows; None where this one leads or no leader is known."""
        return self.replica.leader if self.replica.following else None

    @property
    def secret(self) -> str | None:
        """What processes of this service send to the leader with requests that they forward; None if it is not known."""
        return self.replica.secret

    async def start(self, address: str | None = None) -> None:
        """Lead, or follow the process that leads; other processes reach this one at `address`."""
        await self._leadership.start(address)

    async def stop(self) -> None:
        """Finish writes, save what was learnt, and stop."""
        await self._leadership.stop()

    def drain(self) -> None:
        """End all calls that wait for work, so that connections can be closed."""
        self.replica.end_polls()

    def identify(self, key: str) -> Identity:
        """Return who has a key, or raise `NoKey`."""
        return identify(self.replica.memory.keys, key, time.time())

    async def identify_here(self, key: str) -> Identity:
        """Return the same also while this process does not lead, by keys that are read at most every few seconds."""
        if self.replica.ready:
            self._kept = self.replica.memory.keys
        elif self._kept is None or time.monotonic() > self._read + FRESH:
            self._kept, self._read = self._kept or self.replica.last_keys, time.monotonic()
            with contextlib.nullcontext() if self._kept is None else contextlib.suppress(Unavailable):
                rows = await self.replica.store.read(all_keys)
                self._kept = {row.prefix: row for row in rows}
        assert self._kept is not None
        return identify(self._kept, key, time.time())

    def view(self, who: Identity) -> View:
        """Return the namespaces that a caller sees; None if these are all that are in use."""
        if self.replica.ready:
            return view_of(who, self.replica.memory.keys.values(), self.replica.memory)
        return view_of(who, (self._kept or {}).values(), None)

    async def metrics(self, who: Identity = LOCAL) -> str:
        """Return the metrics of this process in the text format of Prometheus; a page that is open shows everything."""
        return await views.metrics_page(self.replica, self.view(who) if who.prefix else None)

    async def state(self, who: Identity = LOCAL) -> State:
        """Return queues, servers, the last allocation, what was learnt, and counters."""
        return views.state(self.replica, self.view(who))
