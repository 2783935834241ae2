"""One simulation from a seed: a service, its clients and workers, faults, calm, and the check of everything at the end."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from crash_audit import read
from learnt import agree, from_log, observed
from msgspec import structs

from bilinq.live.http.app import Forward
from bilinq.live.service import configuration, leadership
from bilinq.live.settings import ServiceSettings
from bilinq.live.store.sqlite import SqliteConnection
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo
from simulator.acknowledged import Stored, stored
from simulator.actors import HOST, JOBS, OTHER, SERVERS, Crowd, agent, operator, submitter, worker
from simulator.checker import Evidence, violations
from simulator.disk import Disk, connector
from simulator.faults import Fault, Faults, draw_faults
from simulator.history import Errors, History
from simulator.host import DATABASE, Host, OwnDisk, SharedDatabase
from simulator.network import Network
from simulator.stand_ins import simulated
from simulator.world import World

FEATURES = ([1.0, 0.2], [0.3, 1.0])
MEMORY = Path("/dev/shm")  # files there need no disk
LAST_JOBS = 10.0  # seconds after the last fault until which jobs are submitted
DURATION = 600.0  # seconds in which there are faults
PACES = (5.0, 10.0, 20.0)  # mean seconds between two submissions of a client
SHARED = 0.15  # part of the seeds in which two processes share a database
BOUND = 300.0  # seconds after the last fault in which all jobs must end


def is_shared(seed: int) -> bool:
    """Tell whether two processes share a database in the simulation of a seed."""
    return Random(f"{seed} database").random() < SHARED


def draw_settings(seed: int) -> dict[str, Any]:
    """Return settings of a service that the seed chooses."""
    random = Random(f"{seed} settings")
    return {
        "slot": random.choice((0.25, 1.0, 5.0)), "lease": random.choice((2.0, 10.0, 30.0)),
        "max_attempts": random.choice((2, 3, 5)), "policy": "sabr" if random.random() < 0.25 else "look-ahead",
        "work_conserving": random.random() < 0.5, "checkpoint_every": random.choice((5.0, 60.0)),
        "retry_first": 0.5, "retry_longest": random.choice((0.0, 5.0)), "pause_longest": random.choice((0.0, 5.0)),
        "seed": seed, "rate": 0.0, "job_class": tuple(map(JobClassInfo, JOBS, FEATURES)),
        "server_class": tuple(map(ServerClassInfo, SERVERS, FEATURES)),
    }  # fmt: skip


@dataclass
class Outcome:
    """What a simulation found, and how much it was."""

    seed: int
    history: History
    plan: list[Fault]
    violations: list[str]
    hours: float = 0.0
    seconds: float = 0.0
    """CPU time of this process."""
    faults: Counter[str] = field(default_factory=Counter)


def simulate(
    seed: int, faults: Collection[int] | None = None, until: float = DURATION, gap: float | None = None
) -> Outcome:  # fmt: skip
    """Run one simulation, and check everything: with the faults at some places of the seed's plan, up to a time.

    With a `gap`, faults come at this mean distance.
    """
    began = time.process_time()
    world = World(seed)
    history = History(world)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.exists() else None) as folder, _logged(history):
        disk = Disk(world, Path(folder))
        run = Simulation(world, history, disk, seed)
        forwards = mock.patch.object(Forward, "client", property(lambda self: run.network.client()))
        warms = mock.patch.object(leadership, "warm_up", lambda settings: _warm(settings.policy))
        with simulated(world, connector(disk)), forwards, warms:
            try:
                run.run(faults, until, gap)
            finally:
                world.close()
        outcome = Outcome(seed, history, run.plan, run.check(disk.next_folder(run.left) / DATABASE))
    outcome.hours, outcome.seconds = world.now / 3600.0, time.process_time() - began
    outcome.faults = run.faults.count + run.network.faults
    return outcome


class Simulation:
    """The parts of one simulation. At the end, `left` are the files, and `learnt` what the service has learnt."""

    def __init__(self, world: World, history: History, disk: Disk, seed: int) -> None:
        self.world, self.history, self.disk, self.seed = world, history, disk, seed
        self.network, self.settings = Network(world), draw_settings(seed)
        self.shared = is_shared(seed)
        storage = SharedDatabase(world, disk) if self.shared else OwnDisk(disk)
        names = [HOST, OTHER] if self.shared else [HOST]
        self.hosts = [Host(world, self.network, history, storage, self.settings, name) for name in names]
        self.left: dict[str, bytes] = {}
        self.learnt: Any = None

    def run(self, faults: Collection[int] | None, until: float, gap: float | None) -> None:
        """Let the service run under faults, and then without, until all jobs have ended."""
        for host in self.hosts:
            host.start({})
            self.world.run(self.world.now + 60.0, lambda: self.leader is not None)
        self._gather(self._key())
        drawn = draw_faults(self.seed, DURATION, list(self.crowd.running), self.shared, gap)
        self.crowd.timed = all(fault.kind != "clock jump" for fault in drawn)
        some = [fault for place, fault in enumerate(drawn) if faults is None or place in faults]
        self.plan = [fault.until(until) for fault in some if fault.at < until]
        self.faults = Faults(self, self.plan, until)
        self.world.run(self.world.now + until + 0.1)
        self._settle()

    @property
    def leader(self) -> Host | None:
        """The machine whose service is ready, None if none is."""
        return next((host for host in self.hosts if host.leads), None)

    def times(self, wall: float) -> list[float]:
        """Return the times at which the clock of a machine showed something."""
        return [time for host in self.hosts for time in host.times(wall)]

    def _key(self) -> str:
        assert self.leader is not None and self.leader.process is not None
        made = self.leader.process.spawn(self.leader.make_key())
        self.world.run(self.world.now + 60.0, made.done)
        key: str = made.result()
        return key

    def _gather(self, key: str) -> None:
        """Start clients and workers."""
        random = Random(f"{self.seed} crowd")
        self.crowd = Crowd(
            self.world, self.network, self.history, key, random.choice(PACES),
            by_job=self.settings["policy"] == "look-ahead",
        )  # fmt: skip
        roles = [submitter] * random.randint(1, 2) + [worker] * random.randint(2, 4) + [agent] * random.randint(0, 1)
        roles += [operator] * random.randint(0, 1)
        for number, role in enumerate(roles):
            self.crowd.add(f"{role.__name__}{number}", role)

    def _settle(self) -> None:
        began = self.world.now
        self.disk.disarm()
        self.history.note("fault", "no more")
        self.crowd.calm, self.history.calm = True, began
        self.world.run(began + LAST_JOBS)
        self.crowd.submitting = False
        while (self.leader is None or self.leader.busy) and self.world.now < began + BOUND:
            self.world.run(self.world.now + 1.0)
        self.world.run(self.world.now + 1.0)  # what was written last is on disk
        self.learnt = None if self.leader is None else self.leader.learnt()
        self.left = self.disk.left(1.0)

    def check(self, database: Path) -> list[str]:
        """Return all violations; call it outside the simulation."""
        settings = ServiceSettings(**self.settings)
        try:
            with contextlib.closing(SqliteConnection(database, writes=False)) as connection:
                found, here = read(connection), stored(connection)
                replayed = from_log(connection, structs.replace(settings, **here.settings), observed)
        except sqlite3.DatabaseError as error:
            return [*self.world.errors, f"the database cannot be read: {error}"]
        first = Stored({}, {one.name: one.features for one in settings.server_class}, structs.asdict(settings))
        left = Evidence(found, here, first, self.times, self.crowd.rewards, settings.max_attempts)
        wrong = violations(self.history, left)
        if self.learnt is None:
            wrong.append(f"the service is not ready {BOUND:g} s after the last fault")
        elif not agree(self.learnt, replayed):
            wrong.append("the service has learnt something else than a replay of its log gives")
        return wrong


@cache
def _warm(policy: str) -> None:
    """Load the kernels of a policy once; each start of a service would do it again, for a quarter of the time."""
    configuration.warm_up(ServiceSettings(policy=policy))


@contextlib.contextmanager
def _logged(history: History) -> Iterator[None]:
    """Let what the service logs go to a history only."""
    logger, handler = logging.getLogger("bilinq"), Errors(history)
    before = logger.propagate
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
