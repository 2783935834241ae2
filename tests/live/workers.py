"""A service with faults, a client of it, and workers in threads.

A pytest plugin with the fixtures `live`, `client`, `hurried` and `short_pauses`. PYTEST_DONT_REWRITE: it may be imported.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from faulty import Faulty

from bilinq.client import Client, Worker, transport
from bilinq.client import worker as agent

WAIT = 0.5


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(transport, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(agent, "PATIENCE", 0.3)


@pytest.fixture
def live() -> Iterator[Faulty]:
    with Faulty() as faulty:
        yield faulty


@pytest.fixture
def hurried(live: Faulty) -> Faulty:
    """Give short leases."""
    live.service.lease_seconds = 1.0
    return live


@pytest.fixture
def client(live: Faulty) -> Iterator[Client]:
    with Client(live.url, live.key, timeout=5.0, attempt=0.3) as client:
        yield client


@contextmanager
def at_work(client: Client, function: Any, *words: str, **options: Any) -> Iterator[Worker]:
    """Run a worker in a thread; what it raises is raised here, when it has left."""
    worker = Worker(client, "gpu", function, *words, **{"wait": WAIT, "leave": 1.0} | options)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(10.0)
        assert not thread.is_alive()
    if raised:
        raise raised[0]


def done(live: Faulty, number: int) -> bool:
    return len(live.service.of_state("done")) == number


def at_least(live: Faulty, number: int) -> bool:
    return len(live.service.of_state("done")) >= number
