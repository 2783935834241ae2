"""Clients and workers: each is a process of its own and uses the real `AsyncClient`, retries included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any
from urllib.parse import urlencode

import httpx
from msgspec.json import Decoder, encode

from bilinq.client.clients import AsyncClient
from bilinq.client.transport import CONNECT, ApiRequest, Attempt, Link, Reply, no_answer
from bilinq.live.wire import messages as m
from bilinq.live.wire.messages import JobRef, Lease, NewJob, Submit, Submitted, WorkFinish
from simulator.history import Call, History
from simulator.network import Message, Network
from simulator.world import Process, World

HOST, OTHER = "service", "service-2"  # names of processes of the service; clients reach either at the first
SUBMITTED = Decoder(Submitted)
JOBS, SERVERS = ("short", "long"), ("gpu", "cpu")
POLL = 10.0  # seconds that a worker waits for a job
SERVICE = 1.0  # seconds that a job takes on average, at most
TIMEOUT, ATTEMPT = 20.0, 4.0  # seconds of a call with all retries, and of one try


class SimulatedClient(AsyncClient):
    """The real client, with the simulated network in place of httpx, and a call that it does not offer."""

    def __init__(self, network: Network, process: Process, key: str) -> None:
        self.link = Link.to(f"http://{HOST}", key, TIMEOUT, ATTEMPT, True)
        self._network, self._process = network, process
        self._headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-type", b"application/json")]

    async def _attempt(self, attempt: Attempt) -> Reply:
        one, query = attempt.request, urlencode(attempt.request.query).encode()
        message = Message(one.method, HOST, one.path, query, self._headers, one.body or b"", one.repeatable)
        try:
            answer = await self._network.ask(self._process, message, min(CONNECT, attempt.seconds), attempt.seconds)
        except httpx.RequestError as error:
            return no_answer(error, attempt.seconds)
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body)

    async def submit_without_keys(self, jobs: list[NewJob]) -> list[JobRef]:
        """Submit jobs without keys, and without a second try: a lost response leaves a doubt."""
        request = ApiRequest("POST", "/v1/jobs", SUBMITTED.decode, encode(Submit(jobs)), repeatable=False)
        return (await self._perform(lambda: self._send(request))).jobs


class Crowd:
    """All actors. While `submitting`, they submit; with `calm`, they work without mistakes, so that all jobs can end.

    `pace` is the mean time between two submissions. `by_job` tells whether jobs may have features of their own, and `timed`
    whether they may have a start and a deadline, which are times of the wall clock.
    """

    def __init__(self, world: World, network: Network, history: History, key: str, pace: float, by_job: bool) -> None:
        self.world, self.network, self.history, self.key = world, network, history, key
        self.pace, self.by_job = pace, by_job
        self.submitting, self.calm, self.timed = True, False, False
        self.rewards: dict[str, set[float | None]] = {}  # by lease, all that somebody has tried to give
        self.held: dict[str, None] = {}  # servers that an operator holds, or held when it was killed
        self.roles: dict[str, Callable[[Actor], Coroutine[Any, Any, None]]] = {}
        self.running: dict[str, Process] = {}
        self.numbers = count(1)

    def add(self, name: str, role: Callable[[Actor], Coroutine[Any, Any, None]]) -> None:
        """Start an actor."""
        self.roles[name] = role
        self.start(name)

    def start(self, name: str) -> None:
        """Start an actor, again if it was killed."""
        process = self.running[name] = Process(self.world, name)
        process.on_kill.append(lambda: self.network.hang_up(process))
        process.spawn(self.roles[name](Actor(self, process)))


class Actor:
    """One client or worker while its process lives."""

    def __init__(self, crowd: Crowd, process: Process) -> None:
        self.crowd, self.process, self.random = crowd, process, process.random
        self.client = SimulatedClient(crowd.network, process, crowd.key)

    async def call(self, what: str, *about: Any, **named: Any) -> Call:
        """Make a call of the client's method with that name."""
        shown = (*about, *(f"{name}={value}" for name, value in named.items()))
        return await self.crowd.history.call(
            self.process.name, what, shown, getattr(self.client, what)(*about, **named)
        )

    async def rest(self, seconds: float) -> None:
        """Do nothing for a random time, with this mean."""
        await asyncio.sleep(seconds * self.random.expovariate(1.0))

    def chance(self, probability: float) -> bool:
        """Tell whether something happens that is not part of calm work."""
        return not self.crowd.calm and self.random.random() < probability


async def submitter(actor: Actor) -> None:
    """Submit jobs, alone and together, some of them again under their key; read, cancel and reward some."""
    crowd = actor.crowd
    while True:
        await actor.rest(crowd.pace)
        if not crowd.submitting:
            continue
        keyed = actor.random.random() < 0.8
        jobs = [_new_job(actor, keyed) for _ in range(actor.random.choice((1, 1, 1, 4)))]
        call = await _submit(actor, jobs, keyed)
        if keyed and actor.chance(0.2):
            await _submit(actor, jobs, keyed)
        if not call.done:
            continue
        id = actor.random.choice(call.answer)
        if actor.chance(0.4):
            await actor.call("job", id)
        if actor.chance(0.1):
            cancelled = await actor.call("cancel", id)
            if cancelled.done:
                await actor.call("job", id)


