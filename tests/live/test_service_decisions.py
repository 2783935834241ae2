"""Why each lease was granted: the record, what the API tells of it, and the log for off-policy estimates."""

from base64 import b64encode
from typing import Any

import msgspec
import numpy as np
import pytest
from slotless import run, serving

import bilinq
from bilinq.errors import NotFound
from bilinq.live.keys import LOCAL, Identity
from bilinq.live.service import Service
from bilinq.live.service.decision_record import explained, record
from bilinq.live.settings import RewardBounds
from bilinq.live.wire.messages import JobClassInfo, Lease, NewJob, NewReward, NewServer, ServerClassInfo, WorkFinish
from bilinq.scheduler.explain import Choices, Decision, explanation

pytest_plugins = ["databases"]

CLASSES: dict[str, Any] = {
    "job_class": (JobClassInfo("a"), JobClassInfo("b")),
    "server_class": (ServerClassInfo("x"), ServerClassInfo("y")),
}


async def lease(service: Service, *server_classes: str, **options: Any) -> Lease:
    """Submit a job and return its lease on one of idle servers of these classes."""
    await service.submit(LOCAL, [NewJob("a", **options)])
    ids = [(await service.register(LOCAL, NewServer(name, name))).id for name in server_classes]
    [found] = await service.lease(LOCAL, ids, 0.0)
    return found


@pytest.mark.parametrize("number", [1, 3, 11, 12, 100])
@pytest.mark.parametrize("exploration", ["thompson", "ucb", "none"])
def test_a_record_has_at_most_300_bytes_and_says_what_the_scheduler_says(number: int, exploration: str) -> None:
    rng = np.random.default_rng(number)
    value, width, duration, price = (rng.uniform(0.1, 1.0, number) for _ in range(4))
    toll = np.where(rng.random(number) < 0.3, np.inf, rng.uniform(0.0, 0.5, number))
    chosen = int(rng.integers(number))
    toll[chosen] = 0.1
    names = tuple(f"server {k}" for k in range(number))
    numbers = np.stack([value, width, duration, price, toll])[None]
    decision = Decision(Choices(numbers, np.array([chosen]), 0.2, 0.09, exploration, names), 0)
    text = record(decision, [10**6 + k for k in range(number)])
    assert len(text) <= 300
    found = explained(text, {10**6 + k: name for k, name in enumerate(names)}, "j1", "a", RewardBounds(0.0, 10.0))
    wanted = explanation("j1", "a", names[chosen], decision, 0.0, 5.0)
    assert (found.chosen, found.draw) == (wanted.chosen, wanted.draw)
    kept = {one.server_class: one for one in found.options}
    assert len(kept) == min(len(wanted.options), 11) and names[chosen] in kept
    for one in wanted.options if len(wanted.options) <= 11 else ():
        for name in ("value", "uncertainty", "duration", "price", "score", "probability"):
            assert getattr(kept[one.server_class], name) == pytest.approx(getattr(one, name), rel=1e-4, abs=1e-5)


def test_the_reasons_of_a_job_are_kept_with_its_lease(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, **CLASSES) as service:
            waiting = (await service.submit(LOCAL, [NewJob("b", servers=["y"])])).jobs[0].id
            before = await service.decision(LOCAL, waiting)
            assert (before.chosen, before.lease, before.probability) == (None, None, None)
            assert [one.server_class for one in before.options] == ["y"]
            held = await lease(service, "x")
            scheduler = service.replica.memory.scheduler
            assert scheduler is not None
            wanted = scheduler.explain(int(held.job.id[1:]))
            told = await service.decision(LOCAL, held.job.id)
            assert (told.lease, told.chosen, told.job_class) == (held.lease, "x", "a")
            assert told.probability == pytest.approx(wanted.probability, abs=1e-4)
            assert [one.server_class for one in told.options] == [one.server_class for one in wanted.options]
            await service.finish_one(LOCAL, WorkFinish(held.lease, held.fence, 0.5))
        async with serving(database_url, **CLASSES) as service:
            assert await service.decision(LOCAL, held.job.id) == told
            with pytest.raises(NotFound, match="there is no job"):
                await service.decision(Identity("k", "other", frozenset({"read"})), held.job.id)

    run(work())


def test_a_policy_by_classes_keeps_no_reasons(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url, policy="sabr") as service:
            held = await lease(service, "x")
            with pytest.raises(NotFound, match="has no decision record"):
                await service.decision(LOCAL, held.job.id)

    run(work())


