"""`bilinq jobs` and `bilinq settings` against a real service: tables, JSON, exit codes, errors in one line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process import Process, make_key
from typer.testing import CliRunner, Result

from bilinq.client import Client, NewJob
from bilinq.commands import app as cli
from bilinq.commands.settings import parse_update
from bilinq.errors import BadInput


class Place:
    """A service and keys for it."""

    def __init__(self, folder: Path) -> None:
        database = f"sqlite:///{folder}/live.db"
        self.keys = {scope: make_key(database, scope) for scope in ("admin", "read")}
        self.process = Process(folder, database, "--max-attempts", "1")
        self.client = Client(self.process.address, self.keys["admin"])

    def submit(self, count: int = 1, **options: Any) -> list[str]:
        """Submit jobs that wait for an hour, unless told otherwise."""
        given: dict[str, Any] = {"not_before": 3600.0} | options
        return [ref.id for ref in self.client.submit_all([NewJob("short", **given)] * count)]

    def dead(self, **options: Any) -> str:
        """Return a job whose only attempt failed."""
        [id] = self.submit(**options, not_before=None)
        server = self.client.register("gpu")
        lease = self.client.lease(server.id)
        assert lease is not None and lease.job.id == id
        self.client.fail(lease.lease, lease.fence, "exit code 3\nand more")
        self.client.unregister(server.id)
        return id


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("commands"))
    with made.process, made.client:
        yield made


@pytest.fixture(autouse=True)
def environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILINQ_URL", place.process.address)
    monkeypatch.setenv("BILINQ_KEY", place.keys["admin"])


def bilinq(*words: str, code: int = 0, typed: str | None = None) -> Result:
    result = CliRunner().invoke(cli.app, words, input=typed)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def test_jobs_are_listed_by_state_class_and_tag(place: Place) -> None:
    ids, dead = place.submit(3, tags=["list"]), place.dead(tags=["list", "bad"])
    found = json.loads(bilinq("jobs", "list", "--tag", "list", "--json").stdout)["jobs"]
    assert [job["id"] for job in found] == [dead, *reversed(ids)]
    found = json.loads(bilinq("jobs", "list", "--class", "short", "--state", "dead", "--tag", "list", "--json").stdout)
    assert [job["id"] for job in found["jobs"]] == [dead]
    table = bilinq("jobs", "list", "--tag", "list").stdout
    [row] = [line for line in table.splitlines() if dead in line]
    for text in ("short", "dead", "bad list", "exit code 3"):
        assert text in row
    assert "and more" not in table
    short = bilinq("jobs", "list", "--tag", "list", "--limit", "2").stdout
    assert dead in short and ids[2] in short and ids[1] not in short
    assert "the newest 2" in short
    assert bilinq("jobs", "list", "--tag", "no such tag").stdout == "no jobs\n"


def test_a_list_has_more_than_a_page(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinq.commands.jobs.PAGE", 2)
    ids = place.submit(5, tags=["pages"])
    found = json.loads(bilinq("jobs", "list", "--tag", "pages", "--json").stdout)["jobs"]
    assert [job["id"] for job in found] == ids[::-1]


def test_a_job_is_shown(place: Place) -> None:
    id = place.dead(tags=["shown"], payload={"prompt": "hello"}, key="order 77")
    shown = bilinq("jobs", "show", id).stdout
    for text in (
        f"id            {id}",
        "class         short",
        'payload       {"prompt":"hello"}',
        "key           order 77",
    ):
        assert text in shown
    assert [line.split("  ")[-1] for line in shown.splitlines() if "failed on" in line] == [
        "failed on s" + server(shown)
    ]
    assert json.loads(bilinq("jobs", "show", id, "--json").stdout)["state"] == "dead"


def server(text: str) -> str:
    return text.split("failed on s")[1].splitlines()[0]


def test_jobs_are_cancelled_by_id_or_filter(place: Place) -> None:
    ids = place.submit(4, tags=["gone"])
    assert bilinq("jobs", "cancel", ids[0]).stdout == f"{ids[0]} is cancelled\n"
    assert "Cancel all jobs with tag gone" in bilinq("jobs", "cancel", "--tag", "gone", code=1, typed="n\n").output
    assert place.client.job(ids[1]).state == "queued", "the answer was no"
    bilinq("jobs", "cancel", "--tag", "gone", code=1, typed="")
    assert place.client.job(ids[1]).state == "queued", "nobody answered"
    assert bilinq("jobs", "cancel", "--tag", "gone", "--state", "leased", "--yes").stdout == "0 jobs cancelled\n"
    assert bilinq("jobs", "cancel", "--tag", "gone", "--yes").stdout == "3 jobs cancelled\n"
    assert json.loads(bilinq("jobs", "cancel", "--tag", "gone", "-y", "--json").stdout) == {"changed": 0}
    assert {place.client.job(id).state for id in ids} == {"cancelled"}


def test_a_job_that_cannot_be_changed_does_not_stop_the_others(place: Place) -> None:
    dead, [open] = place.dead(), place.submit()
    result = bilinq("jobs", "cancel", dead, "j999999", open, code=1)
    assert result.stdout == f"{open} is cancelled\n"
    assert f"error: job {dead} has ended: it is dead" in result.stderr
    assert "error: there is no job 'j999999'" in result.stderr
    result = bilinq("jobs", "retry", open, dead, "--json", code=1)
    assert json.loads(result.stdout) == {"changed": 1, "jobs": [dead]}
    assert "must be dead to be retried; it is cancelled" in result.stderr
    place.client.cancel(dead)


def test_dead_jobs_are_retried_by_filter(place: Place) -> None:
    place.client.retry_jobs()
    place.client.cancel_jobs(job_class="short")
    one, two = place.dead(tags=["again"]), place.dead()
    assert bilinq("jobs", "retry", "--tag", "again").stdout == "1 job queued again\n"
    assert bilinq("jobs", "cancel", one).stdout == f"{one} is cancelled\n"
    assert bilinq("jobs", "retry", "--all").stdout == "1 job queued again\n"
    assert place.client.job(two).state == "queued"
    place.client.cancel(two)


@pytest.mark.parametrize("words", [("cancel",), ("retry",), ("cancel", "j1", "--tag", "x"), ("retry", "j1", "--all")])
def test_either_ids_or_a_filter_is_needed(words: tuple[str, ...]) -> None:
    assert "error: give either ids of jobs or some of" in bilinq("jobs", *words, code=2).stderr


def test_errors_are_one_line(place: Place) -> None:
    for words, text in (
        (("jobs", "show", "j999999"), "error: there is no job 'j999999'"),
        (("jobs", "list", "--state", "lost"), "error: state: "),
        (("jobs", "retry", "--all", "--key", place.keys["read"]), "lacks the scope admin"),
        (("settings", "set", "V=1", "--key", place.keys["read"]), "lacks the scope fleet"),
        (("settings", "set", "nonsense=1"), "error: nonsense: is not a known field"),
        (("settings", "set", "target_wait=soon"), "error: target_wait: "),
        (("settings", "set", "target_wait"), "error: a setting must be given as NAME=VALUE; got 'target_wait'"),
        (("settings", "set", "weight.unknown=2"), "error: there is no job class 'unknown'"),
    ):
        stderr = bilinq(*words, code=2).stderr
        assert text in stderr
        assert len(stderr.splitlines()) == 1


def test_settings_are_shown_and_changed(place: Place) -> None:
    before = json.loads(bilinq("settings", "show", "--json").stdout)
    assert (before["target_wait"], before["weight"]) == (2.0, {"short": 1.0})
    changed = bilinq("settings", "set", "target_wait=5", "weight.short=2.5", "exploration=none", "--json").stdout
    after = json.loads(changed)
    assert (after["target_wait"], after["weight"], after["exploration"]) == (5.0, {"short": 2.5}, "none")
    assert place.client.settings().target_wait == 5.0
    shown = [line.split("│")[1:3] for line in bilinq("settings", "show").stdout.splitlines() if "│" in line]
    values = {name.strip(): value.strip() for name, value in shown}
    assert (values["target_wait"], values["V"], values["weight.short"]) == ("5", "not set", "2.5")
    back = bilinq(
        "settings", "set", "target_wait=2", "weight.short=1", f"exploration={before['exploration']}", "--json"
    )
    assert json.loads(back.stdout) == before


def test_changes_of_settings_are_listed_and_undone(place: Place) -> None:
    bilinq("settings", "set", "target_wait=4", "weight.short=3")
    change = json.loads(bilinq("settings", "history", "--limit", "1", "--json").stdout)["changes"][0]
    assert (change["after"], change["undone"]) == ({"target_wait": 4.0, "weight": {"short": 3.0}}, False)
    assert "target_wait: 2 to 4; weight.short: 1 to 3" in bilinq("settings", "history").stdout
    assert "must be" in bilinq("settings", "undo", "--change", "999", code=2).stderr
    undone = json.loads(bilinq("settings", "undo", "--change", str(change["id"]), "--json").stdout)
    assert (undone["target_wait"], undone["weight"]) == (2.0, {"short": 1.0})
    lines = bilinq("settings", "history", "--limit", "2").stdout
    assert f"undoes {change['id']}" in lines and "undone" in lines


def test_a_setting_has_one_value_in_its_range() -> None:
    update = parse_update(["work_conserving=true", "V=2", "weight.a=b=3"])
    assert (update.work_conserving, update.V, update.weight) == (True, 2.0, {"a=b": 3.0})
    for words in (["V=1", "V=2"], ["weight.a=1", "weight.a=1"], ["V=nan"], ["V=-1"], ["V=inf"], ["=1"], ["weight=1"]):
        with pytest.raises(BadInput):
            parse_update(words)
