"""Bad input and faults at the real service over HTTP: each has an answer, nothing acknowledged is lost or counted twice.

Workers that are killed, or frozen past their lease, are in test_client_service; clocks that jump and damaged checkpoints
in test_recovery; kills of the service in test_crash.
"""

import json
import resource
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import Postgres
from process import make_key, wait_for
from template import Copy, Template

from bilinq.live.settings import ServiceSettings
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo

pytest_plugins = ["databases"]


class Live:
    """A service and a client that shows an admin's key."""

    def __init__(self, process: Copy, client: httpx.Client) -> None:
        self.process, self.client = process, client

    def ready(self) -> bool:
        """Return whether it serves."""
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def submit(self, number: int = 1, size: int = 1, **fields: Any) -> httpx.Response:
        """Submit some jobs."""
        return self.client.post(
            "/v1/jobs", json={"jobs": [{"class": "short", "payload": "x" * size} | fields] * number}
        )

    def server(self, name: str = "one") -> str:
        """Return the id of a server."""
        answer = self.client.post("/v1/servers", json={"class": "gpu", "name": name})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def lease(self, wait: float = 10.0) -> dict[str, Any]:
        """Return a lease for that server."""
        answer = self.client.post(f"/v1/servers/{self.server()}/lease", params={"wait": wait})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def finish(self, lease: dict[str, Any], reward: float = 0.5, **fields: Any) -> httpx.Response:
        """Finish a lease."""
        body = {"fence": lease["fence"], "reward": reward} | fields
        return self.client.post(f"/v1/leases/{lease['lease']}/finish", json=body)

    def state(self, id: str) -> str:
        """Return the state of a job."""
        return str(self.client.get(f"/v1/jobs/{id}").json()["state"])

    def waiting(self) -> int:
        """Return how many jobs wait."""
        return int(self.client.get("/v1/state").json()["job_classes"][0]["queued"])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    with Template(tmp_path_factory.mktemp("services") / "log.txt") as template:
        yield template


