"""Many clients, and clients that do not read: they lose their connections, and others are served meanwhile."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self, cast

import pytest
from connections import RUNNERS, answer, close
from fake_service import make_fake
from test_api_stream import Endless

from bilinq.live import run as live_run
from bilinq.live.http import connection
from bilinq.live.http import crowd as crowd_module
from bilinq.live.http.app import Forward
from bilinq.live.http.bodies import Bodies
from bilinq.live.http.crowd import Crowd, Limits
from bilinq.live.http.routing import App, Receive, Scope, Send
from bilinq.live.http.server import Server, listen
from bilinq.live.settings import ServiceSettings

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
ESTABLISHED = b"\x01"  # the first byte of what Linux says of a connection that neither side has ended
LARGE = 8 << 20


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, bytes(LARGE))


class Transport:
    """A transport that was sent `unread` bytes, of which the client has read none."""

    def __init__(self, unread: int = 0) -> None:
        self.unread, self.aborted = unread, False

    def get_write_buffer_size(self) -> int:
        return 0 if self.aborted else self.unread

    def get_extra_info(self, name: str) -> Self:
        return self

    def setsockopt(self, *_: Any) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class Guest:
    """A connection that waits for its client since a time, or is being served."""

    def __init__(self, since: float | None, unread: int = 0) -> None:
        self.since, self.transport = since, Transport(unread)

    def waits_since(self) -> float | None:
        return self.since


def crowd(**limits: int) -> Any:
    return Crowd(Limits(**limits))


def test_who_waits_longest_for_its_client_makes_room_for_a_new_one(caplog: pytest.LogCaptureFixture) -> None:
    one, guests = crowd(connections=3), [Guest(2.0), Guest(1.0), Guest(None)]
    assert all(one.admit(guest, "192.0.2.1") for guest in guests)
    assert one.admit(Guest(None), "192.0.2.1")
    assert [guest.transport.aborted for guest in guests] == [False, True, False]
    assert one.admit(Guest(None), "192.0.2.1") and guests[0].transport.aborted
    assert not one.admit(Guest(3.0), "192.0.2.1")
    assert not one.admit(Guest(3.0), "192.0.2.1")
    told = [(record.message, vars(record)["times"]) for record in caplog.records]
    assert told == [
        ("connections that do nothing are closed: there are too many", 1),
        ("a connection is refused: there are too many", 1),
    ]
    one.remove(guests[2])
    assert one.admit(Guest(None), "192.0.2.1")


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_one_address_cannot_take_the_connections_of_others(address: str) -> None:
    one, guests = crowd(connections=100, of_address=2), [Guest(None), Guest(1.0)]
    near = "2001:db8::2" if ":" in address else address
    assert all(one.admit(guest, address) for guest in guests)
    assert one.admit(Guest(None), near) and guests[1].transport.aborted
    assert not one.admit(Guest(None), near)
    assert one.admit(Guest(None), "198.51.100.1") and one.admit(Guest(None), "2001:db8:1::1")
    for proxy in ("127.0.0.1", "::1", "::ffff:127.0.0.1", ""):
        assert all(one.admit(Guest(None), proxy) for _ in range(5))


def test_limits_in_the_settings_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def server(app: App, ready: Any, limits: Limits) -> Server:
        assert limits == Limits(32, 7)
        raise Started

    settings = ServiceSettings(
        database=f"sqlite:///{tmp_path}/live.db", port=0, max_connections=32, max_connections_per_address=7
    )
    monkeypatch.setattr(live_run, "Server", server)
    with pytest.raises(Started):
        asyncio.run(live_run.run(settings, print))


def test_connections_of_followers_do_not_count_against_the_limit_of_their_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each poll that a follower forwards has a connection of its own; a client cannot pretend to be a follower."""

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        arrived.append(scope["path"])
        await asyncio.sleep(60.0)

    async def scenario() -> None:
        _, service = make_fake()
        service.secret = "known to replicas"
        app = Forward(waits, cast(Any, service), cast(Any, None), Bodies(1000), ())
        async with serving(app, Limits(of_address=2)) as port:

            async def poll(mark: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"GET /v1/me HTTP/1.1\r\nHost: a\r\nX-Bilinq-Forwarded: {mark}\r\n\r\n".encode())
                for _ in range(100):
                    before = len(arrived)
                    await asyncio.sleep(0.005)
                    if len(arrived) > before:
                        break
                return reader, writer

            opened = [await poll("known to replicas") for _ in range(5)]
            assert len(arrived) == 5
            opened += [await poll("1"), await poll("wrong")]
            assert len(arrived) == 7
            opened.append(await poll("1"))
            assert b"503" in await asyncio.wait_for(opened[-1][0].readline(), 5.0) and len(arrived) == 7
            for _, writer in opened:
                writer.close()

    arrived: list[str] = []
    monkeypatch.setattr(crowd_module, "group_of", lambda address: "192.0.2.1")
    asyncio.run(scenario())


def test_too_much_that_nobody_reads_is_dropped_oldest_first() -> None:
    one, guests = crowd(unread=100), [Guest(None, 60), Guest(None, 30), Guest(None, 60)]
    for guest in guests[:2]:
        one.pause(guest)
    assert not any(guest.transport.aborted for guest in guests)
    one.pause(guests[2])
    assert [guest.transport.aborted for guest in guests] == [True, False, False]
    one.resume(guests[1])
    one.pause(later := Guest(None, 40))
    assert not later.transport.aborted


