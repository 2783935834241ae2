"""A service in memory that keeps the promises clients rely on: keys, leases, fences, deadlines; and counts what is done."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from fake_service import NOW, FakeService

from bilinq.errors import BadInput, Busy, Conflict, NotFound, Refused, Stale
from bilinq.live.keys import Identity
from bilinq.live.wire import access
from bilinq.live.wire import messages as m


class PlainService(FakeService):
    """Jobs are leased in the order in which they came."""

    def __init__(self, lease_seconds: float = 30.0, backlog: int = 10_000, max_attempts: int = 3) -> None:
        super().__init__()
        self.max_attempts = max_attempts
        self.lease_seconds = lease_seconds
        self.backlog = backlog
        self.by_key: dict[str, tuple[str, str]] = {}
        self.active: dict[str, float] = {}
        self.ended: dict[str, str] = {}
        self.rewards: dict[str, float | None] = {}
        self.failed: list[tuple[str, str]] = []
        self.revoked: dict[str, access.KeyInfo] = {}
        self.extended = 0
        self.most_polls = 0

    def change(self, id: str, **values: Any) -> m.Job:
        self.all_jobs[id] = msgspec.structs.replace(self.all_jobs[id], **values)
        return self.all_jobs[id]

    def of_state(self, state: str) -> list[str]:
        return [id for id, job in list(self.all_jobs.items()) if job.state == state]

    def drain(self) -> None:
        for poll in list(self.polls):
            poll.cancel()

    def expire(self, now: bool = False) -> None:
        """End leases that are over their time, or all."""
        for lease, deadline in list(self.active.items()):
            if now or deadline < time.monotonic():
                self._end(lease, "expired")
                self._back(self.leases[lease].job.id, "expired")

    def _end(self, lease: str, how: str) -> None:
        del self.active[lease]
        self.ended[lease] = how

    def _back(self, id: str, error: str | None) -> m.Job:
        job = self.all_jobs[id]
        attempts = job.attempts + (error is not None)
        return self.change(
            id, state="dead" if attempts == self.max_attempts else "queued", attempts=attempts, error=error
        )

    async def submit(self, who: Identity, jobs: list[m.NewJob]) -> m.Submitted:
        if any(job.payload == "explode" for job in jobs):
            raise ZeroDivisionError
        if any(job.job_class not in self.job_classes for job in jobs):
            raise BadInput(f"class must be one of {list(self.job_classes)}")
        if len(self.of_state("queued")) + len(jobs) > self.backlog:
            raise Busy("the backlog is full", 1.0)
        return m.Submitted([self._submit(who, job) for job in jobs])

    def _submit(self, who: Identity, job: m.NewJob) -> m.JobRef:
        digest = json.dumps([job.job_class, job.payload, job.units])
        if job.key in self.by_key:
            id, known = self.by_key[job.key]
            if digest != known:
                raise Conflict(f"key {job.key!r} was used with another body")
            return m.JobRef(id, self.all_jobs[id].state)
        ref = super()._submit(who, job)
        if job.key is not None:
            self.by_key[job.key] = ref.id, digest
        return ref

    async def cancel(self, who: Identity, id: str) -> m.Job:
        if (await self.job(who, id)).state in ("done", "dead", "cancelled"):
            raise Conflict(f"job {id} has ended")
        return self.change(id, state="cancelled")

    async def revoke_key(self, who: Identity, prefix: str) -> access.KeyInfo:
        if prefix in self.revoked:
            raise Conflict(f"key {prefix} was revoked before")
        info = await super().revoke_key(who, prefix)
        self.revoked[prefix] = msgspec.structs.replace(info, revoked=NOW)
        return self.revoked[prefix]

    async def keys(self, who: Identity) -> access.Keys:
        return access.Keys((await super().keys(who)).keys + list(self.revoked.values()))

    async def register(self, who: Identity, new: m.NewServer) -> m.ServerInfo:
        known = [server for server in self.all_servers.values() if server.name == new.name]
        return known[0] if known and new.name else await super().register(who, new)

    async def unregister(self, who: Identity, id: str) -> None:
        await super().unregister(who, id)
        self._let_go([id])

    def _let_go(self, server_ids: Sequence[str]) -> None:
        """Fail what the servers hold: they ask for work, so they do not serve it."""
        for lease in [lease for lease in self.active if self.leases[lease].server in server_ids]:
            self._end(lease, "failed")
            self._back(self.leases[lease].job.id, "the server let it go")

    async def lease(self, who: Identity, server_ids: Sequence[str], wait: float) -> list[m.Lease]:
        end = time.monotonic() + wait
        poll = asyncio.get_running_loop().create_future()
        self.polls.add(poll)
        self.most_polls = max(self.most_polls, len(self.polls))
        self._let_go(server_ids)
        try:
            while True:
                found = self._find(server_ids)
                if found or time.monotonic() >= end or poll.cancelled():
                    return found
                await asyncio.sleep(0.004)
        finally:
            self.polls.discard(poll)

    def _find(self, server_ids: Sequence[str]) -> list[m.Lease]:
        """Return leases for some of the servers."""
        self.expire()
        if unknown := [id for id in server_ids if id not in self.all_servers]:
            raise NotFound(f"there is no server {unknown[0]!r}")
        return [self._grant(job, server) for job, server in zip(self.of_state("queued"), server_ids, strict=False)]

    def _grant(self, job: str, server: str) -> m.Lease:
        lease = msgspec.structs.replace(self._lease(self.all_jobs[job], server), seconds=self.lease_seconds)
        self.leases[lease.lease] = lease
        self.active[lease.lease] = time.monotonic() + self.lease_seconds
        self.change(job, state="leased")
        return lease

    def _held(self, lease: str, fence: int) -> m.Lease:
        self.expire()
        if lease not in self.leases:
            raise NotFound(f"there is no lease {lease!r}")
        if lease not in self.active or fence != self.leases[lease].fence:
            raise Stale(f"lease {lease} has ended")
        return self.leases[lease]

    async def extend(self, who: Identity, lease: str, body: m.Extend) -> m.Deadline:
        self._held(lease, body.fence)
        self.extended += 1
        self.active[lease] = time.monotonic() + self.lease_seconds
        return m.Deadline(time.time() + self.lease_seconds, self.lease_seconds)

    async def finish_one(self, who: Identity, end: m.WorkFinish) -> m.Finished:
        if end.lease in self.leases and self.ended.get(end.lease) == json.dumps(msgspec.to_builtins(end)):
            id = self.leases[end.lease].job.id
            return m.Finished(id, self.all_jobs[id].state, repeated=True)
        id = self._held(end.lease, end.fence).job.id
        if end.reward is not None and not 0.0 <= end.reward <= 1.0:
            raise BadInput(f"reward must be between 0 and 1; got {end.reward:g}")
        self._end(end.lease, json.dumps(msgspec.to_builtins(end)))
        if end.error is not None:
            self.failed.append((id, end.error))
            return m.Finished(id, self._back(id, end.error).state)
        assert end.lease not in self.rewards
        self.rewards[end.lease] = end.reward
        left = self.all_jobs[id].units_left - 1
        over = not left if end.done is None else end.done
        self.change(id, state="done" if over else "queued", units_left=left, reward=end.reward, result=end.result)
        return m.Finished(id, self.all_jobs[id].state)

    async def fail(self, who: Identity, lease: str, body: m.Fail) -> m.Finished:
        return await self.finish_one(who, m.WorkFinish(lease, body.fence, error=body.error))

    async def work(self, who: Identity, body: m.Work) -> m.Worked:
        outcomes = [await self._outcome(who, end) for end in body.finish]
        still = {self.leases[end.lease].server for end in body.finish if end.lease in self.active}
        free = [id for id in body.lease if id not in still]
        return m.Worked(outcomes, await self.lease(who, free, body.wait) if free else [])

    async def _outcome(self, who: Identity, end: m.WorkFinish) -> m.LeaseOutcome:
        try:
            ended = await self.finish_one(who, end)
        except (Refused, BadInput) as error:
            return m.LeaseOutcome(end.lease, refused=str(error))
        return m.LeaseOutcome(end.lease, ended.job, ended.state, ended.repeated)
