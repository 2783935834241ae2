"""Policies of the service: each has its own settings, and keeps what others may learn from."""

import time
from pathlib import Path

import pytest
from process import CONFIG, Process, make_key, wait_for
from slotless import run, serve_job, serving

from bilinq.client import Client, JobClassInfo, SettingsUpdate
from bilinq.errors import BadInput
from bilinq.live.keys import LOCAL
from bilinq.live.settings import live_policies
from bilinq.live.wire.messages import NewJob
from bilinq.policies import MaxWeight

pytest_plugins = ("databases",)

CLASSES = CONFIG + '[[job_class]]\nname = "long"\nfeatures = [0.1, 1.0]\nweight = 3.0\n'


def serve(folder: Path, *options: str) -> Process:
    return Process(folder, f"sqlite:///{folder}/live.db", *options, settings=CLASSES)


def test_first_come_first_served_and_what_it_leaves_behind(tmp_path: Path) -> None:
    key = make_key(f"sqlite:///{tmp_path}/live.db", "admin")
    with serve(tmp_path, "--policy", "first-come") as process, Client(process.address, key) as client:
        assert client.settings().policy == "first-come"
        assert (client.settings().target_wait, client.settings().work_conserving) == (None, True)
        for update in (SettingsUpdate(target_wait=1.0), SettingsUpdate(weight={"long": 2.0})):
            with pytest.raises(
                BadInput, match="policy first-come, which the service runs, has no settings and no weights"
            ):
                client.update_settings(update)
        client.put_job_class(JobClassInfo("long", [0.1, 1.0], weight=5.0))
        server = client.register("gpu").id
        came, went = [], []
        for name in ("short", "long", "short", "short", "long"):
            came.append(client.submit(name).id)
            time.sleep(0.05)
        while (lease := client.lease(server, wait=0.3)) is not None:
            went.append(lease.job.id)
            client.finish(lease.lease, lease.fence, 0.25)
        assert went == came
        state = client.state()
        assert (state.V, state.expected, state.mean) == (0.0, [], [])
        assert state.knobs.policy == "first-come"
        assert process.stop() == 0
    with serve(tmp_path) as process, Client(process.address, key) as client:
        found = client.state()
        assert found.knobs.policy == "look-ahead"
        assert found.mean[0][0] == pytest.approx(0.25, abs=0.1), "learnt from what was earned first come, first served"
        assert [one.weight for one in client.classes().job_classes] == [1.0, 5.0]
        assert not [event for event in process.events() if event["level"] == "error"]


def test_a_lease_outlives_the_service_and_its_reward_comes_before_the_next_slot(tmp_path: Path) -> None:
    key = make_key(f"sqlite:///{tmp_path}/live.db", "admin")
    with serve(tmp_path, "--policy", "first-come") as process, Client(process.address, key) as client:
        server = client.register("gpu").id
        first, second = client.submit("short").id, client.submit("long").id
        lease = client.lease(server)
        assert lease is not None
        assert process.stop() == 0
    with serve(tmp_path, "--policy", "first-come") as process, Client(process.address, key) as client:
        client.finish(lease.lease, lease.fence, 0.5)
        again = client.lease(server)
        assert again is not None
        assert {lease.job.id, again.job.id} == {first, second}
        wait_for(lambda: client.state().counters.get("rewards") == 1)
        assert not [event for event in process.events() if event["level"] == "error"]


def test_every_live_policy_serves_and_learners_continue_from_each_other(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each start runs another policy on the same database; one that learns knows what was earned under the others."""

    async def work() -> None:
        for number, (name, kind) in enumerate(live_policies().items()):
            async with serving(sqlite_url, policy=name) as service:
                shown = await service.policy_settings()
                assert (shown.policy, shown.learns) == (name, kind.learns)
                scheduler = service.replica.memory.scheduler
                assert scheduler is not None and type(scheduler.policy) is (kind.kind or type(None))
                health = scheduler.health()
                assert (health.observations if health else 0) == (2 * number if kind.learns else 0)
                await service.submit(LOCAL, [NewJob("a")] * 30)  # so that no policy waits for a better match
                await serve_job(service, 0.9)
                await serve_job(service, 0.8)
                await service.metrics()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]

    run(work())


def test_a_policy_continues_from_its_own_checkpoint_after_another_one(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    learnt: list[list[list[float]]] = []

    async def work(policy: str) -> None:
        async with serving(sqlite_url, policy=policy) as service:
            await service.submit(LOCAL, [NewJob("a")] * 30)
            await serve_job(service, 0.9)
            learnt.append((await service.state()).mean)

    async def look(policy: str) -> None:
        async with serving(sqlite_url, policy=policy) as service:
            learnt.append((await service.state()).mean)

    run(work("greedy"))
    run(look("greedy"))
    assert "computed again" not in caplog.text
    run(work("max-weight"))
    assert "belongs to another policy: Greedy" in caplog.text
    assert "computed again from all 1 observations" in caplog.text
    caplog.clear()
    run(look("greedy"))
    assert "belongs to another policy: MaxWeight" in caplog.text
    assert "computed again" not in caplog.text, "it has a checkpoint of its own, and the rewards since"


def test_settings_are_those_of_the_policy(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url, policy="greedy") as service:
            shown = await service.policy_settings()
            assert (shown.target_wait, shown.V, shown.learns) == (None, None, True)
            for update in (SettingsUpdate(), SettingsUpdate(target_wait=1.0), SettingsUpdate(weight={"a": 2.0})):
                with pytest.raises(
                    BadInput, match="policy greedy, which the service runs, has no settings and no weights"
                ):
                    await service.update_settings(LOCAL, update)


def test_a_policy_may_have_some_of_the_settings(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaxWeight, "adjustable", ("V", "gamma"))

    async def work() -> None:
        async with serving(sqlite_url, policy="max-weight", V=4.0) as service:
            scheduler = service.replica.memory.scheduler
            assert scheduler is not None and scheduler.policy == MaxWeight(V=4.0, gamma=1.2)
            shown = await service.update_settings(LOCAL, SettingsUpdate(V=7.0))
            assert (shown.V, scheduler.policy) == (7.0, MaxWeight(V=7.0, gamma=1.2))
            with pytest.raises(BadInput, match="exploration is not a setting of policy max-weight"):
                await service.update_settings(LOCAL, SettingsUpdate(exploration="ucb"))
            with pytest.raises(BadInput, match="weight is not a setting of policy max-weight"):
                await service.update_settings(LOCAL, SettingsUpdate(weight={"a": 2.0}))
        async with serving(sqlite_url, policy="max-weight", V=4.0) as service:
            assert (await service.policy_settings()).V == 7.0

    run(work())


def test_serve_runs_another_policy_that_learns(tmp_path: Path) -> None:
    key = make_key(f"sqlite:///{tmp_path}/live.db", "admin")
    with Process(tmp_path, f"sqlite:///{tmp_path}/live.db", "--policy", "greedy", settings=CONFIG) as process:
        with Client(process.address, key) as client:
            assert (client.settings().policy, client.settings().learns) == ("greedy", True)
            server = client.register("gpu").id
            for _ in range(3):
                client.submit("short")
                lease = client.lease(server, wait=5.0)
                assert lease is not None
                client.finish(lease.lease, lease.fence, 0.75)
            wait_for(lambda: client.state().mean[0][0] > 0.5)
            assert process.stop() == 0
        assert not [event for event in process.events() if event["level"] == "error"]
