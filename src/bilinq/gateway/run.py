"""Runs the gateway until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncGenerator, Callable

from bilinq import JobClass, Scheduler, ServerClass
from bilinq.errors import BadInput
from bilinq.gateway.app import App
from bilinq.gateway.config import Config
from bilinq.gateway.gateway import Gateway
from bilinq.gateway.worth import Judge
from bilinq.live.http import App as AsgiApp
from bilinq.live.http import Limits, Server, address, listen, possible
from bilinq.live.keys import hash_key
from bilinq.scheduler.warm import warm


@contextlib.asynccontextmanager
async def serving(
    app: AsgiApp, host: str = "127.0.0.1", port: int = 0, limits: Limits | None = None
) -> AsyncGenerator[str]:
    """Serve an application while the block runs, and yield its address; port 0 is any that is free."""
    with listen(host, port) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or headers and body come 40 ms apart
        ready = asyncio.Event()
        server = Server(app, ready.set, limits)
        task = asyncio.create_task(server.serve([listening]))
        await ready.wait()
        try:
            yield address(listening)
        finally:
            server.stop()
            await task


@contextlib.asynccontextmanager
async def running(config: Config, judge: Judge | None = None) -> AsyncGenerator[tuple[str, Gateway]]:
    """Run a gateway while the block runs; yield its address and itself. Requests that are being answered may end."""
    warm(
        Scheduler([JobClass("job")], [ServerClass("a"), ServerClass("b")], target_wait=1.0),
        "job",
        {"a": 1, "b": 1},
        0.0,
    )
    gateway = Gateway(config, judge)
    try:
        async with serving(App(gateway), config.host, config.port, Limits(possible(config.max_connections))) as found:
            yield found, gateway
    finally:
        await gateway.close()


async def run(config: Config, ready: Callable[[str], None]) -> None:
    """Run a gateway until SIGINT or SIGTERM; call `ready` with its address."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(config) as (found, _):
        ready(found)
        await stop.wait()


def check_secrets(config: Config) -> None:
    """Raise if a key that the settings name is missing, or if two tenants have the same one."""
    for backend in config.backend:
        backend.secret()
    hashes = [one.key_sha256 or hash_key(one.secret()) for one in config.tenant]
    if len(set(hashes)) < len(hashes):
        raise BadInput("keys of tenants must differ; two tenants have the same")
