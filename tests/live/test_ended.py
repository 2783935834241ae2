"""The stream of ended jobs: in order, by a filter, of the own namespaces, and without loss across restarts."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from process import Process, make_key, wait_for
from slotless import delete_after, ready, run, serving
from tenants import Tenants, opened, tenants

from bilinq.client import AsyncClient, Client, NewKey
from bilinq.client.events import parse
from bilinq.errors import BadInput, Busy, NotAllowed, Unavailable
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service, ended
from bilinq.live.service.ended import EndedFilter
from bilinq.live.watch import ended as streams
from bilinq.live.watch.ended import EndedJobs
from bilinq.live.wire.messages import EndedJob, NewJob, NewServer, WorkFinish

pytest_plugins = ("databases",)


def jobs_of(text: str) -> list[EndedJob]:
    """Return the jobs of a stream."""
    return [msgspec.json.decode(one.data, type=EndedJob) for one in parse(text.splitlines()) if one.event == "job"]


async def kept(one: Tenants, query: str = "", key: str = "all") -> list[EndedJob]:
    """Return the jobs that a stream sends at once."""
    answer = await one.ask(key, "GET", f"/v1/events?kind=jobs&seconds=0&after=e0{query}")
    assert answer.status_code == 200, answer.text
    return jobs_of(answer.text)


async def serve(service: Service, job_class: str, end: str, **options: Any) -> str:
    """Submit a job, and end it in some way; return its id."""
    id = (await service.submit(LOCAL, [NewJob(job_class, {"in": 1}, **options)])).jobs[0].id
    if end == "cancelled":
        await service.cancel(LOCAL, id)
        return id
    server = await service.register(LOCAL, NewServer("x", "s"))
    [lease] = await service.lease(LOCAL, [server.id], 0.0)
    error = "broke" if end == "dead" else None
    await service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, 0.5, result={"out": 2}, error=error))
    return id


def test_every_end_is_sent_in_order_and_by_a_filter(database_url: str) -> None:
    async def work() -> None:
        async with opened(database_url, max_attempts=1) as one:
            await one.key("all", ["read"], "default", "*")
            done = await serve(one.service, "a", "done", key="order 7", tags=["night", "big"])
            dead = await serve(one.service, "b", "dead")
            cancelled = await serve(one.service, "b", "cancelled", tags=["night"])
            late = (await one.service.submit(LOCAL, [NewJob("a", deadline=0.001)])).jobs[0].id
            await asyncio.sleep(0.01)
            one.service.slots.try_slot()
            wait_until = asyncio.get_running_loop().time() + 5.0
            while len(found := await kept(one)) < 4 and asyncio.get_running_loop().time() < wait_until:
                await asyncio.sleep(0.01)
            assert [(job.id, job.state) for job in found] == [
                (done, "done"), (dead, "dead"), (cancelled, "cancelled"), (late, "expired"),
            ]  # fmt: skip
            first = found[0]
            assert (first.event, first.key, first.tags, first.result) == ("e1", "order 7", ["big", "night"], {"out": 2})
            assert (first.reward, first.attempts, first.namespace, first.job_class) == (0.5, 0, "default", "a")
            assert first.started is not None and first.submitted <= first.started <= first.ended
            assert (found[1].error, found[1].attempts, found[1].started is not None) == ("broke", 1, True)
            for query, ids in (
                ("&state=dead", [dead]), ("&state=done,expired", [done, late]), ("&class=b", [dead, cancelled]),
                ("&tag=night", [done, cancelled]), ("&tag=night&class=b&state=cancelled,done", [cancelled]), ("&tag=no", []),
            ):  # fmt: skip
                assert [job.id for job in await kept(one, query)] == ids, query
            later = await one.ask("all", "GET", "/v1/events?kind=jobs&seconds=0&after=e2")
            assert [job.event for job in jobs_of(later.text)] == ["e3", "e4"]
            assert later.text.endswith('id: e4\nevent: position\ndata: {"after":"e4"}\n\n')
            now = await one.ask("all", "GET", "/v1/events?kind=jobs&seconds=0")
            assert now.text == 'id: e4\nevent: position\ndata: {"after":"e4"}\n\n'

    run(work())


def test_a_job_that_is_retried_is_sent_again_when_it_ends(sqlite_url: str) -> None:
    """Who was away in between gets its last end only; numbers are never used again."""

    async def work() -> None:
        async with opened(sqlite_url, max_attempts=1) as one:
            await one.key("all", ["read"], "default", "*")
            job = await serve(one.service, "a", "dead")
            assert [(end.event, end.state) for end in await kept(one)] == [("e1", "dead")]
            await one.service.retry(LOCAL, job)
            assert await kept(one) == []
            behind = await one.ask("all", "GET", "/v1/events?kind=jobs&seconds=0&after=e1")
            assert (behind.status_code, jobs_of(behind.text)) == (200, []), "its place is still one of this service"
            one.service.replica.fail("for this test")
            await ready(one.service)
            server = await one.service.register(LOCAL, NewServer("x", "s"))
            [lease] = await one.service.lease(LOCAL, [server.id], 0.0)
            await one.service.finish_one(LOCAL, WorkFinish(lease.lease, lease.fence, 0.5))
            assert [(end.event, end.id, end.state) for end in await kept(one)] == [("e2", job, "done")]

    run(work())


@pytest.mark.parametrize(("span", "batch"), [(1000, 100), (3, 2), (1, 1)])
def test_many_ends_are_read_in_parts_whatever_matches(
    sqlite_url: str, span: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended, "SPAN", span)
    monkeypatch.setattr(ended, "BATCH", batch)

    async def work() -> None:
        async with serving(sqlite_url) as service:
            ids = [job.id for job in (await service.submit(LOCAL, [NewJob("ab"[k % 5 == 0]) for k in range(12)])).jobs]
            for id in ids:
                await service.cancel(LOCAL, id)
            one = EndedJobs(service.replica)
            for wanted in (None, "a", "b"):
                expected = [id for k, id in enumerate(ids) if wanted in (None, "ab"[k % 5 == 0])]
                found, parts = list[str](), one.follow(EndedFilter(job_class=wanted), "e0")
                while len(found) < len(expected):
                    found += [job.id for job in jobs_of((await asyncio.wait_for(anext(parts), 5.0)).decode())]
                await parts.aclose()
                assert found == expected

    run(work())


def test_ends_of_other_namespaces_are_not_sent(database_url: str) -> None:
    async def work() -> None:
        async with tenants(database_url) as one:
            for key in ("a", "b", "a"):
                [id] = await one.submit(key, 1)
                await one.done(key, "DELETE", f"/v1/jobs/{id}")
            assert [job.namespace for job in await kept(one)] == ["a", "b", "a"]
            assert [job.event for job in await kept(one, key="a")] == ["e1", "e3"]
            assert [job.event for job in await kept(one, key="b")] == ["e2"]

    run(work())


def test_what_makes_no_sense_is_refused(sqlite_url: str) -> None:
    async def work() -> None:
        async with opened(sqlite_url) as one:
            await one.key("all", ["read"], "default", "*")
            await one.key("submits", ["submit"], "default")
            for query, words in (
                ("kind=jobs&after=e1", "the last is e0"), ("kind=jobs&after=j1", "such as e12"),
                ("kind=jobs&limit=3", "limit"), ("kind=jobs&state=queued", "state"), ("kind=jobs&state=done,", "state"),
                ("state=done", "kind: must be jobs"), ("tag=x", "kind: must be jobs"), ("kind=nothing", "kind"),
            ):  # fmt: skip
                answer = await one.ask("all", "GET", f"/v1/events?{query}&seconds=0")
                assert answer.status_code == 422 and words in answer.text, f"{query}: {answer.text}"
            assert (await one.ask("submits", "GET", "/v1/events?kind=jobs&seconds=0")).status_code == 403

    run(work())


def test_streams_are_limited_and_end_with_the_service(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "READERS", 2)

    async def work() -> None:
        async with serving(sqlite_url) as service:
            one = EndedJobs(service.replica)
            open_streams = [one.follow(EndedFilter(), None) for _ in range(3)]
            for stream in open_streams[:2]:
                assert b"position" in await anext(stream)
            with pytest.raises(Busy, match="2 streams"):
                await anext(open_streams[2])
            one.end()
            for stream in open_streams[:2]:
                with pytest.raises(StopAsyncIteration):
                    await asyncio.wait_for(anext(stream), 2.0)
            with pytest.raises(Unavailable, match="stopping"):
                await anext(one.follow(EndedFilter(), None))

    run(work())


def test_a_stream_that_is_quiet_tells_its_position(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a reader whose filter matches nothing does not begin far behind after a lost connection."""
    monkeypatch.setattr(streams, "QUIET", 0.2)
    monkeypatch.setattr(streams, "TICK", 0.01)

    async def work() -> None:
        async with serving(sqlite_url) as service:
            stream = EndedJobs(service.replica).follow(EndedFilter(job_class="b"), None)
            assert b"id: e0\n" in await anext(stream)
            await service.cancel(LOCAL, (await service.submit(LOCAL, [NewJob("a")])).jobs[0].id)
            assert await asyncio.wait_for(anext(stream), 5.0) == b'id: e1\nevent: position\ndata: {"after":"e1"}\n\n'
            await stream.aclose()

    run(work())


