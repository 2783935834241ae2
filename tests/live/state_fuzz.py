"""Damaged snapshots and backups: each is refused, or what was restored works; `python tests/live/state_fuzz.py`.

Every case runs in a process that was forked for it and the ones after it, so that a crash is counted and not the end. The
short version runs with the tests; `make fuzz` runs ten thousand of each kind.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from slotless import CLASSES, serve_job, serving
from state_damage import DatabaseDamage, SnapshotDamage

from bilinq import Greedy, MaxWeight, Random, Sabr, UgdaOl
from bilinq.errors import BilinqError
from bilinq.live.keys import LOCAL
from bilinq.live.service.configuration import configure
from bilinq.live.service.recovery import load_memory
from bilinq.live.settings import ServiceSettings
from bilinq.live.store.schema import migrate
from bilinq.live.store.sqlite import SqliteConnection, SqliteStore
from bilinq.live.wire.messages import NewJob, NewServer
from bilinq.policies import Policy
from bilinq.scheduler import JobClass, Scheduler, ServerClass

SECONDS = 1.0  # of CPU time that a case may take
MEMORY = 8 << 30  # bytes of addresses that a case may use
BAD = ("crash", "hang", "fault", "kept", "changed")
"""Outcomes that must not be: the process died, took too long, failed after it had accepted a state, kept a foreign object,
or changed a database although it refused the backup."""
Case = Callable[[np.random.Generator], str]


# Snapshots


def look_ahead(own: int) -> Scheduler:
    """Return a default scheduler that has learnt from some jobs; `own` is the length of their features."""
    jobs = [JobClass(name, [1.0, k], weight=1.0 + k) for k, name in enumerate("abc")]
    servers = [ServerClass(name, [0.5 * k]) for k, name in enumerate("xyz")]
    one, rng = Scheduler(jobs, servers, target_wait=3.0, keep=20, seed=1), np.random.default_rng(0)
    one.set_pool("p", 2.0, ["x", "y"])
    for slot in range(60):
        for k in range(3):
            features = rng.normal(size=own) if own and k else None
            deadline, pool = (5.0, "p") if k == 2 else (None, None)
            one.submit("abc"[k], features=features, deadline=deadline, pool=pool, weight=2.0 if k else None)
        for task in one.assign({"x": ["s1", "s2"], "y": 1, "z": 1}):
            if slot < 58:
                one.report(task.job, None if slot % 9 == 5 else 0.5, failed=slot % 9 == 5)
    return one


def slots(policy: Policy) -> Scheduler:
    """Return a scheduler with a policy that has learnt from some jobs."""
    jobs = [JobClass("a", [1.0, 0.0]), JobClass("b", [0.0, 1.0]), JobClass("c", [0.6, 0.8], servers=["x"])]
    one = Scheduler(jobs, [ServerClass("x", [1.0, 0.1]), ServerClass("y", [1.0, 0.9])], policy=policy, seed=1)
    for _ in range(40):
        for name in "abc":
            one.submit(name, units=2)
        for task in one.assign({"x": 1, "y": 1}):
            one.report(task.job, reward=0.5)
    return one


class Snapshots:
    """Cases of `Scheduler.restore`."""

    def __init__(self) -> None:
        policies: list[Policy] = [Sabr.for_scheduler(), Greedy(), MaxWeight(), UgdaOl(learning="class"), Random()]
        made: list[tuple[Scheduler, Policy | None]] = [(slots(one), one) for one in policies]
        made += [(look_ahead(2), None), (look_ahead(2), None), (look_ahead(0), None)]
        self.bases = [(one.snapshot(jobs=jobs), policy) for one, policy in made for jobs in (True, False)]
        for data, policy in self.bases:
            drive(Scheduler.restore(data, policy))

    def __call__(self, rng: np.random.Generator) -> str:
        data, policy = self.bases[rng.integers(len(self.bases))]
        bad = SnapshotDamage(rng)(data)
        try:
            one = Scheduler.restore(bad, policy)
        except BilinqError:
            return "refused"
        return drive(one)


def drive(one: Scheduler) -> str:
    """Use a restored scheduler in every way; return whether its numbers stayed finite."""
    servers = [task.name for task in one.server_classes]
    features = np.linspace(-1.0, 1.0, one.own_features) if one.own_features else None
    middle = one.reward.middle
    for turn in range(4):
        for k, job in enumerate(one.job_classes):
            one.submit(job.name, job=f"driven {turn} {k}", features=features if k % 2 else None)
        for n, task in enumerate(one.assign(dict.fromkeys(servers, 2), elapsed=0.5)):
            failed = n % 4 == 3
            one.report(task.job, None if failed or n % 4 == 2 else middle, failed=failed, done=True)
    if one.learns:
        rewards = [(job.name, server, middle) for job in one.job_classes for server in servers]
        one.observe([rewards[k % len(rewards)] for k in range(40)])
    if one.policy is None or one.policy.live:
        one.set_job_class(JobClass("driven", one.job_classes[0].features))
    one.assign(dict.fromkeys(servers, 1))
    if one.policy is None:
        name = one.submit("driven", job="explained")
        one.explain(name)
    one.beliefs(), one.health(), one.waits, one.paused, one.queue, one.V
    sound = one.sound
    one.snapshot(jobs=False)
    return "sound" if sound else "unsound"


# Backups


def settings() -> ServiceSettings:
    """Return settings with the classes of the database."""
    classes: dict[str, Any] = dict(CLASSES)
    return ServiceSettings(seed=1, **classes)


async def serve(url: str) -> None:
    """Fill a database with jobs in all states, leases, observations, a key and checkpoints."""
    async with serving(url) as service:
        for k in range(12):
            await serve_job(service, 0.05 * k)
        options = [NewJob("b", features=[0.5, k], tags=["t"], weight=2.0, deadline=1e6) for k in range(3)]
        await service.submit(LOCAL, [*options, NewJob("a", {"text": "x" * 5000}), NewJob("a")])
        server = await service.register(LOCAL, NewServer("x", "s"))
        await service.lease(LOCAL, [server.id], 0.0)


class Databases:
    """Cases of `bilinq restore`, and of the start of the service on what it accepted."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        folder = Path(self._folder.name)
        asyncio.run(serve(f"sqlite:///{folder}/base.db"))
        self.base = (folder / "base.db").read_bytes()
        self.damage = DatabaseDamage(folder / "base.db", [(look_ahead(2).snapshot(jobs=False))])
        self.folder = folder

    def __call__(self, rng: np.random.Generator) -> str:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            folder = Path(name)
            backup, target = folder / "backup.db", folder / "target.db"
            target.write_bytes(b"as it was")
            self.damage(rng, self.base, backup)
            store = SqliteStore(target, lead=False, timeout=10.0)
            try:
                asyncio.run(store.restore(backup, force=True))
            except BilinqError:
                left = {path.name for path in folder.iterdir() if path.name.startswith("target.db")}
                same = target.read_bytes() == b"as it was" and left <= {"target.db", "target.db.lock"}
                return "refused" if same else "changed"
            return "kept" if self.damage.foreign(target) else self._start(target)

    def _start(self, target: Path) -> str:
        """Load memory as the service does when it starts, and use its scheduler."""
        connection, now = SqliteConnection(target, writes=True), time.monotonic()
        connection.begin()
        migrate(connection)
        ids = configure(connection, settings(), None)
        memory, _ = load_memory(connection, settings(), ids, now, time.time())
        connection.commit()
        connection.close()
        assert memory.scheduler is not None
        return drive(memory.scheduler)


