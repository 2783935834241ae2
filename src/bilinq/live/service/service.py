"""The service as the API sees it: one method for each thing that can be asked."""

from __future__ import annotations

from bilinq.live.keys import Identity
from bilinq.live.service import views
from bilinq.live.service.administration import Administration
from bilinq.live.service.core import Core
from bilinq.live.service.local_keys import LocalKeys
from bilinq.live.service.scrape import scrape
from bilinq.live.service.submissions import Submissions
from bilinq.live.service.workers import Labour
from bilinq.live.settings import Settings
from bilinq.live.store import Store
from bilinq.live.wire import messages as m


class Service:
    """A durable scheduler. It starts and stops the store that it is given."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.core = settings, Core(settings, store)
        self._submissions = Submissions(self.core)
        self._labour = Labour(self.core)
        self._administration = Administration(self.core)
        self.meters, self.identify_here = self.core.meters, LocalKeys(self.core).identify
        self.submit, self.job, self.jobs = self._submissions.submit, self._submissions.job, self._submissions.jobs
        self.cancel, self.retry = self._submissions.cancel, self._submissions.retry
        self.register, self.servers = self._labour.register, self._labour.servers
        self.unregister, self.lease, self.work = self._labour.unregister, self._labour.lease, self._labour.work
        self.finish, self.finish_one = self._labour.finish, self._labour.finish_one
        self.extend, self.fail = self._labour.extend, self._labour.fail
        self.classes, self.update_settings = self._administration.classes, self._administration.update_settings
        self.create_key, self.keys = self._administration.create_key, self._administration.keys
        self.revoke_key, self.identify = self._administration.revoke_key, self._administration.identify
        self.rotate_key = self._administration.rotate_key
        self.audit = self._administration.audit

    @property
    def ready(self) -> bool:
        """Whether requests are served."""
        return self.core.ready

    @property
    def healthy(self) -> bool:
        """Whether the process does its work."""
        return self.core.healthy

    @property
    def leader(self) -> str | None:
        """Address of the process that leads, where this one only follows; None where this one leads or nobody is known."""
        return self.core.leader if self.core.following else None

    @property
    def following(self) -> bool:
        """Whether another process leads, to which requests must go."""
        return self.core.following

    async def start(self, address: str | None = None) -> None:
        """Begin to lead, or to follow the process that leads; `address` is where others reach this one."""
        await self.core.start(address)

    async def stop(self) -> None:
        """End polls, finish writes, save what was learnt."""
        await self.core.stop()

    def drain(self) -> None:
        """End all calls that wait for work, so that connections can be closed."""
        self.core.end_polls()

    async def dead(self, who: Identity, after: str | None, limit: int) -> m.JobPage:
        """Return jobs that failed too often, newest first."""
        return await self.jobs(who, "dead", None, after, limit)

    async def put_job_class(self, who: Identity, one: m.JobClassInfo) -> None:
        """Add or change a job class."""
        await self._administration.put_class(who, one)

    async def put_server_class(self, who: Identity, one: m.ServerClassInfo) -> None:
        """Add or change a server class."""
        await self._administration.put_class(who, one)

    async def policy_settings(self) -> m.SettingsInfo:
        """Return the settings of the policy."""
        assert self.core.memory is not None
        return self.core.options.shown

    async def metrics(self) -> str:
        """Return the numbers of this process as Prometheus reads them."""
        return await scrape(self.core)

    async def state(self) -> m.State:
        """Return everything at a glance."""
        return views.state(self.core)
