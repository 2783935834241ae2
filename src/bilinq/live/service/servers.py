"""The servers in the leader's memory: by id and name, which of them wait for work, and in which call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from bilinq.live.keys import covers

if TYPE_CHECKING:
    from bilinq.live.service.entities import LiveJob, LiveServer, Poll
    from bilinq.scheduler.scheduler import Assignment, Scheduler


class Servers(Mapping[int, "LiveServer"]):
    """Servers by id. `registered` counts those of each class, and `rights` those that serve the same namespaces.

    `changes` is a number that rises with every server that is added or removed. Those that wait or have a lease are also
    kept by class and rights, so that one for a job is found without looking at all others.
    """

    def __init__(self) -> None:
        self.registered: Counter[str] = Counter()
        self.rights: Counter[frozenset[str] | None] = Counter()
        self.changes = 0
        self._servers: dict[int, LiveServer] = {}
        self._named: dict[tuple[str, str], int] = {}
        self._called: dict[str, LiveServer] = {}
        self._idle: dict[str, dict[int, None]] = {}
        self._there: dict[tuple[str, frozenset[str] | None], dict[int, LiveServer]] = {}
        self._calls: dict[Poll, Sequence[LiveServer]] = {}

    def __getitem__(self, id: int) -> LiveServer:
        return self._servers[id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    def enrol(self, server: LiveServer) -> None:
        """Add a server, in place of one with the same id."""
        id, row = server.row.id, server.row
        before = self._servers.get(id)
        if before is None:
            self.rights[server.serves] += 1
        else:
            self.registered[before.row.server_class] -= 1
        self.registered[row.server_class] += 1
        self.changes += 1
        self._servers[id] = self._called[f"s{id}"] = server
        if row.name is not None:
            self._named[row.owner, row.name] = id

    def dismiss(self, id: int) -> None:
        """Remove a server."""
        server = self._servers.pop(id)
        row = server.row
        self.rights -= Counter([server.serves])
        self.registered[row.server_class] -= 1
        self.changes += 1
        del self._called[f"s{id}"]
        if row.name is not None:
            del self._named[row.owner, row.name]

    def named(self, owner: str, name: str) -> LiveServer | None:
        """Return the server that a key has registered with a name, or None."""
        id = self._named.get((owner, name))
        return None if id is None else self._servers[id]

    def called(self, id: str) -> LiveServer | None:
        """Return the server with an id such as "s3", or None."""
        return self._called.get(id)

    def absent_since(self, wall: float) -> list[int]:
        """Return the servers that are offline and have sent nothing since a time."""
        return [id for id, server in self._servers.items() if server.state == "away" and server.seen < wall]

    def usable(self, job: LiveJob, scheduler: Scheduler, but: Collection[str] = ()) -> Iterator[int]:
        """Yield the servers that are there, not held or paused, and may serve a job, without some server classes."""
        eligible = job.options.servers
        for (name, serves), some in self._there.items():
            if name in but or (eligible is not None and name not in eligible) or scheduler.is_paused(name):
                continue
            if covers(serves, {job.books.name}):
                free = (id for id, server in some.items() if server.row.held is None)
                yield from (id for id in free if not scheduler.is_paused(name, id))

    def await_work(self, servers: Sequence[LiveServer], poll: Poll) -> None:
        """Let servers wait for work in a call, and no longer in another; those that were removed meanwhile are left out."""
        self._calls[poll] = servers
        for server in servers:
            id = server.row.id
            if self._servers.get(id) is server:
                server.poll = poll
                self._note(server)
                if server.row.held is None:
                    self._idle.setdefault(server.row.server_class, {})[id] = None

    def withdraw(self, poll: Poll) -> None:
        """Let no server wait in a call any more."""
        for server in self._calls.pop(poll, ()):
            if server.poll is poll:
                self.keep_back(server)

    def keep_back(self, server: LiveServer) -> None:
        """Let a server wait for work no more."""
        if server.poll is not None:
            server.poll = None
            self._note(server)
            self._idle.get(server.row.server_class, {}).pop(server.row.id, None)

    def set_lease(self, server: LiveServer, lease: int | None) -> None:
        """Note the lease of a server, or that it has none."""
        server.lease = lease
        self._note(server)

    def _note(self, server: LiveServer) -> None:
        """Keep or forget a server that may have come or gone."""
        group = self._there.setdefault((server.row.server_class, server.serves), {})
        if server.poll is None and server.lease is None:
            group.pop(server.row.id, None)
        else:
            group[server.row.id] = server

    def set_held(self, server: LiveServer, held: str | None) -> None:
        """Let an operator hold a server, which then gets no job, or release it."""
        server.row = server.row._replace(held=held)
        if server.poll is not None and held is None:
            self._idle.setdefault(server.row.server_class, {})[server.row.id] = None
        elif held is not None:
            self._idle.get(server.row.server_class, {}).pop(server.row.id, None)

    def idle(self) -> dict[str, list[int]]:
        """Return the servers that wait for work, by class."""
        return {name: list(some) for name, some in self._idle.items() if some}

    def anyone_idle(self) -> bool:
        """Tell whether a server waits for work."""
        return any(self._idle.values())

    def polls_of(self, tasks: Iterable[Assignment]) -> dict[int, Poll]:
        """Return the calls in which the servers of assignments wait, by server."""
        found = ((server, self._servers[server].poll) for server in (cast(int, task.server) for task in tasks))
        return {server: poll for server, poll in found if poll is not None}

    def polls(self) -> list[Poll]:
        """Return the calls that wait for work, oldest first."""
        return list(self._calls)
