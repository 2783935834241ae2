"""The router at work: fake back ends over HTTP, traffic through the router, and a line every two seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

import httpx
import msgspec
import numpy as np

from .app import App
from .compare import WORTH, best_reward, mean_reward, request
from .config import Config
from .dispatcher import warm
from .fake_app import FakeApp
from .fakes import FAKES, SHARE, read_score
from .kind import KINDS
from .router import Router
from .serving import serving
from .state import believed
from .worth import Worth

RATE, SCALE = 5.0, 0.2
"""Requests in a second of the fakes, and how long such a second takes."""
EVERY = 2.0
"""Seconds between two lines."""
RECENT = 200
"""Requests that a line tells of."""


async def demo(seconds: float, host: str = "127.0.0.1", port: int = 8080) -> None:
    """Run fakes, router and traffic for a while, and print what is earned and, in the end, what was learnt."""
    async with contextlib.AsyncExitStack() as stack:
        cards = []
        for k, fake in enumerate(FAKES):
            url = await stack.enter_async_context(serving(FakeApp(fake, SCALE, seed=k)))
            cards.append(msgspec.structs.replace(fake.card, url=f"{url}/v1"))
        worth = Worth(WORTH.second / SCALE, WORTH.money)
        router = Router(Config(tuple(cards), host=host, port=port, target_wait=SCALE, worth=worth), judge=read_score)
        stack.push_async_callback(router.close)
        warm()
        address = await stack.enter_async_context(serving(App(router), host, port))
        print(f"the router serves {address}/v1; {RATE / SCALE:g} requests a second for {seconds:g} seconds")
        await traffic(address, seconds)
        print_beliefs(router)


async def traffic(address: str, seconds: float) -> None:
    """Send Poisson traffic for a while."""
    rng, clock, recent = np.random.default_rng(1), asyncio.get_running_loop().time, deque[float](maxlen=RECENT)
    reward, best = mean_reward(), best_reward(RATE)
    columns = {fake.card.name: j for j, fake in enumerate(FAKES)}
    end, tell, sent = clock() + seconds, clock() + EVERY, 0
    async with httpx.AsyncClient(timeout=None, trust_env=False) as client, asyncio.TaskGroup() as tasks:

        async def one(i: int) -> None:
            answer = await client.post(f"{address}/v1/chat/completions", json=request(KINDS[i]))
            j = columns[answer.raise_for_status().headers["x-router-backend"]]
            recent.append(reward[i, j] / best[i])

        while clock() < end:
            await asyncio.sleep(rng.exponential(SCALE / RATE))
            tasks.create_task(one(int(rng.choice(len(KINDS), p=list(SHARE.values())))))
            sent += 1
            if clock() >= tell and recent:
                tell += EVERY
                print(
                    f"{sent:5d} requests; the last {len(recent)} earned {100.0 * np.mean(recent):.1f} % of the best fixed"
                )


def print_beliefs(router: Router) -> None:
    """Print the reward believed of each kind at each back end, and the true one in brackets."""
    print(" " * 22 + "".join(f"{name:>14}" for name in router.cards))
    for kind, row, true in zip(KINDS, believed(router).values(), mean_reward(), strict=True):
        cells = [f"{one['mean']:.2f} ({mean:.2f})" for one, mean in zip(row.values(), true, strict=True)]
        print(f"{kind!s:>22}" + "".join(f"{cell:>14}" for cell in cells))
