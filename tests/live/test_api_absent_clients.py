"""Clients that do not read, that hang up, or that send no more."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from connections import answer, read_answer, whole

from bilinq.live.http import connection
from bilinq.live.http.routing import Receive, Scope, Send

pytest_plugins = ["connections"]


def deaf_client(writer: asyncio.StreamWriter, path: bytes) -> socket.socket:
    """Return a connection to the server at the other end of `writer` that asked for `path`."""
    made = socket.create_connection(writer.get_extra_info("peername"))
    made.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    made.setblocking(False)
    return made


async def unread(client: socket.socket) -> int:
    """Return how many bytes were sent to a client before its connection ended."""
    size, loop = 0, asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while part := await loop.sock_recv(client, 1 << 20):
            size += len(part)
    return size


def test_a_client_that_never_reads_is_cut_off_and_delays_nobody(talks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its response is being sent, or is complete and only waits to be read before the connection closes."""
    monkeypatch.setattr(connection, "READ_SECONDS", 0.3)
    heard = asyncio.Event()

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/small":
            await answer(send, b"ok")
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(32 << 20), "more_body": scope["path"] == "/more"})
        if scope["path"] == "/more":
            await send({"type": "http.response.body", "more_body": True})  # waits until the client reads
            assert (await receive())["type"] == "http.disconnect"
            heard.set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read_answer(reader))[1] == b"ok"
        with deaf_client(writer, b"/more") as one, deaf_client(writer, b"/last") as other:
            await asyncio.sleep(0.1)
            writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await read_answer(reader))[1] == b"ok" and not heard.is_set()
            await heard.wait()
            await asyncio.sleep(0.7)
            assert await unread(one) < 32 << 20 and await unread(other) < 32 << 20

    talks(large, talk)


def test_a_request_that_others_follow_hears_that_the_client_is_gone(talks: Any) -> None:
    heard = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await whole(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"on", "more_body": True})
            await asyncio.sleep(0.01)
        assert gone.result()["type"] == "http.disconnect"
        heard.set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"on")
        writer.transport.abort()
        await asyncio.wait_for(heard.wait(), 5.0)

    talks(endless, talk)


def test_who_waits_hears_that_the_client_is_gone(talks: Any) -> None:
    heard = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await whole(receive)
        assert (await receive())["type"] == "http.disconnect"
        await answer(send, b"to nobody")
        heard.set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.close()
        await heard.wait()

    talks(waits, talk)


POST = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("wait", [0.0, 0.05])
@pytest.mark.parametrize("count", [1, 2, 60])
def test_who_sends_no_more_still_gets_all_responses(talks: Any, wait: float, count: int) -> None:
    """What is carried out is answered, also if the client has shut down its side before or meanwhile."""
    done: list[str] = []

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        assert await whole(receive) == b"ok"
        await asyncio.sleep(wait / count)
        done.append(scope["path"])
        await answer(send, scope["path"].encode())

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(POST % k for k in range(count)))
        writer.write_eof()
        told = await reader.read()
        assert told.count(b"HTTP/1.1 200 OK") == count == len(done)

    talks(slow, talk)


@pytest.mark.parametrize("part", [b"", POST[:20], POST[:-1], (POST % 1) + POST[:-1]])
def test_a_request_that_never_becomes_complete_ends_with_the_clients_side(talks: Any, part: bytes) -> None:
    done: list[bytes] = []

    async def notes(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        while message.get("more_body"):
            message = await receive()
        if message["type"] == "http.request":
            done.append(message["body"])
            await answer(send)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(part)
        writer.write_eof()
        told = await reader.read()
        assert told.count(b"HTTP/1.1 200 OK") == part.count(b"ok") == len(done)

    talks(notes, talk)
