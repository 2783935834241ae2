"""The machines of the service: each starts it on what is left of its files, again whenever it has ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import Any

from learnt import observed

from bilinq.errors import Unavailable
from bilinq.live.http.app import make_app
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Store, open_store
from bilinq.live.watch import Watcher
from bilinq.live.wire.access import NewKey
from simulator.actors import HOST
from simulator.cluster import Database, SharedStore
from simulator.disk import Disk
from simulator.history import History
from simulator.network import Network
from simulator.world import EPOCH, Process, World

DATABASE = "live.db"
RESTART = 1.0  # seconds until a service that could not start is started again
CLOCK = 1e-5  # seconds to which a wall clock is precise
Files = dict[str, bytes]


class Storage(ABC):
    """Where a service keeps its rows."""

    disk: Disk

    @abstractmethod
    def start(self, left: Files) -> str:
        """Prepare the start of a process after one that has left some files; return the URL of its database."""

    @abstractmethod
    def open(self, url: str) -> Store:
        """Return the store of a process."""


class OwnDisk(Storage):
    """A file of SQLite on the machine of the service."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def start(self, left: Files) -> str:
        return f"sqlite:///{self.disk.next_folder(left)}/{DATABASE}"

    def open(self, url: str) -> Store:
        return open_store(url)


class SharedDatabase(Storage):
    """A database on another machine, which several processes share; it survives them."""

    def __init__(self, world: World, disk: Disk) -> None:
        self.disk = disk
        path = disk.next_folder({DATABASE: b""}) / DATABASE
        self.database = Database(world, path)

    def start(self, left: Files) -> str:
        return f"sqlite:///{self.database.path}"

    def open(self, url: str) -> Store:
        return SharedStore(self.database)


class Host:
    """A machine and its process of the service. `leads` tells whether that serves requests itself.

    `jumps` are the times at which its wall clock was set, with what it differs by since then.
    """

    def __init__(
        self, world: World, network: Network, history: History, storage: Storage, settings: dict[str, Any], name: str
    ) -> None:
        self.world, self.network, self.history, self.storage = world, network, history, storage
        self.settings, self.name = settings, name
        self.process: Process | None = None
        self.service: Service | None = None
        self.started, self.jumps = 0.0, [(0.0, 0.0)]

    @property
    def leads(self) -> bool:
        """Whether the service is ready."""
        return self.service is not None and self.service.ready

    @property
    def follows(self) -> bool:
        """Whether the service waits for the lead, and all its threads run."""
        if self.process is None or self.service is None or not self.process.alive or not self.service.following:
            return False
        return max(self.process.frozen, *(thread.frozen for thread in self.process.threads)) < self.world.now

    @property
    def busy(self) -> bool:
        """Whether jobs wait or run, as far as is known."""
        return self.service is None or not self.leads or bool(self.service.replica.memory.jobs)

    def set_clock(self, jump: float) -> None:
        """Let the wall clock jump, also for the next processes."""
        self.jumps.append((self.world.now, self.jumps[-1][1] + jump))
        if self.process is not None:
            self.process.jump = self.jumps[-1][1]

    def times(self, wall: float) -> list[float]:
        """Return the times at which the wall clock showed something: several if it was set back, none if never."""
        ends = [at for at, _ in self.jumps[1:]] + [inf]
        shown = [(wall - EPOCH - jump, at, end) for (at, jump), end in zip(self.jumps, ends, strict=True)]
        return [time for time, at, end in shown if at - CLOCK <= time <= end + CLOCK]

    def learnt(self) -> Any:
        """Return what the service has learnt, None if it is not ready."""
        return observed(self.service.replica.memory.scheduler) if self.service is not None and self.leads else None

    async def make_key(self) -> str:
        """Return a new key for everything; call it in the process."""
        assert self.service is not None
        return (await self.service.create_key(LOCAL, NewKey(["fleet"]))).key

    def start(self, left: Files) -> None:
        """Start the service on the files that are left."""
        settings = ServiceSettings(database=self.storage.start(left), **self.settings)
        self.process, self.started = Process(self.world, self.name), self.world.now
        self.process.jump = self.jumps[-1][1]
        self.history.note(self.name, "starts")
        self.process.spawn(self._serve(self.process, settings))

    async def _serve(self, process: Process, settings: ServiceSettings) -> None:
        store = self.storage.open(settings.database)
        process.on_kill.append(store._release)
        self.service = Service(settings, store)
        app = make_app(self.service, Watcher(self.service.replica), settings)
        own = f"{self.name}.internal"  # where the other process reaches it; clients reach either at one address
        self.network.listen(process, [HOST, own], app)
        try:
            await self.service.start(f"http://{own}")
        except Exception as error:
            self.history.note(self.name, f"cannot start: {error}")
            if not isinstance(error, Unavailable):
                process.report(f"it does not start: {type(error).__name__}: {error}")
            self.world.at(self.world.now, lambda: self.crash(self.storage.disk.left(1.0), RESTART))

    def crash(self, left: Files | None, down: float) -> None:
        """End the process now, and start it after some seconds on the files that are left."""
        if self.process is None or not self.process.alive or left is None:
            return
        self.history.note(self.name, "ends")
        self.process.kill()
        self.service = None
        self.world.at(self.world.now + down, lambda: self.start(left))

    def stop(self, longest: float, down: float) -> None:
        """Let the service stop in order, or kill it after `longest` seconds; start it again after some more."""
        process, service = self.process, self.service
        if process is None or not process.alive or service is None:
            return

        def crash() -> None:
            if process is self.process:
                self.crash(self.storage.disk.left(1.0), down)

        async def stop() -> None:
            self.network.unlisten(process)
            await service.stop()
            self.history.note(self.name, "has stopped")
            self.world.at(self.world.now, crash)

        process.spawn(stop())
        self.world.at(self.world.now + longest, crash)
