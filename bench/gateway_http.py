"""The gateway beside LiteLLM's Router and other routers over HTTP: `python -m bench.gateway_http DATA [NAME=COMMAND ...]`.

Fakes and routers are processes on the loopback; the answers, prices and durations of `bench.gateway_comparison` travel in
the requests. A command starts another router; {workers} in it stands for the addresses of the fakes, {port} for its port.
"""

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.gateway_comparison import PLACES, World, world
from bilinq.gateway.fakes import FLEET, SCORE

LOAD, JOBS, SPEED, SEED, PORT = 0.8, 1500, 8.0, 5601, 9700
STRATEGIES = ("least-busy", "latency-based-routing", "simple-shuffle")
NAMES = [one.name for one in FLEET]
Ask = Callable[[dict[str, Any]], Awaitable[str]]


@contextmanager
def process(*words: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a process while the block runs."""
    one = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **settings)
    try:
        yield one
    finally:
        one.terminate()
        one.communicate(timeout=60)


@contextmanager
def fakes() -> Iterator[list[str]]:
    """Run the fakes, without delays of their own; yield their settings for a gateway."""
    words = ("--port", str(PORT), "--speed", str(SPEED), "--concurrency", str(PLACES))
    with process(sys.executable, "-m", "bilinq.gateway.fakes", *words) as one:
        assert one.stdout is not None
        lines = [one.stdout.readline() for _ in range(2 + 8 * len(FLEET))]
        for k in range(len(FLEET)):
            httpx.post(f"http://127.0.0.1:{PORT + k}/fake", json={"first": 0.0}, trust_env=False)
        yield lines


@contextmanager
def gateway(lines: list[str]) -> Iterator[str]:
    """Run the gateway; yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        head, mark, rest = "".join(lines).partition("[[backend]]")
        worth = f"\n[worth]\nsecond = 0.0\nmoney = 0.0\nwait = {0.05 * SPEED}\n"  # seconds are shorter here
        file = Path(folder) / "gateway.toml"
        file.write_text(f'port = 0\ndatabase = "sqlite:///{folder}/log.db"\n{head}{mark}{rest}{worth}')
        with process(sys.executable, "-m", "bilinq.commands.app", "gateway", "--config", str(file)) as one:
            assert one.stdout is not None
            yield one.stdout.readline().split()[3].rstrip(";")


def over_http(client: httpx.AsyncClient, address: str) -> Ask:
    """Return a function that sends a request to an address and returns the text of the answer."""

    async def ask(body: dict[str, Any]) -> str:
        answer = await client.post(f"{address}/chat/completions", json=body)
        answer.raise_for_status()
        found = answer.json()
        return f"{found['model']} {found['choices'][0]['message']['content']}"

    return ask


def litellm(strategy: str) -> Ask:
    """Return a function that sends a request by LiteLLM's Router."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    deployments = [
        {
            "model_name": "auto", "model_info": {"id": name},
            "litellm_params": {"model": f"openai/{name}", "api_base": f"http://127.0.0.1:{PORT + k}/v1", "api_key": "none"},
        }
        for k, name in enumerate(NAMES)
    ]  # fmt: skip
    router = import_module("litellm").Router(model_list=deployments, routing_strategy=strategy, num_retries=0)

    async def ask(body: dict[str, Any]) -> str:
        found = await router.acompletion("auto", messages=body["messages"], user=body["user"])
        return f"{found.model} {found.choices[0].message.content}"

    return ask


async def measure(ask: Ask, found: World) -> tuple[float, float, float, float]:
    """Send all requests at their times; return quality, dollars per 1,000, and mean and p99 of seconds at usual speed."""
    work, took, quality, cost = found.work, np.zeros(found.work.N), np.zeros(found.work.N), np.zeros(found.work.N)
    began = time.perf_counter()

    async def one(k: int) -> None:
        said = {
            name: {"quality": float(work.reward[k, j]), "tokens": 20, "seconds": float(work.duration[k, j])}
            for j, name in enumerate(NAMES)
        }
        due = (work.arrival[k] - work.arrival[0]) / SPEED
        await asyncio.sleep(max(due - (time.perf_counter() - began), 0.0))
        messages = [{"role": "user", "content": found.text[k]}]
        answer = await ask({"model": "auto", "messages": messages, "user": json.dumps({"fake": said})})
        took[k] = SPEED * (time.perf_counter() - began - due)
        name, _, rest = answer.rpartition("/")[2].partition(" ")
        score = SCORE.search(rest)
        assert score is not None
        quality[k], cost[k] = float(score[1]), found.price[k, NAMES.index(name)]

    await asyncio.gather(*(one(k) for k in range(work.N)))
    return float(quality.mean()), 1e3 * float(cost.mean()), float(took.mean()), float(np.quantile(took, 0.99))


def await_router(port: int, seconds: float = 60.0) -> None:
    """Wait until a router is ready: it asks the fakes for their health first."""
    end = time.monotonic() + seconds
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).raise_for_status()
            return
        except httpx.HTTPError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


async def over(address: str, found: World) -> tuple[float, float, float, float]:
    """Measure what answers at an address."""
    async with httpx.AsyncClient(trust_env=False, timeout=600.0, limits=httpx.Limits(max_connections=None)) as client:
        return await measure(over_http(client, address), found)


def main(data: Path, commands: list[str]) -> None:
    """Print a row for each router."""
    found = world(data, "paretobandit", LOAD, JOBS, SEED)
    print("| router | quality, % | $ per 1,000 | mean, s | p99, s |\n| --- | ---: | ---: | ---: | ---: |")

    def row(name: str, got: tuple[float, float, float, float]) -> None:
        print(f"| {name} | {100 * got[0]:.1f} | {got[1]:.2f} | {got[2]:.1f} | {got[3]:.1f} |", flush=True)

    with ExitStack() as stack:
        lines = stack.enter_context(fakes())
        with gateway(lines) as address:
            row("bilinq gateway", asyncio.run(over(address, found)))
        for strategy in STRATEGIES:
            row(f"LiteLLM, {strategy}", asyncio.run(measure(litellm(strategy), found)))
        for k, (name, _, command) in enumerate(one.partition("=") for one in commands):
            workers, port = " ".join(f"http://127.0.0.1:{PORT + j}" for j in range(len(NAMES))), PORT + 20 + k
            with process(*shlex.split(command.format(workers=workers, port=port))):
                await_router(port)
                row(name, asyncio.run(over(f"http://127.0.0.1:{port}/v1", found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
