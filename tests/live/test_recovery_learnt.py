"""What was learnt comes back, whatever has happened to its checkpoint."""

import logging
from collections.abc import Callable

import pytest
from databases import stored
from slotless import run, serve_job, serving

from bilinq.live.service import Service
from bilinq.live.settings import RewardBounds
from bilinq.live.store import Transaction

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
    tx.run("UPDATE reward SET value = 1e9")


def orphan(tx: Transaction) -> None:
    """Let rewards be of classes that do not exist."""
    flip(tx)
    tx.run("UPDATE reward SET job_class_id = 999")


@pytest.mark.parametrize(
    ("damage", "told", "kept"),
    [
        (lambda tx: None, [], True),
        (flip, ["checkpoint 1 is not usable", "computed again from all 3 rewards"], True),
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
