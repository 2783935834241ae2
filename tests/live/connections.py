"""Applications that answer over HTTP in tests, and clients that ask them byte by byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from bilinq.live.http.routing import App, Receive, Scope, Send
from bilinq.live.http.server import Server, address, listen

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
RUNNERS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[tuple[Server, int]]:
    started = asyncio.Event()
    with listen("127.0.0.1", 0) as listening:
        server = Server(app, started.set)
        task = asyncio.create_task(server.serve([listening]))
        await started.wait()
        try:
            yield server, int(address(listening).rpartition(":")[2])
        finally:
            server.stop()
            await asyncio.wait_for(task, 5.0)


@pytest.fixture(params=RUNNERS)
def talks(request: pytest.FixtureRequest) -> Callable[[App, Talk], None]:
    """A function that runs a talk on a connection to an application, on either event loop."""

    def run(app: App, talk: Talk) -> None:
        async def both() -> None:
            async with serving(app) as (_, port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    await asyncio.wait_for(talk(reader, writer), 10.0)
                finally:
                    await close(writer)

        RUNNERS[request.param](both())

    return run


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def answer(send: Send, body: bytes = b"", status: int = 200, *more: tuple[bytes, bytes]) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body)), *more]}
    )
    await send({"type": "http.response.body", "body": body})


async def whole(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body, more = body + message["body"], message["more_body"]
    return body


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with method, path, query and body, and with the headers that begin with x."""
    body = await whole(receive)
    own = [(name, value) for name, value in scope["headers"] if name.startswith(b"x")]
    told = f"{scope['method']} {scope['path']} ".encode() + scope["query_string"] + b" " + body
    await answer(send, told, 200, *own)


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"one", b"", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the head and the body of an answer that says how long it is."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = [line for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    return head, await reader.readexactly(int(length[0].split()[1]))
