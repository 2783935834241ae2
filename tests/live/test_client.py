"""The client: safe retries, limits on time, clear errors; against the API with faults."""

import asyncio
import inspect
import pydoc
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from faulty import Faulty
from plain_service import PlainService

import bilinq.client
from bilinq.client import (
    AsyncClient,
    Client,
    JobClassInfo,
    NewJob,
    NewKey,
    ServerClassInfo,
    SettingsUpdate,
    WorkFinish,
    transport,
)
from bilinq.errors import BadInput, Busy, Conflict, NoKey, NotAllowed, NotFound, Refused, Stale, Starting, Unavailable
from bilinq.live.wire.messages import JobRef

pytest_plugins = ["workers"]
pytestmark = pytest.mark.usefixtures("short_pauses")


def test_a_job_from_submission_to_its_result(client: Client) -> None:
    ref = client.submit("short", {"text": "ü"}, units=2)
    assert ref.state == "queued"
    server = client.register("gpu", "one")
    assert client.register("gpu", "one").id == server.id
    lease = client.lease(server.id, wait=0.5)
    assert lease is not None and lease.job.payload == {"text": "ü"}
    assert client.extend(lease.lease, lease.fence).seconds == 30.0
    assert client.finish(lease.lease, lease.fence, 0.25).state == "queued"
    again = client.lease(server.id)
    assert again is not None and again.fence > lease.fence
    assert client.finish(again.lease, again.fence, 0.5, result=[1]).state == "done"
    job = client.job(ref.id)
    assert (job.state, job.reward, job.result) == ("done", 0.5, [1])
    assert client.lease(server.id, wait=0.0) is None


def test_both_clients_have_every_call_with_the_same_arguments() -> None:
    def methods(kind: type) -> dict[str, str]:
        public = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
        return {name: str(inspect.signature(value).parameters) for name, value in public.items() if callable(value)}

    plain, coroutines = methods(Client), methods(AsyncClient)
    coroutines["close"] = coroutines.pop("aclose")
    assert plain == coroutines
    assert len(plain) > 25


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_signatures_and_help_are_those_of_the_calls(kind: type[Client] | type[AsyncClient]) -> None:
    client = kind("http://127.0.0.1:9", "k")
    assert list(inspect.signature(client.submit).parameters) == [
        "job_class", "payload", "key", "units", "features", "servers", "weight", "deadline", "not_before", "max_attempts",
        "tags",
    ]  # fmt: skip
    assert inspect.signature(kind.submit).return_annotation is JobRef
    text = pydoc.plain(pydoc.render_doc(kind))
    assert (
        "submit(self, job_class: str, payload: Any = None, *, key: str | None = None, units: int = 1, features:" in text
    )
    assert "Submit one job and return its id and state." in text


def test_old_names_of_methods_still_work(client: Client, live: Faulty) -> None:
    with pytest.warns(DeprecationWarning, match="^knobs is deprecated .*; use settings$") as warned:
        assert client.knobs() == client.settings()
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="^turn is deprecated .*; use update_settings$"):
        assert client.turn(SettingsUpdate(target_wait=3.0)) == client.settings()

    async def turn() -> None:
        async with AsyncClient(live.url, live.key) as other:
            with pytest.warns(DeprecationWarning, match="^turn is deprecated .*; use update_settings$") as warned:
                assert await other.turn(SettingsUpdate(target_wait=4.0)) == client.settings()
            assert warned[0].filename == __file__

    asyncio.run(turn())


@pytest.mark.parametrize(
    ("old", "new"), [("JobClass", JobClassInfo), ("ServerClass", ServerClassInfo), ("TurnKnobs", SettingsUpdate)]
)
def test_old_names_of_types_still_work(old: str, new: type) -> None:
    with pytest.warns(DeprecationWarning, match=f"bilinq.client.{old} is deprecated .*; use {new.__name__}"):
        assert getattr(bilinq.client, old) is new
    with pytest.raises(AttributeError, match=r"module 'bilinq.client' has no attribute 'JobKind'"):
        bilinq.client.JobKind  # noqa: B018


