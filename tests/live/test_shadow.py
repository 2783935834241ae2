"""Shadow mode in a service: what a second policy would have earned, and that nothing depends on it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from slotless import run, serving
from tenants import opened

from bilinq.errors import BadInput
from bilinq.live.keys import LOCAL, Identity
from bilinq.live.service import Service
from bilinq.live.service import shadow as shadow_mode
from bilinq.live.service.comparison import Comparison
from bilinq.live.service.outbox import Changes
from bilinq.live.service.shadow import Shadow
from bilinq.live.wire.messages import (
    JobClassInfo,
    Lease,
    NewJob,
    NewReward,
    NewServer,
    ServerClassInfo,
    SettingsUpdate,
    WorkFinish,
)
from bilinq.live.wire.samples import ShadowInfo

pytest_plugins = ("databases",)

CLASSES: dict[str, Any] = {
    "job_class": (JobClassInfo("a", [1.0, 0.0]), JobClassInfo("b", [0.0, 1.0])),
    "server_class": (ServerClassInfo("x", [1.0, 0.0]), ServerClassInfo("y", [0.0, 1.0])),
}
PAYS = {("a", "x"): 0.8, ("a", "y"): 0.3, ("b", "x"): 0.3, ("b", "y"): 0.8}


class Fleet:
    """Six servers of each class, which serve jobs in rounds; a job earns 0.8 on its own server class, else 0.3."""

    def __init__(self, service: Service, seed: int = 1) -> None:
        self.service, self.rng = service, np.random.default_rng(seed)
        self.classes: dict[str, str] = {}

    async def enrol(self) -> "Fleet":
        for name in "xy":
            for k in range(6):
                self.classes[(await self.service.register(LOCAL, NewServer(name, f"{name}{k}"))).id] = name
        return self

    async def leases(self, jobs: Sequence[NewJob]) -> list[Lease]:
        await self.service.submit(LOCAL, jobs)
        return await self.service.lease(LOCAL, list(self.classes), 0.0)

    async def round(self, size: int = 3, **options: Any) -> list[Lease]:
        """Serve some jobs."""
        leases = await self.leases([NewJob("ab"[self.rng.integers(2)], **options) for _ in range(size)])
        await self.service.finish(LOCAL, [WorkFinish(one.lease, one.fence, self.earned(one)) for one in leases])
        return leases

    def earned(self, lease: Lease) -> float:
        mean = PAYS[lease.job.job_class, self.classes[lease.server]]
        return float(np.clip(mean + 0.1 * self.rng.standard_normal(), 0.0, 1.0))

    def info(self) -> ShadowInfo:
        found = self.service.replica.memory.shadow
        assert found is not None
        return found.info()


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shadow be asked in every slot."""
    monkeypatch.setattr(shadow_mode, "REST", 0.0)


async def is_on(fleet: Fleet) -> Shadow:
    """Serve jobs until the shadow has begun, and return it."""
    async with asyncio.timeout(20.0):
        while True:
            await fleet.round(1)
            found = fleet.service.replica.memory.shadow
            if found is not None and (found.scheduler is not None or found.error is not None):
                return found
            await asyncio.sleep(0.01)


def test_a_better_shadow_is_shown_to_be_better(sqlite_url: str) -> None:
    """First come, first served earns 0.55 a service, and a policy that learns 0.8: the interval is far above zero."""

    async def work() -> None:
        async with serving(sqlite_url, policy="first-come", shadow="look-ahead", **CLASSES) as service:
            fleet = await Fleet(service).enrol()
            await is_on(fleet)
            for _ in range(35):
                await fleet.round(6)
            told = (await service.state()).shadow
            assert told is not None and (told.policy, told.state, told.error) == ("look-ahead", "on", None)
            assert told.compared >= 200 and told.agreement is not None and 0.4 < told.agreement < 0.6
            assert told.gain is not None and 0.15 < told.gain.low < 0.25 < told.gain.high + 0.02
            assert told.estimate is not None and told.estimate.mean == pytest.approx(0.8, abs=0.05)
            assert told.earned is not None and told.earned.mean == pytest.approx(0.55, abs=0.05)
            assert told.predicted_gain == pytest.approx(0.25, abs=0.06)
            assert "Queues and waits would differ" in told.notes[0]
            page = await service.metrics()
            assert 'bilinq_shadow_on{policy="look-ahead"} 1' in page
            assert f'bilinq_shadow_gain{{bound="mean"}} {told.gain.mean:g}'[:40] in page

    run(work())


def test_a_worse_shadow_is_predicted_to_be_worse_where_nothing_was_measured(sqlite_url: str) -> None:
    """The look-ahead soon leaves the bad pairs alone: there is nothing to measure, and that is said."""

    async def work() -> None:
        async with serving(sqlite_url, shadow="first-come", **CLASSES) as service:
            fleet = await Fleet(service).enrol()
            await is_on(fleet)
            for _ in range(25):
                await fleet.round(6)
            told = fleet.info()
            assert told.predicted_gain is not None and told.predicted_gain < -0.15
            assert told.choices >= 150 and told.agreement == pytest.approx(0.5, abs=0.05)
            assert told.gain is None or told.gain.low < 0.05

    run(work())


