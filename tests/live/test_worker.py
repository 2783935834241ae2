"""The worker: heartbeats, lost leases, restarts of the service; against the API with faults."""

import asyncio
import logging
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from faulty import Faulty, until
from workers import WAIT, at_least, at_work, done

from bilinq.client import AsyncClient, Client, Done, HeldJob, NewJob, Worker
from bilinq.client import worker as agent
from bilinq.errors import BadInput

pytest_plugins = ["workers"]
pytestmark = pytest.mark.usefixtures("short_pauses")


def test_it_serves_jobs_and_sends_rewards_and_results(live: Faulty, client: Client) -> None:
    def serve(job: HeldJob) -> Any:
        answers = {"one": 0.5, "none": None, "numpy": np.float32(0.25), "whole": 1}
        return Done(0.75, result=job.payload) if job.payload not in answers else answers[job.payload]

    refs = client.submit_all([NewJob("short", text) for text in ("one", "none", "numpy", "whole", "result")])
    with at_work(client, serve):
        until(lambda: done(live, 5))
    jobs = [client.job(ref.id) for ref in refs]
    assert [job.reward for job in jobs] == [0.5, None, 0.25, 1.0, 0.75]
    assert jobs[-1].result == "result"
    assert live.service.all_servers == {}


def test_a_job_with_units_is_served_several_times_or_ended_early(live: Faulty, client: Client) -> None:
    first, second = client.submit("short", units=3), client.submit("short", units=3)

    def serve(job: HeldJob) -> Done:
        return Done(0.5, done=True if job.id == second.id else None)

    with at_work(client, serve):
        until(lambda: done(live, 2))
    assert len(live.service.rewards) == 4
    assert client.job(first.id).units_left == 0


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ZeroDivisionError("by\0zero"), "ZeroDivisionError: by zero"),
        (SystemExit(3), "SystemExit: 3"),
        (StopIteration(), "StopIteration"),
        (ValueError("x" * 5000), "x" * 100),
        (True, "must return a number, None or Done; got bool"),
        ("good", "got str"),
        (float("nan"), "reward must be finite; got nan"),
        (Done(0.5, result={1, 2}), "result must be JSON"),
        (7.0, "reward must be between 0 and 1; got 7"),
        (Done(0.5, result="x" * 1_100_000), "at most 1048576 bytes"),
    ],
)
@pytest.mark.parametrize("coroutine", [False, True])
def test_an_error_fails_the_attempt(
    answer: Any, text: str, coroutine: bool, live: Faulty, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def serve(job: HeldJob) -> Any:
        if job.payload == "good":
            return 0.5
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def await_serve(job: HeldJob) -> Any:
        return serve(job)

    ref = client.submit("short", "bad")
    other = client.submit("short", "good")
    with at_work(client, await_serve if coroutine else serve, servers=2):
        until(lambda: client.job(ref.id).state == "dead" and client.job(other.id).state == "done")
    job = client.job(ref.id)
    assert job.attempts == 3
    assert job.error is not None and text in job.error
    assert list(live.service.rewards.values()) == [0.5]


def test_heartbeats_keep_a_long_job(hurried: Faulty, client: Client) -> None:
    client.submit("short")

    def serve(job: HeldJob) -> float:
        assert not job.wait_lost(1.8)
        return 0.5

    with at_work(client, serve):
        until(lambda: done(hurried, 1))
    assert hurried.service.extended >= 3
    assert list(hurried.service.rewards) == ["l1"]


def test_heartbeats_survive_faults(hurried: Faulty, client: Client) -> None:
    client.submit("short")
    hurried.fault("lose", "/extend", times=1)
    hurried.fault("refuse", "/extend", times=1, status=503)
    hurried.fault("cut", "/extend", times=1)
    with at_work(client, lambda job: time.sleep(1.5)):
        until(lambda: done(hurried, 1))
    assert list(hurried.service.rewards) == ["l1"]


def test_the_result_of_a_lost_lease_is_dropped(
    hurried: Faulty, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[bool] = []

    def serve(job: HeldJob) -> float:
        if job.attempts:
            return 0.25
        hurried.service.expire(now=True)
        lost.append(job.wait_lost(5.0))
        return 0.75

    client.submit("short")
    with at_work(client, serve):
        until(lambda: done(hurried, 1))
    assert lost == [True]
    assert hurried.service.rewards == {"l2": 0.25}
    assert "the result is dropped" in caplog.text


def test_a_lost_lease_cancels_a_coroutine(hurried: Faulty, client: Client) -> None:
    cancelled = threading.Event()

    async def serve(job: HeldJob) -> float:
        if not job.attempts:
            hurried.service.expire(now=True)
            try:
                await asyncio.sleep(10.0)
            finally:
                cancelled.set()
        return 0.25

    client.submit("short")
    with at_work(client, serve):
        until(lambda: done(hurried, 1))
    assert cancelled.is_set()
    assert hurried.service.rewards == {"l2": 0.25}


def test_a_late_result_is_refused_and_dropped(live: Faulty, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    def serve(job: HeldJob) -> float:
        if not job.attempts:
            live.service.expire(now=True)  # frozen past its lease: no heartbeat notices before it ends
        return 0.25

    client.submit("short")
    with at_work(client, serve):
        until(lambda: done(live, 1))
    assert live.service.rewards == {"l2": 0.25}
    assert live.service.failed == []
    assert "the service refused the end of lease l1: lease l1 has ended" in caplog.text


@pytest.mark.parametrize("kind", ["lose", "cut"])
def test_lost_answers_lose_no_job_and_count_none_twice(kind: str, live: Faulty, client: Client) -> None:
    served: list[str] = []
    live.service.max_attempts = 100
    client.submit_all([NewJob("short", k) for k in range(30)])
    for _ in range(10):
        live.fault(kind, "/v1/work", times=1)
    live.fault(kind, "/v1/servers", times=2)

    def serve(job: HeldJob) -> float:
        served.append(job.id)
        return 0.5

    with at_work(client, serve, servers=3):
        until(lambda: done(live, 30))
    assert sorted(served) == sorted(live.service.all_jobs)
    assert len(live.service.rewards) == 30


def test_it_survives_restarts_of_the_service(live: Faulty, client: Client) -> None:
    client.submit_all([NewJob("short") for _ in range(20)])
    with at_work(client, lambda job: time.sleep(0.05), servers=2):
        for number in (3, 8):
            until(partial(at_least, live, number))
            live.restart(pause=0.2)
        until(lambda: done(live, 20))
    assert len(live.service.all_jobs) == 20 == len(live.service.rewards)


def test_it_registers_again_when_the_service_has_forgotten_it(live: Faulty, client: Client) -> None:
    with at_work(client, lambda job: 0.5, "me", servers=2):
        until(lambda: len(live.service.polls) == 1)
        live.service.all_servers.clear()
        live.service.drain()
        until(lambda: len(live.service.all_servers) == 2)
        assert sorted(str(server.name) for server in live.service.all_servers.values()) == ["me-1", "me-2"]
        client.submit("short")
        until(lambda: done(live, 1))


def test_its_job_before_a_crash_is_freed_by_the_next_start(live: Faulty, client: Client) -> None:
    client.submit("short")
    server = client.register("gpu", "me")
    lease = client.lease(server.id)
    assert lease is not None
    with at_work(client, lambda job: 0.5, "me"):
        until(lambda: done(live, 1))
    assert list(live.service.rewards) == ["l2"]
    assert client.job("j1").attempts == 1


def test_it_waits_for_a_service_that_has_not_started(
    live: Faulty, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    live.fault("refuse", "/v1/servers", status=503, times=20)
    client.submit("short")
    with at_work(client, lambda job: 0.5):
        until(lambda: done(live, 1))
    assert caplog.text.count("retrying") == 1 == caplog.text.count("the service is available again")


def test_several_servers_work_at_the_same_time_with_few_calls(live: Faulty, client: Client) -> None:
    together = threading.Barrier(8, timeout=5.0)
    client.submit_all([NewJob("short") for _ in range(16)])
    with at_work(client, lambda job: together.wait() and None, servers=8):
        until(lambda: done(live, 16))
    assert live.asked("/v1/work") < 16


def test_idle_servers_share_calls(live: Faulty, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "POLLS", 2)
    client.submit_all([NewJob("short", 0.005 * k) for k in range(20)])
    with at_work(client, lambda job: time.sleep(job.payload), servers=10):
        until(lambda: done(live, 20))
        client.submit_all([NewJob("short", 0.0) for _ in range(10)])
        until(lambda: done(live, 30))
    assert live.service.most_polls <= 2


def test_results_do_not_wait_for_calls_that_wait(live: Faulty, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "POLLS", 1)
    client.submit("short")
    with at_work(client, lambda job: time.sleep(0.3), servers=2, wait=20.0):
        until(lambda: done(live, 1), 5.0)


def test_coroutines_run_together_and_apart_from_heartbeats(live: Faulty, client: Client) -> None:
    running = most = 0

    async def serve(prefix: str, job: HeldJob) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        time.sleep(0.05)  # a bad habit that must not cost a lease
        running -= 1
        return 0.5

    client.submit_all([NewJob("short") for _ in range(8)])
    with at_work(client, partial(serve, "x"), servers=4):
        until(lambda: done(live, 8))
    assert most == 4
    assert len(live.service.leases) == 8


def test_it_serves_within_an_event_loop(live: Faulty) -> None:
    async def use() -> None:
        async with AsyncClient(live.url, live.key) as client:
            await client.submit("short")
            worker = Worker(client, "gpu", lambda job: 0.5, wait=WAIT)
            task = asyncio.create_task(worker.serve())
            while not done(live, 1):
                await asyncio.sleep(0.01)
            worker.stop()
            await task

    asyncio.run(use())


def test_a_worker_stopped_before_its_start_does_nothing(client: Client, live: Faulty) -> None:
    worker = Worker(client, "gpu", lambda job: 0.5)
    worker.stop()
    worker.run()
    assert live.requests == []


def test_bad_options_are_refused(client: Client) -> None:
    for options in ({"servers": 0}, {"servers": 1001}, {"wait": 0.0}, {"wait": 61.0}, {"leave": -1.0}):
        with pytest.raises(BadInput, match=next(iter(options))):
            Worker(client, "gpu", lambda job: 0.5, **options)