def test_failed_leases_and_rewards_that_come_late_are_exported(database_url: str) -> None:
    """A failure counts as the lowest reward; a reward comes after a reader has passed its lease, and is read once."""

    async def work() -> None:
        async with serving(database_url, reward=RewardBounds(-1.0, 1.0), **CLASSES) as service:
            held = [await lease(service, "x") for _ in range(1)]
            await service.finish_one(LOCAL, WorkFinish(held[0].lease, held[0].fence))
            held.append(await lease(service, "x"))
            await service.finish_one(LOCAL, WorkFinish(held[1].lease, held[1].fence, error="no"))
            [again] = await service.lease(LOCAL, [held[1].server], 0.0)
            assert again.job.id == held[1].job.id
            await service.finish_one(LOCAL, WorkFinish(again.lease, again.fence, 0.5))

            async def rows(after: str | None) -> list[Any]:
                text = await service.decisions(LOCAL, after, 1000)
                found = [msgspec.json.decode(line) for line in text.splitlines()]
                return [(row["lease"], row["reward"], row["failed"]) for row in found]

            assert await rows(None) == [(held[1].lease, -1.0, True), (again.lease, 0.5, False)]
            assert await rows(again.lease) == []
            await service.reward(LOCAL, held[0].job.id, NewReward(0.25))
            assert await rows(again.lease) == [(held[0].lease, 0.25, False)]
            await service.reward(LOCAL, held[0].job.id, NewReward(0.75))
            assert await rows(held[0].lease) == []
            assert (await rows(None))[-1] == (held[0].lease, 0.75, False)

    run(work())


def test_the_log_of_decisions_is_what_evaluate_reads(database_url: str) -> None:
    """Server y pays 0.5 more; the estimate for always y is the mean reward there."""
    rng = np.random.default_rng(3)

    async def work() -> str:
        async with serving(database_url, V=1e-3, **CLASSES) as service:
            for k in range(120):
                held = await lease(service, *("xy" if k % 3 else "x"), features=[float(rng.random())])
                server = next(one for one in await service.servers(LOCAL) if one.id == held.server).server_class
                earned = float(np.clip(0.2 + 0.5 * (server == "y") + 0.05 * rng.standard_normal(), 0.0, 1.0))
                late = k % 10 == 0
                await service.finish_one(LOCAL, WorkFinish(held.lease, held.fence, None if late else earned))
                if late:
                    await service.reward(LOCAL, held.job.id, NewReward(earned))
            open_lease = await lease(service, "x")
            whole = await service.decisions(LOCAL, None, 1000)
            assert open_lease.lease not in whole
            first = await service.decisions(LOCAL, None, 50)
            last = msgspec.json.decode(first.splitlines()[-1])["lease"]
            assert first + await service.decisions(LOCAL, last, 1000) == whole
            assert await service.decisions(Identity("k", "other", frozenset({"read"})), None, 10) == ""
            return whole

    found: list[str] = []

    async def keep() -> None:
        found.append(await work())

    run(keep())
    rows = [msgspec.json.decode(line) for line in found[0].splitlines()]
    assert len(rows) == 120 and all(0.0 < row["probability"] <= 1.0 for row in rows)
    log = {
        name: np.array([row[name] for row in rows])
        for name in ("server", "reward", "features", "job_class", "probability")
    }
    estimate = bilinq.evaluate(log, "y")
    assert abs(estimate.direct.mean - 0.7) < 0.05
    assert abs(bilinq.evaluate(log, "x").direct.mean - 0.2) < 0.05


def test_a_record_of_an_earlier_version_is_read_with_the_least_draws() -> None:
    """It ended after the server classes, with the padding of its text."""
    numbers = np.array([[[0.5, 0.4], [0.3, 0.3], [1.0, 1.0], [0.1, 0.1], [0.0, 0.0]]])
    decision = Decision(Choices(numbers, np.array([0]), 0.2, np.inf, "thompson", ("x", "y")), 0)
    text = "t" + b64encode(decision.packed([1, 2], 11)).decode()
    assert text.endswith("=")
    found = explained(text, {1: "x", 2: "y"}, "j1", "a", RewardBounds(-1.0, 1.0))
    wanted = explanation("j1", "a", "x", decision, -1.0, 1.0)
    assert found.probability == pytest.approx(wanted.probability, rel=1e-4)