def test_the_rest_of_the_api(client: Client, live: Faulty) -> None:
    ref = client.submit("short")
    assert [job.id for job in client.jobs(state="queued", job_class="short", key="order 1", tag="t", limit=3).jobs] == [
        ref.id
    ]
    assert live.service.calls[-1] == ("jobs", ("queued", "short", None, 3, "order 1", "t"))
    assert client.decision(ref.id).job == ref.id
    assert client.reward(ref.id, 0.5, key="k").reward == 0.5
    assert ("reward", (ref.id, 0.5, "k")) in live.service.calls
    held_one = client.register("gpu").id
    for call, held in ((client.drain, "draining"), (client.quarantine, "quarantined"), (client.release, None)):
        assert call(held_one).held == held
    client.unregister(held_one)
    assert client.cancel(ref.id).state == "cancelled"
    assert client.put_job_class(JobClassInfo("a/b c", [1.0, 0.5])).name == "a/b c"
    client.put_server_class(ServerClassInfo("cpu", [1.0, 0.5]))
    assert "a/b c" in [one.name for one in client.classes().job_classes]
    assert client.update_settings(SettingsUpdate(target_wait=3.0)) == client.settings()
    assert client.state().V == 50.0
    assert client.dead(limit=5).jobs == []
    made = client.create_key(NewKey(["read"]))
    assert client.keys()[-1].prefix == made.info.prefix
    with Client(live.url, made.key) as reader:
        assert len(reader.servers()) == 0
        with pytest.raises(NotAllowed):
            reader.submit("short")
    assert client.revoke_key(made.info.prefix).scopes == ["read"]
    assert client.audit(limit=1) == []
    server = client.register("gpu")
    assert server.name
    client.unregister(server.id)
    with pytest.raises(NotFound, match=server.id):
        client.unregister(server.id)


@pytest.mark.parametrize("kind", ["lose", "cut"])
def test_a_lost_answer_never_submits_twice(kind: str, client: Client, live: Faulty) -> None:
    live.fault(kind, "/v1/jobs", times=3)
    refs = client.submit_all([NewJob("short", k) for k in range(5)])
    assert len(live.service.all_jobs) == 5 == len({ref.id for ref in refs})
    assert live.asked("/v1/jobs") == 4


def test_a_lost_answer_never_counts_twice(client: Client, live: Faulty) -> None:
    client.submit_all([NewJob("short") for _ in range(3)])
    server = client.register("gpu")
    for path, end in (("finish", client.finish), ("work", None), ("fail", client.fail)):
        lease = client.lease(server.id)
        assert lease is not None
        live.fault("lose", path, times=2)
        if end is None:
            outcome = client.work([WorkFinish(lease.lease, lease.fence, 0.5)]).finished[0]
            assert (outcome.state, outcome.repeated) == ("done", True)
        else:
            assert end(lease.lease, lease.fence).repeated
    assert len(live.service.rewards) == 2
    assert len(live.service.failed) == 1


def test_a_job_whose_lease_response_was_lost_is_leased_again(client: Client, live: Faulty) -> None:
    client.submit("short")
    server = client.register("gpu")
    live.fault("lose", "/lease")
    lease = client.lease(server.id)
    assert lease is not None and (lease.fence, lease.job.attempts) == (2, 1)


def test_a_lost_answer_never_registers_twice(client: Client, live: Faulty) -> None:
    live.fault("lose", "/v1/servers")
    client.register("gpu")
    assert len(live.service.all_servers) == 1


def test_not_found_after_a_lost_answer_means_removed(client: Client, live: Faulty) -> None:
    server = client.register("gpu")
    live.fault("lose", "/v1/servers/")
    client.unregister(server.id)
    assert live.service.all_servers == {}


def test_cancelling_and_revoking_twice_is_no_error(client: Client, live: Faulty) -> None:
    live.fault("lose", "/v1/jobs/")
    assert client.cancel(client.submit("short").id).state == "cancelled"
    ended = client.submit("short").id
    live.service.change(ended, state="done")
    with pytest.raises(Conflict):
        client.cancel(ended)
    prefix = client.create_key(NewKey(["read"])).info.prefix
    live.fault("lose", "/v1/keys/")
    assert client.revoke_key(prefix).revoked is not None
    assert client.revoke_key(prefix).revoked is not None
    with pytest.raises(NotFound):
        client.revoke_key("nobody")


def test_creating_a_key_is_not_retried_after_a_lost_answer(client: Client, live: Faulty) -> None:
    live.fault("lose", "/v1/keys")
    with pytest.raises(Unavailable, match="no response from"):
        client.create_key(NewKey(["read"]))
    assert len(live.service.known) == 2
    live.fault("refuse", "/v1/keys", status=503)
    with pytest.raises(Unavailable):
        client.create_key(NewKey(["read"]))
    live.fault("refuse", "/v1/keys", status=429)
    client.create_key(NewKey(["read"]))
    assert len(live.service.known) == 3


