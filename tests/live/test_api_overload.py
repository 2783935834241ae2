"""Overload: requests that cannot be answered soon wait a little or are refused, so that others are answered in time."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from asgi import Request, request
from fake_service import FakeService, FakeWatch

from bilinq.errors import Busy
from bilinq.live.http import gate as gates
from bilinq.live.http.app import make_app
from bilinq.live.http.gate import Gate
from bilinq.live.http.routing import Gone
from bilinq.live.keys import Identity
from bilinq.live.settings import ServiceSettings
from bilinq.live.wire import messages as m

AGE = 0.1
JOB = {"jobs": [{"class": "short"}]}


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "AGE", AGE)
    monkeypatch.setattr(gates, "SOON", 0.02)
    monkeypatch.setattr(gates, "FIRST", 2.0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everybody waits, so that a busy machine changes nothing."""

    def __init__(self) -> None:
        self._now, self._chosen = 1000.0, selectors.DefaultSelector()
        super().__init__(self._chosen)
        self._chosen.select = partial(self._skip, self._chosen.select)  # type: ignore[method-assign]

    def time(self) -> float:
        return self._now

    def _skip(self, select: Callable[[float], Any], timeout: float | None = None) -> Any:
        self._now += timeout or 0.0
        return select(0.0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.wait_for(scenario(), 10.0))


class Visitors:
    """Requests at a gate, by name; `let_in` has those that were let in, in order."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.let_in: list[str] = []
        self.entered: dict[str, float] = {}

    def arrive(self, name: str, gone: bool = False, size: int = 1) -> "asyncio.Task[None]":
        async def visit() -> None:
            self.entered[name] = await self.gate.enter(size, lambda: gone)
            self.let_in.append(name)

        return asyncio.ensure_future(visit())

    def leave(self, name: str, after: float = 0.0) -> None:
        self.gate.leave(self.entered[name] - after)


def test_others_wait_in_order_and_in_overload_the_newest_come_first() -> None:
    async def scenario() -> None:
        all = Visitors(Gate())
        waiting = [all.arrive(name) for name in "abcdef"]
        await asyncio.sleep(0)
        all.leave("a")
        await asyncio.sleep(0.001)
        assert all.let_in == ["a", "b", "c"]
        await asyncio.sleep(0.6 * AGE)
        waiting.append(all.arrive("g"))
        await asyncio.sleep(0)
        all.leave("b")
        await asyncio.sleep(0.001)
        assert all.let_in == ["a", "b", "c", "g"]
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in told] == [type(None)] * 3 + [Busy] * 3 + [type(None)]
        assert all.gate.refused == 3 and all.gate.inside == 2

    run(scenario)


def test_who_has_gone_is_dropped_and_who_is_cancelled_gives_the_place_back() -> None:
    async def scenario() -> None:
        all = Visitors(Gate())
        for name in "ab":
            await all.arrive(name)
        gone, cancelled, next = all.arrive("c", gone=True), all.arrive("d"), all.arrive("e")
        await asyncio.sleep(0)
        all.leave("a")
        cancelled.cancel()  # it was let in, but does not know it yet
        with pytest.raises(Gone):
            await gone
        await next
        assert all.let_in == ["a", "b", "e"] and all.gate.inside == 2

    run(scenario)


def test_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MOST_BYTES", 100)

    async def scenario() -> None:
        all = Visitors(Gate())
        for name in "ab":
            await all.arrive(name)
        waiting = [all.arrive(name, size=60) for name in "cd"]
        with pytest.raises(Busy, match="more requests than it can answer"):
            await waiting[0]
        all.leave("a")
        await waiting[1]

    run(scenario)


def test_as_many_at_a_time_as_are_answered_soon() -> None:
    async def scenario() -> None:
        gate = Gate()
        all, gate.most = Visitors(gate), 100.0
        for name in "ab":
            await all.arrive(name)
        all.leave("a", after=1.0)
        all.leave("b", after=1.0)
        assert gate.most == 80.0  # the second one began before the change, so it cannot judge it
        gate.most = 5.0
        for _ in range(5):
            entered = await gate.enter(1, lambda: False)
            await asyncio.sleep(0.025)
            gate.leave(entered)
        assert gate.most == gates.LEAST
        for name in "ab":
            await all.arrive(name)
        waiting = all.arrive("c")
        await asyncio.sleep(0)
        all.leave("a")
        await waiting
        assert gate.most == gates.LEAST + 0.1

    run(scenario)


class Slow(FakeService):
    """Submits one call after the other, in so many seconds each."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.one = seconds, asyncio.Lock()
        self.carried_out = 0

    async def submit(self, who: Identity, jobs: list[m.NewJob]) -> m.Submitted:
        async with self.one:
            await asyncio.sleep(self.seconds)
            self.carried_out += 1
            return await super().submit(who, jobs)


