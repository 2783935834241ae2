"""The history of settings: who changed what and when, and changes that are undone."""

from typing import Any

import pytest
from slotless import CLASSES, run
from tenants import Tenants, opened, tenants

from bilinq.live.wire.messages import JobClassInfo

pytest_plugins = ("databases",)


async def history(one: Tenants) -> list[tuple[Any, ...]]:
    changes = (await one.done("all", "GET", "/v1/settings/history"))["changes"]
    return [(change["id"], change["before"], change["after"], change["undoes"], change["undone"]) for change in changes]


async def weight(one: Tenants, name: str = "a") -> float:
    classes = (await one.done("all", "GET", "/v1/classes"))["job_classes"]
    return next(float(job["weight"]) for job in classes if job["name"] == name)


async def undo(one: Tenants, query: str = "", status: int = 200) -> Any:
    answer = await one.ask("all", "POST", f"/v1/settings/undo{query}")
    assert answer.status_code == status, answer.text
    return answer.json()


def test_changes_are_listed_and_undone_one_after_the_other(database_url: str) -> None:
    async def work() -> None:
        async with tenants(database_url) as one:
            await one.done("all", "PATCH", "/v1/settings", {"target_wait": 5.0, "weight": {"a": 3.0, "b": 1.0}})
            await one.done("all", "PATCH", "/v1/settings", {"target_wait": 5.0})  # changes nothing
            await one.done("all", "PATCH", "/v1/settings", {"V": 7.0})
            first = (1, {"target_wait": 2.0, "weight": {"a": 1.0}}, {"target_wait": 5.0, "weight": {"a": 3.0}}, None)
            second = (2, {"target_wait": 5.0, "V": None}, {"target_wait": None, "V": 7.0}, None)
            assert await history(one) == [(*second, False), (*first, False)]
            newest = (await one.done("all", "GET", "/v1/settings/history?limit=1"))["changes"]
            assert [change["who"] for change in newest] == [one.keys["all"][3:11]]
            shown = await undo(one)
            assert (shown["target_wait"], shown["V"]) == (5.0, None)
            assert [change[3:] for change in await history(one)] == [(2, False), (None, True), (None, False)]
            assert (await undo(one, "?change=1"))["target_wait"] == 2.0
            assert await weight(one) == 1.0
            assert "no change of settings to undo" in (await undo(one, status=404))["detail"]
            await one.done("all", "PATCH", "/v1/settings", {"target_wait": 9.0})
            assert (await undo(one))["target_wait"] == 2.0

    run(work())


def test_only_the_newest_change_is_undone_and_only_if_nothing_has_changed_since(database_url: str) -> None:
    async def work() -> None:
        async with tenants(database_url) as one:
            await one.done("all", "PATCH", "/v1/settings", {"weight": {"a": 3.0}})
            await one.done("all", "PATCH", "/v1/settings", {"target_wait": 5.0})
            assert "must be 2" in (await undo(one, "?change=1", 409))["detail"]
            await undo(one, "?change=2")
            await undo(one, "?change=2", 409)  # the same call again
            body = {"features": [1.0, 0.0], "weight": 4.0}
            await one.done("all", "PUT", "/v1/job-classes/a", body)
            assert "it made weight a 3.0, which is 4.0 now" in (await undo(one, status=409))["detail"]
            assert await weight(one) == 4.0

    run(work())


def test_the_history_survives_restarts_and_has_changes_of_the_file(database_url: str) -> None:
    async def work() -> None:
        async with opened(database_url) as one:
            await one.key("all", ["fleet"], "default")
            await one.done("all", "PATCH", "/v1/settings", {"target_wait": 5.0})
        async with opened(database_url, target_wait=3.0) as two:
            two.keys = one.keys
            [change, _] = (await two.done("all", "GET", "/v1/settings/history"))["changes"]
            assert (change["who"], change["before"], change["after"]) == (
                "settings file", {"target_wait": 5.0}, {"target_wait": 3.0},
            )  # fmt: skip
            assert (await undo(two))["target_wait"] == 5.0
        async with opened(database_url, target_wait=3.0) as three:
            three.keys = one.keys
            assert (await three.done("all", "GET", "/v1/settings"))["target_wait"] == 5.0, "the file is as it was"
            assert (await undo(three))["target_wait"] == 2.0

    run(work())


def test_a_policy_without_the_setting_refuses_to_undo(sqlite_url: str) -> None:
    async def work() -> None:
        async with opened(sqlite_url) as one:
            await one.key("all", ["fleet"], "default")
            await one.done("all", "PATCH", "/v1/settings", {"target_wait": 5.0})
        async with opened(sqlite_url, policy="first-come") as two:
            two.keys = one.keys
            assert "cannot be undone" in (await undo(two, status=409))["detail"]

    run(work())


@pytest.mark.parametrize("query", ["?change=0", "?change=x", "?other=1"])
def test_a_bad_change_is_refused(sqlite_url: str, query: str) -> None:
    async def work() -> None:
        async with tenants(sqlite_url, job_class=(*CLASSES["job_class"], JobClassInfo("c", [0.0, 1.0]))) as one:
            await undo(one, query, 422)

    run(work())
