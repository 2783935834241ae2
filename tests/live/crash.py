"""The crash test: a service under load is killed again and again at random times; after that everything is audited.

    python tests/live/crash.py --kills 200 --database sqlite --seed 1
    python tests/live/crash.py --kills 0 --away 30 --database postgresql
    python tests/live/crash.py --kills 0 --hang 60 --database postgresql

Kills fall anywhere: while it starts, loads, writes, commits or answers. Every start is on the same database. With --away the
database itself is stopped for so many seconds under load, once, and the same service must go on when it is back. With --hang
its processes are frozen, so that it accepts connections and answers nothing.
"""

import argparse
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from crash_audit import Audit, Found, counted
from crash_load import JOBS, Load
from crash_own import OTHER, SERVERS
from databases import Postgres, own_postgres
from process import make_key, wait_for
from template import Copy, Template

from bilinq.client import Client
from bilinq.live.settings import ServiceSettings
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo

Outage = Callable[[], None]
"""A function that makes the database unavailable for a while, and returns when it is back."""
FEATURES = ([1.0, 0.2], [0.3, 1.0])
EARLY, LATEST = 0.3, 1.0
"""Share of kills before the service answers, and seconds after that at which the others come at the latest."""


@dataclass
class Result:
    """What a crash test found."""

    faults: list[str]
    numbers: dict[str, float]


def service_settings(database: str, **others: Any) -> ServiceSettings:
    """Return the settings of a service under test, at a free port."""
    chosen: dict[str, Any] = {
        "slot": 0.02,
        "lease": 10.0,
        "max_attempts": 5,
        "retry_first": 0.05,
        "checkpoint_every": 0.3,
    }
    return ServiceSettings(
        database=database, port=_free_port(), work_conserving=True, rate=0.0, seed=1,
        job_class=tuple(map(JobClassInfo, JOBS, FEATURES)), server_class=tuple(map(ServerClassInfo, SERVERS, FEATURES)),
        **(chosen | others),
    )  # fmt: skip


def crash_test(
    folder: Path, database: str, kills: int, seed: int, outage: Outage | None = None, **others: Any
) -> Result:
    """Kill a service on `database` so many times under load, let it end all jobs, and audit; `outage` happens in between."""
    settings = service_settings(database, **others)
    key, other = make_key(database, "admin"), make_key(database, "admin", namespace=OTHER)
    with Template(folder / "log.txt") as template, Client(f"http://127.0.0.1:{settings.port}", key) as client:
        return Crash(settings, (key, other), template, client, random.Random(seed)).run(kills, outage)