def _new_job(actor: Actor, keyed: bool) -> NewJob:
    """Return a job, sometimes with features, a deadline or a start of its own."""
    random, name = actor.random, f"p{next(actor.crowd.numbers)}"
    own: dict[str, Any] = {}
    if actor.crowd.by_job and random.random() < 0.2:
        own["features"] = [random.random(), random.random()]
    if actor.crowd.timed and actor.chance(0.1):
        own["deadline"] = random.uniform(5.0, 60.0)
    if actor.crowd.timed and actor.chance(0.1):
        own["not_before"] = random.uniform(0.0, 4.0)
    return NewJob(random.choice(JOBS), name, f"key-{name}" if keyed else None, random.choice((1, 1, 2)), **own)


async def _submit(actor: Actor, jobs: list[NewJob], keyed: bool) -> Call:
    async def ids() -> list[str]:
        submit = actor.client.submit_all if keyed else actor.client.submit_without_keys
        return [ref.id for ref in await submit(jobs)]

    return await actor.crowd.history.call(actor.process.name, "submit", tuple(jobs), ids())


async def worker(actor: Actor) -> None:
    """Be one server: lease, extend, finish or fail; sometimes forget a lease, or end it too late or twice."""
    server = await _register(actor, actor.process.name)
    while True:
        call = await actor.call("lease", server, wait=POLL)
        if call.error is not None:
            await actor.rest(1.0)
        if not isinstance(call.answer, Lease) or actor.chance(0.03):
            continue
        lease = call.answer
        await actor.rest(duration(actor, lease))
        while actor.chance(0.3):
            if (await actor.call("extend", lease.lease, lease.fence)).error == "Stale":
                break
            await actor.rest(duration(actor, lease))
        await _end(actor, lease)


def duration(actor: Actor, lease: Lease) -> float:
    """Return how long a job takes on average: sometimes longer than its lease, and not long once all is calm."""
    return lease.seconds if actor.chance(0.15) else 0.1 if actor.crowd.calm else min(0.2 * lease.seconds, SERVICE)


async def _register(actor: Actor, name: str) -> str:
    while True:
        call = await actor.call("register", SERVERS[sum(name.encode()) % 2], name)
        if call.done:
            id: str = call.answer.id
            return id
        await actor.rest(1.0)


async def _end(actor: Actor, lease: Lease) -> None:
    """End a lease, sometimes as failed, sometimes again in the same way."""
    end = _end_of(actor, lease)
    for _ in range(2 if actor.chance(0.1) else 1):
        if end.error is not None:
            await actor.call("fail", lease.lease, lease.fence, end.error)
            continue
        call = await actor.call("finish", lease.lease, lease.fence, end.reward, result={"by": lease.lease})
        if call.done and call.answer.state == "done" and not call.answer.repeated and actor.chance(0.1):
            await _reward_later(actor, lease)


def _end_of(actor: Actor, lease: Lease) -> WorkFinish:
    if actor.chance(0.08):
        return WorkFinish(lease.lease, lease.fence, error="broke")
    reward = None if actor.random.random() < 0.1 else actor.random.random()
    actor.crowd.rewards.setdefault(lease.lease, set()).add(reward)
    return WorkFinish(lease.lease, lease.fence, reward, None, {"by": lease.lease})


async def _reward_later(actor: Actor, lease: Lease) -> None:
    reward = actor.random.random()
    actor.crowd.rewards[lease.lease].add(reward)
    for _ in range(2):
        await actor.call("reward", lease.job.id, reward)
    await actor.call("job", lease.job.id)


async def agent(actor: Actor) -> None:
    """Be several servers in one call each time."""
    servers = [await _register(actor, f"{actor.process.name}-{number}") for number in range(4)]
    ends: list[WorkFinish] = []
    while True:
        call = await actor.call("work", ends, servers, POLL)
        if call.error is not None:
            await actor.rest(1.0)
            continue
        leases: list[Lease] = [] if call.answer is None else call.answer.leases
        if leases:
            await actor.rest(min(duration(actor, lease) for lease in leases))
        ends = [_end_of(actor, lease) for lease in leases if not actor.chance(0.03)]


async def operator(actor: Actor) -> None:
    """Change classes and settings, and hold servers for a while; who begins anew releases what was held before."""
    for server in list(actor.crowd.held):
        await _release(actor, server)
    while True:
        await actor.rest(10.0 * actor.crowd.pace)
        if actor.crowd.calm:
            continue
        random = actor.random
        if random.random() < 0.5:
            servers = await actor.call("servers")
            if servers.answer:
                server = random.choice(servers.answer).id
                actor.crowd.held[server] = None
                await actor.call(random.choice(("drain", "quarantine")), server)
                await actor.rest(5.0)
                await actor.call("servers")
                await _release(actor, server)
        elif random.random() < 0.5:
            await actor.call("put_server_class", m.ServerClassInfo(random.choice(SERVERS), [random.random(), 1.0]))
        else:
            await actor.call("update_settings", m.SettingsUpdate(target_wait=random.uniform(0.5, 5.0)))


async def _release(actor: Actor, server: str) -> None:
    """Release a server, however often that takes."""
    while (await actor.call("release", server)).error is not None:
        await actor.rest(1.0)
    actor.crowd.held.pop(server, None)
