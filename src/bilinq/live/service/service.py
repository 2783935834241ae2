"""The service as the HTTP API sees it: one method for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bilinq.live.service import views
from bilinq.live.service.administration import Administration, LocalKeys
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


class Service:
    """A durable scheduler: the methods of its parts in one place. It starts and stops the store that it is given."""

    healthy = True
    """Whether the process works; as long as it can answer, it does."""

    def __init__(self, settings: ServiceSettings, store: Store) -> None:
        self.replica = Replica(settings, store)
        self.slots = Slots(self.replica)
        self.meters, self.drain = self.replica.meters, self.replica.end_polls
        leadership = Leadership(self.replica, self.slots, Recovery(self.replica))
        self.start, self.stop = leadership.start, leadership.stop
        jobs = Submissions(self.replica, self.slots)
        self.submit, self.cancel, self.retry = jobs.submit, jobs.cancel, jobs.retry
        self.job, self.jobs, self.dead = jobs.job, jobs.jobs, jobs.dead
        workers = Workers(self.replica, self.slots)
        self.register, self.servers, self.unregister = workers.register, workers.servers, workers.unregister
        self.lease, self.extend, self.work = workers.lease, workers.extend, workers.work
        self.finish, self.finish_one, self.fail = workers.finish, workers.finish_one, workers.fail
        admin = Administration(self.replica, self.slots)
        self.classes, self.put_job_class, self.put_server_class = admin.classes, admin.put_class, admin.put_class
        self.policy_settings, self.update_settings = admin.policy_settings, admin.update_settings
        self.create_key, self.keys, self.audit = admin.create_key, admin.keys, admin.audit
        self.revoke_key, self.rotate_key = admin.revoke_key, admin.rotate_key
        self.identify, self.identify_here = admin.identify, LocalKeys(self.replica).identify

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

    async def metrics(self) -> str:
        """Return the metrics of this process in the text format of Prometheus."""
        return await views.metrics_page(self.replica)

    async def state(self) -> m.State:
        """Return queues, servers, the last allocation, what was learnt, and counters."""
        return views.state(self.replica)
