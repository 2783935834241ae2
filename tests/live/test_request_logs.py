"""Logs of real services: every line of a request has its id, other lines have none, and no line has a secret."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from databases import Postgres
from process import Process, make_key, wait_for

pytest_plugins = ("databases",)


def lines(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.log.read_text().splitlines()]


def test_each_line_of_a_request_has_its_id(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database, "--log-format", "json", "--log-requests") as process, process.client(key) as http:
        own = http.get("/v1/me", headers={"X-Request-Id": "mine-1"})
        given = http.get("/v1/jobs/j9")
        assert process.stop() == 0
        logged = lines(process)
    assert [line["event"] for line in logged] == ["serving", "request", "request", "stopping", "stopped"]
    assert [line.get("request") for line in logged] == [None, "mine-1", given.headers["x-request-id"], None, None]
    assert own.headers["x-request-id"] == "mine-1"
    assert (logged[2]["method"], logged[2]["path"], logged[2]["status"], logged[2]["key"]) == (
        "GET", "/v1/jobs/j9", 404, key[3:11],
    )  # fmt: skip


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_in_the_log(tmp_path: Path, form: str, postgres: Postgres) -> None:
    url = postgres.fresh().replace("postgres:@", "postgres:hunter2@")
    assert "hunter2" in url
    key = make_key(url, "admin")
    with Process(tmp_path, url, "--log-format", form, "--log-requests") as process, process.client(key) as http:
        made = http.post("/v1/keys", json={"scopes": ["submit"]}).json()["key"]
        jobs = {"jobs": [{"class": "short", "payload": {"prompt": "a-secret-of-the-customer"}, "key": "order-77"}]}
        assert http.post("/v1/jobs", json=jobs).status_code == 201
        for path in (f"/v1/jobs/{key}", f"/v1/me?key={key}", f"/v1/keys/{made}", f"/{key}"):
            http.get(path)
        http.post("/v1/jobs", content=f'{{"{key}": '.encode(), headers={"Content-Type": "application/json"})
        http.get("/v1/me", headers={"Authorization": f"Basic {key}"})
        http.delete(f"/v1/keys/{made}")
        postgres.stop()
        try:
            wait_for(lambda: re.search("the database is (still )?unavailable", process.log.read_text()))
            http.get("/v1/state")
        finally:
            postgres.start()
        wait_for(lambda: http.get("/readyz").status_code == 200)
        assert process.stop() == 0
        log = process.log.read_text()
    assert log.count("/v1/jobs") >= 2
    for secret in (key[12:], made[12:], "hunter2", "a-secret-of-the-customer"):
        assert secret not in log


def test_lines_after_a_request_do_not_have_its_id(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.fresh()
    key = make_key(url, "admin")
    with Process(tmp_path, url, "--log-format", "json") as process, process.client(key) as http:
        postgres.stop()
        try:
            assert http.post("/v1/jobs", json={"jobs": [{"class": "short"}]}).status_code == 503
            wait_for(lambda: http.get("/readyz").status_code == 503)
        finally:
            postgres.start()
        wait_for(lambda: http.get("/readyz").status_code == 200)
        assert process.stop() == 0
        logged = lines(process)
    back = [line for line in logged if line["event"] in ("the database is back", "another process led in between")]
    assert back
    assert all("request" not in line for line in back)
