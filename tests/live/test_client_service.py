"""Client and worker with a real service process: kills and frozen workers lose nothing and count nothing twice."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty import until
from process import Process, make_key

from bilinq.client import AsyncClient, Client, Done, HeldJob, NewJob, Worker
from bilinq.errors import BadInput
from bilinq.live.wire.messages import Changed


class Place:
    """A service that may be started again at the same address and on the same data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.database = folder, f"sqlite:///{folder}/live.db"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = make_key(self.database, "admin")

    def service(self, *options: str) -> Process:
        return Process(self.folder, self.database, "--port", str(self.port), "--lease", "2", *options)

    def client(self) -> Client:
        return Client(self.url, self.key, timeout=20.0)

    @contextmanager
    def command(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run `bilinq work` in a process."""
        command = [sys.executable, "-m", "bilinq.commands.app", "work", *words]
        environment = os.environ | {"BILINQ_URL": self.url, "BILINQ_KEY": self.key}
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A service that all tests share."""
    place = Place(tmp_path_factory.mktemp("service"))
    with place.service("--max-attempts", "3"):
        yield place


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    with place.client() as client:
        yield client


@contextmanager
def at_work(client: Client, function: Any, **options: Any) -> Iterator[None]:
    worker = Worker(client, "gpu", function, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(20.0)
        assert not thread.is_alive()


def counters(client: Client) -> Counter[str]:
    return Counter(client.state().counters)


def at_least(client: Client, number: int) -> bool:
    return len(client.jobs(state="done", limit=1000).jobs) >= number


def slow(job: HeldJob) -> float:
    time.sleep(0.05)
    return 0.5


def test_jobs_are_served_and_counted_once(client: Client) -> None:
    before = counters(client)
    refs = client.submit_all([NewJob("short", {"k": k}, units=1 + k % 2) for k in range(60)])
    with at_work(client, lambda job: Done(0.5, result=job.payload["k"]), servers=4):
        until(lambda: at_least(client, before["done"] + 60), 30.0)
    jobs = [client.job(ref.id) for ref in refs]
    assert [(job.state, job.result) for job in jobs] == [("done", k) for k in range(60)]
    after = counters(client)
    assert after["rewards"] - before["rewards"] == 90
    assert after["failed"] == before["failed"]
    assert client.servers() == []


def test_a_killed_service_loses_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with ExitStack() as stack:
        client = stack.enter_context(place.client())
        service = stack.enter_context(place.service())
        refs = client.submit_all([NewJob("short", k) for k in range(40)])
        with at_work(client, slow, servers=4, wait=2.0):
            until(lambda: at_least(client, 5), 30.0)
            service.child.kill()
            service.child.wait()
            stack.enter_context(place.service())
            until(lambda: at_least(client, 40), 30.0)
        histories = [[event.what for event in client.job(ref.id).history] for ref in refs]
        assert all(history.count("finished") == 1 for history in histories)


def test_a_reward_out_of_range_ends_in_the_list_of_dead(client: Client) -> None:
    before = counters(client)
    ref = client.submit("short")
    with at_work(client, lambda job: 7.0, wait=1.0):
        assert client.wait(ref.id, 20.0).state == "dead"
    assert client.job(ref.id).attempts == 3
    assert counters(client)["rewards"] == before["rewards"]


def test_a_worker_that_is_killed_gives_up_its_job(place: Place, client: Client, tmp_path: Path) -> None:
    ref = client.submit("short")
    with place.command("gpu", "--", "sh", "-c", f"touch {tmp_path}/begun; sleep 60") as process:
        until((tmp_path / "begun").exists, 30.0)
        process.kill()
    with at_work(client, lambda job: 0.5):
        assert client.wait(ref.id, 20.0).state == "done"
    assert [event.what for event in client.job(ref.id).history].count("expired") == 1


def test_a_worker_that_was_frozen_cannot_count_twice(place: Place, client: Client, tmp_path: Path) -> None:
    before = counters(client)
    ref = client.submit("short")
    script = f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo 0.25"
    with place.command("gpu", "--reward", "last-line", "--", "sh", "-c", script) as process:
        until((tmp_path / "begun").exists, 30.0)
        process.send_signal(signal.SIGSTOP)
        with at_work(client, lambda job: 0.75):
            assert client.wait(ref.id, 20.0).reward == 0.75
        (tmp_path / "go").touch()
        time.sleep(0.2)  # the command ends while its worker is frozen
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.wait(20.0) == 0
    assert client.job(ref.id).reward == 0.75
    assert counters(client)["rewards"] - before["rewards"] == 1


def test_heartbeats_hold_a_job_for_longer_than_a_lease(client: Client) -> None:
    def serve(job: HeldJob) -> float:
        return 0.25 if job.wait_lost(3.0) else 0.75

    ref = client.submit("short")
    with at_work(client, serve):
        assert client.wait(ref.id, 20.0).reward == 0.75
    assert client.job(ref.id).attempts == 0


def test_both_clients_cancel_and_retry_many_jobs(place: Place) -> None:
    def new(tag: str) -> list[NewJob]:
        return [NewJob("short", tags=[tag], not_before=3600.0)] * 3

    with place.client() as client:
        ids = [ref.id for ref in client.submit_all(new("sync"))]
        assert client.cancel_jobs(tag="sync", limit=2) == Changed(2, ids[1])
        assert client.cancel_jobs(tag="sync", after=ids[1]) == Changed(1, None)
        assert client.cancel_jobs(state="leased", tag="sync") == Changed(0, None)
        assert [client.job(id).state for id in ids] == ["cancelled"] * 3
        [dead] = [ref.id for ref in client.submit_all([NewJob("short", tags=["retry"], max_attempts=1)])]
        server = client.register("gpu")
        lease = client.lease(server.id)
        assert lease is not None
        client.fail(lease.lease, lease.fence)
        client.unregister(server.id)
        assert client.retry_jobs(tag="retry") == Changed(1, None)
        assert client.retry_jobs(tag="retry") == Changed(0, None)
        assert client.cancel(dead).state == "cancelled"
        with pytest.raises(BadInput, match="is needed"):
            client.cancel_jobs()

    async def again() -> None:
        async with AsyncClient(place.url, place.key) as client:
            await client.submit_all(new("async"))
            assert await client.cancel_jobs(tag="async", job_class="short") == Changed(3, None)
            assert await client.retry_jobs(tag="async") == Changed(0, None)

    asyncio.run(again())
