"""No response has many more bytes of payloads and results than a single job may have."""

import asyncio
from typing import Any

import pytest
from slotless import run, serving

from bilinq.live.keys import LOCAL
from bilinq.live.service import Service, slots, submissions
from bilinq.live.wire.messages import JobPage, NewJob, NewServer, Work, WorkFinish

pytest_plugins = ("databases",)
MOST = 10_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (slots, submissions):
        monkeypatch.setattr(module, "ANSWER_BYTES", MOST)


async def submit(service: Service, *sizes: int, **options: Any) -> list[str]:
    made = await service.submit(LOCAL, [NewJob("a", payload="x" * (size - 2), **options) for size in sizes])
    return [job.id for job in made.jobs]


async def pages(service: Service, limit: int, **wanted: Any) -> list[JobPage]:
    found: list[JobPage] = []
    after: str | None = None
    while not found or after is not None:
        asked = {"state": None, "job_class": None, "after": after, "limit": limit} | wanted
        found.append(await service.jobs(LOCAL, **asked))
        after = found[-1].after
    return found


def test_a_page_of_large_jobs_ends_early_and_the_next_one_continues(database_url: str) -> None:
    async def work() -> None:
        async with serving(database_url) as service:
            ids = await submit(service, 100, 4000, 4000, 20_000, 100, 9000, 100, tags=["t"])
            for wanted in ({}, {"state": "queued", "tag": "t"}, {"job_class": "a"}):
                found = await pages(service, 100, **wanted)
                assert [job.id for page in found for job in page.jobs] == ids[::-1]
                assert [len(page.jobs) for page in found] == [3, 1, 3]
            assert [len(page.jobs) for page in await pages(service, 2)] == [2, 1, 1, 2, 1]

    run(work())


def test_results_count_as_well(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            for _ in range(3):
                await submit(service, 10)
                server = await service.register(LOCAL, NewServer("x", "s"))
                [lease] = await service.lease(LOCAL, [server.id], 0.0)
                await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, 0.5, result="y" * 6000))
            assert [len(page.jobs) for page in await pages(service, 100)] == [1, 1, 1]

    run(work())


def test_a_call_for_many_servers_gets_as_many_leases_as_fit(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url) as service:
            ids = await submit(service, 4000, 4000, 4000, 20_000, 100, 100)
            servers = [(await service.register(LOCAL, NewServer("x", f"s{k}"))).id for k in range(6)]
            got: list[list[str]] = []
            while sum(map(len, got)) < len(ids):
                answer = await asyncio.wait_for(service.work(LOCAL, Work(lease=servers)), 5.0)
                got.append([lease.job.id for lease in answer.leases])
                served = {lease.server for lease in answer.leases}
                servers = [server for server in servers if server not in served]
            assert sorted(id for some in got for id in some) == sorted(ids)
            assert len(got) > 1 and all(len(some) == 1 or ids[3] not in some for some in got)
            assert (await service.state(LOCAL)).job_classes[0].queued == 0

    run(work())
