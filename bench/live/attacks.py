"""Attacks of hostile clients on a service: how long others wait meanwhile, and how much memory the service needs.

Run `python -m bench.live.attacks`. Each attack gets a service of its own, on loopback. A probe without a key asks for
/healthz every 20 ms on a connection of its own; its longest wait shows whether the service still answers others.
"""

import asyncio
import contextlib
import json
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator

import uvloop

from bench.live.serving import Serving, serving
from bench.report import Report

COLUMNS = ("attack", "trials", "longest wait of others, s", "growth of memory, MB")
LONGEST = 30.0  # seconds after which an attack is ended
Attack = Callable[[Serving], AsyncIterator[None]]  # yields after each trial


def run(names: Collection[str] = ()) -> Report:
    """Run all attacks, or some."""
    report = Report("hostile clients", COLUMNS)
    for attack in [one for one in ATTACKS if not names or one.__name__ in names]:
        with tempfile.TemporaryDirectory() as folder, _few_files(), serving(f"sqlite:///{folder}/live.db") as service:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_files()[1], _files()[1]))  # the attacker needs more
            report.row((attack.__doc__ or "").rstrip("."), *uvloop.run(_suffer(service, attack)))
    return report


def _files() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


@contextlib.contextmanager
def _few_files() -> Iterator[None]:
    """Let processes that are started have 1,024 descriptors, as is usual, unless they ask for more."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, _files()[1]))
    yield


async def _suffer(service: Serving, attack: Attack) -> tuple[int, float, float]:
    """Return the trials of an attack, the longest wait for /healthz until it is over, and the growth of memory."""
    before, waits, over, trials = service.resident(), [0.0], threading.Event(), 0
    probe = threading.Thread(target=_probe, args=(service, waits, over))
    probe.start()
    await asyncio.sleep(0.2)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LONGEST):
            async for _ in attack(service):
                trials += 1
    growth = service.resident() - before
    over.set()
    await asyncio.to_thread(probe.join)
    return trials, max(waits), growth


def _probe(service: Serving, waits: list[float], over: threading.Event) -> None:
    """Ask for /healthz on new connections every 20 ms, and note how long it takes until there is an answer."""
    asked, answer = time.monotonic(), b""
    while not over.wait(0.02):
        asked, answer = time.monotonic() if answer else asked, b""
        with contextlib.suppress(OSError), socket.create_connection((service.host, service.port), LONGEST) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: probe\r\n\r\n")
            answer = client.recv(12)
        waits.append(time.monotonic() - asked)


def _request(service: Serving, method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: attack", f"Authorization: Bearer {service.key}", *headers, "", ""]
    return "\r\n".join(lines).encode()


async def nested_bodies(service: Serving) -> AsyncIterator[None]:
    """Bodies of 80 kB: brackets and then a text of quotes without end."""
    body = b'{"V":1,"x":' + b"[" * 101 + b'"' + rb"\"" * 40_000
    head = _request(
        service, "POST", "/v1/settings/preview", "Content-Type: application/json", f"Content-Length: {len(body)}"
    )
    reader, writer = await asyncio.open_connection(service.host, service.port)
    for _ in range(20):
        writer.write(head + body)
        await reader.readuntil(b"}")
        yield
    writer.close()


CHUNKED = b"POST /v1/jobs HTTP/1.1\r\nHost: attack\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"


async def endless_trailers(service: Serving) -> AsyncIterator[None]:
    """Headers without end after a chunked body, without a key, on four connections at a time."""
    start = CHUNKED + b"\r\n2\r\n{}\r\n0\r\n"
    async for _ in _flood(service, start, b"a:b\r\n" * 10_000):
        yield


async def endless_extensions(service: Serving) -> AsyncIterator[None]:
    """Chunks of one byte with extensions of 60 kB, on four connections at a time."""
    start = CHUNKED + b"Authorization: Bearer " + service.key.encode() + b"\r\n\r\n"
    async for _ in _flood(service, start, b"1;" + b"x" * 60_000 + b"\r\n \r\n"):
        yield


async def _flood(service: Serving, start: bytes, more: bytes, most: int = 200 << 20) -> AsyncIterator[None]:
    """Send `start` and then `more` without end on each of four connections, until it is closed or took `most` bytes."""

    async def send() -> None:
        _, writer = await asyncio.open_connection(service.host, service.port)
        with contextlib.suppress(OSError):
            writer.write(start)
            for _ in range(most // len(more)):
                writer.write(more)
                await writer.drain()
        writer.close()

    for _ in range(10):
        await asyncio.gather(*(send() for _ in range(4)))
        for _ in range(4):
            yield


async def unread_pages(service: Serving) -> AsyncIterator[None]:
    """Clients that ask for a page of 100 jobs of 0.9 MB each and never read it."""
    body = json.dumps({"jobs": [{"class": "job0", "payload": "x" * 900_000}]}).encode()
    head = _request(service, "POST", "/v1/jobs", "Content-Type: application/json", f"Content-Length: {len(body)}")
    reader, writer = await asyncio.open_connection(service.host, service.port)
    for _ in range(100):
        writer.write(head + body)
        await reader.readuntil(b"]}")
    writer.close()
    with contextlib.ExitStack() as clients:
        for _ in range(8):
            _ask(service, clients, _request(service, "GET", "/v1/jobs?limit=1000"))
            await asyncio.sleep(1.0)
            yield


async def unread_answers(service: Serving) -> AsyncIterator[None]:
    """Clients without a key that ask for /openapi.json and never read it; the service may have 1,024 descriptors."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: attack\r\n\r\n" * 50
    with contextlib.ExitStack() as clients:
        for _ in range(1100):
            _ask(service, clients, request)
            await asyncio.sleep(0.002)
            yield
        await asyncio.sleep(10.0)


def _ask(service: Serving, clients: contextlib.ExitStack, request: bytes) -> None:
    """Send a request from a client that reads nothing, until `clients` is closed."""
    client = clients.enter_context(socket.socket())
    client.settimeout(5.0)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with contextlib.suppress(OSError):
        client.connect((service.host, service.port))
        client.sendall(request)


ATTACKS: tuple[Attack, ...] = (nested_bodies, endless_trailers, endless_extensions, unread_pages, unread_answers)


if __name__ == "__main__":
    print(run(sys.argv[1:]).markdown())
