"""The gateway: what it adds to the time of a request, many open streams, and how fast it learns of new back ends.

`python -m bench.gateway` prints the tables. Latency is measured between processes on the loopback; learning in virtual time.
"""

import asyncio
import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpcore
import msgspec
import numpy as np

from bench.report import Report
from bilinq.arrays import Array
from bilinq.gateway.answer import Answer
from bilinq.gateway.config import Config, Endpoint, Worth
from bilinq.gateway.demo import SHARE, request
from bilinq.gateway.fakes import FLEET, FakeModel, read_score
from bilinq.gateway.features import KINDS
from bilinq.gateway.gateway import Gateway
from bilinq.gateway.request import parse

RATE, SECONDS, ROUNDS = 200.0, 5.0, 3
"""Requests a second, seconds of a measurement, and measurements of each way, which alternate."""
STREAMS = 1000
SEEDS, PER_SECOND = 8, 6.0
"""Runs in virtual time, and requests a second there."""
WORTH = Worth(second=0.02, money=100.0)
JSON = [("Content-Type", "application/json")]
FAKES_PORT = 9471
T = TypeVar("T")


# Latency


@contextlib.contextmanager
def processes(speed: float, concurrency: int) -> Iterator[tuple[str, str, int]]:
    """Run fakes and a gateway in front of them; yield the addresses of a fake and of the gateway, and its process."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        words = (
            "-m",
            "bilinq.gateway.fakes",
            "--port",
            str(FAKES_PORT),
            "--speed",
            str(speed),
            "--concurrency",
            str(concurrency),
        )
        fakes = stack.enter_context(_process(words))
        settings = [_line(fakes) for _ in range(1 + 7 * len(FLEET) + 3)]
        text = "".join(line for line in settings if not line.startswith("judge"))
        head = f'port = 0\ndatabase = "sqlite:///{folder}/log.db"\nbacklog = 100000\n'
        text = text.replace("[[backend]]", "[[backend]]\ngap_timeout = 600")
        file = Path(folder) / "gateway.toml"
        file.write_text(head + text)
        gateway = stack.enter_context(_process(("-m", "bilinq.commands.app", "gateway", "--config", str(file))))
        yield f"http://127.0.0.1:{FAKES_PORT}/v1", _line(gateway).split()[3].rstrip(";"), gateway.pid


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def computing(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _process(words: Iterable[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


async def load(address: str, rate: float, seconds: float, seed: int) -> tuple[Array, int]:
    """Send Poisson traffic, every second request a stream; return the latencies in seconds, and how many failed."""
    rng, took, failed = np.random.default_rng(seed), list[float](), 0
    loop = asyncio.get_running_loop()
    async with httpcore.AsyncConnectionPool(max_connections=None, max_keepalive_connections=256) as pool:

        async def one(body: bytes) -> None:
            nonlocal failed
            began = time.perf_counter()
            answer = await pool.request("POST", f"{address}/chat/completions", headers=JSON, content=body)
            took.append(time.perf_counter() - began)
            failed += answer.status != 200

        due, tasks = loop.time(), []
        end = due + seconds
        while due < end:
            due += rng.exponential(1.0 / rate)
            await asyncio.sleep(max(due - loop.time(), 0.0))
            body = {"model": "small", "messages": [{"role": "user", "content": "Tell me about the sea. " * 20}],
                    "stream": bool(rng.random() < 0.5), "fake": {"small": {"quality": 0.8, "tokens": 20}}}  # fmt: skip
            tasks.append(asyncio.create_task(one(msgspec.json.encode(body))))
        await asyncio.gather(*tasks)
    return np.array(took), failed


def latency() -> Report:
    """Return the time of requests directly and through the gateway."""
    report = Report(
        f"added latency at {RATE:g} requests a second, half of them streams", ("way", "p50, ms", "p90, ms", "p99, ms")
    )
    found: dict[str, list[Array]] = {"directly": [], "through the gateway": []}
    used, requests = 0.0, 0
    with processes(speed=5.0, concurrency=200) as (direct, through, process):
        ways = {"directly": direct, "through the gateway": through}
        for address in ways.values():
            asyncio.run(load(address, RATE, 3.0, seed=99))
        for seed in range(ROUNDS):
            for way, address in ways.items():
                before = computing(process)
                took, failed = asyncio.run(load(address, RATE, SECONDS, seed))
                if way != "directly":
                    used, requests = used + computing(process) - before, requests + took.size
                assert not failed and took.size > 0.8 * RATE * SECONDS
                found[way].append(took)
    points = {
        way: np.median([np.quantile(one, (0.5, 0.9, 0.99)) for one in some], axis=0) for way, some in found.items()
    }
    for way, values in points.items():
        report.row(way, *(1000.0 * values))
    added = 1000.0 * (points["through the gateway"] - points["directly"])
    report.row("added", *added)
    report.row("CPU time of the gateway for a request", 1000.0 * used / requests, "", "")
    report.at_most("added latency, p50, ms", added[0], 2.0)
    report.at_most("added latency, p99, ms", added[2], 10.0)
    return report


async def _open_streams(address: str, number: int) -> tuple[int, int, float]:
    """Open streams, which stall until all are open; return how many were open at a time, and complete, and the seconds."""
    began, active, most, complete = time.perf_counter(), 0, 0, 0
    all_open = asyncio.Event()
    body = msgspec.json.encode({"model": "auto", "messages": [{"role": "user", "content": "Hello"}], "stream": True})
    async with httpcore.AsyncConnectionPool(max_connections=None) as pool:

        async def one() -> None:
            nonlocal active, most, complete
            async with pool.stream("POST", f"{address}/chat/completions", headers=JSON, content=body) as response:
                last = b""
                async for part in response.aiter_stream():
                    if not last:
                        active += 1
                        most = max(most, active)
                        if active == number:
                            all_open.set()
                    last = (last + part)[-20:]
                active -= 1
                complete += last.endswith(b"data: [DONE]\n\n")

        await _trouble(pool, "stall midway")
        tasks = [asyncio.create_task(one()) for _ in range(number)]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(all_open.wait(), 300.0)
        await _trouble(pool, None)
        await asyncio.gather(*tasks)
    return most, complete, time.perf_counter() - began


async def _trouble(pool: httpcore.AsyncConnectionPool, trouble: str | None) -> None:
    for port in range(FAKES_PORT, FAKES_PORT + len(FLEET)):
        content = msgspec.json.encode({"trouble": trouble})
        await pool.request("POST", f"http://127.0.0.1:{port}/fake", headers=JSON, content=content)


def streams() -> Report:
    """Return how many streams of a thousand that begin together are open at a time and end well."""
    report = Report(f"{STREAMS} streams at once", ("open at a time", "complete", "seconds"))
    with processes(speed=20.0, concurrency=STREAMS) as (_, through, _):
        most, complete, seconds = asyncio.run(_open_streams(through, STREAMS))
    report.row(most, complete, seconds)
    report.at_least("streams open at a time", most, STREAMS)
    report.at_least("complete streams", complete, STREAMS)
    return report


# Learning, in virtual time


class _Jump(selectors.SelectSelector):
    """A selector that never waits but counts the seconds that it should have."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)  # only threads are left to wait for
        self.now += max(timeout, 0.0)
        return super().select(0.0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to what it waits for."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def virtually(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, on a clock that jumps."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class MemoryFake:
    """A fake without a network, in the place of the connections of a gateway."""

    def __init__(self, model: FakeModel, seed: int) -> None:
        self.model, self._rng = model, np.random.default_rng(seed)

    async def ask(self, endpoint: Endpoint, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        kind = body["fake_kind"]
        tokens = max(int(self.model.tokens * self._rng.gamma(4.0, 0.25)), 1)
        await asyncio.sleep(self.model.first + self.model.per_token * tokens)
        mean = self.model.mean_quality(kind)
        quality = mean + min(0.2, mean, 1.0 - mean) * self._rng.uniform(-1.0, 1.0)
        message = {"role": "assistant", "content": f"score {quality:.6f}"}
        usage = {"prompt_tokens": 900 if "long" in kind else 100, "completion_tokens": tokens}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        yield msgspec.json.encode({"id": "fake", "choices": [choice], "usage": usage})

    async def close(self) -> None:
        pass


class Sink:
    """Where answers go in virtual time; it notes the back end."""

    begun = False
    backend = ""

    async def send(self, data: bytes, backend: str) -> None:
        self.begun, self.backend = True, backend


async def judge(body: Any, answer: Answer) -> float | None:
    """Return what a fake has written into its answer."""
    return read_score(body, answer)


async def _started(models: Iterable[FakeModel], database: str, seed: int) -> tuple[Gateway, dict[str, MemoryFake]]:
    models = list(models)
    backends = tuple(model.backend("http://127.0.0.1:1") for model in models)
    config = Config(backend=backends, worth=WORTH, target_wait=0.3, database=database, seed=seed, checkpoint_every=1e6)
    gateway = Gateway(config, judge, clock=asyncio.get_running_loop().time)
    fakes = {model.name: MemoryFake(model, 100 * seed + k) for k, model in enumerate(models)}
    gateway.upstreams.update(fakes)
    return gateway, fakes


async def _send(gateway: Gateway, number: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Send requests in virtual time; return kind and back end of each, in the order of arrival."""
    tasks = []

    async def one(kind: str) -> tuple[str, str]:
        body = {key: value for key, value in request(kind, rng).items() if key not in ("stream", "tools")}
        asked = parse("chat", "anybody", msgspec.json.encode({**body, "fake_kind": kind}), {})
        sink = Sink()
        await gateway.answer(asked, sink)
        return kind, sink.backend

    for _ in range(number):
        await asyncio.sleep(rng.exponential(1.0 / PER_SECOND))
        kind = KINDS[int(rng.choice(len(SHARE), p=SHARE))].replace(" with tools", "")
        tasks.append(asyncio.create_task(one(kind)))
    return list(await asyncio.gather(*tasks))


def share(served: list[tuple[str, str]], name: str, kind: str) -> float:
    """Return which part of the requests of a kind a back end got."""
    some = [backend for about, backend in served if kind in about]
    return some.count(name) / max(len(some), 1)


async def newcomer(seed: int, folder: str) -> tuple[float, float]:
    """Return the share of code that a new back end for code gets in requests 100 to 150, and in the long run."""
    database, rng = f"sqlite:///{folder}/new-{seed}.db", np.random.default_rng(seed)
    gateway, _ = await _started((one for one in FLEET if one.name != "coder"), database, seed)
    await _send(gateway, 1000, rng)
    await gateway.close()
    gateway, _ = await _started(FLEET, database, seed)
    served = await _send(gateway, 1500, rng)
    await gateway.close()
    return share(served[100:150], "coder", "code"), share(served[500:], "coder", "code")


async def replaced(seed: int, folder: str) -> tuple[float, float]:
    """Return the share of code that the best back end for code has, and 300 to 400 requests after it became bad at it."""
    gateway, fakes = await _started(FLEET, f"sqlite:///{folder}/old-{seed}.db", seed)
    rng = np.random.default_rng(seed)
    before = await _send(gateway, 1500, rng)
    fakes["coder"].model = replace(fakes["coder"].model, code=-0.5)
    after = await _send(gateway, 400, rng)
    await gateway.close()
    return share(before[500:], "coder", "code"), share(after[300:], "coder", "code")


def learning() -> Report:
    """Return how fast a new back end gets its share, and a replaced one loses it."""
    report = Report(
        f"learning, mean of {SEEDS} runs",
        ("share of requests about code at the back end for code", "share", "in the long run"),
    )
    with tempfile.TemporaryDirectory() as folder:
        new = np.mean([virtually(newcomer(seed, folder)) for seed in range(SEEDS)], axis=0)
        old = np.mean([virtually(replaced(seed, folder)) for seed in range(SEEDS)], axis=0)
    report.row("new: requests 100 to 150", *new)
    report.row("became bad: requests 300 to 400", old[1], old[0])
    report.at_least("share of a new back end within 150 requests, of that in the long run", new[0] / new[1], 0.8)
    report.at_most("share of a back end that became bad within 400 requests, of that before", old[1] / old[0], 0.5)
    return report


def run() -> list[Report]:
    """Return all measurements."""
    return [latency(), streams(), learning()]


def main() -> None:
    """Print all measurements, or those that are named."""
    parts = {"latency": latency, "streams": streams, "learning": learning}
    for name in sys.argv[1:] or parts:
        report = parts[name]()
        print(f"\n## {report.name}\n\n{report.markdown()}\n")
        for bound in report.bounds:
            print(bound, flush=True)


if __name__ == "__main__":
    main()
