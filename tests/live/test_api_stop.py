"""How the HTTP server stops: it lets requests finish for a while, and for no time if it is stopped twice."""

import asyncio
import contextlib

import pytest
from connections import RUNNERS, answer, close, serving

from bilinq.live.http import server as serving_http
from bilinq.live.http.routing import Receive, Scope, Send
from bilinq.live.http.server import Server, listen


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_server_that_stops_waits_only_so_long(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_http, "GRACE", 0.2)
    cancelled = asyncio.Event()

    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def run() -> None:
        started = asyncio.Event()
        with listen("127.0.0.1", 0) as listening:
            server = Server(hangs, started.set)
            task = asyncio.create_task(server.serve([listening]))
            await started.wait()
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(0.05)
            server.stop()
            await asyncio.wait_for(task, 3.0)
        assert cancelled.is_set()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 1.0)
        await close(writer)

    RUNNERS[runner](run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_server_that_stops_lets_requests_end_unless_told_twice(runner: str) -> None:
    go, cancelled = asyncio.Event(), asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await go.wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        await answer(send, b"done")

    async def run() -> None:
        async with serving(waits) as (server, port):
            idle, asks = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            asks[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(0.05)
            server.stop()
            assert await asyncio.wait_for(idle[0].read(), 1.0) == b""
            go.set()
            assert (await asyncio.wait_for(asks[0].read(), 1.0)).endswith(b"done")
            for _, writer in (idle, asks):
                await close(writer)
        go.clear()
        async with serving(waits) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(0.05)
            server.stop()  # and leaving the block says it again
        assert cancelled.is_set() and await reader.read() == b""
        await close(writer)

    RUNNERS[runner](run())
