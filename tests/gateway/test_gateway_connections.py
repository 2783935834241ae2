"""Connections to back ends, against a server that sends exactly what a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from bilinq.gateway.connections import HIGH, MOST_HEADERS, BrokenConnection, Connections

Script = Callable[[bytes, asyncio.StreamWriter], None]


@contextlib.asynccontextmanager
async def answering(*scripts: Script) -> AsyncIterator[tuple[Connections, list[int]]]:
    """Yield connections to a server that answers by the scripts, and how many requests each connection had."""
    waiting, served, tasks = list(scripts), list[int](), list[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(0)
        tasks.append(asyncio.current_task())
        mine = len(served) - 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(size)
                served[mine] += 1
                waiting.pop(0)(head + body, writer)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connections = Connections(f"http://127.0.0.1:{port}/v1", kept=2)
    try:
        yield connections, served
    finally:
        connections.close()
        server.close()
        await asyncio.gather(*filter(None, tasks))


async def asked(connections: Connections, content: bytes = b"{}") -> tuple[int, dict[bytes, bytes], bytes]:
    async with connections.post("/v1/x", [(b"a", b"b")], content) as response:
        return response.status, dict(response.headers), b"".join([part async for part in response.parts()])


def fixed(body: bytes, head: bytes = b"HTTP/1.1 200 OK") -> Script:
    return lambda _, writer: writer.write(head + b"\r\nX-Y: z\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def chunked(*parts: bytes) -> Script:
    text = b"".join(b"%x\r\n" % len(part) + part + b"\r\n" for part in (*parts, b""))
    return lambda _, writer: writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + text)


def until_close(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    writer.close()


def test_requests_and_responses_are_complete_and_connections_used_again() -> None:
    async def run() -> None:
        seen: list[bytes] = []

        def note(request: bytes, writer: asyncio.StreamWriter) -> None:
            seen.append(request)
            fixed(b"one")(request, writer)

        scripts = note, chunked(b"t", b"wo"), fixed(b"", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No")
        async with answering(*scripts) as (connections, served):
            assert await asked(connections, b"abc") == (200, {b"x-y": b"z", b"content-length": b"3"}, b"one")
            assert (await asked(connections))[2] == b"two"
            assert (await asked(connections))[::2] == (404, b"")
            assert served == [3]
        assert seen[0].startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:") and seen[0].endswith(b"\r\n\r\nabc")
        assert b"\r\na: b\r\n" in seen[0]

    asyncio.run(run())


def test_a_connection_is_not_used_again_where_it_must_not_be() -> None:
    """After one that ends with the response, one whose response was not read, and one that the server closed meanwhile."""

    async def run() -> None:
        closing = fixed(b"x", b"HTTP/1.1 200 OK\r\nConnection: close")

        def then_close(request: bytes, writer: asyncio.StreamWriter) -> None:
            fixed(b"y")(request, writer)
            writer.close()

        async with answering(until_close, closing, fixed(b"z" * 9), then_close, fixed(b"e")) as (connections, served):
            assert (await asked(connections))[2] == b"all of it"
            assert (await asked(connections))[2] == b"x"
            async with connections.post("/v1/x", [], b"") as response:
                assert response.status == 200
            assert (await asked(connections))[2] == b"y"
            await asyncio.sleep(0.05)
            assert (await asked(connections))[2] == b"e"
            assert served == [1] * 5

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "closed the connection"),
        (b"", "closed the connection"),
        (b"SMTP ready\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MOST_HEADERS + 1) + b"\r\n\r\n", f"at most {MOST_HEADERS} bytes"),
    ],
    ids=["cut off", "cut off in chunks", "nothing", "no HTTP", "endless headers"],
)
def test_broken_responses_have_a_reason(text: bytes, message: str) -> None:
    def script(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        writer.close()

    async def run() -> None:
        async with answering(script) as (connections, _):
            with pytest.raises(BrokenConnection, match=message):
                await asked(connections)

    asyncio.run(run())


def test_a_slow_reader_stops_the_back_end() -> None:
    """Of a large answer only what was read ahead is in memory."""

    async def run() -> None:
        body = b"x" * (32 * HIGH)
        async with (
            answering(fixed(body)) as (connections, _),
            connections.post("/v1/x", [], b"") as response,
        ):
            await asyncio.sleep(0.2)
            assert response.ahead < 4 * HIGH
            assert sum([len(part) async for part in response.parts()]) == len(body)

    asyncio.run(run())


def test_nobody_there() -> None:
    async def run() -> None:
        with pytest.raises(OSError, match="Connect"):
            await asked(Connections("http://127.0.0.1:1/v1", kept=1))

    asyncio.run(run())