def test_every_call_is_retried_while_the_service_starts(client: Client, live: Faulty) -> None:
    live.fault("starting", "/v1/keys")
    client.create_key(NewKey(["read"]))
    assert live.asked("/v1/keys") == 2
    assert len(live.service.known) == 2
    live.fault("starting", "/v1/keys", times=100)
    with pytest.raises(Starting, match=r"the service is starting: step 2 of 3 \(tried 2 times in"):
        client.within(1.5).create_key(NewKey(["read"]))
    assert len(live.service.known) == 2


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_it_retries_when_the_service_is_busy_or_unavailable(status: int, client: Client, live: Faulty) -> None:
    live.fault("refuse", "/v1/jobs", times=3, status=status)
    client.submit("short")
    assert live.asked("/v1/jobs") == 4


def test_it_waits_as_long_as_the_service_asks(client: Client, live: Faulty) -> None:
    live.fault("refuse", "/v1/jobs", status=429, retry_after="0.3")
    start = time.monotonic()
    client.submit("short")
    assert time.monotonic() - start >= 0.3


def test_it_does_not_wait_longer_than_its_timeout(client: Client, live: Faulty) -> None:
    live.fault("refuse", "/v1/jobs", status=429, retry_after="60")
    start = time.monotonic()
    with pytest.raises(Busy) as caught:
        client.submit("short")
    assert time.monotonic() - start < 1.0
    assert caught.value.retry_after == 60.0
    live.fault("refuse", "/v1/jobs", status=503, retry_after="Fri, 31 Dec 2100 23:59:59 GMT")
    with pytest.raises(Unavailable) as gone:
        client.submit("short")
    assert gone.value.retry_after > 1e9


def test_a_full_backlog_is_retried_and_then_an_error() -> None:
    with Faulty(PlainService(backlog=2)) as live, Client(live.url, live.key, timeout=1.2) as client:
        client.submit_all([NewJob("short")] * 2)
        with pytest.raises(Busy, match=r"backlog is full"):
            client.submit("short")


def test_a_slow_answer_is_retried(client: Client, live: Faulty) -> None:
    live.fault("slow", "/v1/jobs", seconds=1.0)
    start = time.monotonic()
    client.submit("short")
    assert 0.3 <= time.monotonic() - start < 0.9
    assert live.asked("/v1/jobs") == 2


def test_a_call_takes_no_longer_than_its_limit(client: Client, live: Faulty) -> None:
    live.fault("slow", "/v1/jobs", seconds=1.0, times=100)
    start = time.monotonic()
    with pytest.raises(Unavailable, match=r"timed out .* \(tried \d+ times in"):
        client.within(0.7).submit("short")
    assert time.monotonic() - start < 1.0  # where nothing else runs 0.7


def test_waiting_for_work_is_not_a_slow_answer(client: Client, live: Faulty) -> None:
    server = client.register("gpu")
    assert client.within(0.2).lease(server.id, wait=0.5) is None
    assert live.asked("/lease") == 1


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_unreachable_service_is_named_with_its_address(kind: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        client = kind(url, "k", timeout=0.2)
        with pytest.raises(Unavailable, match=f"cannot reach {url}: Connection refused.*tried"):
            outcome = client.submit("short")
            asyncio.run(outcome) if inspect.iscoroutine(outcome) else None


def test_it_continues_after_a_restart(client: Client, live: Faulty) -> None:
    client.submit("short")
    live.restart()
    client.submit("short")
    assert len(live.service.all_jobs) == 2


def test_errors_of_the_service_keep_their_types(client: Client, live: Faulty) -> None:
    with pytest.raises(BadInput, match="class must be one of"):
        client.submit("long")
    client.submit("short", 1, key="k")
    assert client.submit("short", 1, key="k").id == "j1"
    with pytest.raises(Conflict, match="'k'") as conflict:
        client.submit("short", 2, key="k")
    assert not isinstance(conflict.value, Stale)
    with pytest.raises(NotFound, match="j9"):
        client.job("j9")
    lease = client.lease(client.register("gpu").id)
    assert lease is not None
    with pytest.raises(Stale):
        client.finish(lease.lease, lease.fence + 1, 0.5)
    with pytest.raises(BadInput, match="reward must be between"):
        client.finish(lease.lease, lease.fence, 7.0)
    with Client(live.url, "bq_unknown") as stranger, pytest.raises(NoKey):
        stranger.state()
    with pytest.raises(BadInput, match="at most 1048576 bytes"):
        client.submit("short", "x" * 1_100_000)


def test_an_internal_error_is_raised_and_not_retried(client: Client, live: Faulty) -> None:
    with pytest.raises(Refused, match=r"request \w+"):
        client.submit("short", "explode")
    assert live.asked("/v1/jobs") == 1


def test_another_kind_of_service_is_noticed(client: Client, live: Faulty) -> None:
    live.fault("refuse", "/v1/jobs", status=404)
    with pytest.raises(Refused, match="404 Not Found; is it a bilinq service") as caught:
        client.submit("short")
    assert not isinstance(caught.value, NotFound)
    live.fault("refuse", "/v1/state", status=200)
    with pytest.raises(Refused, match="something unexpected"):
        client.state()
    with (
        Client(live.url + "/elsewhere", live.key) as lost,
        pytest.raises(Refused, match="nothing is served") as nothing,
    ):
        lost.state()
    assert not isinstance(nothing.value, NotFound)


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}, {1, 2}, "\ud800"])
def test_what_is_no_json_is_not_sent(value: Any, client: Client, live: Faulty) -> None:
    with pytest.raises(BadInput, match="payload must be JSON"):
        client.submit("short", value)
    with pytest.raises(BadInput, match="result must be JSON"):
        client.work([WorkFinish("l1", 1, result=value)])
    with pytest.raises(BadInput, match="reward must be finite; got nan"):
        client.finish("l1", 1, float("nan"))
    assert not live.requests


