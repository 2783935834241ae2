"""The page on running the service is true: its commands run, and its tables have every metric, event and path there is."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from databases import PROGRAMS, Postgres
from process import Process, make_key
from prometheus_client.parser import text_string_to_metric_families as parse

from bilinq.live.http.server import GRACE
from bilinq.live.service.service import FRESH
from bilinq.live.settings import ServiceSettings
from pages import FENCE, ROOT, page, run, script, section

pytest_plugins = ("databases",)

TEXT = page("docs/operations.md")
UNIT = page("deploy/systemd/bilinq.service")
CURL = f"""#!{sys.executable}
import sys, httpx
name, value = sys.argv[3].split(": ", 1)
print(httpx.get(sys.argv[4], headers={{name: value}}, trust_env=False).text)
"""
"""What the page uses of curl, where that is not installed."""


def prepare(folder: Path) -> None:
    """Write the settings of the tutorial, the files of this one, and a curl if need be."""
    script(section(page("docs/tutorial-serve.md"), "1. Name your jobs and servers"), folder)
    script(TEXT, folder)
    if shutil.which("curl") is None:
        (folder / "curl").write_text(CURL)
        (folder / "curl").chmod(0o755)


def with_path(folder: Path, *more: Path) -> dict[str, str]:
    return {"PATH": ":".join(map(str, (folder / "bin", *more, folder, os.environ["PATH"])))}


def test_the_drill_works_as_written(tmp_path: Path) -> None:
    prepare(tmp_path)
    text = section(TEXT, "A drill")
    printed = run(script(text, tmp_path), tmp_path, with_path(tmp_path))
    shown = [body for kind, _, body in FENCE.findall(text) if kind == "text"]
    assert len(shown) == 2
    for one in shown:
        assert one in printed


def test_keys_are_rotated_as_written(tmp_path: Path) -> None:
    prepare(tmp_path)
    start = "export BILINQ_KEY=$(bilinq keys create --scope admin)\nbilinq serve --config service.toml &\n"
    printed = run(f"set -e\n{start}bilinq submit chat\n. ./keys.sh\n", tmp_path)
    assert len(re.findall(r"^j\d+$", printed, re.MULTILINE)) == 2
    assert re.search(r"^[a-z0-9]{8} is revoked$", printed, re.MULTILINE)
    assert printed.count("web front") == 2


def test_jobs_and_settings_are_changed_as_written(tmp_path: Path) -> None:
    prepare(tmp_path)
    start = "export BILINQ_KEY=$(bilinq keys create --scope admin)\nbilinq serve --config service.toml &\n"
    printed = run(f"set -e\n{start}job=$(bilinq submit chat)\n. ./operators.sh\n", tmp_path)
    for text in ("j1 is cancelled", "0 jobs cancelled", "0 jobs queued again", "target_wait: 2 to 5", "weight.chat"):
        assert text in printed


RECEIVER = """
import http.server, pathlib
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with open("received.txt", "ab") as file:
            file.write(body + b"\\n")
        self.send_response(204)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
