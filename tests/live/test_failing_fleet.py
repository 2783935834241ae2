"""Servers that fail, over HTTP: with the default settings and a virtual clock, and workers of the client in real time."""

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvloop
from faulty import until
from virtual import Clock, Served, serving, virtual_time

from bilinq.client import Client, HeldJob, NewJob, Worker
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo

pytest_plugins = ["databases"]

CLASSES = {"job_class": (JobClassInfo("a"),), "server_class": (ServerClassInfo("x"), ServerClassInfo("y"))}


class Fleet:
    """Servers that ask for work every second, always in the same order, and take a second.

    Those that are `broken` fail, and so do jobs that are `bad`.
    """

    def __init__(self, clock: Clock, served: Served, *names: str) -> None:
        self.clock, self.ask, self.names = clock, served.ask, names
        self.ids: dict[str, str] = {}
        self.broken: set[str] = set()
        self.bad: set[str] = set()
        self.leases: list[Any] = []
        self.ended: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)

    async def register(self) -> None:
        for name in self.names:
            self.ids[(await self.ask("POST", "/v1/servers", {"class": name[0], "name": name}))["id"]] = name

    async def submit(self, *jobs: dict[str, Any]) -> list[str]:
        """Submit jobs of class a and return their ids."""
        answer = await self.ask("POST", "/v1/jobs", {"jobs": [{"class": "a"} | job for job in jobs]})
        return [job["id"] for job in answer["jobs"]]

    async def second(self) -> None:
        """End what is being served, and let all servers ask again."""
        self.clock.seconds += 1.0
        ends = [self._end(lease) for lease in self.leases]
        self.leases = (await self.ask("POST", "/v1/work", {"finish": ends, "lease": list(self.ids)}))["leases"]

    def _end(self, lease: Any) -> dict[str, Any]:
        name = self.ids[lease["server"]]
        fails = name in self.broken or lease["job"]["id"] in self.bad
        self.ended[name].append((self.clock.seconds, not fails))
        how = {"error": "broken"} if fails else {"reward": 0.5}
        return {"lease": lease["lease"], "fence": lease["fence"]} | how

    async def until(self, over: Callable[[], bool], seconds: int, jobs: int = 0) -> float:
        """Go on until something is true, with so many new jobs each second; return the seconds that it took."""
        began = self.clock.seconds
        while not over():
            assert self.clock.seconds < began + seconds, f"not within {seconds} s"
            if jobs:
                await self.submit(*[{}] * jobs)
            await self.second()
        return self.clock.seconds - began

    async def held(self) -> dict[str, str]:
        """Return why servers are held that are."""
        servers = await self.ask("GET", "/v1/servers")
        return {one["name"]: f"{one['held']}: {one['reason']}" for one in servers if one["held"] is not None}

    async def states(self) -> Counter[str]:
        return Counter(job["state"] for job in (await self.ask("GET", "/v1/jobs?limit=1000"))["jobs"])

    def failures(self, name: str) -> int:
        return sum(not success for _, success in self.ended[name])

    def succeeded(self, *names: str, after: float = 0.0) -> bool:
        """Tell whether all of some servers have succeeded after a time."""
        return all(any(success and at > after for at, success in self.ended[name]) for name in names)


