"""A generated service for the dashboard: many classes, an hour of history at once, then one sample at a time.

`python tests/live/generated_feed.py [JOB CLASSES] [SERVER CLASSES] [SAMPLES]` serves it until Ctrl-C.
"""

import asyncio
import json
import socket
import sys
import time
from typing import Any, Self

import numpy as np
from server_thread import ServerThread

from bilinq.live.http.app import Pages
from bilinq.live.http.routing import Receive, Scope, Send

KEY = "bq_generated"
SETTINGS = {"target_wait": 2.0, "V": None, "work_conserving": True, "exploration": "thompson", "policy": "sabr"}
NO_SETTINGS = {"target_wait": None, "V": None, "work_conserving": True, "exploration": "none", "policy": "first-come"}


class Generated:
    """What the service would send, drawn at random; `every` is the seconds between samples after the history."""

    def __init__(self, n_jobs: int, n_servers: int, samples: int, every: float = 1.0, learns: bool = True) -> None:
        self.n_jobs, self.n_servers, self.samples, self.every = n_jobs, n_servers, samples, every
        self.settings = (SETTINGS if learns else NO_SETTINGS) | {"learns": learns}
        self.learns = learns
        self.best = 60.0
        self.shadow: dict[str, Any] | None = None
        self.prediction: dict[str, Any] | None = None
        self.random = np.random.default_rng(7)
        self.queue = self.random.uniform(0.0, 20.0, n_jobs)
        self.mean = self.random.uniform(-0.4, 0.9, (n_jobs, n_servers))
        self.layout: dict[str, Any] = {
            "version": 1, "job_classes": [f"job class {i + 1}" for i in range(n_jobs)],
            "server_classes": [f"server {j + 1}" for j in range(n_servers)], "target_wait": 2.0, "reward_low": -1.0,
            "reward_high": 1.0,
        }  # fmt: skip

    def sample(self, number: int, at: float) -> dict[str, Any]:
        """Return one sample."""
        draw = self.random
        self.queue = np.abs(self.queue + draw.normal(0.0, 0.6, self.n_jobs) + 0.02 * (10.0 - self.queue))
        queued = self.queue.astype(int).tolist()
        busy = draw.binomial(10, 0.8, self.n_servers).tolist()
        wave = 1.0 - 0.6 * float(np.exp(-number / 400.0))
        counts = draw.poisson(2.0, (3, self.n_jobs)).tolist()
        return {
            "id": f"made-{number}", "at": at, "slots": 20, "slot_seconds": 0.001, "queued": queued, "leased": counts[0],
            "submitted": counts[1], "finished": counts[2], "reward": draw.uniform(0.0, 2.0, self.n_jobs).tolist(),
            "wait_mean": 1.2, "wait_p50": 1.0 + 0.2 * draw.random(), "wait_p90": 2.0 + 0.4 * draw.random(),
            "wait_p99": 3.0 + draw.random(),
            "idle": [10 - many for many in busy], "busy": busy, "best": self.best, "earned": 58.0 * wave + draw.random(),
            "rival": {"name": "first-come", "queued": sum(queued), "reward": 35.0 + 4.0 * draw.random(), "wait_p50": 1.1,
                      "wait_p90": 2.3},
        }  # fmt: skip

    def state(self, number: int) -> dict[str, Any]:
        """Return what was learnt."""
        shape = (self.n_jobs, self.n_servers)
        return {
            "at": time.time(), "slot": 20 * number, "V": 54.0, "knobs": self.settings, "weights": [1.0] * self.n_jobs,
            "rate": (self.random.uniform(0.0, 3.0, shape) * (self.mean > 0.5)).tolist(), "counters": {"dead": 0},
            "reward_total": 1e4, "shadow": self.shadow,
            "expected": self.random.uniform(0.0, 1.0, shape).tolist() if self.learns else [],
            "mean": self.mean.tolist() if self.learns else [],
            "width": self.random.uniform(0.0, 0.4, shape).tolist() if self.learns else [],
        }  # fmt: skip

    def leases(self, number: int) -> dict[str, Any]:
        """Return recent leases, five of them new."""
        return {"leases": [self._lease(5 * number + k) for k in range(20, 0, -1)]}

    def _lease(self, k: int) -> dict[str, Any]:
        job, server = self.layout["job_classes"], self.layout["server_classes"]
        over = k % 4 != 0
        return {
            "lease": f"l{k}", "job": f"j{k}", "class": job[k % self.n_jobs], "server": f"s{k % 200}",
            "server_class": server[k % self.n_servers], "granted": time.time() - 3.0, "ended": time.time() if over else None,
            "state": "finished" if over else "active", "reward": 0.5 if over else None,
        }  # fmt: skip


class Feed:
    """The generated service, listening at `address` in a thread."""

    def __init__(self, source: Generated) -> None:
        self.source = source
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.ends = False
        self.thread = ServerThread(Pages(self._answer), self.listening)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends = True
        self.thread.close()
        self.thread.join()
        self.listening.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/events":
            await self._stream(send)
            return
        answers: dict[str, Any] = {
            "/v1/me": {"prefix": "made", "namespace": "default", "scopes": ["read"], "whole": True},
            "/v1/dead": {"jobs": [], "after": None},
            "/v1/jobs": {"jobs": [], "after": None},
            "/v1/servers": [],
            "/v1/settings/preview": self.source.prediction,
        }
        await _start(send, b"application/json")
        await send({"type": "http.response.body", "body": json.dumps(answers[scope["path"]]).encode()})

    async def _stream(self, send: Send) -> None:
        source, now = self.source, time.time()
        await _start(send, b"text/event-stream")
        await _send(send, _event("layout", source.layout))
        for first in range(0, source.samples, 200):
            numbers = range(first, min(first + 200, source.samples))
            history = [_event("moment", source.sample(k, now - source.samples + k), f"made-{k}") for k in numbers]
            await _send(send, b"".join(history))
        number = source.samples
        while not self.ends:
            news = [_event("moment", source.sample(number, time.time()), f"made-{number}")]
            news += [_event("state", source.state(number)), _event("leases", source.leases(number))]
            await _send(send, b"".join(news))
            number += 1
            await asyncio.sleep(source.every)


async def _start(send: Send, kind: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _event(name: str, data: dict[str, Any], id: str = "") -> bytes:
    return f"id: {id}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()


if __name__ == "__main__":
    n_jobs, n_servers, samples = [int(word) for word in sys.argv[1:]] + [50, 20, 3600][len(sys.argv) - 1 :]
    with Feed(Generated(n_jobs, n_servers, samples)) as feed:
        print(f"{feed.address}/#key={KEY}", flush=True)
        feed.thread.join()
