"""Rewards that come after a job has ended."""

import asyncio
from typing import Any

import pytest
from databases import stored
from learnt import from_log, learnt
from slotless import delete_after, run, serving

from bilinq.errors import BadInput, Conflict, NotFound
from bilinq.live.keys import LOCAL, Identity
from bilinq.live.service import Service, rewards
from bilinq.live.store.job_tables import observations_since
from bilinq.live.wire.messages import JobClassInfo, NewJob, NewReward, NewServer, WorkFinish

pytest_plugins = ["databases"]


async def serve(service: Service, reward: float | None = None, **options: Any) -> str:
    """Serve a job; return its id."""
    id = (await service.submit(LOCAL, [NewJob("a", **options)])).jobs[0].id
    server = await service.register(LOCAL, NewServer("x", "s"))
    [lease] = await service.lease(LOCAL, [server.id], 0.0)
    await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, reward))
    return id


async def rewarded(service: Service, id: str, reward: float, key: str | None = None) -> tuple[bool, bool]:
    """Reward a job; return whether that was repeated and whether it corrected another reward."""
    told = await service.reward(LOCAL, id, NewReward(reward, key))
    assert (told.job, told.reward) == (id, reward)
    return told.repeated, told.corrected


def test_a_reward_comes_later_and_counts_once(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url) as service:
            id = await serve(service)
            other = await serve(service)
            assert (await service.state()).awaited == 2
            assert "bilinq_rewards_awaited 2" in await service.metrics()
            assert await rewarded(service, id, 0.75) == (False, False)
            for _ in range(2):
                assert await rewarded(service, id, 0.75) == (True, False)
            state = await service.state()
            assert (state.awaited, state.reward_total, state.counters["rewards"]) == (1, 0.75, 1)
            assert (await service.job(LOCAL, id)).reward == 0.75
            assert 'bilinq_reward_sum{job_class="a"} 0.75' in await service.metrics()
        async with serving(database_url) as service:
            assert (await service.state()).awaited == 1
            assert await rewarded(service, id, 0.75) == (True, False)
            assert await rewarded(service, other, 0.5) == (False, False)
            assert (await service.state()).awaited == 0

    run(work())


def test_another_reward_corrects_the_first(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url) as service:
            given, late = await serve(service, 0.25), await serve(service)
            for id, before in ((given, True), (late, False)):
                assert await rewarded(service, id, 0.5) == (False, before)
                assert await rewarded(service, id, 1.0) == (False, True)
                assert (await service.job(LOCAL, id)).reward == 1.0
            state = await service.state()
            assert (state.reward_total, state.counters["rewards"], state.counters["corrections"]) == (2.0, 2, 3)

    run(work())
    [log] = stored(database_url, lambda tx: observations_since(tx, 0))
    assert [(row.lease, row.revision, row.value, row.before) for row in log] == [
        (1, 0, 0.25, None), (2, 0, None, None), (1, 1, 0.5, 0.25), (1, 2, 1.0, 0.5), (2, 1, 0.5, None), (2, 2, 1.0, 0.5),
    ]  # fmt: skip


def test_a_key_counts_once_although_the_reward_was_corrected_since(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url) as service:
            id = await serve(service)
            assert await rewarded(service, id, 0.5, "first") == (False, False)
            assert await rewarded(service, id, 0.75, "second") == (False, True)
            assert await rewarded(service, id, 0.5, "first") == (True, False)
            assert (await service.job(LOCAL, id)).reward == 0.75
            with pytest.raises(Conflict, match=r"key 'first' was used for another reward of job j1, 0.5"):
                await service.reward(LOCAL, id, NewReward(0.6, "first"))

    run(work())


def test_the_rewards_of_a_job_are_so_few_that_each_call_can_read_them(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewards, "MOST_REWARDS", 3)

    async def work() -> None:
        async with serving(sqlite_url) as service:
            for before in (None, 0.9):
                id = await serve(service, before)
                for k in range(3):
                    await rewarded(service, id, 0.1 * k, f"key {k}")
                with pytest.raises(Conflict, match=f"may be rewarded 3 times after its end; {id} has been"):
                    await service.reward(LOCAL, id, NewReward(0.5))
                assert await rewarded(service, id, 0.1, "key 1") == (True, False)
                assert (await service.job(LOCAL, id)).reward == 0.2

    run(work())


def test_rewards_that_cannot_be_counted_change_nothing(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            waiting = (await service.submit(LOCAL, [NewJob("b")])).jobs[0].id
            with pytest.raises(Conflict, match="must have been finished to be rewarded; it is queued"):
                await service.reward(LOCAL, waiting, NewReward(0.5))
            await service.cancel(LOCAL, waiting)
            id = await serve(service)
            for bad in (7.0, float("nan")):
                with pytest.raises(BadInput, match="reward must be"):
                    await service.reward(LOCAL, id, NewReward(bad))
            for who, job in ((LOCAL, "j99"), (Identity("k", "other", frozenset({"submit"})), id)):
                with pytest.raises(NotFound):
                    await service.reward(who, job, NewReward(0.5))
            state = await service.state()
            assert (state.awaited, state.reward_total) == (1, 0.0)

    run(work())
    [log] = stored(sqlite_url, lambda tx: observations_since(tx, 0))
    assert len(log) == 1


def test_rewards_of_a_job_at_the_same_time_are_counted_one_after_the_other(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url) as service:
            id = await serve(service)
            values = [0.1, 0.2, 0.3, 0.2, 0.1]
            await asyncio.gather(*(service.reward(LOCAL, id, NewReward(value)) for value in values))
            assert (await service.state()).reward_total == pytest.approx((await service.job(LOCAL, id)).reward)

    run(work())
    [log] = stored(database_url, lambda tx: observations_since(tx, 0))
    assert [row.revision for row in log] == list(range(len(log)))
    assert [row.before for row in log[2:]] == [row.value for row in log[1:-1]]


@pytest.mark.parametrize("policy", ["look-ahead", "sabr", "first-come"])
def test_late_rewards_replay_bit_for_bit_with_the_features_of_then(policy: str, database_url: str) -> None:
    async def work(rounds: int) -> None:
        async with serving(database_url, policy=policy) as service:
            ids = []
            for k in range(rounds):
                options = {"features": [0.1 * k, 1.0]} if policy == "look-ahead" and k % 2 else {}
                ids.append(await serve(service, 0.5 if k % 3 == 0 else None, **options))
            await service.put_class(LOCAL, JobClassInfo("a", [0.5, 0.1 * rounds]))
            for k, id in enumerate(ids):
                await service.reward(LOCAL, id, NewReward(0.01 * k))
                if k % 4 == 0:
                    await service.reward(LOCAL, id, NewReward(0.9))
            memory, settings = service.replica.memory, service.replica.settings
            if policy == "look-ahead":
                assert learnt(memory.scheduler) == await service.replica.store.write(lambda tx: from_log(tx, settings))

    for rounds in (20, 10):  # the second start continues from the checkpoint of the first
        run(work(rounds))

    async def ahead() -> None:
        async with serving(database_url) as service:
            health = service.replica.memory.scheduler.health()  # type: ignore[union-attr]
            assert health is not None and health.observations == 30

    run(ahead())


def test_deleted_jobs_are_no_longer_awaited(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url, retention=1.0) as service:
            await serve(service)
            await delete_after(service, 7200.0)
            assert (await service.state()).awaited == 0

    run(work())