# Processes


@dataclass
class Child:
    """A forked process that runs cases one after the other and writes their outcomes to a pipe."""

    left: deque[int]
    pid: int = 0
    pipe: int = -1
    text: bytes = b""


@dataclass
class Pool:
    """Runs cases in forked processes; a case that ends its process is counted, and the next one gets another process."""

    case: Case
    seed: int
    found: Counter[str] = field(default_factory=Counter)
    shown: int = 0

    def run(self, cases: int, workers: int) -> Counter[str]:
        with selectors.DefaultSelector() as ready:
            for k in range(workers):
                self._fork(Child(deque(range(k, cases, workers))), ready)
            while ready.get_map():
                for key, _ in ready.select():
                    self._read(key.data, ready)
        return self.found

    def _fork(self, child: Child, ready: selectors.BaseSelector) -> None:
        end, start = os.pipe()
        child.pid, child.pipe, child.text = os.fork(), end, b""
        if not child.pid:
            os.close(end)
            self._work(child.left, start)
        os.close(start)
        ready.register(end, selectors.EVENT_READ, child)

    def _work(self, cases: deque[int], pipe: int) -> None:
        """Run cases; never returns."""
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, also in the middle of a kernel
        for number in cases:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                outcome = self.case(np.random.default_rng((self.seed, number)))
            except BaseException:
                outcome = f"fault {' | '.join(traceback.format_exc().strip().splitlines()[-3:])}"
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            os.write(pipe, outcome.replace("\n", " ").encode(errors="replace")[:4000] + b"\n")
        os._exit(0)

    def _read(self, child: Child, ready: selectors.BaseSelector) -> None:
        data = os.read(child.pipe, 1 << 16)
        *lines, child.text = (child.text + data).split(b"\n")
        for line in lines:
            self._note(child.left.popleft(), line.decode())
        if data:
            return
        ready.unregister(child.pipe)
        os.close(child.pipe)
        status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        if child.left:
            self._note(child.left.popleft(), "hang" if status == -signal.SIGPROF else f"crash with {status}")
        if child.left:
            self._fork(child, ready)

    def _note(self, number: int, outcome: str) -> None:
        word = outcome.partition(" ")[0]
        self.found[word] += 1
        if word in BAD and self.shown < 10:
            self.shown += 1
            print(f"case {number} of seed {self.seed}: {outcome[:500]}", flush=True)


KINDS: dict[str, Callable[[], Case]] = {"snapshots": Snapshots, "databases": Databases}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run one case here, without a process of its own")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    logging.disable()
    failed = False
    for kind in chosen.kinds:
        case, began = KINDS[kind](), time.monotonic()
        if chosen.only is not None:
            print(kind, case(np.random.default_rng((chosen.seed, chosen.only))))
            continue
        found = Pool(case, chosen.seed).run(chosen.cases, workers=2)
        failed |= any(found[word] for word in BAD) or found.total() != chosen.cases
        print(f"{kind}: {dict(sorted(found.items()))} in {time.monotonic() - began:.0f} s", flush=True)
    sys.exit(1 if failed else 0)