def test_only_what_is_on_disk_is_sent_and_positions_are_on_disk(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that was given in memory and never stored may be given again, so nobody gets it as a position."""

    async def work() -> None:
        async with serving(sqlite_url) as service:
            await service.cancel(LOCAL, (await service.submit(LOCAL, [NewJob("a")])).jobs[0].id)
            assert service.replica.memory.ids.next_end() == 2  # as if a write were on its way
            one = EndedJobs(service.replica)
            assert await one.start(None) == 1
            with pytest.raises(BadInput, match="the last is e1"):
                await one.start("e2")

    run(work())


def test_numbers_stay_in_order_under_load_and_are_not_used_again(database_url: str) -> None:
    """Readers that begin anywhere see every end once, while many callers end jobs; also after ended jobs are deleted."""

    async def work() -> None:
        async with serving(database_url, retention=3600.0) as service:
            one, seen = EndedJobs(service.replica), list[EndedJob]()

            async def read(stream: AsyncGenerator[bytes, None]) -> None:
                async with aclosing(stream):
                    while len(seen) < 60:
                        seen.extend(jobs_of((await anext(stream)).decode()))

            async def caller(k: int) -> None:
                for _ in range(10):
                    id = (await service.submit(LOCAL, [NewJob("ab"[k % 2])])).jobs[0].id
                    await asyncio.sleep(0)
                    await service.cancel(LOCAL, id)

            reading = asyncio.ensure_future(read(one.follow(EndedFilter(), None)))
            await asyncio.sleep(0.05)
            await asyncio.gather(*map(caller, range(6)))
            await asyncio.wait_for(reading, 10.0)
            assert [job.event for job in seen] == [f"e{k}" for k in range(1, 61)] and len(
                {job.id for job in seen}
            ) == 60
            await delete_after(service, 7200.0)
            assert await one.start("e60") == 60
        async with serving(database_url) as service:
            await service.cancel(LOCAL, (await service.submit(LOCAL, [NewJob("a")])).jobs[0].id)
            assert await EndedJobs(service.replica).start(None) == 61

    run(work())


class Reader:
    """A thread that follows ended jobs with `Client.ended`."""

    def __init__(self, client: Client, **options: Any) -> None:
        self.found: list[EndedJob] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, args=(client, options), daemon=True)
        self.thread.start()

    def _run(self, client: Client, options: Any) -> None:
        try:
            for job in client.ended(**options):
                self.found.append(job)
                if job.key == "last":
                    return
        except Exception as error:
            self.error = error

    def has(self, many: int) -> Callable[[], bool]:
        return lambda: len(self.found) >= many


def end_jobs(client: Client, *keys: str) -> None:
    for key in keys:
        client.cancel(client.submit("short", key=key).id)


@contextmanager
def listening(process: Process, key: str) -> Iterator[Client]:
    with Client(process.address, key, timeout=60.0) as client:
        yield client


def test_a_consumer_misses_nothing_across_restarts(tmp_path: Path) -> None:
    """It connects before any job has ended, loses the service, and gets what ended meanwhile, once, in order."""
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database) as first, listening(first, key) as client:
        port = first.address.rpartition(":")[2]
        reader = Reader(client)
        time.sleep(0.3)
        assert first.stop() == 0

    async def end_unseen() -> None:
        async with serving(database) as service:
            for name in ("one", "two"):
                await service.cancel(LOCAL, (await service.submit(LOCAL, [NewJob("short", key=name)])).jobs[0].id)

    run(end_unseen())
    with Process(tmp_path, database, "--port", port) as again, listening(again, key) as client:
        wait_for(reader.has(2), 20.0)
        end_jobs(client, "three", "last")
        reader.thread.join(20.0)
        assert [job.key for job in reader.found] == ["one", "two", "three", "last"] and reader.error is None
        rest = list(client.ended(after=reader.found[1].event, seconds=0.0))
        assert [job.key for job in rest] == ["three", "last"]
        assert [job.key for job in client.ended(state=["done", "dead"], after="e0", seconds=0.0)] == []
        assert asyncio.run(_later(again.address, key)) == ["one", "two", "three", "last"]
        with pytest.raises(BadInput, match="after"):
            next(client.ended(after="e99"))
        weak = client.create_key(NewKey(["submit"])).key
        with Client(again.address, weak) as other, pytest.raises(NotAllowed):
            next(other.ended())
        assert again.stop() == 0


async def _later(address: str, key: str) -> list[str | None]:
    """Return the keys of all jobs that have ended, by awaiting them; the stream without an end is left after the last."""
    async with AsyncClient(address, key) as client:
        assert [job.key async for job in client.ended(after="e2", seconds=0.0)] == ["three", "last"]
        found = list[str | None]()
        async for job in client.ended(after="e0"):
            found.append(job.key)
            if job.key == "last":
                break
        with pytest.raises(BadInput, match="after"):
            [job async for job in client.ended(after="e99")]
        return found


def test_a_consumer_at_a_follower_misses_nothing_when_it_takes_over(tmp_path: Path, postgres_url: str) -> None:
    key = make_key(postgres_url, "admin")
    with Process(tmp_path / "a", postgres_url) as leader, Process(tmp_path / "b", postgres_url) as follower:
        with follower.client(key) as plain, listening(follower, key) as client:
            wait_for(lambda: plain.get("/readyz").status_code == 200)
            reader = Reader(client)
            time.sleep(0.3)
            end_jobs(client, "one", "two")
            wait_for(reader.has(2), 20.0)
            leader.child.kill()
            end_jobs(client, "three", "last")
            reader.thread.join(30.0)
            assert [job.key for job in reader.found] == ["one", "two", "three", "last"] and reader.error is None
        assert follower.stop() == 0