def test_ids_cannot_change_the_path(client: Client, live: Faulty) -> None:
    with pytest.raises(Refused):
        client.job("../state")
    with pytest.raises(BadInput, match="id must not be empty"):
        client.job("")
    assert client.submit_all([]) == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "nonsense",
        "http://",
        "http://host/?a=1",
        "http://[",
        "http://h/#x",
        "http://h:99999",
        "http://a b",
    ],
)
def test_bad_addresses_are_refused(url: str) -> None:
    with pytest.raises(BadInput, match="url must be an address"):
        Client(url, "k")


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key in ("bq_sécret", "bq secret"):
        with pytest.raises(BadInput) as caught:
            Client(key=key)
        assert "cret" not in str(caught.value)
    with pytest.raises(BadInput) as url:
        Client("http://user:secret@host", "k")
    assert "secret" not in str(url.value)
    monkeypatch.delenv("BILINQ_KEY", raising=False)
    with pytest.raises(BadInput, match="BILINQ_KEY"):
        Client()
    monkeypatch.setenv("BILINQ_KEY", "bq_secret\n")
    monkeypatch.setenv("BILINQ_URL", "http://127.0.0.1:9/")
    with Client() as client:
        assert client.link.url == "http://127.0.0.1:9"
        assert client.link.key == "bq_secret"
        assert "secret" not in repr(client.link)
    monkeypatch.delenv("BILINQ_KEY")
    (tmp_path / "key").write_text("bq_other\n")
    monkeypatch.setenv("BILINQ_KEY_FILE", f"{tmp_path}/key")
    with Client() as client:
        assert client.link.key == "bq_other"
    with pytest.raises(BadInput, match="timeout must be a positive number of seconds"):
        Client(timeout=0.0)
    with pytest.raises(BadInput, match="attempt must be a positive number of seconds"):
        Client(attempt=-1.0)


def test_waiting_for_a_job_ends_with_the_job(client: Client, live: Faulty) -> None:
    ref = client.submit("short")
    start = time.monotonic()
    assert client.wait(ref.id, 0.2).state == "queued"
    assert 0.2 <= time.monotonic() - start < 1.0
    live.service.change(ref.id, state="done")
    assert client.wait(ref.id).state == "done"


def test_coroutines_do_the_same(live: Faulty) -> None:
    async def use() -> None:
        async with AsyncClient(live.url, live.key, timeout=5.0, attempt=0.3) as client:
            live.fault("lose", "/v1/jobs")
            live.fault("refuse", "/v1/jobs", status=429, retry_after="0.1")
            refs = await asyncio.gather(*(client.submit("short", k) for k in range(20)))
            assert len({ref.id for ref in refs}) == 20 == len(live.service.all_jobs)
            server = await client.register("gpu")
            worked = await client.work(lease=[server.id], wait=1.0)
            lease = worked.leases[0]
            live.fault("slow", "/finish", seconds=1.0)
            assert (await client.finish(lease.lease, lease.fence, 0.5)).state == "done"
            assert (await client.wait(lease.job.id)).reward == 0.5
            with pytest.raises(NotFound):
                await client.job("j99")

    asyncio.run(use())


def test_pauses_grow_up_to_a_limit_and_are_randomised() -> None:
    first, fifth, last = ([transport.backoff(tries) for _ in range(50)] for tries in (1, 5, 1000))
    assert all(max(pauses) > min(pauses) for pauses in (first, fifth, last))
    assert max(first) < min(fifth) < max(last) <= transport.LONGEST_PAUSE
