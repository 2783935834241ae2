"""`/metrics` of real services: the numbers match what happened, and every process reports its own."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from asgi import ask
from databases import Postgres
from fake_service import make_fake
from process import CONFIG, Process, make_key, wait_for
from prometheus_client.parser import text_string_to_metric_families as parse

from bilinq.client import Client
from bilinq.errors import BadInput
from bilinq.live.service import Service
from bilinq.live.service.service import FRESH
from bilinq.live.settings import ServiceSettings, load
from bilinq.live.store import open_store
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo

pytest_plugins = ("databases",)

SETTINGS = CONFIG.replace("slot = 0.02", "slot = 0.02\nmax_attempts = 2\ntarget_wait = 3.0")


class Scrape:
    """The samples of a page by name and labels."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in parse(text)}
        self.samples = [one for family in self.families.values() for one in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        found = [one.value for one in self.samples if one.name == name and one.labels == labels]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return float(found[0])

    def __contains__(self, name: str) -> bool:
        return any(one.name == name for one in self.samples)


def scrape(client: Any) -> Scrape:
    response = client.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(response.text)


def test_the_numbers_match_what_happened(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database, settings=SETTINGS) as process, process.client(key) as http:
        with Client(process.address, key) as client:
            server = client.register("gpu").id
            client.register("gpu")
            first = scrape(http)
            assert (
                first("bilinq_jobs_submitted_total", job_class="short") == 0
            )  # present from the start, so that rates are right
            waiting = [client.submit("short").id for _ in range(5)]
            time.sleep(0.3)
            for reward in (0.25, 0.75):
                lease = client.lease(server)
                assert lease is not None
                client.finish(lease.lease, lease.fence, reward)
            for _ in range(2):
                lease = client.lease(server)
                assert lease is not None
                client.fail(lease.lease, lease.fence, "broken")
            client.cancel(next(id for id in waiting if client.job(id).state == "queued"))
            held = client.lease(server)
            assert held is not None
            found = scrape(http)
            state = client.state()
        assert found("bilinq_jobs_submitted_total", job_class="short") == 5
        assert found("bilinq_leases_granted_total", job_class="short") == 5
        for how, many in {"finished": 2, "failed": 2, "expired": 0, "revoked": 0}.items():
            assert found("bilinq_leases_ended_total", job_class="short", how=how) == many
        for how, many in {"done": 2, "dead": 1, "cancelled": 1}.items():
            assert found("bilinq_jobs_ended_total", job_class="short", how=how) == many
        assert found("bilinq_jobs_dead") == 1
        assert (found("bilinq_jobs_queued", job_class="short"), found("bilinq_jobs_leased", job_class="short")) == (
            0,
            1,
        )
        assert (found("bilinq_reward_sum", job_class="short"), found("bilinq_reward_count", job_class="short")) == (
            1.0,
            2,
        )
        assert found("bilinq_wait_seconds_count", job_class="short") == 4  # the one that failed had only one first wait
        assert found("bilinq_wait_seconds_bucket", job_class="short", le="0.25") == 0
        assert found("bilinq_wait_seconds_bucket", job_class="short", le="30.0") == 4
        waits = state.job_classes[0].wait
        assert waits.mean is not None
        assert found("bilinq_wait_seconds_sum", job_class="short") == pytest.approx(4 * waits.mean)
        for server_state, many in {"busy": 1, "away": 1, "idle": 0}.items():
            assert found("bilinq_servers", server_class="gpu", state=server_state) == many
        assert found("bilinq_slot_seconds_count") == found("bilinq_solver_seconds_count") == state.slot >= 5
        assert 0 < found("bilinq_solver_seconds_sum") < found("bilinq_slot_seconds_sum")
        assert found("bilinq_commit_operations_sum") >= found("bilinq_commit_seconds_count") > 10
        assert found("bilinq_learner_observations") == 4  # two rewards and two failures
        assert found("bilinq_learner_condition") > 1.0
        assert abs(found("bilinq_learner_saved_timestamp_seconds") - time.time()) < 60.0
        assert found("bilinq_target_wait_seconds") == 3.0
        assert found("bilinq_reward_weight") == state.V
        assert (found("bilinq_ready"), found("bilinq_leader"), found("bilinq_recoveries_total")) == (1, 1, 0)
        assert found("bilinq_http_answers_total", method="POST", path="/v1/jobs", status="201") == 5
        assert found("bilinq_http_answers_total", method="POST", path="/v1/leases/{lease}/fail", status="200") == 2
        http.get("/nothing/here")
        http.request("PROPFIND", "/v1/jobs")
        again = scrape(http)
        assert again("bilinq_http_answers_total", method="GET", path="other", status="404") == 1
        assert again("bilinq_http_answers_total", method="other", path="/v1/jobs", status="405") == 1


def test_every_metric_is_named_and_described_as_prometheus_requires(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "read")
    with Process(tmp_path, database) as process, process.client(key) as http:
        scrape(http)  # the first response to be counted
        found = scrape(http)
    for name, family in found.families.items():
        assert name.startswith(("bilinq_", "process_"))
        assert family.type in ("gauge", "counter", "histogram", "summary")
        assert family.documentation.endswith(".")
        assert family.samples
        assert all(one.name.endswith("_total") == (family.type == "counter") for one in family.samples)


def test_dead_jobs_are_counted_over_restarts_and_retries(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database, "--max-attempts", "1") as process, Client(process.address, key) as client:
        server = client.register("gpu").id
        for _ in range(2):
            client.submit("short")
            lease = client.lease(server)
            assert lease is not None
            client.fail(lease.lease, lease.fence, "broken")
        assert process.stop() == 0
    with Process(tmp_path, database) as process, process.client(key) as http:
        assert scrape(http)("bilinq_jobs_dead") == 2
        dead = http.get("/v1/dead").json()["jobs"][0]["id"]
        http.post(f"/v1/dead/{dead}/retry")
        assert scrape(http)("bilinq_jobs_dead") == 1


def test_first_come_has_no_learner_and_no_settings(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "read")
    with Process(tmp_path, database, "--policy", "first-come") as process, process.client(key) as http:
        found = scrape(http)
        assert "bilinq_learner_observations" not in found
        assert "bilinq_target_wait_seconds" not in found
        assert found("bilinq_ready") == 1


def test_metrics_may_be_open() -> None:
    closed, service = make_fake()
    assert ask(closed, "GET", "/metrics").status == 401
    assert ask(closed, "GET", "/metrics", key=service.add_key("submit", "work")).status == 403
    assert ask(closed, "GET", "/metrics", key=service.add_key("read")).status == 200
    opened, _ = make_fake(metrics="open")
    response = ask(opened, "GET", "/metrics")
    assert (response.status, response.body) == (200, b"bilinq_ready 1\n")
    assert ask(opened, "GET", "/v1/state").status == 401
    with pytest.raises(BadInput, match="--metrics: must be one of key, open; got 'all'"):
        load(options={"metrics": "all"}, environment={})


def test_a_follower_reports_its_own_numbers(tmp_path: Path, postgres_url: str) -> None:
    key = make_key(postgres_url, "read")
    other = make_key(postgres_url, "submit")
    with Process(tmp_path / "a", postgres_url) as leader, Process(tmp_path / "b", postgres_url) as follower:
        with leader.client(key) as one, follower.client(key) as two, follower.client(other) as three:
            wait_for(lambda: two.get("/readyz").status_code == 200)
            assert (scrape(one)("bilinq_leader"), scrape(two)("bilinq_leader")) == (1, 0)
            found = scrape(two)
            assert found("process_start_time_seconds") != scrape(one)("process_start_time_seconds")
            assert found("bilinq_http_answers_total", method="GET", path="forwarded", status="200") >= 1
            assert "bilinq_jobs_queued" not in found
            assert three.get("/metrics").status_code == 403
            assert three.get("/metrics", headers={"Authorization": "Bearer bq_x"}).status_code == 401
            leader.child.kill()
            wait_for(lambda: scrape(two)("bilinq_leader") == 1)
            assert "bilinq_jobs_queued" in scrape(two)
        assert follower.stop() == 0


def test_it_responds_while_the_database_is_unavailable(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.fresh()
    key = make_key(url, "read")
    with Process(tmp_path, url) as process, process.client(key) as http:
        assert scrape(http)("bilinq_ready") == 1
        postgres.stop()
        try:
            wait_for(lambda: scrape(http)("bilinq_ready") == 0)
            time.sleep(FRESH + 0.1)
            found = scrape(http)
            assert (found("bilinq_ready"), found("bilinq_recoveries_total")) == (0, 1)
        finally:
            postgres.start()
        wait_for(lambda: scrape(http)("bilinq_ready") == 1)


def test_a_scrape_of_many_classes_is_quick(tmp_path: Path) -> None:
    """50 x 20 classes: below 5 ms of CPU time, the best of several runs, since other work disturbs the measurement."""

    async def run() -> tuple[float, str]:
        settings = ServiceSettings(
            job_class=tuple(JobClassInfo(f"job {k}", [1.0, k / 50]) for k in range(50)),
            server_class=tuple(ServerClassInfo(f"server {k}", [1.0, k / 20]) for k in range(20)),
        )
        service = Service(settings, open_store(f"sqlite:///{tmp_path}/live.db"))
        await service.start()
        try:
            for k in range(50):
                service.meters.wait(f"job {k}", 0.1 * k)
            times = []
            for _ in range(15):
                began = time.process_time()
                text = await service.metrics()
                times.append(time.process_time() - began)
            return min(times), text
        finally:
            await service.stop()

    seconds, text = asyncio.run(run())
    assert seconds < 0.005
    assert len(list(parse(text))) > 25
    assert text.count("bilinq_wait_seconds_bucket") == 50 * 14
