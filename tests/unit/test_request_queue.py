"""The queue of `bilinq.plugins`: bounded waits, bounded memory, no request lost, and no error that reaches a request."""

import asyncio
import threading
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from bilinq.errors import BadInput
from bilinq.plugins import request_queue
from bilinq.plugins.places import Server
from bilinq.plugins.request_queue import Choice, RequestQueue

FAST, SLOW = Server("fast", "fast", 1), Server("slow", "slow", 2)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def serve(queue: RequestQueue, clock: Clock, servers: Sequence[Server], reward: dict[str, float]) -> Choice:
    """Serve one request to its end; it takes one second."""
    choice = queue.choose(servers)
    clock.now += 1.0
    assert queue.finish(choice.request, reward[choice.server])
    return choice


def taught(**settings: Any) -> tuple[RequestQueue, Clock]:
    """Return a queue that has learnt that `fast` pays and `slow` does not."""
    clock = Clock()
    queue = RequestQueue(reward=(0.0, 1.0), clock=clock, seed=1, **settings)
    for _ in range(60):
        serve(queue, clock, [FAST, SLOW], {"fast": 0.9, "slow": 0.1})
    return queue, clock


def test_it_learns_which_server_pays() -> None:
    queue, clock = taught()
    late = [serve(queue, clock, [FAST, SLOW], {"fast": 0.9, "slow": 0.1}).server for _ in range(20)]
    assert late.count("fast") >= 18
    assert queue.counts.scheduled == 80 and not queue.waiting


def test_a_request_waits_for_the_better_server_and_gets_it() -> None:
    queue, _ = taught(patience=30.0)

    async def run() -> str:
        first = await queue.wait([FAST, SLOW])
        assert first.server == "fast"
        second = asyncio.create_task(queue.wait([FAST, SLOW]))
        await asyncio.sleep(0.01)
        assert queue.waiting == 1, "a place of the slow server is free, but the fast one is worth the wait"
        queue.finish(first.request, 0.9)
        return (await second).server

    assert asyncio.run(run()) == "fast"


def test_patience_ends_at_the_best_free_place_and_then_at_the_least_busy() -> None:
    queue, _ = taught(patience=0.0)
    servers = [queue.choose([FAST, SLOW]).server for _ in range(5)]
    assert servers[:3] == ["fast", "slow", "slow"]
    assert queue.counts.hurried == 2 and queue.counts.crowded == 2
    assert set(servers[3:]) <= {"fast", "slow"}


def test_threads_may_block_for_the_same_queue() -> None:
    queue, _ = taught(patience=30.0)
    first = queue.choose([FAST])
    found: list[Choice] = []
    other = threading.Thread(target=lambda: found.append(queue.choose([FAST])))
    other.start()
    while not queue.waiting:
        pass
    queue.finish(first.request, 0.5)
    other.join(30.0)
    assert [one.server for one in found] == ["fast"]


def test_a_cancelled_request_leaves_the_queue_and_frees_its_place() -> None:
    queue, _ = taught(patience=30.0)

    async def run() -> Choice:
        first = await queue.wait([FAST])
        gone, third = (asyncio.create_task(queue.wait([FAST])) for _ in range(2))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert queue.waiting == 1
        queue.finish(first.request, 0.5)
        return await third

    assert asyncio.run(run()).server == "fast"
    assert not queue.waiting


def test_many_tasks_never_exceed_the_places_and_none_is_lost() -> None:
    """200 requests at once on three places: each is answered, and a server has at most its places at a time."""
    queue = RequestQueue(reward=(0.0, 1.0), patience=60.0, seed=3)
    out = {"fast": 0, "slow": 0}
    random = Random(1)

    async def request() -> None:
        choice = await queue.wait([FAST, SLOW], features=[random.random()])
        out[choice.server] += 1
        assert out["fast"] <= 1 and out["slow"] <= 2
        await asyncio.sleep(0)
        out[choice.server] -= 1
        assert queue.finish(choice.request, random.random())

    async def run() -> None:
        await asyncio.gather(*(request() for _ in range(200)))

    asyncio.run(run())
    assert queue.counts.scheduled == 200 and not queue.waiting and not queue._requests


