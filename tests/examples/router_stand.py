"""A router with fake back ends on the loopback, in a thread, for tests with a real client."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

import openai
from llm_router.app import App
from llm_router.card import Card
from llm_router.config import Config
from llm_router.fake_app import FakeApp
from llm_router.fakes import FAKES, Fake, read_score
from llm_router.router import Router
from llm_router.serving import serving
from msgspec import structs

T = TypeVar("T")


class Stand:
    """Fakes and a router that listen while the block runs.

    `cards` changes the cards of fakes by name, `settings` the router's. Fakes answer after some milliseconds.
    """

    def __init__(
        self, *fakes: Fake, cards: dict[str, dict[str, Any]] | None = None, scale: float = 0.002, **settings: Any
    ) -> None:
        self.fakes = {fake.card.name: FakeApp(fake, scale, seed=k) for k, fake in enumerate(fakes or FAKES)}
        self._cards = [structs.replace(fake.card, **(cards or {}).get(fake.card.name, {})) for fake in fakes or FAKES]
        self._settings = settings
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._clients = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.close()
        for fake in self.fakes.values():
            fake.trouble = None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30.0)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            cards = []
            for card, fake in zip(self._cards, self.fakes.values(), strict=True):
                url = await stack.enter_async_context(serving(fake))
                cards.append(Card(**structs.asdict(structs.replace(card, url=f"{url}/v1"))))
            self.router = Router(Config(tuple(cards), port=0, **self._settings), judge=read_score)
            stack.push_async_callback(self.router.close)
            self.address = await stack.enter_async_context(serving(App(self.router)))
            self._ready.set()
            await self._stop.wait()

    def client(self, key: str = "none") -> openai.OpenAI:
        """Return a client of the router that tries once."""
        client = openai.OpenAI(base_url=f"{self.address}/v1", api_key=key, max_retries=0, timeout=30.0)
        self._clients.callback(client.close)
        return client


def wait_for(found: Callable[[], T], seconds: float = 10.0) -> T:
    """Return what `found()` returns as soon as that is true."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return value
