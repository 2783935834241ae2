"""Watching a real service over HTTP: the API reports what was done, before and after a lost connection."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from process import Process, make_key, wait_for

pytest_plugins = ["databases"]

FAST = ("--sample", "0.1")


class Events:
    """The events of a stream, as (name, id, data)."""

    def __init__(self, response: httpx.Response) -> None:
        self.lines = response.iter_lines()

    def next(self, name: str | None = None) -> tuple[str, str | None, Any]:
        """Return the next event, or the next one with a name."""
        found: dict[str, str] = {}
        for line in self.lines:
            if line:
                key, _, value = line.partition(": ")
                found[key] = value
            elif name in (None, found.get("event")) and "event" in found:
                return found["event"], found.get("id"), json.loads(found["data"])
            else:
                found = {}
        raise EOFError


@contextmanager
def watching(client: httpx.Client, query: str = "", **headers: str) -> Iterator[Events]:
    with client.stream("GET", f"/v1/events{query}", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        yield Events(response)


def serve_jobs(client: httpx.Client, many: int, reward: float) -> list[str]:
    """Submit jobs and serve them with one server; return their ids."""
    jobs = [job["id"] for job in client.post("/v1/jobs", json={"jobs": [{"class": "short"}] * many}).json()["jobs"]]
    server = client.post("/v1/servers", json={"class": "gpu", "name": "one"}).json()["id"]
    for _ in range(many):
        lease = client.post(f"/v1/servers/{server}/lease?wait=5").json()
        client.post(f"/v1/leases/{lease['lease']}/finish", json={"fence": lease["fence"], "reward": reward})
    return jobs


def total(samples: list[dict[str, Any]], name: str) -> float:
    return float(sum(sum(sample[name]) for sample in samples))


def test_samples_report_what_was_done(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database, *FAST) as process, process.client(key) as client:
        jobs = serve_jobs(client, 5, reward=0.5)
        client.post("/v1/jobs", json={"jobs": [{"class": "short"}] * 3})

        def complete() -> Any:
            found = client.get("/v1/history").json()
            return found if len(found["moments"]) > 9 and total(found["moments"], "submitted") == 8.0 else None

        history = wait_for(complete)
        samples = history["moments"]
        assert history["every"] == 0.1
        assert history["layout"] == {
            "version": 1, "job_classes": ["short"], "server_classes": ["gpu"], "target_wait": 2.0, "reward_low": 0.0,
            "reward_high": 1.0,
        }  # fmt: skip
        assert total(samples, "finished") == 5.0
        assert total(samples, "reward") == 2.5
        assert samples[-1]["queued"] == [3]
        assert samples[-1]["wait_p50"] <= samples[-1]["wait_p90"] <= samples[-1]["wait_p99"] < 5.0
        assert samples[-1]["wait_p50"] / 5.0 < samples[-1]["wait_mean"] <= samples[-1]["wait_p99"]
        seconds = samples[-1]["at"] - samples[0]["at"] + 0.1  # the first sample came an interval after the start
        assert samples[-1]["earned"] == pytest.approx(2.5 / seconds, rel=0.3)
        assert sum(sample["slots"] for sample in samples) >= 5
        leases = client.get("/v1/leases?limit=2").json()["leases"]
        assert [lease["job"] for lease in leases] == [jobs[4], jobs[3]]
        assert leases[0] | {"granted": 0, "ended": 0} == {
            "lease": "l5", "job": jobs[4], "class": "short", "server": "s1", "server_class": "gpu", "granted": 0, "ended": 0,
            "state": "finished", "reward": 0.5,
        }  # fmt: skip
        later = client.get(f"/v1/history?after={samples[3]['id']}").json()["moments"]
        assert later[: len(samples) - 4] == samples[4:]
        assert process.stop() == 0
        assert [event for event in process.events() if event["level"] in ("error", "warning")] == []


def test_a_stream_catches_up_and_continues(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database, *FAST) as process, process.client(key) as client:
        wait_for(lambda: len(client.get("/v1/history").json()["moments"]) > 5)
        with watching(client) as events:
            name, _, layout = events.next()
            assert (name, layout["job_classes"]) == ("layout", ["short"])
            ids = [events.next("moment")[1] for _ in range(10)]
            state = events.next("state")[2]
            assert state["mean"] == client.get("/v1/state").json()["mean"]
            assert events.next("leases")[2] == {"leases": []}
        start = str(ids[0]).partition("-")[0]
        assert ids == [f"{start}-{number}" for number in range(1, 11)]
        time.sleep(0.3)
        for query, headers in ((f"?after={ids[4]}", {}), ("?after=00000000-1", {"Last-Event-ID": str(ids[4])})):
            with watching(client, query, **headers) as events:
                assert [events.next("moment")[1] for _ in range(10)] == [f"{start}-{number}" for number in range(6, 16)]
        assert client.get("/v1/events?seconds=0&limit=2").text.count("event: moment") == 2
        assert client.head("/v1/events").headers["content-type"] == "text/event-stream"
        assert process.stop() == 0


def test_classes_and_settings_change_while_somebody_watches(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database, *FAST) as process, process.client(key) as client:
        client.post("/v1/jobs", json={"jobs": [{"class": "short"}] * 3})
        wait_for(lambda: client.get("/v1/history").json()["moments"])
        with watching(client, "?limit=1") as events:
            assert events.next("layout")[2]["version"] == 1
            client.put("/v1/job-classes/aaa", json={"features": [0.0, 1.0]})
            layout = events.next("layout")[2]
            assert (layout["version"], layout["job_classes"]) == (2, ["short", "aaa"])
            assert events.next("moment")[2]["queued"] == [3, 0]
            client.patch("/v1/knobs", json={"target_wait": 7.0})
            layout = events.next("layout")[2]
            assert (layout["version"], layout["target_wait"]) == (3, 7.0)
        assert {len(sample["queued"]) for sample in client.get("/v1/history").json()["moments"]} == {2}
        assert process.stop() == 0


def test_streams_end_with_the_service_and_with_the_key(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database, *FAST) as process, process.client(key) as client:
        made = client.post("/v1/keys", json={"scopes": ["read"]}).json()
        with process.client(made["key"]) as reader, watching(reader) as events:
            events.next("moment")
            client.delete(f"/v1/keys/{made['info']['prefix']}")
            with pytest.raises(EOFError):
                while True:
                    events.next()
        with watching(client) as events:
            events.next("moment")
            began = time.monotonic()
            assert process.stop() == 0
            assert time.monotonic() - began < 5.0
            with pytest.raises(EOFError):
                while True:
                    events.next()
        assert [event for event in process.events() if event["level"] in ("error", "warning")] == []


def test_a_follower_forwards_streams(tmp_path: Path, postgres_url: str) -> None:
    key = make_key(postgres_url, "admin")
    with (
        Process(tmp_path / "a", postgres_url, *FAST) as leader,
        Process(tmp_path / "b", postgres_url, *FAST) as follower,
    ):
        with leader.client(key) as one, follower.client(key) as two:
            wait_for(lambda: two.get("/readyz").status_code == 200)
            wait_for(lambda: one.get("/v1/history").json()["moments"])
            with watching(two) as events:
                ids = [events.next("moment")[1] for _ in range(3)]
                assert ids == [sample["id"] for sample in one.get("/v1/history").json()["moments"][:3]]
                began = time.monotonic()
                assert follower.stop() == 0
                assert time.monotonic() - began < 5.0
        assert leader.stop() == 0


def work_a_while(client: httpx.Client, seconds: float, reward: float) -> int:
    """Serve jobs one after the other, each for 10 ms; return how many."""
    server = client.post("/v1/servers", json={"class": "gpu", "name": "one"}).json()["id"]
    end, many = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        client.post("/v1/jobs", json={"jobs": [{"class": "short"}]})
        lease = client.post(f"/v1/servers/{server}/lease?wait=5").json()
        time.sleep(0.01)
        client.post(f"/v1/leases/{lease['lease']}/finish", json={"fence": lease["fence"], "reward": reward})
        many += 1
    return many


def test_the_best_rate_is_reported_and_settings_can_be_previewed(tmp_path: Path) -> None:
    """One class of each kind with a constant reward: the best rate is the earned one."""
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    options = (*FAST, "--policy", "sabr", "--may-idle", "--V", "1e-6")
    with Process(tmp_path, database, *options) as process, process.client(key) as client:
        nothing = client.post("/v1/knobs/preview", json={"V": 5.0}).json()
        assert (nothing["reward_then"], nothing["V_then"]) == (None, 5.0)
        many = work_a_while(client, 2.5, reward=0.75)
        last = client.get("/v1/history?limit=1").json()["moments"][0]
        assert last["earned"] == pytest.approx(0.75 * many / 2.5, rel=0.3)
        assert last["best"] == pytest.approx(last["earned"], rel=0.3)
        preview = client.post("/v1/knobs/preview", json={"V": 1e-3}).json()
        assert (preview["V_now"], preview["V_then"]) == (1e-6, 1e-3)
        [one] = preview["job_classes"]
        assert one["name"] == "short"
        assert one["wait_then"] == pytest.approx(1000.0 * one["wait_now"])
        assert one["measured_wait"] < 1.0
        for body, status in ({"V": 1.0, "target_wait": 1.0}, 422), ({"weight": {"none": 2.0}}, 404), ({"V": -1.0}, 422):
            assert client.post("/v1/knobs/preview", json=body).status_code == status
        assert client.get("/v1/knobs").json()["V"] == 1e-6
        assert process.stop() == 0
        assert [event for event in process.events() if event["level"] in ("error", "warning")] == []


def test_nothing_is_predicted_for_the_look_ahead_before_it_meets_its_target(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with (
        Process(tmp_path, database, *FAST, "--may-idle", "--target-wait", "0.5") as process,
        process.client(key) as client,
    ):
        work_a_while(client, 1.0, reward=0.75)
        preview = client.post("/v1/settings/preview", json={"target_wait": 3.0}).json()
        assert preview["note"].startswith("No prediction: the policy look-ahead adjusts V to a target wait, and")
        assert {preview[f"{name}_then"] for name in ("V", "reward", "queue", "wait")} == {None} and preview[
            "V_now"
        ] > 0.0
        [one] = preview["job_classes"]
        assert (one["wait_now"], one["wait_then"]) == (None, None) and 0.0 <= one["measured_wait"] < 1.0


def test_a_job_is_found_by_its_key(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    admin, other = make_key(database, "admin"), make_key(database, "submit", namespace="other")
    with Process(tmp_path, database) as process, process.client(admin) as client, process.client(other) as stranger:
        for one in (client, stranger):
            one.post(
                "/v1/jobs", json={"jobs": [{"class": "short", "key": "order 1"}, {"class": "short", "key": "order 2"}]}
            )
        found = client.get("/v1/jobs", params={"key": "order 1"}).json()
        assert [(job["id"], job["namespace"], job["key"]) for job in found["jobs"]] == [
            ("j3", "other", "order 1"), ("j1", "default", "order 1"),
        ]  # fmt: skip
        assert [job["id"] for job in stranger.get("/v1/jobs", params={"key": "order 2"}).json()["jobs"]] == ["j4"]
        for query, ids in (
            ({"state": "done"}, []),
            ({"after": "j3"}, ["j1"]),
            ({"limit": "1"}, ["j3"]),
            ({"class": "x"}, []),
        ):
            found = client.get("/v1/jobs", params={"key": "order 1"} | query).json()
            assert [job["id"] for job in found["jobs"]] == ids
        assert client.get("/v1/jobs", params={"key": "nothing"}).json() == {"jobs": [], "after": None}


def test_a_baseline_is_shown_while_it_responds(tmp_path: Path) -> None:
    ours, theirs = (f"sqlite:///{tmp_path}/{name}.db" for name in ("ours", "theirs"))
    key, their_key = make_key(ours, "admin"), make_key(theirs, "admin")
    with Process(tmp_path / "theirs", theirs, *FAST, "--policy", "first-come") as baseline:
        environment = {"BILINQ_BASELINE_URL": baseline.address, "BILINQ_BASELINE_KEY": their_key}
        with Process(tmp_path / "ours", ours, *FAST, environment=environment) as process, process.client(key) as client:

            def shown() -> Any:
                return (client.get("/v1/history?limit=1").json()["moments"] or [{}])[0].get("rival")

            wait_for(shown)
            with baseline.client(their_key) as other:
                serve_jobs(other, 4, reward=0.5)
                other.post("/v1/jobs", json={"jobs": [{"class": "short"}] * 3})

            def complete() -> bool:
                samples = client.get("/v1/history").json()["moments"]
                return bool(sum(sample["rival"]["reward"] for sample in samples if sample["rival"]) == 2.0)

            wait_for(complete)
            wait_for(lambda: shown()["queued"] == 3)
            assert shown()["name"] == "first-come"
            assert baseline.stop() == 0
            wait_for(lambda: shown() is None)
            assert client.get("/v1/state").status_code == 200
            assert process.stop() == 0
            warnings = [event["event"] for event in process.events() if event["level"] in ("error", "warning")]
            assert len(warnings) == 1
            assert "the baseline" in warnings[0]
