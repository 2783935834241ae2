"""Jobs as workers see them: servers, leases, and how leases end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from bilinq.errors import BadInput, NoKey, NotAllowed, NotFound, Refused, Stale, Unavailable
from bilinq.live.keys import check_valid, covers
from bilinq.live.service.configuration import time_unit
from bilinq.live.service.entities import LiveLease, LiveServer, Poll, number
from bilinq.live.service.outbox import Changes, digest, to_text
from bilinq.live.store.admin_tables import add_audit
from bilinq.live.store.class_tables import ServerRow, put_server, remove_servers
from bilinq.live.store.job_tables import Extension, extend_leases, get_job, get_lease
from bilinq.live.wire import messages as m

if TYPE_CHECKING:
    from bilinq.live.keys import Identity
    from bilinq.live.service.memory import Memory
    from bilinq.live.service.replica import Replica
    from bilinq.live.service.slots import Slots
    from bilinq.live.store import Transaction


Held = Literal["draining", "quarantined"]


class Workers:
    """Registers servers, grants leases and ends them."""

    def __init__(self, replica: Replica, slots: Slots) -> None:
        self._replica, self._slots = replica, slots

    async def register(self, who: Identity, new: m.NewServer) -> m.ServerInfo:
        """Store a server; the same key and name return the same server."""
        memory, now = self._replica.memory, time.time()
        if ("server", new.server_class) not in memory.classes:
            known = ", ".join(sorted(key[1] for key in memory.classes if key[0] == "server")) or "none yet"
            raise NotFound(f"there is no server class {new.server_class!r}; known are {known}")
        same = memory.servers.named(who.prefix, new.name) if new.name else None
        if same is not None and same.row.server_class == new.server_class:
            await self._replica.write(lambda tx: None)  # wait until the first call is on disk
            return self._info(same)
        changes = Changes()
        if same is not None:
            self._stop_serving(same, "the server was registered again", changes)
        id = next(memory.ids.server) if same is None else same.row.id
        row = ServerRow(
            id=id, server_class=new.server_class, name=new.name, owner=who.prefix, registered=now, seen=now,
            held=None if same is None else same.row.held,
        )  # fmt: skip
        memory.servers.enrol(server := LiveServer(row, now, namespace=who.namespace, serves=who.reach))

        def store(tx: Transaction) -> None:
            changes.write(tx)
            put_server(tx, row)

        await self._replica.write(store)
        return self._info(server)

    async def servers(self, who: Identity) -> list[m.ServerInfo]:
        """Return the servers that the caller's key registered; with scope read, all that belong to its namespaces."""
        sees_all, known = who.may("read"), self._replica.memory.servers.values()
        return [
            self._info(server) for server in known
            if server.row.owner == who.prefix or (sees_all and who.sees(server.namespace))
        ]  # fmt: skip

    async def hold(self, who: Identity, id: str, held: Held | None) -> m.ServerInfo:
        """Hold a server, which finishes its job and then gets none, or release it; then a pause after failures ends too."""
        server, memory = self._server(who, id), self._replica.memory
        memory.servers.set_held(server, held)
        row, what = server.row, {"draining": "drain", "quarantined": "quarantine", None: "release"}[held]
        if held is None and memory.scheduler is not None:
            memory.scheduler.trust(row.server_class, row.id)

        def store(tx: Transaction) -> None:
            put_server(tx, row)
            add_audit(tx, time.time(), who.prefix, what, id, server.namespace)

        await self._replica.write(store)
        self._slots.hurry()
        return self._info(server)

    def _info(self, server: LiveServer) -> m.ServerInfo:
        """Return a server as the API shows it, with the reason why it gets no job."""
        row, scheduler = server.row, self._replica.memory.scheduler
        held, reason = row.held, None if row.held is None else "an operator holds it"
        paused = {} if scheduler is None else scheduler.paused
        for key, what in (
            ((row.server_class, None), "servers of its class fail"),
            ((row.server_class, row.id), "it fails"),
        ):
            if held is None and key in paused:
                left = paused[key] * time_unit(self._replica.settings)
                held, reason = "paused", f"{what} more often than others; the next trial is in {left:.3g} s"
        return m.ServerInfo(f"s{row.id}", row.server_class, row.name, server.state, server.seen, held, reason)  # type: ignore[arg-type]

    async def unregister(self, who: Identity, id: str) -> None:
        """Delete a server; its job returns to the queue. One that an operator holds is kept under its name."""
        server, changes = self._server(who, id), Changes()
        memory = self._replica.memory
        if server.lease is not None:
            memory.return_unused(memory.leases[server.lease], time.time(), changes)
        self._stop_serving(server, "the server was unregistered", changes)
        kept = server.row.held is not None and server.row.name is not None  # it may come back, and is still held then
        if not kept:
            memory.servers.dismiss(server.row.id)

        def store(tx: Transaction) -> None:
            changes.write(tx)
            if not kept:
                remove_servers(tx, server.row.id)

        await self._replica.write(store)
        self._slots.hurry()

    async def lease(self, who: Identity, ids: Sequence[str], wait: float) -> list[m.Lease]:
        """Return leases for some of the servers as soon as there are any, or none after `wait` seconds.

        A server that asks for work has none: a lease that it still has, because it crashed or the response was lost,
        counts as failed.
        """
        return await self._wait_for_work(who, self._servers(who, ids), wait, Changes())

    async def _wait_for_work(
        self, who: Identity, servers: Sequence[LiveServer], wait: float, changes: Changes
    ) -> list[m.Lease]:
        """Do the same and save `changes`; servers wait from the start, so that one commit may store both."""
        memory, poll, now = self._replica.memory, Poll(), time.time()
        for server in servers:
            if server.poll is not None or server.lease is not None:
                self._stop_serving(server, "the server asked for other work", changes)
            server.seen = now
        memory.servers.await_work(servers, poll)
        saved = self._replica.save(changes) if changes else None
        try:
            if wait:
                self._slots.hurry()
            else:
                self._slots.try_slot()
            if saved is not None:
                await saved
            await poll.wait(wait)
        except asyncio.CancelledError:
            poll.abandoned = True
            raise
        finally:
            memory.servers.withdraw(poll)
        await self._check_again(who, memory, poll)
        return poll.leases

    async def _check_again(self, who: Identity, memory: Memory, poll: Poll) -> None:
        """Raise if the key of a call was revoked or has expired while it waited; its leases return unused."""
        row, changes = memory.keys.get(who.prefix), Changes()
        if row is None:  # the command line
            return
        try:
            check_valid(row, time.time())
        except NoKey:
            for lease in poll.leases:
                if lease.fence in memory.leases and self._replica.uses(memory):
                    memory.return_unused(memory.leases[lease.fence], time.time(), changes)
            if changes:
                await self._replica.save(changes)
                self._slots.hurry()
            raise

    async def finish(self, who: Identity, ends: Sequence[m.WorkFinish]) -> list[m.LeaseOutcome]:
        """End leases; each is accepted or refused on its own."""
        changes = Changes()
        made = self._end_each(who, ends, changes)
        if changes:
            saved = self._replica.save(changes)
            self._slots.hurry()
            await saved
        return await self._complete(who, ends, made)

    async def finish_one(self, who: Identity, end: m.WorkFinish) -> m.Finished:
        """End a lease, or raise why that is refused."""
        changes = Changes()
        outcome = self._end(who, end, changes)
        if outcome is None:
            outcome = await self._ended(who, end)
            if outcome.refused is not None:
                raise Stale(outcome.refused)
        if changes:
            await self._replica.save(changes)
        self._slots.hurry()
        assert outcome.job is not None and outcome.state is not None
        return m.Finished(outcome.job, outcome.state, outcome.repeated)

    async def fail(self, who: Identity, lease: str, body: m.Fail) -> m.Finished:
        """End a lease as failed."""
        return await self.finish_one(who, m.WorkFinish(lease, body.fence, error=body.error))

    async def extend(self, who: Identity, lease: str, body: m.Extend) -> m.Deadline:
        """Let a lease last a full lease time from now."""
        found = self._lease(who, lease, body.fence)
        if found is None:
            raise Stale(f"lease {lease} has ended")
        seconds = self._replica.settings.lease
        until = time.time() + seconds
        self._replica.memory.extend(found, time.monotonic() + seconds)
        await self._replica.write(lambda tx: extend_leases(tx, [Extension(found.row.id, until)]))
        return m.Deadline(until, seconds)

    async def work(self, who: Identity, body: m.Work) -> m.Worked:
        """End leases and ask for others in one call; if a server is not known, nothing changes."""
        if not body.lease:
            return m.Worked(await self.finish(who, body.finish), [])
        servers, changes = self._servers(who, body.lease), Changes()
        made = self._end_each(who, body.finish, changes)
        if any(outcome is not None and outcome.refused is not None for outcome in made):  # its server stays busy
            leases = self._replica.memory.leases
            held = {leases[id].row.server for id in (number("l", end.lease) for end in body.finish) if id in leases}
            servers = [server for server in servers if server.row.id not in held]
        granted = await self._wait_for_work(who, servers, body.wait if servers else 0.0, changes)
        return m.Worked(await self._complete(who, body.finish, made), granted)

    def _end_each(self, who: Identity, ends: Sequence[m.WorkFinish], changes: Changes) -> list[m.LeaseOutcome | None]:
        """End active leases, each on its own, and collect the changes; None for those that are not active."""
        made = list[m.LeaseOutcome | None]()
        for end in ends:
            try:
                made.append(self._end(who, end, changes))
            except Unavailable:  # not a refusal of this lease
                raise
            except (Refused, BadInput) as error:
                made.append(m.LeaseOutcome(end.lease, refused=str(error)))
        return made

    async def _complete(
        self, who: Identity, ends: Sequence[m.WorkFinish], made: Sequence[m.LeaseOutcome | None]
    ) -> list[m.LeaseOutcome]:
        """Return the outcomes of all leases, also of those that are only in the database."""
        return [outcome or await self._ended(who, end) for outcome, end in zip(made, ends, strict=True)]

    def _end(self, who: Identity, end: m.WorkFinish, changes: Changes) -> m.LeaseOutcome | None:
        """End an active lease and collect the changes; return None if it is not active and only in the database."""
        lease = self._lease(who, end.lease, end.fence)
        if lease is None:
            return None
        memory, now = self._replica.memory, time.time()
        if end.error is not None:
            state = memory.fail(lease, "failed", end.error or "the worker failed", now, time.monotonic(), changes)
        else:
            result = None if end.result is None else to_text(end.result)
            clock = time.monotonic()
            state = memory.finish(lease, end.reward, end.done, result, _digest(end), now, clock, changes)
        return m.LeaseOutcome(end.lease, f"j{lease.row.job}", state)

    async def _ended(self, who: Identity, end: m.WorkFinish) -> m.LeaseOutcome:
        """Return the outcome of a lease that is not active: the same again if it was ended in the same way before."""
        known = self._replica.memory.servers

        def find(tx: Transaction) -> m.LeaseOutcome:
            id = number("l", end.lease)
            row = None if id is None else get_lease(tx, id)
            foreign = row is not None and row.server in known and not _may_use(who, known[row.server])
            job = None if row is None or foreign else get_job(tx, row.job)
            if row is None or row.id != end.fence or foreign or (job is not None and not who.sees(job.namespace)):
                return m.LeaseOutcome(end.lease, refused=f"there is no lease {end.lease} with fence {end.fence}")
            same = (
                row.digest == _digest(end)
                if row.state == "finished"
                else row.state == "failed" and end.error is not None
            )
            if same and job is not None:
                return m.LeaseOutcome(end.lease, f"j{row.job}", job.state, repeated=True)  # type: ignore[arg-type]
            detail = f": {row.detail}" if row.detail else ""
            return m.LeaseOutcome(end.lease, refused=f"lease {end.lease} has ended, it is {row.state}{detail}")

        return await self._replica.write(find)

    def _lease(self, who: Identity, lease: str, fence: int) -> LiveLease | None:
        """Return an active lease that `who` may end; None if it is not active."""
        memory, id = self._replica.memory, number("l", lease)
        if id is None:
            raise NotFound(f"there is no lease {lease!r}")
        found = memory.leases.get(id)
        if found is None:
            return None
        server = memory.servers[found.row.server]
        if not who.sees(server.namespace):
            raise NotFound(f"there is no lease {lease!r}")
        if not _may_use(who, server):
            raise NotAllowed(f"lease {lease} belongs to a server of another key")
        if fence != id:
            raise Stale(f"fence must be that of lease {lease}; got {fence}")
        server.seen = time.time()
        return found

    def _servers(self, who: Identity, ids: Sequence[str]) -> list[LiveServer]:
        return [self._server(who, id) for id in dict.fromkeys(ids)]

    def _server(self, who: Identity, id: str) -> LiveServer:
        server = self._replica.memory.servers.called(id)
        if server is None or not who.sees(server.namespace):
            raise NotFound(f"there is no server {id!r}; register it first")
        if not _may_use(who, server):
            raise NotAllowed(f"server {id} was registered by another key")
        return server

    def _stop_serving(self, server: LiveServer, why: str, changes: Changes) -> None:
        memory = self._replica.memory
        if server.poll is not None:
            poll = server.poll
            memory.servers.keep_back(server)
            poll.close()
        if server.lease is not None:
            memory.fail(memory.leases[server.lease], "failed", why, time.time(), time.monotonic(), changes)


def _may_use(who: Identity, server: LiveServer) -> bool:
    """Tell whether `who` may act for a server: with its key, or as an admin of all namespaces that it serves."""
    return server.row.owner == who.prefix or (who.may("admin") and covers(who.reach, server.serves))


def _digest(end: m.WorkFinish) -> str:
    return digest(end.reward, end.done, end.result)
