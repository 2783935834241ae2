"""The service as the HTTP API sees it: one method for each request, in the part that it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bilinq.live.service import views
from bilinq.live.service.administration import Administration
from bilinq.live.service.leadership import Leadership
from bilinq.live.service.recovery import Recovery
from bilinq.live.service.replica import Replica
from bilinq.live.service.slots import Slots
from bilinq.live.service.submissions import Submissions
from bilinq.live.service.workers import Workers

if TYPE_CHECKING:
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store import Store
    from bilinq.live.wire import messages as m


class Service(Submissions, Workers, Administration):
    """A durable scheduler. It starts and stops the store that it is given."""

    healthy = True
    """Whether the process works; as long as it can answer, it does."""

    def __init__(self, settings: ServiceSettings, store: Store) -> None:
        self.replica = Replica(settings, store)
        self.slots, self.meters = Slots(self.replica), self.replica.meters
        self._leadership = Leadership(self.replica, self.slots, Recovery(self.replica))
        for part in (Submissions, Workers, Administration):
            part.__init__(self, self.replica, self.slots)

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

    async def start(self, address: str | None = None) -> None:
        """Lead, or follow the process that leads; other processes reach this one at `address`."""
        await self._leadership.start(address)

    async def stop(self) -> None:
        """Finish writes, save what was learnt, and stop."""
        await self._leadership.stop()

    def drain(self) -> None:
        """End all calls that wait for work, so that connections can be closed."""
        self.replica.end_polls()

    async def metrics(self) -> str:
        """Return the metrics of this process in the text format of Prometheus."""
        return await views.metrics_page(self.replica)

    async def state(self) -> m.State:
        """Return queues, servers, the last allocation, what was learnt, and counters."""
        return views.state(self.replica)
