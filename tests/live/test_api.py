"""The API on a fake service: requests reach it, its results are returned, and every refusal is a problem document."""

import json
import logging
from typing import Any

import pytest
from asgi import Answer, ask
from fake_service import FakeService, make_fake

from bilinq.errors import BadState, Conflict, NotAllowed, Unavailable
from bilinq.live.http.middleware import SECURITY, describe
from bilinq.live.wire import messages as m


class Api:
    """A fake with a key of every scope."""

    def __init__(self, **settings: Any) -> None:
        self.app, self.service = make_fake(**settings)
        self.key = self.service.add_key("fleet")

    def __call__(self, method: str, url: str, body: Any = None, **named: Any) -> Answer:
        return ask(self.app, method, url, body, **({"key": self.key} | named))


@pytest.fixture
def api() -> Api:
    return Api()


def refused(answer: Answer, status: int, kind: str, *parts: str, field: str | None = None) -> None:
    """Check for a problem of this kind that has all `parts` in its detail."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json
    assert problem["status"] == status
    assert problem["type"] == f"urn:bilinq:{kind}"
    assert problem["title"]
    assert problem["request"] == answer.headers["x-request-id"]
    assert problem.get("field") == field
    for part in parts:
        assert part in problem["detail"]


def test_a_job_is_submitted_and_looked_up(api: Api) -> None:
    answer = api("POST", "/v1/jobs", {"jobs": [{"class": "short", "payload": {"x": [1, 2.5, None]}, "key": "a"}]})
    assert (answer.status, answer.json) == (201, {"jobs": [{"id": "j1", "state": "queued"}]})
    found = api("GET", "/v1/jobs/j1")
    assert found.status == 200
    assert found.json["payload"] == {"x": [1, 2.5, None]}
    assert found.json["class"] == "short"
    assert [job["id"] for job in api("GET", "/v1/jobs").json["jobs"]] == ["j1"]


def test_a_worker_leases_and_finishes(api: Api) -> None:
    api("POST", "/v1/jobs", {"jobs": [{"class": "short", "payload": "p"}]})
    server = api("POST", "/v1/servers", {"class": "gpu"})
    assert (server.status, server.json["id"]) == (201, "s1")
    lease = api("POST", "/v1/servers/s1/lease?wait=0")
    assert lease.status == 200
    assert lease.json["job"] == {"id": "j1", "class": "short", "payload": "p", "units_left": 1, "attempts": 0}
    done = api("POST", "/v1/leases/l1/finish", {"fence": 1, "reward": 0.5, "done": True, "result": {"a": 1}})
    assert (done.status, done.json["state"]) == (200, "done")
    assert api.service.calls[-1] == ("finish", m.WorkFinish("l1", 1, 0.5, True, {"a": 1}))
    assert api("POST", "/v1/leases/l1/extend", {"fence": 1}).json["seconds"] == 30.0
    assert api("GET", "/v1/servers").json[0]["class"] == "gpu"
    gone = api("DELETE", "/v1/servers/s1")
    assert (gone.status, gone.body, "content-length" in gone.headers) == (204, b"", False)


def test_without_a_job_a_lease_is_empty(api: Api) -> None:
    api("POST", "/v1/servers", {"class": "gpu"})
    answer = api("POST", "/v1/servers/s1/lease")
    assert (answer.status, answer.body) == (204, b"")


def test_an_agent_works_for_several_servers(api: Api) -> None:
    api("POST", "/v1/jobs", {"jobs": [{"class": "short"}] * 2})
    for _ in range(2):
        api("POST", "/v1/servers", {"class": "gpu"})
    answer = api("POST", "/v1/work", {"finish": [{"lease": "l9", "fence": 9}], "lease": ["s1", "s2"]})
    assert answer.json["finished"] == [{"lease": "l9", "refused": "there is no such lease"}]
    assert [lease["server"] for lease in answer.json["leases"]] == ["s1", "s2"]


def test_parameters_of_a_query_arrive(api: Api) -> None:
    api("GET", "/v1/jobs?state=done&class=short%20one&key=order%201&tag=night&after=j7&limit=3")
    assert api.service.calls[-1] == ("jobs", ("done", "short one", "j7", 3, "order 1", "night"))
    api("GET", "/v1/jobs")
    assert api.service.calls[1:] == [("jobs", (None, None, None, 100, None, None))]


def test_a_class_is_set_under_the_name_in_the_path(api: Api) -> None:
    answer = api("PUT", "/v1/job-classes/a%2Fb", {"features": [1.0], "weight": 2.0})
    assert answer.json == {
        "name": "a/b", "features": [1.0], "weight": 2.0, "holding_cost": 1.0, "backlog": None, "retry_first": None,
        "retry_longest": None,
    }  # fmt: skip
    assert api.service.job_classes["a/b"].weight == 2.0
    assert api("PUT", "/v1/server-classes/cpu", {"name": "cpu", "features": [1.0]}).status == 200
    refused(api("PUT", "/v1/server-classes/cpu", {"name": "gpu", "features": [1.0]}), 409, "clash", "'cpu'", "'gpu'")
    refused(api("PUT", "/v1/job-classes/", {"features": [1.0]}), 422, "bad-input", field="name")
    refused(api("PUT", "/v1/job-classes/a%00", {"features": [1.0]}), 422, "bad-input", field="name")
    refused(api("PUT", "/v1/job-classes/a%0A", {"features": [1.0]}), 422, "bad-input", field="name")


def test_omitted_settings_stay_unset(api: Api) -> None:
    assert api("PATCH", "/v1/settings", {"V": 3.0}).status == 200
    assert api.service.calls[-1] == ("update_settings", m.SettingsUpdate(V=3.0))


def test_keys_are_created_shown_once_and_revoked(api: Api) -> None:
    made = api("POST", "/v1/keys", {"scopes": ["read"], "namespace": "team"})
    assert made.status == 201
    key, prefix = made.json["key"], made.json["info"]["prefix"]
    me = api("GET", "/v1/me", key=key)
    own = {"prefix": prefix, "namespace": "team", "scopes": ["read"]}
    assert me.json == own | {"namespaces": ["team"], "whole": True}
    assert key not in api("GET", "/v1/keys").body.decode()
    assert api("DELETE", f"/v1/keys/{prefix}").status == 200
    refused(api("GET", "/v1/me", key=key), 401, "no-key", "revoked")


def test_health_and_readiness_need_no_key(api: Api) -> None:
    assert api("GET", "/healthz", key=None).json == {"status": "ok"}
    assert api("GET", "/readyz", key=None).json == {"status": "ready"}
    api.service.ready = api.service.healthy = False
    for path in ("/healthz", "/readyz"):
        answer = api("GET", path, key=None)
        refused(answer, 503, "away")
        assert answer.headers["retry-after"] == "1"


JOB = '{"jobs": [{"class": "short", "payload": %s}]}'


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1,]", b'{"jobs": [}', (JOB % "NaN").encode(), (JOB % "Infinity").encode(), (JOB % "-Infinity").encode(),
     (JOB % '"\\ud800"').encode(), JOB.encode() % b'"\xff"', b"\xef\xbb\xbf{}", (JOB % "01").encode(),
     (JOB % ("[" * 101 + "]" * 101)).encode(), (JOB % ("[" * 200_000)).encode(), (JOB % ('["]",' * 200)).encode()],
)  # fmt: skip
def test_a_body_that_is_not_json_is_refused(api: Api, body: bytes) -> None:
    refused(api("POST", "/v1/jobs", body), 400, "bad-json")


def test_nesting_up_to_the_limit_and_many_jobs_are_fine(api: Api) -> None:
    deep = (JOB % ("[" * 97 + "]" * 97)).encode()
    assert api("POST", "/v1/jobs", deep).status == 201
    wide = {"jobs": [{"class": "short", "payload": {"text": '[[["\\', "list": [[1], [2]]}}] * 1000}
    assert api("POST", "/v1/jobs", wide).status == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], None),
        ({}, "jobs"),
        ({"jobs": []}, "jobs"),
        ({"jobs": [{"class": "short"}] * 1001}, "jobs"),
        ({"jobs": [{}]}, "jobs[0].class"),
        ({"jobs": [{"class": "short"}, {"class": 3}]}, "jobs[1].class"),
        ({"jobs": [{"class": ""}]}, "jobs[0].class"),
        ({"jobs": [{"class": "x" * 201}]}, "jobs[0].class"),
        ({"jobs": [{"class": "a\x00"}]}, "jobs[0].class"),
        ({"jobs": [{"class": "short", "key": "line\n"}]}, "jobs[0].key"),
        ({"jobs": [{"class": "short", "units": 0}]}, "jobs[0].units"),
        ({"jobs": [{"class": "short", "units": True}]}, "jobs[0].units"),
        ({"jobs": [{"class": "short", "unit": 1}]}, "jobs[0].unit"),
        ({"jobs": [{"class": "short"}], "extra": 1}, "extra"),
    ],
)
def test_bad_bodies_name_the_field(api: Api, body: Any, field: str | None) -> None:
    refused(api("POST", "/v1/jobs", body), 422, "bad-input", field=field)


@pytest.mark.parametrize(
    ("url", "field"),
    [("/v1/jobs?limit=0", "limit"), ("/v1/jobs?limit=1001", "limit"), ("/v1/jobs?limit=x", "limit"),
     ("/v1/jobs?limit=1&limit=2", "limit"), ("/v1/jobs?state=lost", "state"), ("/v1/jobs?state=null", "state"),
     ("/v1/jobs?limits=1", "limits"), ("/v1/jobs?class=", "class"), ("/v1/jobs?class=%FF", "query"),
     ("/v1/me?x=1", "x"), ("/v1/jobs?" + "&".join(f"a{k}=1" for k in range(30)), "query")],
)  # fmt: skip
def test_bad_queries_name_the_parameter(api: Api, url: str, field: str) -> None:
    refused(api("GET", url), 422, "bad-input", field=field)


@pytest.mark.parametrize("end", [{"reward": 1.0}, {"error": "no"}, {}])
@pytest.mark.parametrize("fence", [2**63, -(2**63), 10**4000])
def test_fences_are_no_larger_than_any_lease(api: Api, end: dict[str, Any], fence: int) -> None:
    """One of thousands of digits could not even be shown in the refusal, which was status 500."""
    call = "finish" if "reward" in end else "fail" if end else "extend"
    refused(api("POST", f"/v1/leases/l1/{call}", end | {"fence": fence}), 422, "bad-input", field="fence")


PAGES = (
    ("GET", "/v1/jobs?"), ("GET", "/v1/dead?"), ("GET", "/v1/decisions?"), ("GET", "/v1/history?"), ("GET", "/v1/events?"),
    ("POST", "/v1/jobs/cancel?class=a&"), ("POST", "/v1/jobs/retry?class=a&"),
)  # fmt: skip


@pytest.mark.parametrize(
    "after", ["", "x", "s1", "j0", "j-1", "j1%0A", "j" + "9" * 19, "l01", "00000000-", "0-1", "%C2%B2"]
)
@pytest.mark.parametrize(("method", "path"), PAGES)
def test_a_page_after_nothing_that_can_be_is_refused(api: Any, method: str, path: str, after: str) -> None:
    """It was the first page again: who read on never ended, and who cancelled began with the newest jobs."""
    refused(api(method, f"{path}after={after}"), 422, "bad-input", field="after")


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "", "1,5"])
def test_waits_are_bounded(api: Api, wait: str) -> None:
    refused(api("POST", f"/v1/servers/s1/lease?wait={wait}"), 422, "bad-input", field="wait")


def test_refusals_of_the_service_have_their_status(api: Api) -> None:
    refused(api("GET", "/v1/jobs/j77"), 404, "not-known", "'j77'")
    refused(api("POST", "/v1/jobs", {"jobs": [{"class": "none"}]}), 404, "not-known", "'none'")
    busy = api("POST", "/v1/jobs", {"jobs": [{"class": "short", "payload": "full"}]})
    refused(busy, 429, "busy", "as many as it may")
    assert busy.headers["retry-after"] == "3"
    api("POST", "/v1/servers", {"class": "gpu"})
    api("POST", "/v1/jobs", {"jobs": [{"class": "short"}]})
    api("POST", "/v1/servers/s1/lease")
    refused(api("POST", "/v1/leases/l1/finish", {"fence": 9}), 409, "stale", "fence must be 1")
    refused(api("POST", "/v1/leases/l1/finish", {"fence": 1, "reward": 7.0}), 422, "bad-input", field="reward")
    refused(api("POST", "/v1/dead/j1/retry"), 409, "clash", "not dead")


def test_errors_are_described_by_their_most_specific_class() -> None:
    assert [describe(error).status for error in (Conflict("x"), NotAllowed("x"), Unavailable("x"), BadState("x"))] == [
        409,
        403,
        503,
        500,
    ]
    assert len(describe(Conflict("x" * 10**6)).detail) == 1000


def test_a_bug_is_logged_and_reported_without_its_trace(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "bilinq.live.http"):
        answer = api("POST", "/v1/jobs", {"jobs": [{"class": "short", "payload": "explode"}]})
    refused(answer, 500, "failed", "in the log")
    for secret in ("secret", "ZeroDivision", "Traceback", ".py"):
        assert secret not in answer.body.decode()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.__dict__["request"] == answer.json["request"]


def test_unknown_paths_and_methods(api: Api) -> None:
    for path in (
        "/dashboard/",
        "/dashboard/none.js",
        "/v1",
        "/v1/jobs/",
        "/v1/jobs/a/b",
        "/v2/jobs",
        "/../etc/passwd",
        "/v1/\x00",
    ):
        refused(api("GET", path, key=None), 404, "no-such-path")
    answer = api("PUT", "/v1/jobs")
    refused(answer, 405, "wrong-method", "PUT")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    refused(api("TRACE", "/healthz"), 405, "wrong-method")


def test_bodies_must_be_declared_as_json(api: Api) -> None:
    raw = json.dumps({"jobs": [{"class": "short"}]}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
        refused(api("POST", "/v1/jobs", raw, headers={"Content-Type": kind}), 415, "wrong-type", "application/json")
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        assert api("POST", "/v1/jobs", raw, headers={"Content-Type": kind}).status == 201


@pytest.mark.parametrize(
    ("method", "url", "status"),
    [("GET", "/healthz", 200), ("GET", "/v1/me", 200), ("GET", "/nothing", 404), ("PUT", "/healthz", 405),
     ("POST", "/v1/jobs", 415), ("DELETE", "/v1/servers/s1", 204)],
)  # fmt: skip
def test_every_response_has_the_security_headers(api: Api, method: str, url: str, status: int) -> None:
    api("POST", "/v1/servers", {"class": "gpu"})
    answer = api(method, url)
    assert answer.status == status
    for name, value in SECURITY:
        assert answer.headers[name.decode()] == value.decode()


def test_request_ids_are_the_clients_or_new(api: Api) -> None:
    own = api("GET", "/v1/nothing", headers={"X-Request-Id": "trace-1.2_3"})
    assert own.headers["x-request-id"] == own.json["request"] == "trace-1.2_3"
    seen = {
        api("GET", "/healthz", headers={"X-Request-Id": bad}).headers["x-request-id"] for bad in ("", "a b", "x" * 65)
    }
    assert len(seen) == 3
    assert not seen & {"", "a b", "x" * 65}


def test_requests_are_logged_if_wanted(caplog: pytest.LogCaptureFixture) -> None:
    quiet, wordy = Api(), Api(log_requests=True)
    with caplog.at_level(logging.INFO, "bilinq.live.http"):
        quiet("GET", "/v1/me")
        assert not caplog.records
        wordy("GET", "/v1/jobs/j1")
    (record,) = caplog.records
    told = record.__dict__
    assert (told["method"], told["path"], told["status"], told["key"]) == ("GET", "/v1/jobs/j1", 404, wordy.key[3:11])
    assert wordy.key not in str(told)


def test_requests_without_a_key_share_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Anybody can send them; of those with a key each has a line."""
    wordy = Api(log_requests=True)
    keyless = [("GET", "/v1/me"), ("GET", "/nothing"), ("PUT", "/v1/me"), ("GET", "/healthz"), ("GET", "/")]
    with caplog.at_level(logging.INFO, "bilinq.live.http"):
        for _ in range(20):
            for method, path in keyless:
                ask(wordy.app, method, path, key="bq_aaaaaaaa_" + "x" * 43 if path == "/v1/me" else None)
        reader = wordy.service.add_key("read")
        for _ in range(3):
            ask(wordy.app, "GET", "/v1/me", key=reader)
            assert ask(wordy.app, "GET", "/v1/keys", key=reader).status == 403
    told = [(record.message, vars(record).get("times")) for record in caplog.records]
    assert told == [("requests without a valid key", 1), *[("request", None)] * 6]


def test_the_fake_has_what_a_test_needs() -> None:
    """A namespace sees only its own jobs, here as in the real service."""
    app, service = make_fake()
    assert isinstance(service, FakeService)
    mine, theirs = service.add_key("submit", namespace="a"), service.add_key("submit", namespace="b")
    ask(app, "POST", "/v1/jobs", {"jobs": [{"class": "short"}]}, key=mine)
    assert ask(app, "GET", "/v1/jobs/j1", key=mine).status == 200
    refused(ask(app, "GET", "/v1/jobs/j1", key=theirs), 404, "not-known")