def test_an_error_inside_gives_the_least_busy_server_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, _ = taught()
    first = queue.choose([FAST, SLOW], features=None)
    wrong = queue.choose([FAST, SLOW], features=[float("nan")])
    assert first.server == "fast" and wrong == Choice(None, "slow")
    monkeypatch.setattr(queue.scheduler, "assign", lambda *a, **k: 1 / 0)
    assert queue.choose([FAST, SLOW]) == Choice(None, "slow")
    monkeypatch.undo()
    assert queue.counts.errors == 2 and not queue.waiting
    queue.finish(first.request, 0.5)
    assert queue.choose([FAST, SLOW]).request is not None, "it goes on after the error"
    assert not queue.finish(None)


def test_a_request_without_an_end_gives_its_place_back_after_its_lifetime() -> None:
    queue, clock = taught(lifetime=10.0, patience=0.0)
    lost = queue.choose([FAST])
    clock.now += 11.0
    assert queue.choose([FAST]).server == "fast" and queue.counts.expired == 1 and queue.counts.crowded == 0
    assert not queue.finish(lost.request, 0.5) and queue.counts.unknown == 1


def test_rewards_come_late_once_and_can_be_corrected() -> None:
    queue, _ = taught()
    choice = queue.choose([FAST, SLOW])
    assert choice.request is not None and queue.finish(choice.request)
    assert queue.reward(choice.request, 5.0), "clipped to the range"
    assert queue.reward(choice.request, 0.2)
    assert not queue.reward(10_000, 0.2)
    with pytest.raises(BadInput, match=r"^reward must be a finite number; got nan$"):
        queue.reward(choice.request, float("nan"))


def test_a_failing_server_is_paused_but_still_used_if_it_is_the_only_one() -> None:
    queue, clock = taught(patience=0.0)
    for _ in range(8):
        choice = queue.choose([SLOW])
        clock.now += 1.0
        queue.finish(choice.request, failed=True)
    assert any(kind == "slow" for kind, _ in queue.scheduler.paused)
    assert queue.choose([FAST, SLOW]).server == "fast"
    assert queue.choose([SLOW]).server == "slow" and queue.counts.crowded >= 1


def test_the_load_that_the_host_knows_counts_too() -> None:
    queue, _ = taught(patience=0.0)
    assert queue.choose([FAST._replace(busy=1), SLOW]).server == "slow"


def test_a_request_that_the_host_moves_counts_where_it_is() -> None:
    queue, clock = taught(patience=0.0)
    choice = queue.choose([FAST, SLOW])
    assert choice.server == "fast" and choice.request is not None
    queue.move(choice.request, SLOW)
    assert queue.choose([FAST, SLOW]).server == "fast", "its place is free again"
    clock.now += 1.0
    before = queue.scheduler.beliefs()
    queue.finish(choice.request, 1.0)
    queue.choose([SLOW])
    after = queue.scheduler.beliefs()
    assert before is not None and after is not None
    column = [one.name for one in queue.scheduler.server_classes].index("slow")
    assert after.mean[:, column].max() > before.mean[:, column].max()


def test_servers_of_a_kind_share_what_is_learnt_and_the_least_busy_is_taken() -> None:
    queue = RequestQueue(reward=(0.0, 1.0), seed=1)
    pair = [Server("a", "gpu", 4), Server("b", "gpu", 4)]
    assert [queue.choose(pair).server for _ in range(4)] == ["a", "b", "a", "b"]
    queue.withdraw("a")
    assert queue.choose(pair[1:]).server == "b"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "MOST_CLASSES", 8)
    clock = Clock()
    queue = RequestQueue(reward=(0.0, 1.0), clock=clock, keep=10)
    for k in range(40):
        choice = queue.choose([Server(f"s{k}", f"s{k}", 1)], job_class=f"tenant {k}")
        queue.finish(choice.request, 0.5)
        clock.now += 600.0
    assert (
        len(queue.scheduler.server_classes) <= 8 and len(queue._places) <= 8 and len(queue.scheduler.job_classes) == 8
    )
    assert not queue._requests


def test_what_was_learnt_survives_a_restart() -> None:
    queue, _ = taught()
    again = RequestQueue(snapshot=queue.snapshot())
    assert again.choose([FAST, SLOW]).server == "fast"


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(BadInput, match=r"^patience must be "):
        RequestQueue(patience=-1.0)
    with pytest.raises(BadInput, match=r"^servers must have at least one server"):
        RequestQueue().choose([])
