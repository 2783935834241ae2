"""Tenants share by weight where there is too much to do, and nobody drowns in another one's requests."""

import asyncio
from collections import Counter

import numpy as np
import pytest
from llm_router.compare import Sink, request
from llm_router.config import Config, Tenant
from llm_router.fakes import FAKES, SHARE, FakeBackend, read_score
from llm_router.kind import KINDS
from llm_router.router import Router
from llm_router.state import believed
from llm_router.virtual import run
from llm_router.worth import Worth

SHA = "0" * 63


def router(weight: dict[str, float], seed: int) -> Router:
    tenants = tuple(Tenant(name, value, key_sha256=f"{SHA}{k}") for k, (name, value) in enumerate(weight.items()))
    backends = {fake.card.name: FakeBackend(fake, seed + k) for k, fake in enumerate(FAKES)}
    config = Config(tuple(fake.card for fake in FAKES), tenants, backlog=10_000)
    return Router(config, backends, read_score, seed=seed)


class Tenants:
    """Requests of tenants to a router, and how many were answered."""

    def __init__(self, weight: dict[str, float], seed: int, model: str = "auto") -> None:
        self.router, self.answered, self.model = router(weight, seed), Counter[str](), model
        self._rng = np.random.default_rng(seed)
        self._tasks: set[asyncio.Task[float]] = set()

    def ask(self, tenant: str, number: int = 1) -> list[asyncio.Task[float]]:
        """Send requests of random kinds; each task returns how long its request had no slot."""
        tasks = [asyncio.create_task(self._one(tenant)) for _ in range(number)]
        self._tasks.update(tasks)
        return tasks

    async def _one(self, tenant: str) -> float:
        kind = KINDS[self._rng.choice(len(KINDS), p=list(SHARE.values()))]
        sink, came = Sink(), asyncio.get_running_loop().time()
        await self.router.answer(tenant, request(kind) | {"model": self.model}, sink)
        self.answered[tenant] += 1
        return sink.began - came

    async def stop(self) -> None:
        """Let all who still wait go away, and check that nothing of them is left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.router.close()
        assert self.router.dispatcher.lines.waiting == self.router.dispatcher.lines.shown == 0
        assert len(self.router.dispatcher.choosy) == 0
        assert all(not slots.busy and not slots.line for slots in self.router.dispatcher.slots.values())


@pytest.mark.parametrize(("model", "tolerance"), [("auto", 0.15), ("large", 0.1)])
def test_shares_go_by_weight_under_overload(model: str, tolerance: float) -> None:
    """Three to one, both for routed and for pinned requests; a fair share regardless of weight would be noticed."""

    async def overload() -> Counter[str]:
        tenants = Tenants({"heavy": 3.0, "light": 1.0}, seed=1, model=model)
        tenants.ask("light", 400)
        tenants.ask("heavy", 400)
        while tenants.answered.total() < 250:
            await asyncio.sleep(1.0)
        answered = tenants.answered.copy()
        await tenants.stop()
        return answered

    answered = run(overload())
    assert answered["heavy"] / answered["light"] == pytest.approx(3.0, rel=tolerance)


def test_a_tenant_with_little_to_ask_does_not_wait_behind_a_flood() -> None:
    """Of equal weights: who asks once a second waits much less than in one line with a thousand requests before it."""

    async def flood() -> tuple[float, float]:
        tenants = Tenants({"flood": 1.0, "quiet": 1.0}, seed=2)
        tenants.ask("flood", 1000)
        waits = []
        for _ in range(40):
            await asyncio.sleep(1.0)
            waits += tenants.ask("quiet")
        done = await asyncio.gather(*waits)
        in_line = 1000 / (tenants.answered.total() / asyncio.get_running_loop().time())
        await tenants.stop()
        return float(np.mean(done)), in_line

    wait, in_line = run(flood())
    assert wait < 0.2 * in_line, (wait, in_line)


def test_pinned_requests_teach_as_well() -> None:
    """Though the scheduler has nothing to decide: what is believed comes within a tenth of the truth."""

    async def pinned() -> dict[str, dict[str, dict[str, float]]]:
        tenants = Tenants({"one": 1.0}, seed=3, model="large")
        await asyncio.gather(*tenants.ask("one", 200))
        found = believed(tenants.router)
        await tenants.stop()
        return found

    found = run(pinned())["short prose"]
    large, small = FAKES[2], FAKES[0]
    worth = Worth()
    true = worth.reward(large.score(KINDS[0]), large.seconds(KINDS[0]), large.price(KINDS[0]))
    assert found["large"]["mean"] == pytest.approx(true, abs=0.1)
    assert found["large"]["error"] < 0.1 < found[small.card.name]["error"]
