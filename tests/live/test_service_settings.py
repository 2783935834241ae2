"""Settings in the file and settings changed through the API: which of them count at the next start."""

import pytest
from slotless import CLASSES, run, serving

from bilinq.errors import BadInput
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.wire.messages import JobClassInfo, NewJob, SettingsUpdate

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