def test_a_shadow_that_raises_is_switched_off_and_nothing_else(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(database_url, shadow="sabr", **CLASSES) as service:
            fleet = await Fleet(service).enrol()
            shadow = await is_on(fleet)
            with monkeypatch.context() as patch:
                patch.setattr(shadow.scheduler, "assign", lambda *_: 1 / 0)
                for _ in range(3):
                    assert len(await fleet.round()) == 3
            assert (shadow.scheduler, shadow.error) == (None, "division by zero")
            told = (await service.state()).shadow
            assert told is not None and (told.state, told.error) == ("failed", "division by zero")
            assert service.ready and service.replica.memory.missed is None and service.replica.meters.recoveries == 0
            page = await service.metrics()
            assert "bilinq_shadow_failures_total 1" in page and 'bilinq_shadow_on{policy="sabr"} 0' in page
            for off_and_on in ("none", "sabr"):
                await service.update_settings(LOCAL, SettingsUpdate(shadow=off_and_on))
            assert (await is_on(fleet)).error is None
            assert (await service.state()).counters["done"] >= 11

    run(work())
    assert caplog.text.count("the shadow sabr failed and is switched off: division by zero") == 1


@pytest.mark.parametrize("spoilt", ["observation", "scheduler_classes"])
def test_errors_while_it_learns_or_classes_change_switch_it_off_as_well(
    spoilt: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with serving(sqlite_url, shadow="greedy", **CLASSES) as service:
            fleet = await Fleet(service).enrol()
            shadow = await is_on(fleet)
            monkeypatch.setattr(shadow_mode, spoilt, lambda *_: 1 / 0)
            await service.put_class(LOCAL, ServerClassInfo("z", [1.0, 1.0]))
            for _ in range(2):
                assert len(await fleet.round()) == 3
            assert shadow.error == "division by zero" and service.ready

    run(work())


def test_the_setting_is_checked_changed_undone_and_kept(sqlite_url: str) -> None:
    async def work() -> None:
        async with opened(sqlite_url) as one:
            await one.key("all", ["fleet"], "default")
            await one.key("some", ["read"], "other")
            assert (await one.done("all", "GET", "/v1/settings"))["shadow"] == "none"
            assert (await one.done("all", "GET", "/v1/state"))["shadow"] is None
            wrong = await one.ask("all", "PATCH", "/v1/settings", {"shadow": "nobody"})
            assert wrong.status_code == 422 and "shadow must be none or one of look-ahead, sabr" in wrong.text
            assert (await one.done("all", "PATCH", "/v1/settings", {"shadow": "sabr"}))["shadow"] == "sabr"
            [change] = (await one.done("all", "GET", "/v1/settings/history"))["changes"]
            assert (change["before"], change["after"]) == ({"shadow": "none"}, {"shadow": "sabr"})
            told = (await one.done("all", "GET", "/v1/state"))["shadow"]
            assert (told["policy"], told["state"]) == ("sabr", "starting")
            assert (await one.done("some", "GET", "/v1/state"))["shadow"] is None, "it tells of all namespaces"
        async with opened(sqlite_url) as two:
            two.keys = one.keys
            assert (await two.done("all", "GET", "/v1/settings"))["shadow"] == "sabr"
            assert (await two.done("all", "POST", "/v1/settings/undo"))["shadow"] == "none"

    run(work())


def test_a_policy_without_settings_may_have_a_shadow_and_one_that_needs_features_must_get_them(sqlite_url: str) -> None:
    plain: dict[str, Any] = {
        "job_class": (JobClassInfo("a"),),
        "server_class": (ServerClassInfo("x"), ServerClassInfo("y")),
    }

    async def work() -> None:
        async with serving(sqlite_url, policy="first-come", **plain) as service:
            with pytest.raises(BadInput, match="must contain a number for policy sabr"):
                await service.update_settings(LOCAL, SettingsUpdate(shadow="sabr"))
            with pytest.raises(BadInput, match="has no settings and no weights"):
                await service.update_settings(LOCAL, SettingsUpdate(target_wait=3.0))
            assert (await service.update_settings(LOCAL, SettingsUpdate(shadow="look-ahead"))).shadow == "look-ahead"
        with pytest.raises(BadInput, match="must contain a number for policy sabr"):
            async with serving(sqlite_url, shadow="sabr", **plain):
                pass

    run(work())


def test_after_a_restart_it_has_learnt_the_same_and_compares_anew(database_url: str) -> None:
    """What it learns is in the log; decisions that were compared are not kept."""

    async def work() -> None:
        options: dict[str, Any] = {"policy": "first-come", "shadow": "look-ahead", **CLASSES}
        async with serving(database_url, **options) as service:
            fleet = await Fleet(service).enrol()
            await is_on(fleet)
            for _ in range(12):
                await fleet.round()
            first = await is_on(fleet)
            while first._waiting:
                first.learn()
            assert first.scheduler is not None and fleet.info().choices > 30
            before = first.scheduler.beliefs()
        async with serving(database_url, **options) as service:
            fleet.service = service
            await fleet.leases([NewJob("a")])  # the first lease begins the shadow, and nothing is learnt from it yet
            async with asyncio.timeout(20.0):
                while service.replica.memory.shadow is None or service.replica.memory.shadow.scheduler is None:
                    await asyncio.sleep(0.01)
            assert fleet.info().choices == 0
            again = service.replica.memory.shadow.scheduler.beliefs()
            assert before is not None and again is not None
            assert np.array_equal(before.mean, again.mean) and np.array_equal(before.width, again.width)

    run(work())


def test_late_rewards_corrections_and_failures_count(sqlite_url: str) -> None:
    """A failure counts as the lowest reward, a late reward when it comes, and a correction in place of what was."""

    async def work() -> None:
        async with serving(sqlite_url, policy="random", shadow="first-come", max_attempts=1, **CLASSES) as service:
            fleet = await Fleet(service).enrol()
            shadow = await is_on(fleet)
            [late, failed] = await fleet.leases([NewJob("a"), NewJob("a")])
            kept = {one.lease: shadow.comparison._place[int(one.lease[1:])] for one in (late, failed)}
            reward = shadow.comparison._reward
            await service.finish_one(LOCAL, WorkFinish(late.lease, late.fence))
            assert np.isnan(reward[kept[late.lease]])
            await service.reward(LOCAL, late.job.id, NewReward(0.7))
            assert reward[kept[late.lease]] == 0.7
            await service.reward(LOCAL, late.job.id, NewReward(0.4))
            assert reward[kept[late.lease]] == 0.4
            await service.finish_one(LOCAL, WorkFinish(failed.lease, failed.fence, error="broke"))
            assert reward[kept[failed.lease]] == 0.0 and shadow.error is None

    run(work())


def test_jobs_with_features_are_compared_by_the_chances_of_their_record(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and new, their chances are those of the record. Of two at once, or of one that waited, they are not known."""
    added: list[Any] = []

    def add(self: Comparison, lease: int, chosen: int, policy: Any, **told: Any) -> None:
        added.append((told["group"], None if told["chance"] is None else round(float(told["chance"].sum()), 9)))

    async def work() -> None:
        async with serving(sqlite_url, shadow="look-ahead", **CLASSES) as service:
            fleet = await Fleet(service).enrol()
            shadow = await is_on(fleet)
            monkeypatch.setattr(Comparison, "add", add)
            await fleet.round(1, features=[1.0])
            await fleet.round(2, features=[1.0])
            [waited] = await fleet.leases([NewJob("a", features=[1.0])])
            service.replica.memory.return_unused(service.replica.memory.leases[int(waited.lease[1:])], 0.0, Changes())
            [again] = await service.lease(LOCAL, list(fleet.classes), 0.0)
            await service.finish_one(LOCAL, WorkFinish(again.lease, again.fence, 0.5))
            await fleet.round(1)
            assert shadow.error is None
            assert added[:-1] == [(None, 1.0), (None, None), (None, None), (None, 1.0), (None, None)]
            assert added[-1][0][1] == "default" and added[-1][1] is None, "jobs of a class have frequencies"

    run(work())


def test_nothing_is_compared_where_servers_serve_some_namespaces_only(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url, policy="random", shadow="greedy", **CLASSES) as service:
            fleet = await Fleet(service).enrol()
            shadow = await is_on(fleet)
            before = shadow.comparison.choices
            theirs = Identity("k", "other", frozenset({"work"}), frozenset({"other"}))
            await service.register(theirs, NewServer("x", "theirs"))
            await fleet.round()
            assert shadow.comparison.choices == before
            await service.unregister(theirs, next(one.id for one in await service.servers(theirs)))
            await fleet.round()
            assert shadow.comparison.choices > before

    run(work())


def test_it_takes_a_small_part_of_the_time(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was asked it rests twenty times as long: of slots that follow at once, it is asked in few."""

    async def work() -> None:
        async with serving(sqlite_url, policy="random", shadow="look-ahead", **CLASSES) as service:
            fleet = await Fleet(service).enrol()
            shadow = await is_on(fleet)
            monkeypatch.setattr(shadow_mode, "REST", 1e6)
            await fleet.round()
            before = shadow.comparison.choices
            for _ in range(3):
                await fleet.round()
            assert shadow.comparison.choices == before and len(shadow._waiting) >= 9

    run(work())