class Clients:
    """Clients of a slow service that give up after a while; `good` counts answers in time."""

    def __init__(self, seconds: float, patience: float) -> None:
        self.service, self.patience, self.good = Slow(seconds), patience, 0
        self.app: Any = make_app(self.service, FakeWatch(), ServiceSettings(rate=0.0))  # type: ignore[arg-type]
        self.key = self.service.add_key("submit", "work")

    def request(self, method: str, url: str, body: Any = None) -> Request:
        one = request(method, url, body, self.key)
        one.scope["gone"] = one.gone.is_set
        return one

    async def submit(self) -> int | None:
        """Submit a job; return the status of the answer, None if there was none in time."""
        one = self.request("POST", "/v1/jobs", JOB)
        asking = asyncio.ensure_future(self.app(one.scope, one.receive, one.send))
        await asyncio.wait([asking], timeout=self.patience)
        status: int | None = one.sent[0]["status"] if asking.done() and one.sent else None
        one.gone.set()
        self.good += status == 201
        return status

    async def arrive(self, rate: float, seconds: float) -> float:
        """Let calls arrive at a rate; return how many are answered in time each second."""
        loop, before = asyncio.get_running_loop(), self.good
        start, some = loop.time(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(start + number / rate - loop.time(), 0.0))
            some.append(asyncio.ensure_future(self.submit()))
        rate = (self.good - before) / (loop.time() - start)
        await asyncio.gather(*some)
        return rate


def test_goodput_holds_at_three_times_the_capacity_and_comes_back_at_once() -> None:
    """Measured over HTTP with a real service by `python -m bench.live.overload`."""

    async def scenario() -> None:
        clients = Clients(0.004, 0.25)
        loop = asyncio.get_running_loop()
        start = loop.time()
        while loop.time() < start + 0.4:
            await asyncio.gather(*(clients.submit() for _ in range(4)))
        best = clients.good / (loop.time() - start)
        assert await clients.arrive(3.0 * best, 1.0) > 0.95 * best
        done = clients.service.carried_out
        assert clients.good > 0.9 * done  # what was done was for clients that still waited
        assert [await clients.submit() for _ in range(5)] == [201] * 5

    run(scenario)


def test_workers_do_not_wait_for_submissions() -> None:
    async def scenario() -> None:
        clients = Clients(0.5, 5.0)
        waiting = [asyncio.ensure_future(clients.submit()) for _ in range(20)]
        await asyncio.sleep(0.01)
        answer = await asyncio.wait_for(clients.request("POST", "/v1/servers", {"class": "gpu"}).run(clients.app), 0.2)
        assert answer.status == 201
        statuses = await asyncio.gather(*waiting)
        assert statuses.count(429) == 18 and clients.service.carried_out == 2

    run(scenario)


def test_what_nobody_waits_for_is_not_done() -> None:
    async def scenario() -> None:
        clients = Clients(0.05, 0.02)
        assert await asyncio.gather(*(clients.submit() for _ in range(8))) == [None] * 8
        await asyncio.sleep(0.3)
        assert clients.service.carried_out == 2

    run(scenario)


def test_reads_and_changes_have_separate_gates() -> None:
    async def scenario() -> None:
        clients = Clients(0.3, 5.0)
        waiting = [asyncio.ensure_future(clients.submit()) for _ in range(5)]
        await asyncio.sleep(0.01)
        answer = await asyncio.wait_for(clients.request("GET", "/v1/jobs").run(clients.app), 0.2)
        assert answer.status == 200
        await asyncio.gather(*waiting)

    run(scenario)
