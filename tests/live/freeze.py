"""The freeze test: of two services on one PostgreSQL the leader is frozen at random times under load; then an audit.

    python tests/live/freeze.py --freezes 1000 --pairs 4 --seed 1

The other service must lead within seconds, whatever the leader was doing. The frozen one wakes up later, must notice that it
has lost the lead, and follows. Then it is the other's turn. One freeze in four is short: the leader wakes up before another
leads, or while it takes over. Several pairs, each with a database of its own, can be tested at a time, since most of it is
waiting.
"""

import argparse
import multiprocessing
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg
from crash import Result, service_settings
from crash_audit import Audit
from crash_load import Load
from crash_own import OTHER
from databases import own_postgres
from msgspec import structs
from process import make_key, wait_for
from template import Copy, Template

from bilinq.client import Client

LATEST = 0.5  # seconds until the next freeze, and until a frozen leader wakes up after another leads, at most
LIMIT = 5.0  # seconds within which another process must lead
SHORT = 0.25  # part of the freezes that are short
LONGEST = 4.0  # seconds of a short freeze, at most; another process leads after 3 s or so
REPORTED = 25  # freezes between two lines about how far it is
SETTLED = 0.05  # seconds after which PostgreSQL has done what a frozen client had sent
IN_TRANSACTION = """
    SELECT count(*) FROM pg_locks AS held JOIN pg_stat_activity AS session USING (pid)
    WHERE held.locktype = 'advisory' AND held.granted AND session.xact_start IS NOT NULL
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
"""How many sessions that have the lock of a leader are within a transaction."""


class Freeze(NamedTuple):
    """Seconds until another process led, None for a short freeze, and whether the leader was within a transaction."""

    took: float | None
    within: bool


class Service:
    """One of the two services, and what it answers."""

    def __init__(self, process: Copy, url: str, key: str) -> None:
        self.process, self._url, self._headers = process, url, {"Authorization": f"Bearer {key}"}

    def answers(self) -> bool:
        """Return whether it answers, itself or by asking the leader."""
        return self._get("/v1/state") != ""

    def leads(self) -> bool:
        """Return whether it leads."""
        return "\nbilinq_leader 1\n" in self._get("/metrics")

    def _get(self, path: str) -> str:
        try:
            answer = httpx.get(self._url + path, headers=self._headers, timeout=0.3, trust_env=False)
            return answer.text if answer.status_code == 200 else ""
        except httpx.TransportError:
            return ""

    def signal(self, number: int) -> None:
        """Send a signal."""
        signal.pidfd_send_signal(self.process.handle, number)


def freeze_test(folder: Path, database: str, freezes: int, seed: int) -> Result:
    """Freeze the leader so many times under load, let all jobs end, and audit."""
    settings, key, chance = service_settings(database, lease=3.0), make_key(database, "admin"), random.Random(seed)
    keys = key, make_key(database, "admin", namespace=OTHER)
    both = settings, structs.replace(settings, port=service_settings(database).port)
    urls = [f"http://127.0.0.1:{one.port}" for one in both]
    load = Load(urls, keys, database, chance.randrange(10**9))
    with Template(folder / "log.txt") as template, Client(urls[0], key) as client:
        audit = Audit(load, client, settings)
        with ExitStack() as stack:
            pair = [
                Service(stack.enter_context(template.start(one)), url, key) for one, url in zip(both, urls, strict=True)
            ]
            load.start()
            made = list[Freeze]()
            while len(made) < freezes:
                made.append(_freeze(pair, database, chance))
                _report(folder.name, made, freezes)
            wait_for(lambda: _serve(pair), 30.0)
            found = audit.of_all()
        with template.start(settings):
            audit.of_learnt()
    times = sorted(one.took for one in made if one.took is not None)
    late = [f"another process led only after {seconds:.2f} s" for seconds in times if seconds > LIMIT]
    numbers = {
        "freezes": freezes, "short": freezes - len(times), "within a transaction": sum(one.within for one in made),
        "median seconds": round(times[len(times) // 2], 2), "longest": round(times[-1], 2),
        "jobs acknowledged": len(load.said.jobs), "jobs": len(found.jobs), "leases": len(found.leases),
        "finishes acknowledged": len(load.said.finished),
    }  # fmt: skip
    return Result([*audit.faults, *late], numbers)


def _report(name: str, made: list[Freeze], freezes: int) -> None:
    """Report now and then how far the test is."""
    if len(made) % REPORTED == 0:
        longest = max((one.took for one in made if one.took is not None), default=0.0)
        print(f"{name}: {len(made)} of {freezes} freezes, longest {longest:.2f} s", file=sys.stderr, flush=True)


def _serve(pair: list[Service]) -> bool:
    return all(one.answers() for one in pair) and any(one.leads() for one in pair)


def _freeze(pair: list[Service], database: str, chance: random.Random) -> Freeze:
    """Freeze the leader until the other one leads and a little longer, or shortly; return what happened."""
    wait_for(lambda: _serve(pair), 30.0)
    leader, other = pair if pair[0].leads() else reversed(pair)
    time.sleep(chance.uniform(0.0, LATEST))
    short, took = chance.random() < SHORT, None
    with psycopg.connect(database, autocommit=True) as watcher:
        leader.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            time.sleep(SETTLED)
            found = watcher.execute(IN_TRANSACTION).fetchone()
            if short:
                time.sleep(chance.uniform(0.0, LONGEST))
            else:
                wait_for(other.answers, 60.0)
                took = time.monotonic() - began
                time.sleep(chance.uniform(0.0, LATEST))
        finally:
            leader.signal(signal.SIGCONT)
    return Freeze(took, found is not None and found[0] > 0)


def _test_pair(folder: Path, database: str, freezes: int, seed: int) -> tuple[list[str], dict[str, Any], str]:
    """Test one pair of services in this process; return faults, numbers, and the end of the log."""
    folder.mkdir()
    try:
        result = freeze_test(folder, database, freezes, seed)
    except AssertionError as error:  # other pairs go on
        result = Result([f"{folder.name} ended early: {error}"], {})
    return result.faults, result.numbers, (folder / "log.txt").read_text()[-20_000:] if result.faults else ""


def main(arguments: list[str]) -> int:
    """Run the freeze test and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freezes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=1, help="pairs of services at a time, which share the freezes")
    options: Any = parser.parse_args(arguments)
    pairs, spawn, number = options.pairs, multiprocessing.get_context("spawn"), 0
    with (
        tempfile.TemporaryDirectory() as place,
        own_postgres(Path(place) / "pg") as server,
        ProcessPoolExecutor(pairs, spawn) as pool,
    ):
        work = [
            (Path(place) / f"pair{k}", server.fresh(), len(range(k, options.freezes, pairs)), options.seed + k)
            for k in range(pairs)
        ]
        for faults, numbers, log in pool.map(_test_pair, *zip(*work, strict=True)):
            print(", ".join(f"{name}: {value}" for name, value in numbers.items()), flush=True)
            print(*faults[:50], log, sep="\n", file=sys.stderr, end="")
            number += len(faults)
    print(f"{number} faults")
    return 1 if number else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
