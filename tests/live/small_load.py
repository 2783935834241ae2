"""Jobs and servers for a service that somebody watches: a little traffic, for as long as it is wanted.

`python tests/live/small_load.py [SECONDS]` runs a service with a load and prints the address of its dashboard.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
from process import Process, make_key

SETTINGS = """
slot = 0.02
rate = 0
sample = {sample}
target_wait = 0.5
max_attempts = 1
reward = {{ low = 0.0, high = 1.0 }}
[[job_class]]
name = "chat"
features = [1.0, 0.1]
[[job_class]]
name = "code"
features = [1.0, 0.9]
[[job_class]]
name = "vision"
features = [1.0, 0.5]
[[server_class]]
name = "small"
features = [1.0, 0.2]
[[server_class]]
name = "large"
features = [1.0, 1.0]
"""

CLASSES = ("chat", "code", "vision")
SERVERS = {"small": 3, "large": 2}
REWARD = {
    ("chat", "small"): 0.8, ("chat", "large"): 0.7, ("code", "small"): 0.2, ("code", "large"): 0.9, ("vision", "small"): 0.4,
    ("vision", "large"): 0.8,
}  # fmt: skip
ROUND = 0.1
"""Seconds between two calls."""


class Load:
    """Jobs come and servers serve in a thread, between `with` and its end; afterwards all is still."""

    def __init__(self, client: httpx.Client, per_second: float = 8.0, seconds: float = 0.3) -> None:
        self.client, self.per_second, self.seconds = client, per_second, seconds
        self.random = np.random.default_rng(5)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.held: list[tuple[float, dict[str, Any]]] = []
        self.finish: list[dict[str, Any]] = []
        self.idle: list[str] = []
        self.kinds: dict[str, str] = {}

    def __enter__(self) -> Self:
        for kind, many in SERVERS.items():
            for number in range(many):
                server = self.client.post("/v1/servers", json={"class": kind, "name": f"{kind} {number}"}).json()["id"]
                self.kinds[server] = kind
        self.idle = list(self.kinds)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.over.wait(0.0 if self.idle else ROUND):
            names = self.random.choice(CLASSES, self.random.poisson(ROUND * self.per_second)).tolist()
            if names:
                self.client.post("/v1/jobs", json={"jobs": [{"class": name, "payload": {"n": 1}} for name in names]})
            self._work()
        while self.held:
            time.sleep(ROUND)
            self._work(asking=False)

    def _work(self, asking: bool = True) -> None:
        """End what is due, and ask for more."""
        now = time.monotonic()
        due = [lease for end, lease in self.held if end <= now]
        self.held = [(end, lease) for end, lease in self.held if end > now]
        finish = [self._end(lease) for lease in due]
        self.idle += [lease["server"] for lease in due]
        if not finish and not (asking and self.idle):
            return
        asked = {"finish": finish, "lease": self.idle if asking else [], "wait": ROUND if asking else 0.0}
        leases = self.client.post("/v1/work", json=asked).json()["leases"]
        self.held += [(now + self.random.exponential(self.seconds), lease) for lease in leases]
        taken = {lease["server"] for lease in leases}
        self.idle = [server for server in self.idle if server not in taken]

    def _end(self, lease: dict[str, Any]) -> dict[str, Any]:
        mean = REWARD[lease["job"]["class"], self.kinds[lease["server"]]]
        reward = float(np.clip(mean + self.random.normal(0.0, 0.1), 0.0, 1.0))
        return {"lease": lease["lease"], "fence": lease["fence"], "reward": reward, "done": True, "result": "done"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/load.db"
        key = make_key(database, "admin")
        with (
            Process(Path(folder), database, settings=SETTINGS.format(sample=1.0)) as service,
            service.client(key) as client,
            Load(client),
        ):
            print(f"{service.address}/#key={key}", flush=True)
            time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 600.0)
