"""What was learnt comes back, whatever has happened to its checkpoint."""

import logging
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from databases import stored
from learnt import from_log, learnt
from slotless import run, serve_job, serving

from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.settings import RewardBounds
from bilinq.live.store import Transaction
from bilinq.live.store.job_tables import observations_since
from bilinq.live.wire.messages import JobClassInfo, NewJob, NewServer, ServerClassInfo, WorkFinish
from bilinq.live.wire.queries import BadField
from bilinq.scheduler.snapshot import encode, seal, unseal

pytest_plugins = ["databases"]


def beliefs(service: Service) -> list[list[float]]:
    """Return what was learnt, up to the last reward."""
    scheduler = service.replica.memory.scheduler
    assert scheduler is not None
    scheduler.assign({})
    known = scheduler.beliefs()
    assert known is not None
    mean: list[list[float]] = known.mean.round(9).tolist()
    return mean


def flip(tx: Transaction) -> None:
    """Change a byte in every checkpoint."""
    for id, state in tx.rows("SELECT id, state FROM checkpoint"):
        middle = len(state) // 2
        bad = state[:middle] + bytes([state[middle] ^ 1]) + state[middle + 1 :]
        tx.run("UPDATE checkpoint SET state = :bad WHERE id = :id", bad=bad, id=id)


def spoil(tx: Transaction) -> None:
    """Make the log of rewards useless as well."""
    flip(tx)
    tx.run("UPDATE observation SET value = 1e9")


def orphan(tx: Transaction) -> None:
    """Let rewards be of classes that do not exist."""
    flip(tx)
    tx.run("UPDATE observation SET job_class_id = 999")


def craft(change: Callable[[dict[str, Any]], None]) -> Callable[[Transaction], None]:
    """Return what changes the content of every checkpoint and gives it the right checksums again."""

    def damage(tx: Transaction) -> None:
        for id, state in tx.rows("SELECT id, state FROM checkpoint"):
            document = unseal(state)
            change(document)
            bad = seal(document)
            sql = "UPDATE checkpoint SET state = :bad, checksum = :checksum WHERE id = :id"
            tx.run(sql, bad=bad, checksum=sha256(bad).hexdigest(), id=id)

    return damage


def shrink(document: dict[str, Any]) -> None:
    """Let an array have fewer rows than there are job classes."""
    document["engine"]["state"][0][9] = encode(np.zeros(0))


def add_job(document: dict[str, Any]) -> None:
    document["expired"] = [1]


@pytest.mark.parametrize(
    ("damage", "told", "kept"),
    [
        (lambda tx: None, [], True),
        (
            craft(shrink),
            ["value.shared must have shape (2,); got shape (0,)", "computed again from all 3 observations"],
            True,
        ),
        (craft(add_job), ["it must have no jobs", "computed again from all 3 observations"], True),
        (flip, ["checkpoint 1 is not usable", "computed again from all 3 observations"], True),
        (spoil, ["checkpoint 1 is not usable", "learning starts again from nothing"], False),
        (orphan, ["checkpoint 1 is not usable", "learning starts again from nothing"], False),
    ],
)
def test_what_was_learnt_survives_a_damaged_checkpoint(
    damage: Callable[[Transaction], None], told: list[str], kept: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    learnt: list[list[list[float]]] = []

    async def learn() -> None:
        async with serving(database_url) as service:
            learnt.append(beliefs(service))
            for reward in (0.9, 0.8, 0.95):
                await serve_job(service, reward)
            learnt.append(beliefs(service))

    async def look() -> None:
        async with serving(database_url) as service:
            learnt.append(beliefs(service))
            await serve_job(service)

    run(learn())
    stored(database_url, damage)
    with caplog.at_level(logging.WARNING, "bilinq.live"):
        run(look())
    prior, before, after = learnt
    assert before != prior
    assert after == (before if kept else prior)
    for text in told:
        assert text in caplog.text
    assert told or not caplog.records


def test_rewards_of_another_range_are_logged_and_not_used(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work(high: float) -> None:
        async with serving(sqlite_url, reward=RewardBounds(0.0, high)) as service:
            await serve_job(service, high)

    run(work(100.0))
    with caplog.at_level(logging.WARNING, "bilinq.live"):
        run(work(1.0))
    assert "must be for rewards from 0 to 1; got 0 to 100" in caplog.text
    assert "learning starts again from nothing" in caplog.text


async def serve(service: Service, job_class: str, server_class: str, reward: float | None) -> None:
    """Serve a job of a class on a server of a class."""
    server = await service.register(LOCAL, NewServer(server_class, f"{server_class} 1"))
    await service.submit(LOCAL, [NewJob(job_class)])
    [lease] = await service.lease(LOCAL, [server.id], 0.0)
    await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, reward))


@pytest.mark.parametrize("policy", ["look-ahead", "sabr"])
def test_the_log_gives_what_was_learnt_bit_for_bit(policy: str, database_url: str) -> None:
    """With durations alone, classes that come and change in between, and checkpoints; one observation less is noticed."""

    async def learn(rounds: int) -> None:
        async with serving(database_url, policy=policy) as service:
            for k in range(rounds):
                await serve(service, "ab"[k % 2], "x", None if k % 5 == 4 else 0.1 * (k % 7))
                if k == rounds // 2:
                    await service.put_class(LOCAL, JobClassInfo("c", [0.3, 0.1 * rounds]))
                    await service.put_class(LOCAL, ServerClassInfo("y", [0.2, 0.9]))
                    await service.put_class(LOCAL, JobClassInfo("a", [1.0, 0.1 * rounds]))
                    await serve(service, "c", "y", 0.9)
            memory, settings = service.replica.memory, service.replica.settings
            found.append(learnt(memory.scheduler))
            logs.append(await service.replica.store.write(lambda tx: from_log(tx, settings)))

    found: list[object] = []
    logs: list[object] = []
    for rounds in (30, 12):  # the second start continues from the checkpoint of the first
        run(learn(rounds))
    if policy == "look-ahead":
        assert found == logs
    [log] = stored(database_url, lambda tx: observations_since(tx, 0))
    assert len(log) == 44 and all(row.duration is not None and row.duration > 0.0 for row in log)
    assert sum(row.value is None for row in log) == 8

    def drop_last(tx: Transaction) -> None:
        tx.run("DELETE FROM observation WHERE seq = (SELECT max(seq) FROM observation)")

    async def look() -> None:
        async with serving(database_url, policy=policy) as service:
            settings = service.replica.settings
            logs.append(await service.replica.store.write(lambda tx: from_log(tx, settings)))

    stored(database_url, drop_last)
    run(look())
    assert logs[-1] != logs[-2]


def test_a_policy_that_learns_from_features_of_classes_needs_them(sqlite_url: str) -> None:
    async def work(policy: str) -> None:
        plain = {"job_class": (JobClassInfo("a"),), "server_class": (ServerClassInfo("x"),)}
        async with serving(sqlite_url, policy=policy, **plain) as service:
            await serve(service, "a", "x", 0.5)

    run(work("look-ahead"))
    with pytest.raises(BadField, match="features: must contain a number for policy sabr"):
        run(work("sabr"))
