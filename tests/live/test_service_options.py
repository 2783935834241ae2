"""What single jobs have of their own: features, servers, weight, deadline, start, attempts, tags."""

import asyncio
import logging
import time
from typing import Any

import pytest
from databases import stored
from learnt import from_log, learnt
from slotless import delete_after, run, serving

from bilinq.errors import Conflict, NotFound
from bilinq.live.keys import LOCAL, Identity
from bilinq.live.service import Service
from bilinq.live.store.job_tables import observations_since
from bilinq.live.wire.messages import JobClassInfo, Lease, NewJob, NewServer, ServerClassInfo, WorkFinish
from bilinq.live.wire.queries import BadField

pytest_plugins = ["databases"]

CLASSES: dict[str, Any] = {
    "job_class": (JobClassInfo("a"), JobClassInfo("b")),
    "server_class": (ServerClassInfo("x"), ServerClassInfo("y")),
}


async def submit(service: Service, job_class: str = "a", **options: Any) -> str:
    return (await service.submit(LOCAL, [NewJob(job_class, **options)])).jobs[0].id


async def lease(service: Service, server_class: str) -> Lease | None:
    """Return a lease for the only server of a class, if a slot grants one now."""
    server = await service.register(LOCAL, NewServer(server_class, server_class))
    found = await service.lease(LOCAL, [server.id], 0.0)
    return found[0] if found else None


async def serve(service: Service, server_class: str, reward: float | None = 0.5) -> str | None:
    """Return the job that the server of a class serves now, None if it gets none."""
    held = await lease(service, server_class)
    if held is None:
        return None
    await service.finish_one(LOCAL, WorkFinish(held.lease, held.fence, reward))
    return held.job.id


async def slot(service: Service) -> None:
    """Run a slot, and return when all is on disk."""
    service.slots.try_slot()
    await service.replica.write(lambda tx: None)


def test_options_are_stored_and_shown(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, **CLASSES) as service:
            full = await submit(
                service, features=[0.1, -0.0], servers=["y", "x", "y"], weight=2.5, deadline=60.0, not_before=0.5,
                max_attempts=7, tags=["night", "eu"],
            )  # fmt: skip
            plain = await submit(service)
        async with serving(database_url, **CLASSES) as service:
            job = await service.job(LOCAL, full)
            assert job.deadline is not None and job.not_before is not None
            assert job.deadline - job.submitted == pytest.approx(60.0)
            assert job.not_before - job.submitted == pytest.approx(0.5)
            assert (job.features, job.servers, job.weight) == ([0.1, -0.0], ["x", "y"], 2.5)
            assert (job.max_attempts, job.tags) == (7, ["eu", "night"])
            other = await service.job(LOCAL, plain)
            assert (other.features, other.servers, other.deadline, other.tags) == (None, None, None, [])

    run(work())


