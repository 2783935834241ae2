"""The faults of a simulation: a plan drawn from the seed, and how each kind is brought about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from random import Random
from typing import TYPE_CHECKING

from simulator.actors import HOST
from simulator.cluster import Database
from simulator.host import Host, SharedDatabase
from simulator.network import Weather

if TYPE_CHECKING:
    from simulator.run import Simulation
    from simulator.world import Process

SHORTEST, LONGEST = 0.01, 90.0  # seconds of a fault
OPERATIONS = 12  # writes and syncs after which a kill happens in the middle of one, at most
FARTHEST = 7200.0  # seconds of a jump of the wall clock, at most
TAKE_OVER = 5.0  # seconds after which another process leads if the leader is frozen
STOPPED = 30.0  # seconds that a service may take to stop in order
NETWORK = ("delay", "loss", "reset", "duplicate", "half-open", "partition")
DISK = ("slow disk", "hung disk", "full disk", "broken disk", "gone disk")
OF_DISK, OF_DATABASE = (*DISK, "power cut"), ("lost session", "slow database", "hung database", "gone database")
OF_SERVICE = (*OF_DISK, *OF_DATABASE, "stall", "freeze writing", "kill", "stop")
OF_BOTH = ("freeze", "clock jump")
FREEZES = ("freeze", "freeze writing")
KINDS = (*NETWORK, *OF_SERVICE, *OF_BOTH, "kill client")


@dataclass(frozen=True)
class Fault:
    """A fault: when it begins, how long it lasts, whom it hits, and how hard, as two numbers between 0 and 1."""

    at: float
    kind: str
    seconds: float
    target: str
    strength: float
    other: float

    def until(self, end: float) -> Fault:
        """Return the same fault, but not longer than up to a time."""
        return replace(self, seconds=min(self.seconds, end - self.at))

    def __str__(self) -> str:
        strength = f"{self.strength:.2f}, {self.other:.2f}"
        return f"{self.at:10.3f} s  {self.kind} of {self.target}: {self.seconds:.3f} s, {strength}"


def draw_faults(
    seed: int, duration: float, clients: list[str], shared: bool, gap: float | None = None
) -> list[Fault]:  # fmt: skip
    """Return a plan: some kinds only, so that not all faults hide behind the worst one, more or less often.

    `gap` is the mean time between two faults; by default the seed chooses.
    """
    random = Random(f"{seed} faults")
    possible = [kind for kind in KINDS if kind not in (OF_DISK if shared else OF_DATABASE)]
    kinds = [kind for kind in possible if random.random() < 0.4] or ["kill"]
    usual, longest = random.choice((5.0, 20.0, 60.0)), random.choice((1.0, 15.0, LONGEST))
    plan = []
    for at in sorted(random.uniform(0.0, duration) for _ in range(max(1, round(duration / (gap or usual))))):
        kind, client = random.choice(kinds), random.choice(clients)
        seconds = exp(random.uniform(log(SHORTEST), log(longest)))
        if kind in FREEZES and random.random() < 0.3:
            seconds = random.uniform(0.0, LONGEST)
        of_service = kind in OF_SERVICE or (kind in OF_BOTH and random.random() < 0.5)
        target, lasting = HOST if of_service else client, min(seconds, duration - at)
        plan.append(Fault(at, kind, lasting, target, random.random(), random.random()))
    return plan


class Faults:
    """Brings the faults of a plan about, and counts them."""

    def __init__(self, simulation: Simulation, plan: list[Fault], duration: float) -> None:
        self.sim, self.world = simulation, simulation.world
        self.end = self.world.now + duration
        self.touched = 0.0  # when a fault has last hit the service
        self.ill = 0.0  # until when the database serves late or not at all
        self.count: Counter[str] = Counter()
        for fault in plan:
            self.world.at(self.world.now + fault.at, partial(self._begin, fault))

    def _begin(self, fault: Fault) -> None:
        self.sim.history.note("fault", str(fault).strip())
        if fault.kind in NETWORK:
            self._change_weather(fault)
            return
        self.count[fault.kind] += 1
        if fault.target == HOST and fault.kind != "freeze writing":  # which begins later
            self.touched = self.world.now
        getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self.world.at(self.world.now + seconds, action)

    def _change_weather(self, fault: Fault) -> None:
        weather = self.sim.network.weather
        everywhere = fault.other < 0.5 and fault.kind != "partition"
        probability = 1.0 if fault.kind == "partition" else fault.strength
        one = Weather(fault.kind, probability, 5.0 * fault.other, "" if everywhere else fault.target)
        weather.append(one)
        self._after(fault.seconds, lambda: weather.remove(one))

    def _host(self, fault: Fault) -> Host:
        """Return the machine that a fault hits: mostly the one whose service leads."""
        leader = self.sim.leader or self.sim.hosts[0]
        return leader if fault.other < 0.7 else self.sim.hosts[-1]

    def _process(self, fault: Fault) -> Process | None:
        return self._host(fault).process if fault.target == HOST else self.sim.crowd.running.get(fault.target)

    def _freeze(self, fault: Fault) -> None:
        if process := self._process(fault):
            self._freeze_process(process, fault)

    def _freeze_writing(self, fault: Fault) -> None:
        """Freeze the service in the middle of its next transaction."""
        process = self._host(fault).process
        if process is not None:
            self.sim.disk.on_write[process] = lambda: self._freeze_process(process, fault)

    def _freeze_process(self, process: Process, fault: Fault) -> None:
        self.touched = self.world.now
        process.frozen = self.world.now + min(fault.seconds, self.end - self.world.now)
        leader = self.sim.leader
        if leader is not None and leader.process is process and process.frozen > self.world.now + TAKE_OVER:
            for host in self.sim.hosts:
                if host.follows:
                    self._after(TAKE_OVER, partial(self._check_take_over, host, self.touched))

    def _check_take_over(self, host: Host, touched: float) -> None:
        """Report a service that could have taken over from a frozen one, without another fault, and has not."""
        if touched == self.touched and self.ill < touched and host.process is not None and not host.leads:
            host.process.report(f"it does not lead {TAKE_OVER:g} s after the leader was frozen")

    def _lost_session(self, fault: Fault) -> None:
        """End the session of the leader, as an administrator of the database can."""
        holder = self._database.holder
        if holder is not None:
            holder.end()

    @property
    def _database(self) -> Database:
        storage = self.sim.hosts[0].storage
        assert isinstance(storage, SharedDatabase)
        return storage.database

    def _slow_database(self, fault: Fault) -> None:
        self.ill = max(self.ill, self.world.now + fault.seconds)
        self._slow_disk(fault)

    def _hung_database(self, fault: Fault) -> None:
        self.ill = max(self.ill, self.world.now + fault.seconds)
        self._database.hang(self.world.now + fault.seconds)

    def _gone_database(self, fault: Fault) -> None:
        """End all sessions and accept none for a while, as a restart of the database does."""
        self.ill = max(self.ill, self.world.now + fault.seconds)
        self._database.leave(self.world.now + fault.seconds)

    def _stall(self, fault: Fault) -> None:
        """Let one thread of the service stand still: its event loop, the one that writes, or another."""
        process = self._host(fault).process
        if process is not None and process.threads:
            thread = process.threads[int(fault.strength * len(process.threads))]
            thread.frozen = self.world.now + fault.seconds

    def _clock_jump(self, fault: Fault) -> None:
        jump = (fault.strength - 0.5) * 2.0 * FARTHEST * fault.other
        if fault.target == HOST:
            self._host(fault).set_clock(jump)
        elif process := self._process(fault):
            process.jump += jump

    def _kill(self, fault: Fault) -> None:
        self._crash(fault, 1.0)

    def _power_cut(self, fault: Fault) -> None:
        """End the machine: of what was not synced nothing, some or almost everything is left."""
        self._crash(fault, (0.0, 0.5, 0.9)[int(3 * fault.other)])

    def _crash(self, fault: Fault, share: float) -> None:
        """Kill the service now, or in the middle of a write or sync."""
        operations = int((2.0 * fault.strength - 1.0) * OPERATIONS)
        host, disk = self._host(fault), self.sim.disk
        if operations > 0 and self.sim.shared:  # the disk is that of another machine
            if host.process is not None:
                disk.on_write[host.process] = lambda: self._after(0.0, lambda: host.crash({}, fault.seconds))
        elif operations > 0:
            disk.set_trap(operations, share, lambda: self._after(0.0, lambda: host.crash(disk.cut, fault.seconds)))
        else:
            host.crash(disk.left(share), fault.seconds)

    def _stop(self, fault: Fault) -> None:
        self._host(fault).stop(STOPPED, fault.seconds)

    def _kill_client(self, fault: Fault) -> None:
        process = self.sim.crowd.running.get(fault.target)
        if process is not None and process.alive:
            process.kill()
            self._after(fault.seconds, lambda: self.sim.crowd.start(fault.target))

    def _slow_disk(self, fault: Fault) -> None:
        self._set_disk("slow", 2.0 * fault.strength**3, 0.0, fault)

    def _hung_disk(self, fault: Fault) -> None:
        self.sim.disk.hung = max(self.sim.disk.hung, self.world.now + fault.seconds)

    def _full_disk(self, fault: Fault) -> None:
        self._set_disk("full", True, False, fault)

    def _broken_disk(self, fault: Fault) -> None:
        self._set_disk("broken", fault.strength**2, 0.0, fault)

    def _gone_disk(self, fault: Fault) -> None:
        self._set_disk("gone", True, False, fault)

    def _set_disk(self, name: str, value: float, normal: float, fault: Fault) -> None:
        setattr(self.sim.disk, name, value)
        self._after(fault.seconds, lambda: setattr(self.sim.disk, name, normal))
