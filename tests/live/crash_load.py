"""Load for the crash test: threads that submit, serve, cancel and operate over HTTP, and record the responses."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from crash_operators import MANY, OFTEN, Operators
from crash_own import SERVERS, Others, own, own_of
from process import wait_for

from bilinq.client import Client, NewJob
from bilinq.errors import Conflict, Stale
from bilinq.live.wire.messages import Lease, WorkFinish

JOBS = ("short", "long")
PAUSE = 0.01
"""Seconds between two calls of one who submits."""


@dataclass
class Said:
    """What was asked and what was acknowledged; every job has a payload of its own."""

    asked: dict[str, NewJob] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    """Job ids by payload."""
    again: list[tuple[str, str]] = field(default_factory=list)
    """Payload and id of jobs that were submitted a second time under their key."""
    tried: dict[str, float | None] = field(default_factory=dict)
    """Rewards by lease that somebody tried to finish."""
    finished: dict[str, str] = field(default_factory=dict)
    """Jobs by lease."""
    failed: dict[str, str] = field(default_factory=dict)
    servers: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    """Payloads of jobs of the other namespace."""
    committed: set[str] = field(default_factory=set)
    """Payloads of jobs that SQL has enqueued in transactions that were committed."""
    errors: list[str] = field(default_factory=list)
    """What must not happen at all."""


class Load:
    """All clients of a service at one or several addresses; `submitting` and `serving` tell which of them continue."""

    def __init__(self, urls: Sequence[str], keys: tuple[str, str], database: str, seed: int) -> None:
        """The `keys` are of the whole fleet, and of an admin of the other namespace."""
        self.key, self.database, self.said = keys[0], database, Said()
        self.submitting, self.serving = threading.Event(), threading.Event()
        self._stop, self._resting = False, set[threading.Thread]()
        self._random, self.operators = random.Random(seed), Operators(self)
        others = Others(self)
        elsewhere = (others.submits_elsewhere, self._serves)
        by_sql = (others.enqueues,) if database.startswith("postgresql") else ()
        roles = (
            *elsewhere,
            *by_sql,
            self._singly,
            self._batches,
            self._without_keys,
            self._cancels,
            *[self._serves] * 3,
            *[self._agent] * 2,
            *self.operators.roles,
            self._never_reads,
        )
        self._threads = [
            threading.Thread(target=self._guarded, args=(role, f"{role.__name__}{number}"), daemon=True)
            for number, role in enumerate(roles)
        ]
        self._keys = {f"{role.__name__}{number}": keys[number < len(elsewhere)] for number, role in enumerate(roles)}
        self._url = {f"{role.__name__}{number}": urls[number % len(urls)] for number, role in enumerate(roles)}

    def start(self) -> None:
        """Begin."""
        self.submitting.set()
        self.serving.set()
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Let nobody submit or serve, once what is held has been finished; return when all calls have ended."""
        self.submitting.clear()
        self.serving.clear()
        wait_for(lambda: all(thread in self._resting or not thread.is_alive() for thread in self._threads), 90.0)

    def stop(self) -> None:
        """End all threads."""
        self._stop = True
        self.submitting.set()
        self.serving.set()
        for thread in self._threads:
            thread.join(60.0)
            assert not thread.is_alive(), "a part of the load hangs"

    def _guarded(self, role: Callable[[Client, random.Random, str], None], name: str) -> None:
        chance = random.Random(f"{self._random.random()} {name}")
        try:
            with Client(self._url[name], self._keys[name], timeout=180.0, attempt=5.0) as client:
                role(client, chance, name)
        except Exception as error:
            self.said.errors.append(f"{name}: {type(error).__name__}: {error}")

    def goes_on(self, running: threading.Event) -> bool:
        """Rest while `running` is not set; return whether to continue."""
        self._resting.add(threading.current_thread())
        running.wait()
        self._resting.discard(threading.current_thread())
        return not self._stop

    def new(self, chance: random.Random, name: str, number: int, *, keyed: bool, **others: Any) -> NewJob:
        """Return a job with a payload of its own, and note that it is asked for."""
        payload = f"{name}-{number}"
        units = others.pop("units", None) or chance.choice((1, 1, 2))
        job = NewJob(chance.choice(JOBS), payload, payload if keyed else None, units, **others)
        self.said.asked[payload] = job
        return job

    def _singly(self, client: Client, chance: random.Random, name: str) -> None:
        """Submit one by one; sometimes a job from before under its key."""
        number = 0
        while self.goes_on(self.submitting):
            number += 1
            job = self.new(chance, name, number, keyed=number % 2 == 0, **own(chance))
            ref = client.submit(job.job_class, job.payload, key=job.key, units=job.units, **own_of(job))
            self.said.jobs[job.payload] = ref.id
            if job.key and chance.random() < 0.3:
                ref = client.submit(job.job_class, job.payload, key=job.key, units=job.units, **own_of(job))
                self.said.again.append((job.payload, ref.id))
            time.sleep(PAUSE)

    def _batches(self, client: Client, chance: random.Random, name: str) -> None:
        """Submit several at once."""
        number = 0
        while self.goes_on(self.submitting):
            many = [
                self.new(chance, name, number + k, keyed=k % 2 == 0, **own(chance)) for k in range(chance.randint(1, 6))
            ]
            number += len(many)
            for job, ref in zip(many, client.submit_all(many), strict=True):
                self.said.jobs[job.payload] = ref.id
            time.sleep(4 * PAUSE)

    def _without_keys(self, client: Client, chance: random.Random, name: str) -> None:
        """Submit without key and without a second try: an answer that is lost leaves a doubt."""
        number, headers = 0, {"Authorization": f"Bearer {self.key}"}
        with httpx.Client(base_url=self._url[name], headers=headers, timeout=10.0, trust_env=False) as http:
            while self.goes_on(self.submitting):
                number += 1
                job = self.new(chance, name, number, keyed=False, **own(chance))
                body = {"class": job.job_class, "payload": job.payload, "units": job.units} | own_of(job)
                time.sleep(2 * PAUSE)
                try:
                    answer = http.post("/v1/jobs", json={"jobs": [body]})
                except httpx.RequestError:
                    continue
                if answer.status_code == 201:
                    self.said.jobs[job.payload] = answer.json()["jobs"][0]["id"]
                elif answer.status_code not in (429, 503):  # busy, as after a freeze, or away: nothing was stored
                    self.said.errors.append(f"{name}: {answer.status_code} {answer.text}")

    def _cancels(self, client: Client, chance: random.Random, name: str) -> None:
        """Cancel some jobs."""
        while self.goes_on(self.submitting):
            time.sleep(3 * PAUSE)
            recent = list(self.said.jobs.items())[-20:]
            if some := [id for payload, id in recent if not payload.startswith(MANY)]:
                id = chance.choice(some[-2:])
                try:
                    client.cancel(id)
                except Conflict:
                    continue
                self.said.cancelled.add(id)

    def _never_reads(self, client: Client, chance: random.Random, name: str) -> None:
        """Ask for the largest pages on a few connections, and leave without having read anything."""
        url = httpx.URL(self._url[name])
        page = f"GET /v1/jobs?limit=1000 HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {self.key}\r\n\r\n"
        while self.goes_on(self.submitting):
            with contextlib.suppress(OSError), contextlib.ExitStack() as open:
                for _ in range(3):
                    one = open.enter_context(socket.create_connection((url.host, url.port), 1.0))
                    one.sendall(2 * page.encode())
                    time.sleep(chance.uniform(0.0, 1.0))
            time.sleep(10 * PAUSE)

    def _serves(self, client: Client, chance: random.Random, name: str) -> None:
        """Be one server."""
        server = self._register(client, chance, name)
        while self.goes_on(self.serving):
            lease = client.lease(server, wait=0.5)
            if lease is None or chance.random() < 0.02:  # a lease that is forgotten fails at the next call
                continue
            try:
                self._end(client, chance, lease)
            except Stale:
                self.said.refused.add(lease.lease)

    def _register(self, client: Client, chance: random.Random, name: str) -> str:
        server = client.register(chance.choice(SERVERS), name).id
        self.said.servers.add(server)
        return server

    def _end(self, client: Client, chance: random.Random, lease: Lease) -> None:
        if chance.random() < 0.2:
            client.extend(lease.lease, lease.fence)
        if _fails(chance, lease):
            self.said.failed[lease.lease] = client.fail(lease.lease, lease.fence, "broke").job
            return
        reward, done = self._reward(chance, lease), True if chance.random() < 0.1 else None
        told = client.finish(lease.lease, lease.fence, reward, done=done, result={"by": lease.lease})
        self.said.finished[lease.lease] = told.job
        if told.state == "done" and not told.repeated:  # else another lease may have been the last one
            if chance.random() < 0.2:
                self._reward_later(client, chance, lease)
            self.operators.served.append((lease.lease, lease.job.id))

    def _reward_later(self, client: Client, chance: random.Random, lease: Lease) -> None:
        """Reward a job after its end, or correct its reward, twice with the same number."""
        reward = chance.random()
        for _ in range(2):
            client.reward(lease.job.id, reward)
        self.said.tried[lease.lease] = reward

    def _reward(self, chance: random.Random, lease: Lease) -> float | None:
        reward = None if chance.random() < 0.1 else chance.random()
        self.said.tried[lease.lease] = reward
        return reward

    def _agent(self, client: Client, chance: random.Random, name: str) -> None:
        """Be several servers in one call each time."""
        servers = [self._register(client, chance, f"{name}-{number}") for number in range(6)]
        ends: list[WorkFinish] = []
        while self.goes_on(self.serving):
            told = client.work(ends, servers, wait=0.5)
            self._note(ends, told.finished)
            ends = [self._end_of(chance, lease) for lease in told.leases]
        self._note(ends, client.work(ends).finished)

    def _end_of(self, chance: random.Random, lease: Lease) -> WorkFinish:
        if _fails(chance, lease):
            return WorkFinish(lease.lease, lease.fence, error="broke")
        return WorkFinish(lease.lease, lease.fence, self._reward(chance, lease), None, {"by": lease.lease})

    def _note(self, ends: list[WorkFinish], outcomes: list[Any]) -> None:
        for end, outcome in zip(ends, outcomes, strict=True):
            if outcome.refused is not None:
                self.said.refused.add(end.lease)
            elif end.error is not None:
                self.said.failed[end.lease] = outcome.job
            else:
                self.said.finished[end.lease] = outcome.job
                if outcome.state == "done" and not outcome.repeated:
                    self.operators.served.append((end.lease, outcome.job))


def _fails(chance: random.Random, lease: Lease) -> bool:
    return chance.random() < (0.5 if lease.job.payload.startswith(OFTEN) else 0.1)
