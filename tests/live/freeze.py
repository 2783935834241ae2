"""The freeze test: of two services on one PostgreSQL the leader is frozen at random times under load; then an audit.

    python tests/live/freeze.py --freezes 1000 --seed 1

The other service must lead within seconds, whatever the leader was doing. The frozen one wakes up later, must notice that it
has lost the lead, and follows. Then it is the other's turn.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from crash import Result, service_settings
from crash_audit import Audit
from crash_load import Load
from databases import own_postgres
from msgspec import structs
from process import make_key, wait_for
from template import Copy, Template

from bilinq.client import Client

LATEST = 0.5  # seconds until the next freeze, and until a frozen leader wakes up after another leads, at most
LIMIT = 5.0  # seconds within which another process must lead


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
    both = settings, structs.replace(settings, port=service_settings(database).port)
    urls = [f"http://127.0.0.1:{one.port}" for one in both]
    load = Load(urls, key, chance.randrange(10**9))
    with Template(folder / "log.txt") as template, Client(urls[0], key) as client:
        audit = Audit(load, client, settings)
        with ExitStack() as stack:
            pair = [
                Service(stack.enter_context(template.start(one)), url, key) for one, url in zip(both, urls, strict=True)
            ]
            load.start()
            times = sorted(_freeze(pair, chance) for _ in range(freezes))
            found = audit.of_all()
        with template.start(settings):
            audit.of_learnt()
    late = [f"another process led only after {seconds:.2f} s" for seconds in times if seconds > LIMIT]
    numbers = {
        "freezes": freezes, "median seconds": round(times[len(times) // 2], 2), "longest": round(times[-1], 2),
        "jobs acknowledged": len(load.said.jobs), "jobs": len(found.jobs), "leases": len(found.leases),
        "finishes acknowledged": len(load.said.finished),
    }  # fmt: skip
    return Result([*audit.faults, *late], numbers)


def _freeze(pair: list[Service], chance: random.Random) -> float:
    """Freeze the leader until the other one leads, and a little longer; return the seconds that this took."""
    wait_for(lambda: all(one.answers() for one in pair) and any(one.leads() for one in pair), 30.0)
    leader, other = pair if pair[0].leads() else reversed(pair)
    time.sleep(chance.uniform(0.0, LATEST))
    leader.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        wait_for(other.answers, 60.0)
        took = time.monotonic() - began
        time.sleep(chance.uniform(0.0, LATEST))
    finally:
        leader.signal(signal.SIGCONT)
    return took


def main(arguments: list[str]) -> int:
    """Run the freeze test and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freezes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options: Any = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place, own_postgres(Path(place) / "pg") as server:
        result = freeze_test(Path(place), server.fresh(), options.freezes, options.seed)
        if result.faults:
            print((Path(place) / "log.txt").read_text()[-20_000:], file=sys.stderr)
    print(", ".join(f"{name}: {value}" for name, value in result.numbers.items()))
    print(*result.faults[:50], sep="\n", end="\n" if result.faults else "")
    print(f"{len(result.faults)} faults")
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
