"""Connections that are slow or greedy are ended; those that are just long are not."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fake_service import FakeService, make_fake

from bilinq.live.http import connection
from bilinq.live.http.server import Server, address, listen

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, FakeService], Awaitable[None]]


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.3)


def serve(talk: Talk) -> None:
    """Run `talk` on a connection to a server."""

    async def run() -> None:
        app, service = make_fake()
        started = asyncio.Event()
        with listen("127.0.0.1", 0) as listening:
            server = Server(app, started.set)
            serving = asyncio.create_task(server.serve([listening]))
            await started.wait()
            reader, writer = await asyncio.open_connection("127.0.0.1", int(address(listening).rpartition(":")[2]))
            try:
                await asyncio.wait_for(talk(reader, writer, service), 5.0)
            finally:
                writer.close()
                server.stop()
                await serving

    asyncio.run(run())


def test_a_connection_without_a_request_is_ended() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: FakeService) -> None:
        assert b"400 Bad Request" in await reader.read()

    serve(talk)


def test_headers_that_trickle_are_ended() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: FakeService) -> None:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
        answer = asyncio.create_task(reader.readline())
        while not answer.done():
            writer.write(b"a: b\r\n")
            await asyncio.sleep(0.02)
        assert b"400 Bad Request" in answer.result()

    serve(talk)


def test_a_body_that_trickles_is_ended_and_does_nothing() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: FakeService) -> None:
        key = service.add_key("submit")
        writer.write(f"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n".encode())
        writer.write(b'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"jobs"')
        assert await reader.read() == b""
        assert service.all_jobs == {}

    serve(talk)


def test_headers_up_to_the_limit_are_taken() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: FakeService) -> None:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 60_000)
        await asyncio.sleep(0.05)
        writer.write(b"\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in await reader.read()

    serve(talk)


def test_large_headers_are_refused() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: FakeService) -> None:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000)
        assert b"at most 65536 bytes" in await reader.read()

    serve(talk)


def test_few_headers_are_taken_and_many_refused() -> None:
    """Thousands of tiny ones fit into 64 KiB and took 1.6 MB of memory, on each connection of a client without a key."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: FakeService) -> None:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + 99 * b"a:b\r\n" + b"\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}")
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + 110 * b"a:b\r\n")
        assert b"A request must have at most 100 headers." in await reader.read()

    serve(talk)


JOBS = (
    b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    b"Authorization: Bearer "
)


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (b"X: " + b"x" * 66_000, b"at most 65536 bytes"),
        ((b"X: " + b"x" * 1000 + b"\r\n") * 66, b"at most 65536 bytes"),
        (b"a:b\r\n" * 110, b"at most 100 headers"),
    ],
)
def test_headers_without_end_after_a_body_are_refused(late: bytes, reason: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: FakeService) -> None:
        writer.write(JOBS + service.add_key("submit").encode() + b"\r\n\r\n2\r\n{}\r\n0\r\n")
        await asyncio.sleep(0.05)
        writer.write(late)
        assert reason in await reader.read()
        assert service.all_jobs == {}

    serve(talk)


@pytest.mark.parametrize("authorized", [True, False])
def test_extensions_of_chunks_are_counted_over_the_whole_body(authorized: bool) -> None:
    """Each is short enough for itself, and between them the body goes on; nobody may send more of them than headers."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: FakeService) -> None:
        writer.write(JOBS + (service.add_key("submit").encode() if authorized else b"") + b"\r\n\r\n")
        answer = asyncio.ensure_future(reader.read())
        for _ in range(40):
            writer.write(b"1;" + b"x" * 10_000 + b"\r\n \r\n")
            await asyncio.sleep(0.001)
        await asyncio.wait([answer], timeout=1.0)
        assert answer.done() and service.all_jobs == {}
        assert b"at most 65536 bytes" in answer.result()

    serve(talk)


def test_a_body_in_tiny_chunks_is_no_large_header() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: FakeService) -> None:
        body = b'{"jobs": [{"class": "short", "payload": "' + b"x" * 20_000 + b'"}]}'
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        writer.write(JOBS + service.add_key("submit").encode() + b"\r\nConnection: close\r\n\r\n")
        for at in range(0, len(chunks), 30_000):
            writer.write(chunks[at : at + 30_000])
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")
        assert b"201 Created" in await reader.read()

    serve(talk)


def test_empty_lines_do_not_keep_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.3)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: FakeService) -> None:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        ended = asyncio.create_task(reader.read())
        while not ended.done():
            writer.write(b"\r\n")
            await asyncio.sleep(0.02)

    serve(talk)


@pytest.mark.parametrize("late", [b"", b"12345"])
def test_an_idle_connection_is_closed_without_a_word(late: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a body arrives after the response."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.2)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: FakeService) -> None:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(late))
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.write(late)
        assert b"HTTP/1.1" not in await reader.read()

    serve(talk)


def test_a_long_poll_and_a_kept_connection_outlive_the_limit() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: FakeService) -> None:
        key = service.add_key("work").encode()
        writer.write(
            b"POST /v1/servers HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
            + key
            + b"\r\nContent-Type: application/json\r\n"
        )
        writer.write(b'Content-Length: 15\r\n\r\n{"class":"gpu"}')
        assert b"201 Created" in await reader.readuntil(b"}")
        writer.write(
            b"POST /v1/servers/s1/lease?wait=0.7 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + key + b"\r\n\r\n"
        )
        assert b"204 No Content" in await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.7)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in await reader.read()

    serve(talk)


def test_a_submission_of_a_client_that_sends_no_more_is_answered() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: FakeService) -> None:
        body = b'{"jobs": [{"class": "short"}]}'
        writer.write(JOBS + service.add_key("submit").encode() + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        writer.write_eof()
        assert b"201 Created" in await reader.read()
        assert len(service.all_jobs) == 1

    serve(talk)


def test_who_waits_for_a_job_and_sends_no_more_gets_none(caplog: pytest.LogCaptureFixture) -> None:
    """It may have closed its connection: a lease would be lost. It is closed at once, and that is no error."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: FakeService) -> None:
        key = service.add_key("work").encode()
        start = b"POST /v1/servers%b HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + key + b"\r\n"
        writer.write(start % b"" + b'Content-Type: application/json\r\nContent-Length: 15\r\n\r\n{"class":"gpu"}')
        assert b"201 Created" in await reader.readuntil(b"}")
        writer.write(start % b"/s1/lease?wait=60" + b"\r\n")
        await asyncio.sleep(0.05)
        writer.write_eof()
        assert await reader.read() == b""

    serve(talk)
    assert caplog.text == ""
