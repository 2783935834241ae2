"""What the router adds to a request: the same fake back end asked directly and through the router, in turns.

`python -m examples.llm_router.overhead` prints the table of the README. Client, router and back end share one process, and
what is measured is its processor time: on a machine with nothing else to do, that is the time that passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable

import httpx
import msgspec
import uvloop

from .app import App
from .config import Config
from .dispatcher import warm
from .fake_app import FakeApp
from .fakes import FAKES
from .router import Router
from .serving import serving

REQUESTS, ROUNDS = 200, 5
"""Requests that are timed together, and how often."""
AT_ONCE = 16
"""Requests at once, where there are many."""


async def measure() -> dict[str, tuple[float, float]]:
    """Return the median milliseconds of requests one by one, and of many at once, for both ways."""
    fake = FAKES[0]
    async with contextlib.AsyncExitStack() as stack:
        direct = await stack.enter_async_context(serving(FakeApp(fake, scale=0.0)))
        card = msgspec.structs.replace(fake.card, url=f"{direct}/v1", slots=AT_ONCE)
        router = Router(Config((card,), backlog=10_000))
        stack.push_async_callback(router.close)
        warm()
        through = await stack.enter_async_context(serving(App(router)))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60.0, trust_env=False))
        ways = {"directly": asker(client, direct), "through the router": asker(client, through)}
        alone: dict[str, list[float]] = {way: [] for way in ways}
        together: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, ask in ways.items():
                alone[way].append(await timed(ask, 1))
                together[way].append(await timed(ask, AT_ONCE))
    return {way: (statistics.median(alone[way]), statistics.median(together[way])) for way in ways}


def asker(client: httpx.AsyncClient, address: str) -> Callable[[], Awaitable[None]]:
    """Return a function that asks once."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "Tell me about the sea. " * 20}]}

    async def ask() -> None:
        (await client.post(f"{address}/v1/chat/completions", json=body)).raise_for_status()

    return ask


async def timed(ask: Callable[[], Awaitable[None]], at_once: int) -> float:
    """Return the milliseconds of processor time of a request."""
    left = iter(range(REQUESTS))

    async def one() -> None:
        for _ in left:
            await ask()

    began = time.process_time()
    await asyncio.gather(*(one() for _ in range(at_once)))
    return 1000.0 * (time.process_time() - began) / REQUESTS


def main() -> None:
    """Print the table."""
    print(f"| way | one by one, ms | {AT_ONCE} at once, ms each | requests/s |\n| --- | --- | --- | --- |")
    for way, (alone, together) in uvloop.run(measure()).items():
        print(f"| {way} | {alone:.2f} | {together:.2f} | {1000.0 / together:.0f} |")


if __name__ == "__main__":
    main()