def test_a_job_is_served_by_its_servers_only_and_reported_while_there_are_none(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(database_url, **CLASSES) as service:
            first, second = await submit(service, servers=["y"]), await submit(service, servers=["y"])
            for _ in range(3):
                assert await serve(service, "x") is None
            assert (await service.state()).unserved == 2
            assert "bilinq_jobs_unserved 2" in await service.metrics()
            assert {await serve(service, "y"), await serve(service, "y")} == {first, second}
            assert (await service.state()).unserved == 0

    with caplog.at_level(logging.WARNING, "bilinq.live"):
        run(work())
    assert caplog.text.count("2 jobs wait for server classes without a server: y") <= 1
    assert caplog.text.count("wait for server classes without a server") == 1


@pytest.mark.parametrize("policy", ["look-ahead", "sabr"])
def test_a_job_of_several_units_keeps_its_servers_after_a_restart(policy: str, database_url: str) -> None:
    """Both were leased before and wait again after; a policy by classes gives them out to nobody."""
    leased = list[Lease]()

    async def before() -> None:
        async with serving(database_url) as service:
            await service.put_class(LOCAL, ServerClassInfo("y", [1.0, 1.0]))
            for name in ("one", "two"):
                await submit(service, servers=["y"], units=2)
                server = await service.register(LOCAL, NewServer("y", name))
                leased.extend(await service.lease(LOCAL, [server.id], 0.0))

    async def after() -> None:
        async with serving(database_url, policy=policy) as service:
            one, two = leased
            await service.finish_one(LOCAL, WorkFinish(one.lease, one.fence, 0.5))
            await service.finish_one(LOCAL, WorkFinish(two.lease, two.fence, error="it broke"))
            assert await serve(service, "x") is None
            expected = {"j1", "j2"} if policy == "look-ahead" else {None}
            assert {await serve(service, "y") for _ in range(3)} == expected  # one unit and two

    run(before())
    run(after())


def test_jobs_that_servers_of_others_or_servers_that_are_gone_cannot_serve_are_reported(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class y has a server of another namespace, then one that is held, and one that has been offline for a minute."""
    monkeypatch.setattr("bilinq.live.service.slots.LOOK", 0.0)

    async def work() -> None:
        async with serving(sqlite_url, **CLASSES) as service:
            own = Identity("own", "default", frozenset({"submit", "work"}))
            other = Identity("other", "other", frozenset({"work"}))
            await service.register(other, NewServer("y", "theirs"))
            await service.submit(own, [NewJob("a", servers=["y"])])
            for id, held in (("theirs", None), ("held", "quarantined"), ("gone", None)):
                if id != "theirs":
                    server = (await service.register(own, NewServer("y", id))).id
                    service.slots.try_slot()
                    assert (await service.state()).unserved == 0
                    await service.hold(LOCAL, server, held)  # type: ignore[arg-type]
                if id == "gone":
                    service.replica.memory.servers.called(server).seen -= 61.0  # type: ignore[union-attr]
                    service.replica.loaded -= 61.0
                service.slots.try_slot()
                assert (await service.state()).unserved == 1, id
            await service.submit(own, [NewJob("a", servers=["x"])])
            service.slots.try_slot()
            service.slots.try_slot()
            assert (await service.state()).unserved == 2

    with caplog.at_level(logging.WARNING, "bilinq.live"):
        run(work())
    told = [one.getMessage() for one in caplog.records if "without a server" in one.getMessage()]
    assert told == [*["1 jobs wait for server classes without a server: y; namespace=default"] * 3,
                    "1 jobs wait for server classes without a server: x; namespace=default"]  # fmt: skip


def test_unknown_servers_and_bad_options_are_refused_all_or_none(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url, **CLASSES) as service:
            for bad, kind, rule in (
                (
                    NewJob("a", servers=["z"]),
                    NotFound,
                    r"jobs\[1\].servers: there is no server class 'z'; known are x, y",
                ),
                (NewJob("a", deadline=2.0, not_before=3.0), BadField, r"jobs\[1\].deadline: must be after not_before"),
            ):
                with pytest.raises(kind, match=rule):
                    await service.submit(LOCAL, [NewJob("a"), bad])
            with pytest.raises(
                BadField, match=r"jobs\[1\].features: must have length 2, as those of earlier jobs; got 3"
            ):
                await service.submit(LOCAL, [NewJob("a", features=[1.0, 2.0]), NewJob("a", features=[1.0, 2.0, 3.0])])
            assert (await service.jobs(LOCAL, None, None, None, 9)).jobs == []
            await submit(service, features=[1.0])
            with pytest.raises(BadField, match=r"jobs\[0\].features: must have length 1"):
                await submit(service, features=[1.0, 2.0], key="k")

    run(work())


def test_a_late_job_is_dropped_as_expired(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, **CLASSES) as service:
            late, leased = await submit(service, deadline=1.0), await submit(service, "b", weight=9.0, deadline=1.0)
            held = await lease(service, "x")
            assert held is not None and held.job.id == leased
            await asyncio.sleep(1.1)
            assert await serve(service, "y") is None
            await slot(service)
            job = await service.job(LOCAL, late)
            assert (job.state, job.error, job.history[-1].what) == ("expired", "the deadline has passed", "expired")
            assert [one.id for one in (await service.jobs(LOCAL, "expired", None, None, 9)).jobs] == [late]
            assert (await service.job(LOCAL, leased)).state == "leased", "it has started in time"
            with pytest.raises(Conflict, match="it is expired"):
                await service.cancel(LOCAL, late)
            assert 'bilinq_jobs_ended_total{job_class="a",how="expired"} 1' in await service.metrics()
            await service.finish_one(LOCAL, WorkFinish(held.lease, held.fence, error="no"))
            await slot(service)
            assert (await service.job(LOCAL, leased)).state == "expired", "it waits again, after its deadline"
            await submit(service, deadline=0.05)
        await asyncio.sleep(0.1)
        async with serving(database_url, **CLASSES) as service:
            await slot(service)
            assert [job.state for job in (await service.jobs(LOCAL, None, None, None, 9)).jobs] == ["expired"] * 3
            assert service.replica.memory.queued.total() == service.replica.memory.waiting == 0

    run(work())


def test_a_late_job_is_served_where_the_settings_say_so(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url, late="serve", **CLASSES) as service:
            late = await submit(service, deadline=0.02)
            await asyncio.sleep(0.05)
            assert await serve(service, "x") == late

    run(work())


def test_a_job_starts_no_earlier_than_it_may(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, **CLASSES) as service:
            later, now = await submit(service, not_before=4.0), await submit(service)
            assert (await serve(service, "x"), await serve(service, "x")) == (now, None)
            assert (await service.state()).job_classes[0].queued == 1
        async with serving(database_url, **CLASSES) as service:
            assert await serve(service, "x") is None
            start = (await service.job(LOCAL, later)).not_before
            assert start is not None
            await asyncio.sleep(max(start - time.time(), 0.0) + 0.05)
            assert await serve(service, "x") == later
            gone = await submit(service, not_before=60.0)
            assert (await service.cancel(LOCAL, gone)).state == "cancelled"
            assert service.replica.memory.queued.total() == service.replica.memory.waiting == 0

    run(work())


def test_a_job_has_its_own_number_of_attempts_and_a_retry_has_no_deadline(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, max_attempts=5, **CLASSES) as service:
            id = await submit(service, max_attempts=1, deadline=0.2, tags=["t"])
            held = await lease(service, "x")
            assert held is not None
            assert (await service.finish_one(LOCAL, WorkFinish(held.lease, held.fence, error="no"))).state == "dead"
            await service.retry(LOCAL, id)
            await asyncio.sleep(0.25)
        async with serving(database_url, **CLASSES) as service:
            await slot(service)
            job = await service.job(LOCAL, id)
            assert (job.state, job.deadline, job.max_attempts, job.tags) == ("queued", None, 1, ["t"])

    run(work())


def test_jobs_are_found_by_their_tags(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, retention=1e-6, **CLASSES) as service:
            ids = [
                await submit(service, "ab"[k % 2], tags=["even", "all"] if k % 2 == 0 else ["all"]) for k in range(6)
            ]
            await submit(service, key="k", tags=["keyed"])

            async def found(*filter: Any, **more: Any) -> list[str]:
                who = Identity("reader", "default", frozenset({"read"}))
                return [job.id for job in (await service.jobs(who, *filter, **more)).jobs]

            assert await found(None, None, None, 9, tag="even") == [ids[4], ids[2], ids[0]]
            assert await found(None, "b", None, 9, tag="even") == []
            assert await found("queued", "b", None, 2, tag="all") == [ids[5], ids[3]]
            assert await found(None, None, ids[3], 2, tag="all") == [ids[2], ids[1]]
            assert len(await found(None, None, None, 9, key="k", tag="keyed")) == 1
            assert await found(None, None, None, 9, key="k", tag="all") == []
            await service.cancel(LOCAL, ids[0])
            await delete_after(service, 7200.0)
            assert await found(None, None, None, 9, tag="even") == [ids[4], ids[2]]
            left = await service.replica.store.read(lambda tx: tx.rows("SELECT job FROM job_tag WHERE tag = 'even'"))
            assert len(left) == 2

    run(work())


def test_the_same_key_needs_the_same_options(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, **CLASSES) as service:
            first = await submit(service, key="k", features=[1.0], deadline=50.0)
            assert await submit(service, key="k", features=[1.0], deadline=50.0) == first
            for other in ({"features": [2.0], "deadline": 50.0}, {"features": [1.0]}, {}):
                with pytest.raises(Conflict, match="number of units or option"):
                    await submit(service, key="k", **other)

    run(work())


def test_weights_of_single_jobs_are_priorities(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url, **CLASSES) as service:
            usual = [await submit(service) for _ in range(3)]
            urgent = await submit(service, weight=100.0)
            await asyncio.sleep(0.05)
            assert await serve(service, "x") == urgent
            assert await serve(service, "x") in usual

    run(work())


def test_features_are_learnt_and_replay_bit_for_bit(database_url: str) -> None:
    async def work(rounds: int) -> None:
        async with serving(database_url, **CLASSES) as service:
            for k in range(rounds):
                await submit(service, features=[0.1 * k, 1.0] if k % 3 else None, servers=["xy"[k % 2]])
                await serve(service, "xy"[k % 2], None if k % 4 == 3 else 0.3)
            waiting = await submit(service, features=[5.0, 5.0], servers=["y"])
            memory, settings = service.replica.memory, service.replica.settings
            assert learnt(memory.scheduler) == await service.replica.store.write(lambda tx: from_log(tx, settings))
            await service.cancel(LOCAL, waiting)

    for rounds in (20, 8):
        run(work(rounds))
    [log] = stored(database_url, lambda tx: observations_since(tx, 0))
    assert len(log) == 28 and log[1].features == "[0.1,1.0]" and log[0].features is None


def test_a_policy_by_classes_refuses_what_it_cannot_use_and_never_serves_elsewhere(database_url: str) -> None:
    """A job that was accepted under another policy keeps its servers: it waits, and is reported, until that runs again."""

    async def ahead() -> None:
        async with serving(database_url) as service:
            await service.put_class(LOCAL, ServerClassInfo("y", [1.0, 1.0]))
            await submit(service, features=[1.0], weight=2.0)
            await submit(service, servers=["y"])

    async def slots() -> None:
        async with serving(database_url, policy="sabr") as service:
            for option in ({"features": [1.0]}, {"servers": ["x"]}, {"weight": 2.0}):
                with pytest.raises(BadField, match="needs the policy look-ahead"):
                    await submit(service, **option)
            assert await serve(service, "x") == "j1"
            assert await serve(service, "x") is None and await serve(service, "y") is None
            assert (await service.state()).job_classes[0].queued == 1

    async def again() -> None:
        async with serving(database_url) as service:
            assert await serve(service, "x") is None and await serve(service, "y") == "j2"

    for part in (ahead, slots, again):
        run(part())
