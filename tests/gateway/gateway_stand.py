"""A gateway with fake back ends on the loopback, in a thread, for tests with a real client."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

import httpx
import openai

from bilinq.gateway.config import Config
from bilinq.gateway.fakes import FLEET, Fake, FakeModel, fleet, read_score
from bilinq.gateway.gateway import Gateway
from bilinq.gateway.run import running

T = TypeVar("T")
SEA: Any = [{"role": "user", "content": "Tell me about the sea."}]
SMALL, CODER, LARGE, READER = FLEET


class Stand:
    """Fakes and a gateway that listen while the block runs.

    `changes` are settings of back ends by name, `settings` those of the gateway. Fakes are 100 times as fast as stated.
    """

    def __init__(
        self,
        models: Sequence[FakeModel] = FLEET,
        *,
        changes: dict[str, dict[str, Any]] | None = None,
        speed: float = 100.0,
        judge: Any = read_score,
        **settings: Any,
    ) -> None:
        self._models, self._changes, self._speed, self._judge = models, changes or {}, speed, judge
        self._settings = {"port": 0, "target_wait": 0.05, **settings}
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._start)
        self._clients, self._made, self._lock = contextlib.ExitStack(), dict[str, openai.OpenAI](), threading.Lock()
        self._http = self._clients.enter_context(httpx.Client(trust_env=False, timeout=30.0))
        self.fakes: dict[str, Fake] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60.0)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.close()
        for fake in self.fakes.values():
            fake.trouble = None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60.0)
        assert not self._thread.is_alive()

    def _start(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with fleet(self._models, self._speed) as fakes:
            self.fakes = {name: fake for name, (_, fake) in fakes.items()}
            backends = tuple(
                fake.model.backend(where, **self._changes.get(name, {})) for name, (where, fake) in fakes.items()
            )
            async with running(Config(backend=backends, **self._settings), self._judge) as (self.address, self.gateway):
                self._ready.set()
                await self._stop.wait()

    def do(self, work: Callable[[Gateway], T]) -> T:
        """Return what a function of the gateway returns, in the thread of its event loop."""

        async def run(gateway: Gateway) -> T:
            return work(gateway)

        return self.run(run)

    def run(self, work: Callable[[Gateway], Coroutine[Any, Any, T]]) -> T:
        """Return what a coroutine of the gateway returns, in the thread of its event loop."""
        return asyncio.run_coroutine_threadsafe(work(self.gateway), self._loop).result(30.0)

    def client(self, key: str = "none") -> openai.OpenAI:
        """Return a client of the gateway that tries once; one for each key, since making one takes long."""
        with self._lock:
            if key not in self._made:
                made = openai.OpenAI(base_url=f"{self.address}/v1", api_key=key, max_retries=0, timeout=30.0)
                self._clients.callback(made.close)
                self._made[key] = made
        return self._made[key]

    def ask(self, model: str = "auto", key: str = "none", **options: Any) -> Any:
        """Return the answer to a question."""
        return self.client(key).chat.completions.create(model=model, messages=options.pop("messages", SEA), **options)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Return what a path answers."""
        return self._http.get(self.address + path, headers=headers)

    def post(self, path: str, content: Any, **headers: str) -> httpx.Response:
        """Return what a path answers to a body."""
        return self._http.post(self.address + path, json=content, headers=headers)

    def feedback(self, answer: Any, **said: Any) -> httpx.Response:
        """Give feedback to an answer."""
        return self.post("/v1/feedback", {"id": answer.id, **said})

    @property
    def asked(self) -> dict[str, int]:
        """How many requests each fake got."""
        return {name: fake.counts.asked for name, fake in self.fakes.items()}


def wait_for(found: Callable[[], T], seconds: float = 20.0) -> T:
    """Return what `found()` returns as soon as that is true."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return value


def leave_soon(stand: Stand, seconds: float = 0.3, **options: Any) -> None:
    """Ask, and go away after a moment."""
    body = {"messages": SEA, "model": "auto", **options}
    with contextlib.suppress(httpx.ReadTimeout):
        httpx.post(
            f"{stand.address}/v1/chat/completions", json=body, timeout=httpx.Timeout(5.0, read=seconds), trust_env=False
        )
