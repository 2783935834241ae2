"""Settings in the file and settings changed through the API: which of them count at the next start."""

from typing import Any

import pytest
from slotless import CLASSES, run, serving

from bilinq.errors import BadInput
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.configuration import check_size
from bilinq.live.settings import ServiceSettings
from bilinq.live.store.class_tables import ClassRow
from bilinq.live.wire.messages import JobClassInfo, NewJob, ServerClassInfo, SettingsUpdate
from bilinq.live.wire.queries import BadField

pytest_plugins = ("databases",)

WIDE = {"job_class": (JobClassInfo("a", [1.0, 0.0, 0.5]), JobClassInfo("b", [0.6, 0.8, 0.5]))}


def weight(service: Service, name: str) -> float:
    return service.replica.memory.classes["job", name].weight


def test_what_the_api_has_set_stays_until_the_file_says_something_else(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url, target_wait=3.0) as service:
            await service.update_settings(LOCAL, SettingsUpdate(target_wait=5.0, weight={"a": 2.0}))
            await service.put_class(LOCAL, JobClassInfo("c", [0.5, 0.5], weight=4.0))
        async with serving(database_url, target_wait=3.0) as service:
            assert (service.replica.settings.target_wait, weight(service, "a"), weight(service, "c")) == (5.0, 2.0, 4.0)
        heavier = (JobClassInfo("a", [1.0, 0.0], weight=7.0), CLASSES["job_class"][1])
        async with serving(database_url, target_wait=4.0, job_class=heavier) as service:
            assert (service.replica.settings.target_wait, weight(service, "a"), weight(service, "c")) == (4.0, 7.0, 4.0)

    run(work())


def test_features_that_do_not_fit_those_of_the_api_are_refused_and_nothing_is_stored(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url) as service:
            await service.put_class(LOCAL, JobClassInfo("c", [0.5, 0.5]))
            await service.submit(LOCAL, [NewJob("c")])
        with pytest.raises(BadInput, match="must have length 3, as those of 'a'; got 2 for job class 'c'"):
            async with serving(database_url, **WIDE):
                pass
        async with serving(database_url) as service:
            assert {one.name: len(one.features) for one in (await service.classes()).job_classes} == dict.fromkeys(
                "abc", 2
            )
        every = WIDE["job_class"] + (JobClassInfo("c", [0.5, 0.5, 0.5]),)
        async with serving(database_url, job_class=every) as service:
            assert len(service.replica.memory.classes["job", "c"].features) == 3
            assert service.replica.memory.queued["c"] == 1

    run(work())


def large(job_classes: int, server_classes: int, features: int) -> dict[str, Any]:
    """Return classes that differ in one of their features."""
    return {
        "job_class": tuple(JobClassInfo(f"j{k}", [float(k)] + [1.0] * (features - 1)) for k in range(job_classes)),
        "server_class": tuple(ServerClassInfo(f"s{k}", [float(k), 1.0]) for k in range(server_classes)),
    }


def test_classes_and_features_for_which_slots_would_take_too_long_are_refused(database_url: str) -> None:
    """In the settings file, by a call, and by the first job with features of its own; what fits goes on."""

    async def work() -> None:
        with pytest.raises(BadInput, match=r"features: must be at most .* with 2 job classes and 230 server classes"):
            async with serving(database_url, **large(2, 230, 64)):
                pass
        async with serving(database_url, **large(2, 229, 64)) as service:
            with pytest.raises(BadInput, match=r"got 64$"):
                await service.put_class(LOCAL, ServerClassInfo("more", [1.0, 1.0]))
            rule = r"jobs\[1\].features: must be at most 64 numbers, those of the job class and of the job together"
            with pytest.raises(BadInput, match=f"{rule}, with .* got 65"):
                await service.submit(LOCAL, [NewJob("j0"), NewJob("j0", features=[1.0])])
            assert len((await service.classes()).server_classes) == 229
            await service.submit(LOCAL, [NewJob("j0")])

    run(work())


def test_more_features_than_sabr_can_learn_from_in_time_are_refused(sqlite_url: str) -> None:
    """In the file, by the API, and for a shadow: 64 x 64 features made a slot take 9.6 s."""
    rows = [ClassRow(1, "job", "a", (1.0,) * 64), ClassRow(2, "server", "x", (1.0,) * 64)]
    for settings in (ServiceSettings(policy="sabr"), ServiceSettings(policy="greedy")):
        with pytest.raises(BadField, match=r"must be at most 512 numbers of a job class times .* got 64 times 64$"):
            check_size(rows, settings, own=0)
    for settings in (ServiceSettings(), ServiceSettings(policy="random")):
        check_size(rows, settings, own=0)

    async def work() -> None:
        classes: dict[str, Any] = {
            "job_class": (JobClassInfo("a", [1.0] * 64),), "server_class": (ServerClassInfo("x", [1.0] * 64),)
        }  # fmt: skip
        for options in ({"policy": "sabr"}, {"shadow": "sabr"}):
            with pytest.raises(
                BadField, match=r"for policy sabr: slots would take longer than 0\.1 s; got 64 times 64"
            ):
                async with serving(sqlite_url, **(classes | options)):
                    pass
        async with serving(sqlite_url, **classes) as service:
            with pytest.raises(BadField, match="got 64 times 64"):
                await service.update_settings(LOCAL, SettingsUpdate(shadow="sabr"))
        async with serving(
            sqlite_url.replace("live.db", "empty.db"), shadow="sabr", job_class=(), server_class=()
        ) as service:
            await service.put_class(LOCAL, classes["job_class"][0])
            with pytest.raises(BadField, match="got 64 times 64"):
                await service.put_class(LOCAL, classes["server_class"][0])

    run(work())


@pytest.mark.parametrize(
    ("jobs", "servers", "features", "fits"),
    [(100, 80, 64, True), (1000, 20, 16, True), (1000, 80, 64, False), (100, 80, 128, False), (100, 100, 32, True)],
)
def test_the_limit_of_classes_and_features(jobs: int, servers: int, features: int, fits: bool) -> None:
    rows = [ClassRow(k, "job", f"j{k}", (1.0,) * features) for k in range(jobs)]
    rows += [ClassRow(k, "server", f"s{k}", (1.0,)) for k in range(servers)]
    if fits:
        check_size(rows, ServiceSettings(), own=0)
    else:
        with pytest.raises(BadField, match=f"must be at most .* got {features}$"):
            check_size(rows, ServiceSettings(), own=0)
    check_size(rows, ServiceSettings(policy="sabr"), own=0)