pathlib.Path("address.txt").write_text(f"http://127.0.0.1:{server.server_port}/")
server.serve_forever()
"""


def test_ended_jobs_are_forwarded_and_servers_drained_as_written(tmp_path: Path) -> None:
    """Jobs that end before the program begins, and after it was killed, arrive; then no server gets another job."""
    prepare(tmp_path)
    (tmp_path / "receiver.py").write_text(RECEIVER)
    start = "export BILINQ_KEY=$(bilinq keys create --scope admin)\nbilinq serve --config service.toml &\n"
    work = "bilinq submit chat --count 1 --wait 60"
    until = "until [ -f received.txt ] && [ $(wc -l < received.txt) -ge %d ]; do sleep 0.1; done"
    commands = [
        start, "python receiver.py &", "bilinq work small --reward last-line -- sh -c 'echo 0.5' &", work,
        "export WEBHOOK=$(cat address.txt)", "python forward.py & forward=$!", until % 1, "kill -9 $forward", work,
        "python forward.py &", until % 2, "python drain.py",
        "python -c 'from bilinq.client import Client; print({one.held for one in Client().servers()})'",
        "python drain.py release",
    ]  # fmt: skip
    assert run("\n".join(["set -e", *commands]), tmp_path).endswith("{'draining'}\n")
    received = [json.loads(line) for line in (tmp_path / "received.txt").read_text().splitlines()]
    assert list(dict.fromkeys(one["job"] for one in received)) == ["j1", "j2"]
    assert {one["state"] for one in received} == {"done"}


def test_old_backups_are_removed(tmp_path: Path) -> None:
    prepare(tmp_path)
    make_key(f"sqlite:///{tmp_path}/bilinq.db", "admin")
    for k in range(20):
        old = tmp_path / f"backup-{k:02}.db"
        old.touch()
        os.utime(old, (k, k))
    run("sh -e backup.sh", tmp_path)
    kept = sorted(path.name for path in tmp_path.glob("backup-*.db"))
    assert kept[:13] == [f"backup-{k:02}.db" for k in range(7, 20)]
    assert len(kept) == 14


def test_postgresql_is_restored_as_written(tmp_path: Path, postgres: Postgres) -> None:
    prepare(tmp_path)
    for name in ("written", "restored"):
        postgres.run(f"CREATE DATABASE {name}")
    plain = postgres.fresh().partition("&options")[0]
    one, two = (plain.replace("/postgres?", f"/{name}?") for name in ("written", "restored"))
    key = make_key(one, "admin")
    run("sh -e postgres.sh", tmp_path, with_path(tmp_path, PROGRAMS) | {"BILINQ_DATABASE": one, "RESTORED": two})
    with Process(tmp_path / "b", two) as process, process.client(key) as http:
        assert http.get("/v1/me").status_code == 200
        assert http.get("/v1/audit").json()["entries"][0]["what"] == "restore"
        assert process.stop() == 0


def test_one_server_reward_and_tenant_are_changed_as_written(tmp_path: Path) -> None:
    prepare(tmp_path)
    start = "export BILINQ_KEY=$(bilinq keys create --scope admin)\nbilinq serve --config service.toml &\n"
    commands = [
        start, "for name in small large; do",
        "bilinq work $name --name gpu-$name --reward last-line -- sh -c 'echo 0.5' & done",
        "bilinq submit chat --count 40 --wait 60", "python decisions.py large", "wc -l < decisions.jsonl",
        "python correct.py j1 0.25", "python decisions.py large >again.txt", "wc -l < decisions.jsonl",
        "python hold.py gpu-small quarantine", "python hold.py gpu-small release", "python tenant.py research >tenant.key",
        "BILINQ_KEY=$(cat tenant.key) bilinq submit chat --count 3",
        "python -c 'from bilinq.client import Client; print(Client().namespaces()[-1])'",
    ]  # fmt: skip
    printed = run("\n".join(["set -e", *commands]), tmp_path)
    assert re.findall(r"^40$", printed, re.MULTILINE) == ["40", "40"]
    assert "Estimate" in printed
    assert "reward=0.25, repeated=False, corrected=True)" in printed
    assert re.search(r"^s\d quarantined\ns\d None$", printed, re.MULTILINE)
    assert re.search(r"NamespaceState\(name='research', .*rate=50.0, backlog=1000, .*running=4, ", printed)


def test_a_role_of_the_application_enqueues_as_written(tmp_path: Path, postgres: Postgres) -> None:
    prepare(tmp_path)
    postgres.run("CREATE DATABASE enqueued")
    url = postgres.fresh().partition("&options")[0].replace("/postgres?", "/enqueued?")
    key = make_key(url, "admin")
    with Process(tmp_path / "service", url) as process, process.client(key) as http:
        assert http.put("/v1/job-classes/chat", json={"features": [1.0, 0.5]}).is_success
        printed = run("sh -e enqueue.sh", tmp_path, with_path(tmp_path, PROGRAMS) | {"BILINQ_DATABASE": url})
        assert "order 77" in printed
        assert process.stop() == 0
    postgres.run("DROP DATABASE enqueued WITH (FORCE)")


def test_every_metric_is_in_the_table(tmp_path: Path) -> None:
    table = section(TEXT, "Watching")
    documented = set(
        re.findall(r"`((?:bilinq|process)_\w+)`", "\n".join(re.findall(r"^\| `.*?\| ", table, re.MULTILINE)))
    )
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "read")
    with Process(tmp_path, database, "--shadow", "first-come") as process, process.client(key) as http:
        http.get("/metrics")
        found = {family.name + "_total" * (family.type == "counter") for family in parse(http.get("/metrics").text)}
        assert process.stop() == 0
    assert documented == found


EVENT = r'\.(debug|info|warning|error|exception)\(\s*f?"([^"]+)"'
"""A line of a logger, or of one that logs an event at most every ten seconds."""


def test_every_event_is_in_the_table_with_its_level() -> None:
    """Of the service; what clients and workers log is their own."""
    documented = dict(re.findall(r"^\| `(.+?)` \| (\w+) \|", section(TEXT, "Logs"), re.MULTILINE))
    found: dict[str, str] = {}
    for file in (ROOT / "src" / "bilinq" / "live").rglob("*.py"):
        if "client" not in file.parts:
            for level, event in re.findall(EVENT, file.read_text(encoding="utf-8")):
                found[re.sub(r"%\w|\{\w+\}", "...", event)] = level.replace("exception", "error")
    assert {shortened(event, documented): level for event, level in found.items()} == documented
    assert len(found) == len(documented)


def shortened(event: str, documented: Iterable[str]) -> str:
    """Return how the table has an event: whole, or up to an ellipsis."""
    short = [one for one in documented if one.endswith("...") and ": " not in one]
    return next((one for one in short if event.startswith(one[:-3])), event)


def test_paths_and_times_are_those_of_the_files() -> None:
    setup = section(TEXT, "systemd")
    for path in ("/var/lib/bilinq", "/opt/bilinq/bin/", "/etc/bilinq/service.toml", "/etc/bilinq/environment"):
        assert path in setup
        assert path in UNIT
    assert "User=bilinq\n" in UNIT
    assert f"up to {GRACE} s" in TEXT
    assert FRESH == 5.0
    for path in set(re.findall(r"`(deploy/[\w/.]+)`", TEXT)) | set(re.findall(r"(deploy/[\w/.]+)", setup)):
        assert (ROOT / path).exists(), path
    assert (ROOT / "deploy" / "Containerfile").exists()


@pytest.mark.parametrize("name", ["backlog", "retention", "slot", "rate", "lease", "advertise", "log_format"])
def test_settings_that_are_named_exist(name: str) -> None:
    assert f"`{name}" in TEXT
    assert name in ServiceSettings.__struct_fields__