def run(database: str, names: str, work: Callable[[Fleet], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        with virtual_time() as clock:
            async with serving(database=database, seed=1, slot=1.0, **CLASSES) as served:
                fleet = Fleet(clock, served, *names.split())
                await fleet.register()
                await work(fleet)

    uvloop.run(scenario())


def test_a_server_that_fails_at_once_kills_no_job_and_is_back_within_a_minute(database_url: str) -> None:
    """Beside two healthy servers it is paused within five failures; it is repaired when its pauses are longest."""

    async def work(fleet: Fleet) -> None:
        fleet.broken = {"x0"}
        while not await fleet.held():
            assert fleet.failures("x0") <= 5
            await fleet.submit({})
            await fleet.second()
        await fleet.until(lambda: fleet.clock.seconds >= 90.0, 90, jobs=1)
        assert fleet.failures("x0") <= 12, "pauses double"
        assert list(await fleet.held()) == ["x0"]
        fleet.broken, repaired = set(), fleet.clock.seconds
        await fleet.until(lambda: fleet.succeeded("x0", after=repaired), 60, jobs=1)
        assert await fleet.held() == {}
        await fleet.until(lambda: not fleet.leases, 60)
        states = await fleet.states()
        assert states.keys() == {"done"} and states.total() > 90

    run(database_url, "x0 x1 x2", work)


def test_a_class_that_fails_altogether(database_url: str) -> None:
    """Jobs that others may serve are done; those that only it may serve end after five attempts on several servers."""

    async def work(fleet: Fleet) -> None:
        fleet.broken = {"y0", "y1", "y2"}
        only = await fleet.submit(*[{"servers": ["y"]}] * 3)
        await fleet.until(lambda: fleet.clock.seconds >= 60.0, 61, jobs=1)
        held = await fleet.held()
        assert held.keys() == {"y0", "y1", "y2"}
        assert all(why.startswith("paused: servers of its class fail more often") for why in held.values())
        for _ in range(1000):
            await fleet.second()
        states = await fleet.states()
        assert states == {"done": 60, "dead": 3}
        for id in only:
            job = await fleet.ask("GET", f"/v1/jobs/{id}")
            failed = [event for event in job["history"] if event["what"] == "failed"]
            assert (job["state"], job["attempts"], job["error"], len(failed)) == ("dead", 5, "broken", 5)
            assert len({event["server"] for event in failed}) > 1
        assert sum(fleet.failures(name) for name in fleet.broken) < 60

    run(database_url, "x0 x1 y0 y1 y2", work)


@pytest.mark.parametrize("names", ["x0 x1 x2 x3 x4 x5 x6 x7 x8 x9", "x0 x1 x2 x3 x4 y0 y1 y2 y3 y4"])
def test_bad_jobs_do_not_pause_a_healthy_fleet(sqlite_url: str, names: str) -> None:
    """Ten servers that have succeeded 200 times; then batches of jobs fail wherever they are tried, beside jobs of others.

    Of two classes one may be paused for seconds until the jobs have failed on the other class, too, and of the only class
    single servers.
    """

    async def work(fleet: Fleet) -> None:
        await fleet.until(lambda: sum(map(len, fleet.ended.values())) >= 200, 30, jobs=10)
        for many in (3, 12, 60):
            fleet.bad = set(await fleet.submit(*[{}] * many))
            held, alive = 0, fleet.bad
            while alive:
                await fleet.submit(*[{}] * 2)
                await fleet.second()
                paused = await fleet.held()
                assert len(paused) < 10
                held += bool(paused)
                ends = [await fleet.ask("GET", f"/v1/jobs/{id}") for id in alive]
                alive = {job["id"] for job in ends if job["state"] != "dead"}
            assert held <= (12 if many > 3 else 0)

    run(sqlite_url, names, work)


def test_a_class_comes_back_if_one_of_its_servers_is_repaired(database_url: str) -> None:
    """The trials of a class go to one server after the other, and not always to the one that asks first."""

    async def work(fleet: Fleet) -> None:
        fleet.broken = {"y0", "y1", "y2"}
        await fleet.until(lambda: fleet.clock.seconds >= 70.0, 71, jobs=3)
        assert (await fleet.held()).keys() == fleet.broken
        fleet.broken, repaired = {"y0", "y1"}, fleet.clock.seconds
        await fleet.until(lambda: fleet.succeeded("y2", after=repaired), 100, jobs=3)
        fleet.broken, repaired = set(), fleet.clock.seconds
        await fleet.until(lambda: fleet.succeeded("y0", "y1", after=repaired), 60, jobs=3)
        assert await fleet.held() == {}
        assert (await fleet.states())["dead"] == 0

    run(database_url, "x0 x1 y0 y1 y2", work)


@contextmanager
def served(database: str, **settings: Any) -> Iterator[Client]:
    """A client of a service that runs in a thread of its own, by the real clock."""
    ready, over, found = threading.Event(), asyncio.Event(), list[Any]()

    async def serve() -> None:
        async with serving(database=database, seed=1, **CLASSES, **settings) as one:
            found.extend((asyncio.get_running_loop(), one))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    try:
        assert ready.wait(30.0)
        with Client(found[1].url, found[1].key, timeout=20.0) as client:
            yield client
    finally:
        found[0].call_soon_threadsafe(over.set)
        thread.join(20.0)


@contextmanager
def at_work(client: Client, name: str, function: Callable[[HeldJob], float]) -> Iterator[None]:
    worker = Worker(client, "x", function, name=name, wait=0.2, leave=1.0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(20.0)
        assert not thread.is_alive()


def test_a_worker_that_raises_kills_no_job_and_comes_back(database_url: str) -> None:
    """Two healthy workers of the client and one whose function raises; pauses are at most half a second here."""
    broken, calls = threading.Event(), Counter[str]()
    broken.set()

    def function(name: str) -> Callable[[HeldJob], float]:
        def serve(job: HeldJob) -> float:
            calls[name] += 1
            if name == "bad" and broken.is_set():
                raise RuntimeError("broken")
            job.wait_lost(0.01)
            return 0.5

        return serve

    def paused(client: Client) -> list[str | None]:
        return [one.name for one in client.servers() if one.held == "paused"]

    with (
        served(database_url, slot=0.01, retry_first=0.05, retry_longest=0.5, pause_longest=0.5) as client,
        ExitStack() as all,
    ):
        for name in ("bad", "good", "better"):
            all.enter_context(at_work(client, name, function(name)))
        until(lambda: len(client.servers()) == 3)
        client.submit_all([NewJob("a")] * 60)
        until(lambda: len(paused(client)) == 1)
        until(lambda: len(client.jobs(state="done", limit=100).jobs) == 60, 30.0)
        assert client.jobs(state="dead").jobs == [] and 3 <= calls["bad"] < 15
        broken.clear()
        before = calls["bad"]
        while paused(client):
            client.submit_all([NewJob("a")] * 3)
            until(lambda: not client.jobs(state="queued").jobs)
        assert calls["bad"] > before