@contextlib.asynccontextmanager
async def serving(app: App, limits: Limits | None = None) -> AsyncIterator[int]:
    started = asyncio.Event()
    with listen("127.0.0.1", 0) as listening:
        server = Server(app, started.set, limits)
        task = asyncio.create_task(server.serve([listening]))
        await started.wait()
        try:
            yield int(listening.getsockname()[1])
        finally:
            server.stop()
            server.stop()
            await asyncio.wait_for(task, 5.0)


async def until_cut(client: socket.socket, *, reads: int = 0) -> int:
    """Wait until the connection of a client is ended that reads so many bytes every twentieth of a second; return all."""
    size, end = 0, time.monotonic() + 5.0
    while client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == ESTABLISHED:
        assert time.monotonic() < end, "the connection is still there"
        await asyncio.sleep(0.05)
        if reads:
            with contextlib.suppress(OSError):
                size += len(client.recv(reads))
    return size


def asking(port: int, request: bytes) -> socket.socket:
    """Return a client that has sent a request and has almost no buffer for the response."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(request)
    client.setblocking(False)
    return client


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_stream_that_nobody_reads_loses_its_socket(
    runner: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "READ_SECONDS", 0.2)

    async def run() -> None:
        watch = Endless(padding=300_000)
        app, service = make_fake(watch=watch)
        head = f"GET /v1/events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {service.add_key('read')}\r\n\r\n"
        async with serving(app) as port:
            with asking(port, head.encode()) as client:
                await until_cut(client)
                await asyncio.sleep(0.1)
            assert watch.open == 0

    RUNNERS[runner](run())
    assert "a client is cut off: it does not read its response" in caplog.text


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_client_that_reads_a_little_now_and_then_is_cut_off(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "READ_SECONDS", 0.3)

    async def run() -> None:
        async with serving(large) as port:
            with asking(port, HEALTH) as client:
                assert await until_cut(client, reads=4096) < LARGE / 2

    RUNNERS[runner](run())


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_client_that_reads_slowly_but_enough_gets_all(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "READ_SECONDS", 0.3)

    async def run() -> None:
        async with serving(large) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEALTH)
            size = 0
            while size < LARGE:
                size += len(await reader.readexactly(1 << 19))
                await asyncio.sleep(0.02)
            await close(writer)

    RUNNERS[runner](run())


def test_silent_clients_shut_nobody_out() -> None:
    async def run() -> None:
        async with serving(large, Limits(connections=20)) as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEALTH)
            assert b"200 OK" in await asyncio.wait_for(reader.readline(), 2.0)
            for _, other in (*silent, (reader, writer)):
                await close(other)

    asyncio.run(run())


def test_a_connection_for_which_there_is_no_room_hears_so() -> None:
    busy = asyncio.Event()

    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        await busy.wait()
        await answer(send)

    async def run() -> None:
        async with serving(hangs, Limits(connections=16)) as port:
            served = [await asyncio.open_connection("127.0.0.1", port) for _ in range(16)]
            for _, writer in served:
                writer.write(HEALTH)
            await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            told = await asyncio.wait_for(reader.read(), 2.0)
            assert told.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in told
            busy.set()
            assert b"200 OK" in await served[0][0].readline()
            for _, other in (*served, (reader, writer)):
                await close(other)

    asyncio.run(run())


FEW = """
import asyncio, logging, resource, sys, uvloop
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from bilinq.live.http.crowd import Limits, possible
from bilinq.live.http.server import Server, listen
logging.basicConfig()

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})

async def main():
    with listen("127.0.0.1", 0) as listening:
        server = Server(app, lambda: print(listening.getsockname()[1], flush=True), Limits(possible(10_000)))
        await server.serve([listening])

uvloop.run(main())
"""


def test_few_descriptors_are_enough_for_new_clients_and_logged() -> None:
    """Before, 260 silent clients took all of 256 descriptors: others were not answered, and nothing was logged."""
    words = [sys.executable, "-c", FEW]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stderr is not None
            place = "127.0.0.1", int(child.stdout.readline())
            silent = [socket.create_connection(place, 5.0) for _ in range(300)]
            for _ in range(3):
                with socket.create_connection(place, 5.0) as client:
                    client.sendall(HEALTH)
                    assert client.recv(12) == b"HTTP/1.1 200"
            for one in silent:
                one.close()
        finally:
            child.kill()
        assert "connections that do nothing are closed: there are too many" in child.stderr.read()


def test_exhausted_descriptors_are_logged() -> None:
    """Also when it is not connections that have them all: uvloop closes new connections without a word."""
    takes_all = """
    import os
    def take():
        try:
            while True:
                os.open(os.devnull, os.O_RDONLY)
        except OSError:
            print("none left", flush=True)
    asyncio.get_running_loop().call_later(0.2, take)
"""
    script = FEW.replace("async def main():\n", "async def main():" + takes_all)
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        stop = threading.Timer(60.0, child.kill)
        stop.start()
        try:
            assert child.stdout is not None and child.stderr is not None
            int(child.stdout.readline())
            assert child.stdout.readline() == "none left\n"
            told = next(
                (line for line in child.stderr if "no file can be opened and no connection accepted" in line), ""
            )
        finally:
            stop.cancel()
            child.kill()
        assert told.startswith("WARNING:bilinq.live.http:"), "nothing is logged"
