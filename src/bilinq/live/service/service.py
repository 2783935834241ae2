"""The service as the HTTP API sees it: one method for each request."""

from __future__ import annotations

from collections.abc import Sequence
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
    from bilinq.live.keys import Identity
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.store import Store
    from bilinq.live.wire import messages as m


class Service:
    """A durable scheduler. It starts and stops the store that it is given."""

    healthy = True
    """Whether the process works; as long as it can answer, it does."""

    def __init__(self, settings: ServiceSettings, store: Store) -> None:
        self.replica = Replica(settings, store)
        self.slots = Slots(self.replica)
        self.meters = self.replica.meters
        self._leadership = Leadership(self.replica, self.slots, Recovery(self.replica))
        self._submissions = Submissions(self.replica, self.slots)
        self._workers = Workers(self.replica, self.slots)
        self._administration = Administration(self.replica, self.slots)
        self._local_keys = LocalKeys(self.replica)

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
        """Lead, or follow the process that leads; `address` is where others reach this one."""
        await self._leadership.start(address)

    async def stop(self) -> None:
        """End polls, finish writes, save what was learnt."""
        await self._leadership.stop()

    def drain(self) -> None:
        """End all calls that wait for work, so that connections can be closed."""
        self.replica.end_polls()

    # Jobs

    async def submit(self, who: Identity, new: Sequence[m.NewJob]) -> m.Submitted:
        """Store jobs, all or none; a key that was used before returns the job submitted with it."""
        return await self._submissions.submit(who, new)

    async def job(self, who: Identity, id: str) -> m.Job:
        """Return a job with its history."""
        return await self._submissions.job(who, id)

    async def jobs(
        self, who: Identity, state: str | None, job_class: str | None, after: str | None, limit: int,
        key: str | None = None,
    ) -> m.JobPage:  # fmt: skip
        """Return the matching jobs of a namespace, newest first; an admin sees those of all namespaces."""
        return await self._submissions.jobs(who, state, job_class, after, limit, key)

    async def cancel(self, who: Identity, id: str) -> m.Job:
        """Cancel a job that has not ended."""
        return await self._submissions.cancel(who, id)

    async def dead(self, who: Identity, after: str | None, limit: int) -> m.JobPage:
        """Return jobs that failed too often, newest first."""
        return await self._submissions.jobs(who, "dead", None, after, limit)

    async def retry(self, who: Identity, id: str) -> m.Retried:
        """Queue a dead job again, with all its attempts."""
        return await self._submissions.retry(who, id)

    # Workers

    async def register(self, who: Identity, new: m.NewServer) -> m.ServerInfo:
        """Store a server; the same key and name return the same server."""
        return await self._workers.register(who, new)

    async def servers(self, who: Identity) -> list[m.ServerInfo]:
        """Return all servers."""
        return await self._workers.servers(who)

    async def unregister(self, who: Identity, id: str) -> None:
        """Delete a server; its job returns to the queue."""
        await self._workers.unregister(who, id)

    async def lease(self, who: Identity, ids: Sequence[str], wait: float) -> list[m.Lease]:
        """Return leases for some of the servers as soon as there are any, or none after `wait` seconds."""
        return await self._workers.lease(who, ids, wait)

    async def work(self, who: Identity, body: m.Work) -> m.Worked:
        """End leases and ask for others in one call."""
        return await self._workers.work(who, body)

    async def finish(self, who: Identity, ends: Sequence[m.WorkFinish]) -> list[m.LeaseOutcome]:
        """End leases; each is accepted or refused on its own."""
        return await self._workers.finish(who, ends)

    async def finish_one(self, who: Identity, end: m.WorkFinish) -> m.Finished:
        """End a lease, or raise why that is refused."""
        return await self._workers.finish_one(who, end)

    async def extend(self, who: Identity, lease: str, body: m.Extend) -> m.Deadline:
        """Let a lease last a full lease time from now."""
        return await self._workers.extend(who, lease, body)

    async def fail(self, who: Identity, lease: str, body: m.Fail) -> m.Finished:
        """End a lease as failed."""
        return await self._workers.fail(who, lease, body)

    # Administration

    async def classes(self) -> m.Classes:
        """Return the current classes."""
        return await self._administration.classes()

    async def put_job_class(self, who: Identity, one: m.JobClassInfo) -> None:
        """Add or change a job class."""
        await self._administration.put_class(who, one)

    async def put_server_class(self, who: Identity, one: m.ServerClassInfo) -> None:
        """Add or change a server class."""
        await self._administration.put_class(who, one)

    async def policy_settings(self) -> m.SettingsInfo:
        """Return the settings of the policy."""
        return await self._administration.policy_settings()

    async def update_settings(self, who: Identity, update: m.SettingsUpdate) -> m.SettingsInfo:
        """Change settings of the policy and weights of classes, all or none."""
        return await self._administration.update_settings(who, update)

    async def create_key(self, who: Identity, new: m.NewKey) -> m.CreatedKey:
        """Create a key, of which only a hash is stored."""
        return await self._administration.create_key(who, new)

    async def keys(self, who: Identity) -> m.Keys:
        """Return what is stored of all keys."""
        return await self._administration.keys(who)

    async def revoke_key(self, who: Identity, prefix: str) -> m.KeyInfo:
        """Revoke a key at once; one that was revoked before stays as it is."""
        return await self._administration.revoke_key(who, prefix)

    async def rotate_key(self, who: Identity, prefix: str, rotate: m.Rotate) -> m.CreatedKey:
        """Create a key in the place of another one, which stays valid for a while."""
        return await self._administration.rotate_key(who, prefix, rotate)

    def identify(self, key: str) -> Identity:
        """Return who has a key, or raise `NoKey`."""
        return self._administration.identify(key)

    async def identify_here(self, key: str) -> Identity:
        """Return who has a key by what this process knows, also while it does not lead; raise `NoKey` otherwise."""
        return await self._local_keys.identify(key)

    async def audit(self, who: Identity, limit: int) -> m.Audit:
        """Return admin actions, newest first."""
        return await self._administration.audit(who, limit)

    # Monitoring

    async def metrics(self) -> str:
        """Return the metrics of this process in the text format of Prometheus."""
        return await views.metrics_page(self.replica)

    async def state(self) -> m.State:
        """Return queues, servers, the last allocation, what was learnt, and counters."""
        return views.state(self.replica)