@contextmanager
def live(template: Template, database: str, key: str, **options: Any) -> Iterator[Live]:
    """A service on a database."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ServiceSettings(
        database=database, port=port, slot=0.02, work_conserving=True, rate=0.0, seed=1, max_body=4096,
        job_class=(JobClassInfo("short", [1.0, 0.2]),), server_class=(ServerClassInfo("gpu", [0.3, 1.0]),), **options,
    )  # fmt: skip
    headers = {"Authorization": f"Bearer {key}"}
    with (
        template.start(settings) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30.0, trust_env=False) as client,
    ):
        service = Live(process, client)
        wait_for(service.ready, 20.0)
        yield service


@pytest.fixture
def service(template: Template, sqlite_url: str) -> Iterator[Live]:
    key = make_key(sqlite_url, "admin")
    with live(template, sqlite_url, key) as service:
        yield service


BAD_JOBS = [
    (b'{"jobs": [{"class": "unheard"}]}', 404, "there is no job class 'unheard'; known are short"),
    (b'{"jobs": [{"class": "short"}, {"class": "unheard"}]}', 404, "unheard"),
    (b'{"jobs": [{"class": "short"', 400, "JSON"),
    (b'{"jobs": [{"class": "short", "payload": NaN}]}', 400, "JSON"),
    (b'{"jobs": [{"class": "short", "payload": "' + b"x" * 5000 + b'"}]}', 413, "4096"),
    (b'{"jobs": [{"class": "short", "units": 0}]}', 422, "units"),
]


def test_bad_jobs_are_refused_all_or_none(service: Live) -> None:
    for body, status, told in BAD_JOBS:
        answer = service.client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, answer.text
        assert told in answer.json()["detail"]
    assert service.client.get("/v1/jobs").json()["jobs"] == []
    assert service.client.post("/v1/servers", json={"class": "unheard"}).status_code == 404


def test_bad_ends_leave_the_lease_as_it_is(service: Live) -> None:
    service.submit()
    lease = service.lease()
    path, fence = f"/v1/leases/{lease['lease']}/finish", lease["fence"]
    for reward in ("1.5", "-0.1", "1e300", "NaN", "Infinity", '"0.5"', "true"):
        body = f'{{"fence": {fence}, "reward": {reward}}}'
        answer = service.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == (400 if reward in ("NaN", "Infinity") else 422), answer.text
    assert service.client.post(path, json={"fence": fence + 1, "reward": 0.5}).status_code == 409
    many = service.client.post(
        "/v1/work", json={"finish": [{"lease": lease["lease"], "fence": fence, "reward": 7.0}]}
    ).json()["finished"]
    assert "reward" in many[0]["refused"]
    assert service.state(lease["job"]["id"]) == "leased"
    assert service.finish(lease).json()["repeated"] is False
    assert service.client.get("/v1/state").json()["counters"]["rewards"] == 1


def test_a_finished_lease_is_finished_once(service: Live) -> None:
    service.submit()
    lease = service.lease()
    assert service.finish(lease, result=1).json() == {"job": lease["job"]["id"], "state": "done", "repeated": False}
    assert service.finish(lease, result=1).json()["repeated"] is True
    assert service.finish(lease, result=2).status_code == 409
    assert service.finish(lease, reward=0.75).status_code == 409
    for what in ("fail", "extend"):
        path = f"/v1/leases/{lease['lease']}/{what}"
        assert service.client.post(path, json={"fence": lease["fence"]}).status_code == 409
    assert service.client.get("/v1/state").json()["counters"]["rewards"] == 1


def test_a_server_that_asks_again_ends_its_lease_and_the_old_fence_is_stale(service: Live) -> None:
    service.submit()
    old = service.lease()
    new = service.lease()
    assert new["job"]["id"] == old["job"]["id"] and new["fence"] > old["fence"]
    assert service.finish(old).status_code == 409
    assert service.client.post(f"/v1/leases/{new['lease']}/finish", json={"fence": old["fence"]}).status_code == 409
    assert service.finish(new, 0.25).json()["state"] == "done"
    assert service.client.get("/v1/state").json()["reward_total"] == 0.25


def test_other_keys_get_no_information_about_a_lease(service: Live) -> None:
    made = service.client.post("/v1/keys", json={"scopes": ["work"]}).json()["key"]
    for end in ("active", "failed"):
        service.submit()
        lease = service.lease()
        path, body = f"/v1/leases/{lease['lease']}/fail", {"fence": lease["fence"], "error": "mine"}
        if end == "failed":
            assert service.client.post(path, json=body).status_code == 200
        answer = service.client.post(path, json=body, headers={"Authorization": f"Bearer {made}"})
        assert answer.status_code == (403 if end == "active" else 409)
        assert lease["job"]["id"] not in answer.text


def test_a_full_disk_is_reported_and_passes(service: Live, tmp_path: Path) -> None:
    """Files of the service cannot grow for a while; everything that it acknowledged before, during and after is there."""
    taken = [ref["id"] for _ in range(5) for ref in service.submit(size=1000).json()["jobs"]]
    lease = service.lease()
    largest = max((tmp_path / name).stat().st_size for name in ("live.db", "live.db-wal"))
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (largest + 20_000, resource.RLIM_INFINITY))
    refused = None
    while refused is None:
        answer = service.submit(3, size=1000)
        if answer.status_code == 201:
            taken += [ref["id"] for ref in answer.json()["jobs"]]
            assert len(taken) < 1000
        else:
            refused = answer
    assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
    assert int(refused.headers["retry-after"]) >= 1
    assert service.client.get("/healthz").status_code == 200
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    wait_for(service.ready)
    assert service.finish(lease).json()["state"] == "done"
    taken += [ref["id"] for ref in service.submit().json()["jobs"]]
    assert {service.state(id) for id in taken} == {"queued", "done"}
    assert service.waiting() == len(taken) - 1
    assert service.client.get("/v1/state").json()["counters"].get("rewards") == 1


def test_a_database_that_is_gone_for_a_while(template: Template, postgres: Postgres, postgres_url: str) -> None:
    key = make_key(postgres_url, "admin")
    with live(template, postgres_url, key) as service, ThreadPoolExecutor() as pool:
        ids = [ref["id"] for ref in service.submit(2).json()["jobs"]]
        lease = service.lease()
        service.finish(lease)
        lease = service.lease()
        other = service.server("two")
        poll = pool.submit(service.client.post, f"/v1/servers/{other}/lease", params={"wait": 25})
        time.sleep(0.3)
        postgres.stop()
        try:
            began = time.monotonic()
            wait_for(lambda: not service.ready(), 5.0)
            assert poll.result(5.0).status_code in (204, 503)
            for answer in (service.submit(), service.finish(lease), service.client.get("/v1/state")):
                assert answer.status_code == 503, answer.text
                assert int(answer.headers["retry-after"]) >= 1
            assert service.client.get("/healthz").status_code == 200
            time.sleep(max(0.0, began + 3.0 - time.monotonic()))
        finally:
            postgres.start()
        wait_for(service.ready, 15.0)
        assert service.finish(lease, 0.75).json()["repeated"] is False
        assert [service.state(id) for id in ids] == ["done", "done"]
        service.submit()
        assert service.finish(service.lease()).json()["state"] == "done"
        url = postgres_url.partition("search_path%3D")[2]
        assert postgres.run(f"SELECT count(*), count(DISTINCT lease), sum(value) FROM {url}.observation") == [
            (3, 3, 1.75)
        ]


def test_it_ends_in_order_while_its_database_is_gone(template: Template, postgres: Postgres, postgres_url: str) -> None:
    key = make_key(postgres_url, "admin")
    with live(template, postgres_url, key) as service:
        before = template.log.read_text()
        postgres.stop()
        try:
            wait_for(lambda: not service.ready(), 5.0)
            service.process.end(signal.SIGTERM, 10.0)
        finally:
            postgres.start()
    assert "event=stopped" in template.log.read_text().removeprefix(before)


def test_two_leaders_never_write_both(template: Template, postgres_url: str) -> None:
    """A leader that freezes loses the lead; when it wakes, it stores nothing of its own and hands on what it is asked."""
    key = make_key(postgres_url, "admin")
    with ExitStack() as stack:
        old, new = (stack.enter_context(live(template, postgres_url, key)) for _ in range(2))
        pool = stack.enter_context(ThreadPoolExecutor())
        old.submit(key="first")
        lease = old.lease()
        assert old.finish(lease).json()["state"] == "done"
        old.submit(key="second")
        lease = old.lease()
        signal_to(old.process, signal.SIGSTOP)
        late = pool.submit(old.submit, key="third")
        also = pool.submit(old.finish, lease, 0.25)
        wait_for(lambda: leads(new), 15.0)
        told = new.finish(lease, 0.75)
        assert told.json()["repeated"] is False
        fourth = new.submit(key="fourth").json()["jobs"][0]["id"]
        signal_to(old.process, signal.SIGCONT)
        assert late.result(30.0).status_code in (201, 503)
        assert also.result(30.0).status_code in (409, 503)
        wait_for(lambda: old.client.get("/readyz").status_code == 200, 15.0)
        third = {service.submit(key="third").json()["jobs"][0]["id"] for service in (old, new)}
        assert len(third) == 1 and fourth not in third
        assert old.state(fourth) == new.state(fourth) == "queued"
        jobs = [service.client.get("/v1/jobs").json()["jobs"] for service in (old, new)]
        assert jobs[0] == jobs[1]
        assert sorted(job["key"] for job in jobs[0]) == ["first", "fourth", "second", "third"]
        assert [job["reward"] for job in jobs[0] if job["key"] == "second"] == [0.75]


def signal_to(process: Copy, number: int) -> None:
    signal.pidfd_send_signal(process.handle, number)


def leads(service: Live) -> bool:
    """Return whether a service answers although the previous leader is frozen."""
    try:
        return service.client.get("/v1/state", timeout=1.0).status_code == 200
    except httpx.TransportError:
        return False


def test_two_services_on_one_file(template: Template, service: Live, sqlite_url: str) -> None:
    before = template.log.read_text()
    with template.start(ServiceSettings(database=sqlite_url, port=0)) as second:
        wait_for(lambda: not second.alive)
    told = template.log.read_text().removeprefix(before)
    assert f"is in use by process {service.process.pid}" in json.dumps(told)
    assert service.submit().status_code == 201
