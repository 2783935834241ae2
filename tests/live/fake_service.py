"""A minimal service in memory, without scheduler and database, against which the API is tested."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, Literal, cast

from msgspec import structs

from bilinq.errors import BadInput, Busy, Conflict, NoKey, NotFound, Stale
from bilinq.live.http.app import make_app
from bilinq.live.keys import Identity, check_scopes, hash_key, make_key, matches, prefix_of
from bilinq.live.metrics import Meters
from bilinq.live.service.bulk import JobFilter
from bilinq.live.service.ended import EndedFilter
from bilinq.live.settings import ServiceSettings
from bilinq.live.wire import access
from bilinq.live.wire import messages as m
from bilinq.live.wire import samples as w

NOW = 1_790_000_000.0
SETTINGS = m.SettingsInfo(target_wait=2.0, V=None, work_conserving=False, exploration="thompson")


class FakeService:
    """Jobs are leased in the order of submission."""

    def __init__(self) -> None:
        self.ready = self.healthy = True
        self.following = False
        self.leader: str | None = None
        self.secret: str | None = None
        self.known: dict[str, tuple[str, Identity]] = {}
        self.all_jobs: dict[str, m.Job] = {}
        self.all_servers: dict[str, m.ServerInfo] = {}
        self.leases: dict[str, m.Lease] = {}
        self.job_classes = {"short": m.JobClassInfo("short", [1.0, 0.2])}
        self.server_classes = {"gpu": m.ServerClassInfo("gpu", [0.3, 1.0])}
        self.polls: set[asyncio.Future[None]] = set()
        self.withdrawn = 0
        self.calls: list[tuple[str, Any]] = []
        self.meters = Meters()
        self.rates: dict[str, float] = {}

    def add_key(self, *scopes: str, namespace: str = "default") -> str:
        key = make_key()
        self.known[prefix_of(key)] = (hash_key(key), Identity(prefix_of(key), namespace, frozenset(scopes)))
        return key

    def identify(self, key: str) -> Identity:
        stored, who = self.known.get(prefix_of(key), ("", None))
        if who is None or not matches(key, stored):
            raise NoKey("the key is unknown, expired or revoked")
        return who

    async def identify_here(self, key: str) -> Identity:
        return self.identify(key)

    def view(self, who: Identity) -> frozenset[str] | None:
        return None

    def rate_of(self, namespace: str) -> float | None:
        return self.rates.get(namespace)

    async def namespaces(self, who: Identity) -> access.Namespaces:
        return access.Namespaces([])

    async def put_namespace(self, who: Identity, one: access.NamespaceInfo) -> None:
        self.calls.append(("put_namespace", one))

    async def metrics(self, who: Identity) -> str:
        return "bilinq_ready 1\n"

    def drain(self) -> None:
        for poll in self.polls:
            poll.cancel()

    async def submit(self, who: Identity, jobs: list[m.NewJob]) -> m.Submitted:
        for job in jobs:
            if job.job_class not in self.job_classes:
                raise NotFound(f"there is no job class {job.job_class!r}")
            if job.payload == "explode":
                raise ZeroDivisionError("a secret of the implementation")
            if job.payload == "full":
                raise Busy("class 'short' has 3 waiting jobs, as many as it may", 2.5)
        return m.Submitted([self._submit(who, job) for job in jobs])

    def _submit(self, who: Identity, job: m.NewJob) -> m.JobRef:
        id = f"j{len(self.all_jobs) + 1}"
        self.all_jobs[id] = m.Job(
            id=id, job_class=job.job_class, state="queued", namespace=who.namespace, key=job.key, units=job.units,
            units_left=job.units, attempts=0, submitted=NOW, started=None, ended=None, payload=job.payload, result=None,
            reward=None, error=None,
        )  # fmt: skip
        return m.JobRef(id, "queued")

    async def job(self, who: Identity, id: str) -> m.Job:
        job = self.all_jobs.get(id)
        if job is None or job.namespace != who.namespace:
            raise NotFound(f"there is no job {id!r}")
        return job

    async def jobs(
        self,
        who: Identity,
        state: str | None,
        job_class: str | None,
        after: str | None,
        limit: int,
        key: str | None = None,
        tag: str | None = None,
    ) -> m.JobPage:
        self.calls.append(("jobs", (state, job_class, after, limit, key, tag)))
        return m.JobPage([job for job in self.all_jobs.values() if job.namespace == who.namespace][:limit], None)

    async def cancel(self, who: Identity, id: str) -> m.Job:
        return await self.job(who, id)

    async def dead(self, who: Identity, after: str | None, limit: int) -> m.JobPage:
        return m.JobPage([], None)

    async def retry(self, who: Identity, id: str) -> m.Retried:
        raise Conflict(f"job {(await self.job(who, id)).id!r} is not dead")

    async def cancel_jobs(self, who: Identity, wanted: JobFilter) -> m.Changed:
        self.calls.append(("cancel_jobs", wanted))
        return m.Changed(0, None)

    async def retry_jobs(self, who: Identity, wanted: JobFilter) -> m.Changed:
        self.calls.append(("retry_jobs", wanted))
        return m.Changed(0, None)

    async def register(self, who: Identity, new: m.NewServer) -> m.ServerInfo:
        if new.server_class not in self.server_classes:
            raise NotFound(f"there is no server class {new.server_class!r}")
        server = m.ServerInfo(f"s{len(self.all_servers) + 1}", new.server_class, new.name, "idle", NOW)
        self.all_servers[server.id] = server
        return server

    async def servers(self, who: Identity) -> list[m.ServerInfo]:
        return list(self.all_servers.values())

    async def hold(self, who: Identity, id: str, held: Literal["draining", "quarantined"] | None) -> m.ServerInfo:
        if id not in self.all_servers:
            raise NotFound(f"there is no server {id!r}")
        self.all_servers[id] = structs.replace(self.all_servers[id], held=held)
        return self.all_servers[id]

    async def decision(self, who: Identity, id: str) -> m.DecisionInfo:
        job = await self.job(who, id)
        return m.DecisionInfo(job.id, job.job_class, None, None, None, None, [], "values as estimated")

    async def decisions(self, who: Identity, after: str | None, limit: int) -> str:
        self.calls.append(("decisions", (after, limit)))
        return ""

    async def reward(self, who: Identity, id: str, new: m.NewReward) -> m.Rewarded:
        self.calls.append(("reward", (id, new.reward, new.key)))
        return m.Rewarded((await self.job(who, id)).id, new.reward)

    async def unregister(self, who: Identity, id: str) -> None:
        if self.all_servers.pop(id, None) is None:
            raise NotFound(f"there is no server {id!r}")

    async def lease(self, who: Identity, server_ids: Sequence[str], wait: float) -> list[m.Lease]:
        for id in server_ids:
            if id not in self.all_servers:
                raise NotFound(f"there is no server {id!r}")
        waiting = [job for job in self.all_jobs.values() if job.state == "queued"]
        if wait and not waiting:
            await self._poll(wait)
        return [self._lease(job, server) for job, server in zip(waiting, server_ids, strict=False)]

    async def _poll(self, wait: float) -> None:
        poll = asyncio.get_running_loop().create_future()
        self.polls.add(poll)
        try:
            await asyncio.wait([poll], timeout=wait)
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        finally:
            self.polls.discard(poll)

    def _lease(self, job: m.Job, server: str) -> m.Lease:
        number = len(self.leases) + 1
        leased = m.LeasedJob(job.id, job.job_class, job.payload, job.units_left, job.attempts)
        lease = m.Lease(lease=f"l{number}", fence=number, server=server, deadline=NOW + 30.0, seconds=30.0, job=leased)
        self.leases[lease.lease] = lease
        return lease

    async def finish_one(self, who: Identity, end: m.WorkFinish) -> m.Finished:
        lease = self.leases.get(end.lease)
        if lease is None:
            raise NotFound(f"there is no lease {end.lease!r}")
        if end.fence != lease.fence:
            raise Stale(f"fence must be {lease.fence}, got {end.fence}")
        if end.reward is not None and not 0.0 <= end.reward <= 1.0:
            raise BadInput(f"reward must be between 0 and 1; got {end.reward:g}")
        self.calls.append(("finish", end))
        return m.Finished(lease.job.id, "done")

    async def extend(self, who: Identity, lease: str, body: m.Extend) -> m.Deadline:
        if lease not in self.leases:
            raise NotFound(f"there is no lease {lease!r}")
        return m.Deadline(NOW + 60.0, 30.0)

    async def fail(self, who: Identity, lease: str, body: m.Fail) -> m.Finished:
        return await self.finish_one(who, m.WorkFinish(lease, body.fence))

    async def work(self, who: Identity, body: m.Work) -> m.Worked:
        outcomes = [m.LeaseOutcome(end.lease, refused="there is no such lease") for end in body.finish]
        return m.Worked(outcomes, await self.lease(who, body.lease, body.wait) if body.lease else [])

    async def state(self, who: Identity) -> w.State:
        return w.State(
            now=NOW, slot=1, V=50.0, knobs=SETTINGS, job_classes=[], server_classes=[], expected=[], mean=[], width=[],
            counters={}, reward_total=0.0,
        )  # fmt: skip

    async def classes(self) -> m.Classes:
        return m.Classes(list(self.job_classes.values()), list(self.server_classes.values()))

    async def put_class(self, who: Identity, new: m.JobClassInfo | m.ServerClassInfo) -> None:
        if isinstance(new, m.JobClassInfo):
            self.job_classes[new.name] = new
        else:
            self.server_classes[new.name] = new

    async def policy_settings(self) -> m.SettingsInfo:
        return SETTINGS

    async def update_settings(self, who: Identity, body: m.SettingsUpdate) -> m.SettingsInfo:
        self.calls.append(("update_settings", body))
        return SETTINGS

    async def settings_history(self, limit: int) -> m.SettingsChanges:
        return m.SettingsChanges([])

    async def undo_settings(self, who: Identity, change: int | None) -> m.SettingsInfo:
        return SETTINGS

    async def create_key(self, who: Identity, new: access.NewKey) -> access.CreatedKey:
        key = self.add_key(*check_scopes(new.scopes), namespace=new.namespace)
        return access.CreatedKey(key, self._info(prefix_of(key)))

    async def keys(self, who: Identity) -> access.Keys:
        return access.Keys(list(map(self._info, self.known)))

    async def revoke_key(self, who: Identity, prefix: str) -> access.KeyInfo:
        if prefix not in self.known:
            raise NotFound(f"there is no key {prefix!r}")
        info = self._info(prefix)
        del self.known[prefix]
        return info

    async def rotate_key(self, who: Identity, prefix: str, rotate: access.Rotate) -> access.CreatedKey:
        old = await self.revoke_key(who, prefix)
        return await self.create_key(who, access.NewKey(cast(Any, old.scopes), old.name, old.namespace))

    def _info(self, prefix: str) -> access.KeyInfo:
        who = self.known[prefix][1]
        return access.KeyInfo(
            prefix=prefix, name="", namespace=who.namespace, scopes=sorted(who.scopes), created=NOW, expires=None,
            revoked=None,
        )  # fmt: skip

    async def audit(self, who: Identity, limit: int) -> access.Audit:
        return access.Audit([])


class FakeWatch:
    """A watch that records one event and nothing more."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, int | None]] = []
        self.wanted: list[tuple[EndedFilter, str | None]] = []
        self.part = b"event: layout\ndata: {}\n\n"

    def history(self, view: frozenset[str] | None, after: str | None, limit: int | None) -> w.History:
        self.asked.append((after, limit))
        layout = w.Layout(
            version=1, job_classes=[], server_classes=[], target_wait=None, reward_low=0.0, reward_high=1.0
        )
        return w.History(layout, [], 1.0)

    def leases(self, view: frozenset[str] | None, limit: int) -> w.Leases:
        return w.Leases([])

    async def events(
        self, view: frozenset[str] | None, after: str | None, limit: int | None
    ) -> AsyncGenerator[bytes, None]:
        self.asked.append((after, limit))
        yield self.part

    async def ended(self, wanted: EndedFilter, after: str | None) -> AsyncGenerator[bytes, None]:
        self.wanted.append((wanted, after))
        yield b'id: e7\nevent: position\ndata: {"after":"e7"}\n\n'

    async def preview(self, view: frozenset[str] | None, update: m.SettingsUpdate) -> w.Prediction:
        return w.Prediction(V_now=None, V_then=None, job_classes=[], reward_now=None, reward_then=None, note="nothing")

    async def until_drained(self, work: Coroutine[Any, Any, None]) -> None:
        await work


def make_fake(watch: FakeWatch | None = None, **settings: Any) -> tuple[Any, FakeService]:
    """Return the application on a fake service, and the service."""
    service = FakeService()
    return make_app(cast(Any, service), cast(Any, watch or FakeWatch()), ServiceSettings(**settings)), service
