"""What viewers cost the live service: whole lives of jobs per second with none and with ten, in turns."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.report import Report
from bilinq.client import AsyncClient, Client, NewJob, WorkFinish

VIEWERS, TURNS, SECONDS = 10, 10, 4.0
"""Viewers, how often it is measured with and without them, and for how long each time."""
JOBS, SERVERS = 10, 4
"""Classes."""
AGENTS, EACH = 4, 50
"""Processes' worth of servers: each agent serves for so many."""
WARM = 5000
"""Lives before the first turn."""
COST = 0.05
"""The part of the throughput that ten viewers may cost."""


class Turn(NamedTuple):
    """What happened within a while: lives of jobs, seconds, and seconds of the service's computing time."""

    viewers: int
    lives: int
    seconds: float
    computing: float


def run() -> list[Report]:
    """Return lives per second with and without viewers.

    The bound is on lives per second of computing time: one core decides, so that is the throughput, and other programs on
    the machine disturb it least.
    """
    turns, alone = measure()
    report = Report(
        f"{VIEWERS} viewers of the live service, {JOBS} x {SERVERS} classes, SQLite",
        ("viewers", "lives per second", "lives per second of computing time"),
    )
    rates = {viewers: _rates([turn for turn in turns if turn.viewers == viewers]) for viewers in (0, VIEWERS)}
    for viewers, found in rates.items():
        report.row(viewers, *found)
    costs = [1.0 - with_ / without for without, with_ in zip(rates[0], rates[VIEWERS], strict=True)]
    report.row("cost of the viewers", *costs)
    report.row("the same of a service without load, part of a core", "", alone)
    report.at_most("part of the throughput that ten viewers cost", costs[1], COST)
    report.at_most("part of a core that ten viewers of a service without load cost", alone, COST)
    return [report]


def _rates(turns: list[Turn]) -> tuple[float, float]:
    """Return lives per second and per second of computing time of all turns together."""
    lives = sum(turn.lives for turn in turns)
    return lives / sum(turn.seconds for turn in turns), lives / sum(turn.computing for turn in turns)


def measure() -> tuple[list[Turn], float]:
    """Return turns, without and with viewers by turns, of a service that is kept busy; and what viewers cost before that.

    The latter is free of noise, and on a core that does nothing else it is the part of the throughput, too.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        _service(Path(folder)) as (process, url, key),
        Client(url, key) as client,
    ):
        alone = _alone(process.pid, url, key)
        with _load(url, key):
            turns = _turns(client, process.pid, url, key)
    return turns, alone


def _alone(pid: int, url: str, key: str) -> float:
    """Return the computing time per second that viewers cost a service with nothing else to do."""
    time.sleep(SECONDS)
    without = _used(pid)
    with _viewers(url, key):
        time.sleep(1.0)
        return _used(pid) - without


def _used(pid: int) -> float:
    before = _cpu_seconds(pid)
    time.sleep(2 * SECONDS)
    return (_cpu_seconds(pid) - before) / (2 * SECONDS)


def _turns(client: Client, pid: int, url: str, key: str) -> list[Turn]:
    turns = []
    while client.state().counters.get("done", 0) < WARM:
        time.sleep(0.1)
    for _ in range(TURNS):
        turns.append(_turn(client, pid, 0))
        with _viewers(url, key):
            turns.append(_turn(client, pid, VIEWERS))
    return turns


def _turn(client: Client, pid: int, viewers: int) -> Turn:
    began, done, used = time.perf_counter(), _done(client), _cpu_seconds(pid)
    time.sleep(SECONDS)
    more, cpu, lasted = _done(client) - done, _cpu_seconds(pid) - used, time.perf_counter() - began
    assert more > 0, "the service did nothing"
    return Turn(viewers, more, lasted, cpu)


def _done(client: Client) -> int:
    return client.state().counters["done"]


def _cpu_seconds(pid: int) -> float:
    """Return the computing time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _service(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run a service; yield its process, its address and a key."""
    lines = ["rate = 0", "work_conserving = true", "backlog = 1000000"]
    for kind, many in (("job", JOBS), ("server", SERVERS)):
        for k in range(many):
            lines += [f"[[{kind}_class]]", f'name = "{kind}{k}"', f"features = [1.0, {k / many}, {k % 3}]"]
    (folder / "service.toml").write_text("\n".join(lines))
    database = f"sqlite:///{folder}/live.db"
    words = [sys.executable, "-m", "bilinq.commands.app"]
    key = subprocess.run(
        [*words, "keys", "create", "--scope", "admin", "--database", database],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    serve = [*words, "serve", "--config", str(folder / "service.toml"), "--database", database, "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()[-1], key
        finally:
            process.terminate()


@contextmanager
def _load(url: str, key: str) -> Iterator[None]:
    """Keep the service busy from a process of its own."""
    with subprocess.Popen([sys.executable, "-m", "bench.watching", "load", url, key]) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def _viewers(url: str, key: str) -> Iterator[None]:
    """Watch from a process of its own, as soon as all have seen something."""
    words = [sys.executable, "-m", "bench.watching", "watch", url, key]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"{VIEWERS}\n"
            yield
        finally:
            process.terminate()


async def serve_jobs(url: str, key: str) -> None:
    """Submit jobs and serve them at once, for ever."""
    async with AsyncClient(url, key) as client:
        await asyncio.gather(*(_agent(client, number) for number in range(AGENTS)))


async def _agent(client: AsyncClient, number: int) -> None:
    servers = [(await client.register(f"server{k % SERVERS}", f"{number}-{k}")).id for k in range(EACH)]
    ends: list[WorkFinish] = []
    idle = set(servers)
    await client.submit_all([NewJob(f"job{k % JOBS}") for k in range(EACH)])
    while True:
        told = await client.work(ends, sorted(idle), wait=1.0)
        leases = told.leases
        ends = [WorkFinish(one.lease, one.fence, reward=0.5) for one in leases]
        idle = {one.server for one in leases} | (idle - {one.server for one in leases})
        if leases:
            await client.submit_all([NewJob(f"job{k % JOBS}") for k in range(len(leases))])


async def watch(url: str, key: str) -> None:
    """Read streams without looking at them, for ever; say when all have begun."""
    place = urlsplit(url)
    request = f"GET /v1/events HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    readers = []
    for _ in range(VIEWERS):
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(request)
        assert b" 200 " in await reader.readline()
        readers.append(reader)
    print(len(readers), flush=True)
    await asyncio.gather(*map(_read, readers))


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


if __name__ == "__main__":
    asyncio.run({"load": serve_jobs, "watch": watch}[sys.argv[1]](*sys.argv[2:4]))
