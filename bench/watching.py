"""The cost of viewers of the live service: jobs end to end per second without and with ten viewers, alternating."""

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

VIEWERS, REPEATS, SECONDS = 10, 10, 4.0
"""Number of viewers, number of measurements with and without them, and seconds of each."""
JOBS, SERVERS = 10, 4
"""Classes."""
AGENTS, EACH = 4, 50
"""Number of agents, and servers of each."""
WARM = 5000
"""Jobs done before the first window."""
COST = 0.05
"""The fraction of the throughput that ten viewers may cost."""


class Window(NamedTuple):
    """Results of a time window: jobs done, seconds, and CPU seconds of the service."""

    viewers: int
    jobs: int
    seconds: float
    computing: float


def run() -> list[Report]:
    """Return jobs per second with and without viewers.

    The bound is on jobs per CPU second: one core limits the throughput, and CPU time depends least on other programs on
    the machine.
    """
    windows, alone = measure()
    report = Report(
        f"{VIEWERS} viewers of the live service, {JOBS} x {SERVERS} classes, SQLite",
        ("viewers", "jobs per second", "jobs per CPU second"),
    )
    rates = {viewers: _rates([window for window in windows if window.viewers == viewers]) for viewers in (0, VIEWERS)}
    for viewers, found in rates.items():
        report.row(viewers, *found)
    costs = [1.0 - with_ / without for without, with_ in zip(rates[0], rates[VIEWERS], strict=True)]
    report.row("cost of the viewers", *costs)
    report.row("the same of a service without load, fraction of a core", "", alone)
    report.at_most("fraction of the throughput that ten viewers cost", costs[1], COST)
    report.at_most("fraction of a core that ten viewers of a service without load cost", alone, COST)
    return [report]


def _rates(windows: list[Window]) -> tuple[float, float]:
    """Return jobs per second and per CPU second of all windows together."""
    jobs = sum(window.jobs for window in windows)
    return jobs / sum(window.seconds for window in windows), jobs / sum(window.computing for window in windows)


def measure() -> tuple[list[Window], float]:
    """Return windows of a busy service, alternately without and with viewers, and the cost of viewers of an idle service.

    The latter has no noise; on a core that does nothing else it is also the fraction of the throughput.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        _service(Path(folder)) as (process, url, key),
        Client(url, key) as client,
    ):
        alone = _alone(process.pid, url, key)
        with _load(url, key):
            windows = _windows(client, process.pid, url, key)
    return windows, alone


def _alone(pid: int, url: str, key: str) -> float:
    """Return the CPU time per second that viewers cost an idle service."""
    time.sleep(SECONDS)
    without = _used(pid)
    with _viewers(url, key):
        time.sleep(1.0)
        return _used(pid) - without


def _used(pid: int) -> float:
    before = _cpu_seconds(pid)
    time.sleep(2 * SECONDS)
    return (_cpu_seconds(pid) - before) / (2 * SECONDS)


def _windows(client: Client, pid: int, url: str, key: str) -> list[Window]:
    windows = []
    while client.state().counters.get("done", 0) < WARM:
        time.sleep(0.1)
    for _ in range(REPEATS):
        windows.append(_window(client, pid, 0))
        with _viewers(url, key):
            windows.append(_window(client, pid, VIEWERS))
    return windows


def _window(client: Client, pid: int, viewers: int) -> Window:
    began, done, used = time.perf_counter(), _done(client), _cpu_seconds(pid)
    time.sleep(SECONDS)
    more, cpu, lasted = _done(client) - done, _cpu_seconds(pid) - used, time.perf_counter() - began
    assert more > 0, "the service did nothing"
    return Window(viewers, more, lasted, cpu)


def _done(client: Client) -> int:
    return client.state().counters["done"]


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far (Linux)."""
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
    """Keep the service busy from a separate process."""
    with subprocess.Popen([sys.executable, "-m", "bench.watching", "load", url, key]) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def _viewers(url: str, key: str) -> Iterator[None]:
    """Run viewers in a separate process; continue when all of them receive events."""
    words = [sys.executable, "-m", "bench.watching", "watch", url, key]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"{VIEWERS}\n"
            yield
        finally:
            process.terminate()


async def serve_jobs(url: str, key: str) -> None:
    """Submit jobs and serve them immediately, without end."""
    async with AsyncClient(url, key) as client:
        await asyncio.gather(*(_agent(client, number) for number in range(AGENTS)))


async def _agent(client: AsyncClient, number: int) -> None:
    servers = [(await client.register(f"server{k % SERVERS}", f"{number}-{k}")).id for k in range(EACH)]
    ends: list[WorkFinish] = []
    idle = set(servers)
    await client.submit_all([NewJob(f"job{k % JOBS}") for k in range(EACH)])
    while True:
        answer = await client.work(ends, sorted(idle), wait=1.0)
        leases = answer.leases
        ends = [WorkFinish(one.lease, one.fence, reward=0.5) for one in leases]
        idle = {one.server for one in leases} | (idle - {one.server for one in leases})
        if leases:
            await client.submit_all([NewJob(f"job{k % JOBS}") for k in range(len(leases))])


async def watch(url: str, key: str) -> None:
    """Read streams and discard them, without end; print the number of viewers when all have started."""
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
