"""The demo: fake back ends with known strengths, traffic for them, and a page that shows the gateway learning."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from bilinq.extras import optional_imports
from bilinq.gateway.config import Config, Worth
from bilinq.gateway.fakes import FLEET, fleet, read_score
from bilinq.gateway.features import KINDS
from bilinq.gateway.run import running

with optional_imports():
    import httpcore

RATE = 6.0  # requests a second
SHARE = (0.30, 0.10, 0.20, 0.08, 0.14, 0.04, 0.10, 0.04)
"""How much of the traffic each kind is, in the order of `KINDS`, without embeddings."""
WORTH = Worth(second=0.02, money=100.0)
PROSE = ("the sea", "a train journey", "old maps", "winter bread", "the moon", "a lighthouse", "two friends", "rain")
CODE = ("sort a list", "parse a date", "open a file", "merge two dicts", "retry a call", "count words", "walk a tree")


async def run_demo(tell: Callable[[str], object], given: dict[str, Any]) -> None:
    """Run fakes, a gateway and traffic until Ctrl-C."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        fakes = await stack.enter_async_context(fleet())
        backends = tuple(fake.model.backend(where) for where, fake in fakes.values())
        config = Config(**{"backend": backends, "worth": WORTH, "target_wait": 0.3, **given})
        address, _ = await stack.enter_async_context(running(config, read_score))
        tell(f"the page is {address}/ and the API {address}/v1; {RATE:g} requests a second; Ctrl-C ends it")
        for model in FLEET:
            tell(f"  {model.name:8} {model.price_out:5g} per million tokens, quality of prose {model.quality:.2f}, "
                 f"of code {model.mean_quality('code'):.2f}, of long texts {model.mean_quality('long'):.2f}")  # fmt: skip
        sending = asyncio.create_task(traffic(address))
        await stop.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def traffic(address: str, rate: float = RATE, seed: int = 1) -> None:
    """Send Poisson traffic without end."""
    rng, tasks = np.random.default_rng(seed), set[asyncio.Task[None]]()
    async with httpcore.AsyncConnectionPool(max_connections=None) as pool:
        while True:
            await asyncio.sleep(rng.exponential(1.0 / rate))
            body = request(KINDS[int(rng.choice(len(SHARE), p=SHARE))], rng)
            task = asyncio.create_task(_send(pool, address, body))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def _send(pool: httpcore.AsyncConnectionPool, address: str, body: dict[str, Any]) -> None:
    headers = [("Content-Type", "application/json")]
    content = msgspec.json.encode(body)
    with contextlib.suppress(httpcore.NetworkError, httpcore.ProtocolError):
        await pool.request("POST", f"{address}/v1/chat/completions", headers=headers, content=content)


def request(kind: str, rng: np.random.Generator) -> dict[str, Any]:
    """Return a chat request of a kind; no two are alike."""
    about, number = str(rng.choice(CODE if "code" in kind else PROSE)), int(rng.integers(1, 1000))
    text = f"Write {number} words about {about}."
    if "code" in kind:
        text = f"Fix this python function, which should {about}:\n```python\ndef f_{number}(x):\n    return x\n```"
    if "long" in kind:
        text += f" Take into account what follows. {about} " * 180
    body: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": text}]}
    if rng.random() < 0.5:
        body["stream"] = True
    if "tools" in kind:
        function = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
        body["tools"] = [{"type": "function", "function": function}]
    return body