class Crash:
    """One crash test."""

    def __init__(
        self,
        settings: ServiceSettings,
        keys: tuple[str, str],
        template: Template,
        client: Client,
        chance: random.Random,
    ) -> None:
        self.settings, self.template, self.client, self.chance = settings, template, client, chance
        self.load = Load([f"http://127.0.0.1:{settings.port}"], keys, settings.database, chance.randrange(10**9))
        self.audit = Audit(self.load, client, settings)
        self.starts: list[float] = []

    def run(self, kills: int, outage: Outage | None) -> Result:
        """Kill, then audit: at rest with jobs in the queues, with all jobs ended, and what was learnt."""
        began = time.monotonic()
        self.load.start()
        for _ in range(kills):
            self._kill_one()
        killed = time.monotonic()
        with self._service() as service:
            if outage is not None:
                self._outlast(service, outage)
            found = self.audit.of_all()
        for how in (signal.SIGKILL, signal.SIGTERM):  # SIGTERM leaves a checkpoint, which the next start uses
            with self._service() as service:
                self.audit.of_learnt()
                service.end(how)
        with self._service():
            self.audit.of_learnt()
        return Result(self.audit.faults, self._numbers(found, kills, killed - began))

    def _kill_one(self) -> None:
        """Start the service and kill it: while it starts, or some time after it has."""
        began, before = time.monotonic(), self._served()
        service = self.template.start(self.settings)
        if self.starts and self.chance.random() < EARLY:
            time.sleep(self.chance.uniform(0.0, max(self.starts[-5:])))
        else:
            wait_for(lambda: self._served() > before or not service.alive, 30.0)
            self.starts.append(time.monotonic() - began)
            time.sleep(self.chance.uniform(0.0, LATEST))
        if not service.alive:
            self.audit.faults.append("the service ended by itself; see its log")
        service.end(signal.SIGKILL)

    def _outlast(self, service: Copy, outage: Outage) -> None:
        """Make the database unavailable for a while under load; jobs must be acknowledged before and after."""
        before = self._acknowledged(0)
        outage()
        self._acknowledged(before)
        if not service.alive:
            self.audit.faults.append("the service did not outlast its database; see its log")

    def _acknowledged(self, before: int) -> int:
        """Return how many jobs were acknowledged, as soon as there are more than ten beyond `before`."""
        wait_for(lambda: len(self.load.said.jobs) > before + 10, 60.0)
        return len(self.load.said.jobs)

    def _served(self) -> int:
        return self.template.log.read_text().count("event=serving")

    @contextmanager
    def _service(self) -> Iterator[Copy]:
        """A service that answers."""
        with self.template.start(self.settings) as service:
            self.client.state()
            yield service

    def _numbers(self, found: Found, kills: int, seconds: float) -> dict[str, float]:
        said, told, states = self.load.said, self.load.operators.told, [row.state for row in found.jobs]
        return {
            "kills": kills, "kills while it started": kills + 4 - self._served(), "seconds of kills": round(seconds, 1),
            "median seconds of a start": round(median(self.starts or [0.0]), 3),
            "jobs acknowledged": len(said.jobs), "jobs in doubt": len(said.asked) - len(said.jobs),
            "jobs": len(states), "done": states.count("done"), "dead": states.count("dead"),
            "cancelled": states.count("cancelled"), "expired": states.count("expired"),
            "jobs with features": sum("features" in (row.options or "") for row in found.jobs),
            "jobs of another namespace": len(said.elsewhere), "enqueued by SQL": len(said.committed),
            "leases": len(found.leases), "rewards": len(found.rewards),
            "finishes acknowledged": len(said.finished), "finishes refused": len(said.refused),
            "bulk cancels acknowledged": len(told.cancelled), "jobs retried in bulk": counted(found, "retry jobs").total(),
            "late rewards": sum(row.revision > 0 for row in found.rewards),
            "corrections": sum(row.before is not None for row in found.rewards), "servers held": len(told.windows),
        }  # fmt: skip


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def fresh_database(kind: str, folder: Path) -> Iterator[tuple[str, Postgres | None]]:
    """The URL of an empty database in a folder, and its server if it has one."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/live.db", None
        return
    with own_postgres(folder / "pg") as server:
        yield server.fresh(), server


def outage_of(server: Postgres, seconds: float) -> Outage:
    """Return a function that stops a server for so many seconds."""

    def outage() -> None:
        server.stop()
        try:
            time.sleep(seconds)
        finally:
            server.start()

    return outage


def hang_of(server: Postgres, seconds: float) -> Outage:
    """Return a function that freezes a server for so many seconds."""

    def outage() -> None:
        with server.frozen():
            time.sleep(seconds)

    return outage


def main(arguments: list[str]) -> int:
    """Run the crash test and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--away", type=float, default=0.0, metavar="SECONDS", help="stop the database; PostgreSQL only")
    parser.add_argument("--hang", type=float, default=0.0, metavar="SECONDS", help="freeze it; PostgreSQL only")
    options: Any = parser.parse_args(arguments)
    if (options.away or options.hang) and options.database == "sqlite":
        parser.error("--away and --hang need --database postgresql: SQLite has no server that could be stopped")
    with tempfile.TemporaryDirectory() as place, fresh_database(options.database, Path(place)) as (url, server):
        outage = outage_of(server, options.away) if server and options.away else None
        outage = hang_of(server, options.hang) if server and options.hang else outage
        result = crash_test(Path(place), url, options.kills, options.seed, outage)
        if result.faults:
            print((Path(place) / "log.txt").read_text()[-20_000:], file=sys.stderr)
    print(", ".join(f"{name}: {value}" for name, value in ({"database": options.database} | result.numbers).items()))
    print(*result.faults[:50], sep="\n", end="\n" if result.faults else "")
    print(f"{len(result.faults)} faults")
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
