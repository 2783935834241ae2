"""The end of a worker: it finishes or returns its jobs, and leaves cleanly."""

import asyncio
import os
import signal
import threading
import time

import pytest
from faulty import Faulty, until
from workers import WAIT, at_work, done

from bilinq.client import Client, HeldJob, NewJob, Worker
from bilinq.errors import NoKey, Refused

pytest_plugins = ["workers"]
pytestmark = pytest.mark.usefixtures("short_pauses")


def test_it_finishes_its_jobs_and_leaves(live: Faulty, client: Client) -> None:
    begun = threading.Event()
    client.submit_all([NewJob("short") for _ in range(5)])

    def serve(job: HeldJob) -> float:
        begun.set()
        time.sleep(0.4)
        return 0.5

    with at_work(client, serve, servers=2) as worker:
        assert begun.wait(5.0)
        until(lambda: len(live.service.active) == 2)
        worker.stop()
    assert len(live.service.of_state("done")) == 2
    assert len(live.service.of_state("queued")) == 3
    assert live.service.all_servers == {}


def test_an_idle_worker_leaves_at_once(live: Faulty, client: Client) -> None:
    with at_work(client, lambda job: 0.5, wait=20.0, servers=3) as worker:
        until(lambda: live.service.polls)
        start = time.monotonic()
        worker.stop()
    assert time.monotonic() - start < 1.0
    assert live.service.all_servers == {}


def test_an_unconfirmed_result_is_sent_again_when_it_leaves(live: Faulty, client: Client) -> None:
    client.submit("short")
    with at_work(client, lambda job: 0.5, wait=20.0) as worker:
        until(lambda: done(live, 1))
        worker.stop()
    assert len(live.service.rewards) == 1


def test_a_job_that_arrives_while_it_leaves_is_not_lost(live: Faulty, client: Client) -> None:
    for _ in range(5):
        with at_work(client, lambda job: 0.5, wait=20.0) as worker:
            until(lambda: live.service.polls)
            client.submit("short")
            worker.stop()
        assert not live.service.active
    assert len(live.service.of_state("done")) + len(live.service.of_state("queued")) == 5
    assert live.service.all_servers == {}


def test_it_leaves_when_the_service_is_unavailable(
    live: Faulty, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()
    client.submit("short")

    def serve(job: HeldJob) -> float:
        begun.set()
        time.sleep(0.2)
        return 0.5

    with at_work(client, serve, leave=0.3) as worker:
        assert begun.wait(5.0)
        live.faults.clear()
        live.fault("cut", "/", times=10_000)
        worker.stop()
    assert "ends of 1 leases could not be sent" in caplog.text


def test_a_permanent_error_ends_it(live: Faulty, client: Client) -> None:
    with Client(live.url, "bq_unknown") as stranger, pytest.raises(NoKey):
        Worker(stranger, "gpu", lambda job: 0.5).run()
    with pytest.raises(Refused, match="no server class 'tpu'"):
        Worker(client, "tpu", lambda job: 0.5).run()


def test_a_revoked_key_ends_it_after_its_jobs(live: Faulty, client: Client) -> None:
    client.submit("short")

    def serve(job: HeldJob) -> float:
        live.service.known.clear()
        return 0.5

    with pytest.raises(NoKey):
        Worker(client, "gpu", serve, wait=WAIT, leave=0.1).run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_it_finish(number: signal.Signals, live: Faulty, client: Client) -> None:
    before = signal.getsignal(number)
    client.submit("short")

    def serve(job: HeldJob) -> float:
        os.kill(os.getpid(), number)
        time.sleep(0.2)
        return 0.5

    Worker(client, "gpu", serve, wait=20.0).run()
    assert done(live, 1)
    assert live.service.all_servers == {}
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_second_signal_returns_its_jobs(coroutine: bool, live: Faulty, client: Client) -> None:
    ended = threading.Event()

    def press() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)

    def serve(job: HeldJob) -> None:
        threading.Thread(target=press).start()
        ended.wait(10.0)

    async def await_serve(job: HeldJob) -> None:
        threading.Thread(target=press).start()
        try:
            await asyncio.sleep(10.0)
        finally:
            ended.set()

    ref = client.submit("short")
    start = time.monotonic()
    Worker(client, "gpu", await_serve if coroutine else serve, wait=20.0).run()
    assert time.monotonic() - start < 3.0
    assert client.job(ref.id).state == "queued"
    assert live.service.failed == [(ref.id, "the worker was stopped")]
    assert ended.is_set() == coroutine
    ended.set()
