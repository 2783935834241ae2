"""`bilinq serve` as a process: it says where it is, answers, ends in order, and says in one line what is wrong."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from process import Process, make_key, parse, start, wait_for


class Served:
    """A running service with an admin key."""

    def __init__(self, process: Process, database: str, key: str) -> None:
        self.process, self.database, self.key = process, database, key
        self.admin = process.client(key)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    database = f"sqlite:///{folder}/live.db"
    key = make_key(database, "admin")
    with Process(folder, database, "--max-body", "4096") as process:
        served = Served(process, database, key)
        with served.admin:
            yield served


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bilinq.commands.app", *words], capture_output=True, text=True, timeout=60
    )


def fails(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Check for exit code 2 and one line that has all `parts`."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def test_it_tells_where_it_is_and_logs_lines_of_pairs(served: Served) -> None:
    assert served.process.told == f"bilinq serves {served.process.address}\n"
    first = served.process.events()[0]
    assert (first["level"], first["event"], first["address"]) == ("info", "serving", served.process.address)


def test_a_whole_life_over_http(served: Served) -> None:
    key = served.admin.post("/v1/keys", json={"scopes": ["submit", "work"]}).json()["key"]
    with served.process.client(key) as client:
        job = client.post("/v1/jobs", json={"jobs": [{"class": "short", "payload": {"a": 1}}]}).json()["jobs"][0]["id"]
        server = client.post("/v1/servers", json={"class": "gpu"}).json()["id"]
        lease = client.post(f"/v1/servers/{server}/lease", params={"wait": 10}).json()
        assert (lease["job"]["id"], lease["job"]["payload"]) == (job, {"a": 1})
        end = {"fence": lease["fence"], "reward": 0.7, "result": [1]}
        assert client.post(f"/v1/leases/{lease['lease']}/finish", json=end).json()["state"] == "done"
        found = client.get(f"/v1/jobs/{job}").json()
        assert (found["state"], found["result"], found["reward"]) == ("done", [1], 0.7)


def test_answers_do_not_name_the_server(served: Served) -> None:
    answer = served.admin.get("/healthz")
    assert "server" not in answer.headers
    assert answer.headers["x-frame-options"] == "DENY"


def test_a_large_body_is_refused_while_it_is_sent(served: Served) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 1024

    headers = {"Content-Type": "application/json"}
    answer = served.admin.post("/v1/jobs", content=b" " * 5000, headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    with contextlib.suppress(httpx.TransportError):  # it may write again before it reads the answer
        assert served.admin.post("/v1/jobs", content=endless(), headers=headers).status_code == 413


def test_endless_headers_end_the_connection(served: Served) -> None:
    host, port = served.process.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ")
        with pytest.raises(OSError):
            for _ in range(1000):
                raw.sendall(b"x" * 4096)
                time.sleep(0.001)
    assert served.admin.get("/healthz").status_code == 200


def test_what_is_no_http_is_refused(served: Served) -> None:
    host, port = served.process.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as raw:
        raw.sendall(b"\x16\x03\x01\x00\x05hello\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400")


def test_a_poll_is_withdrawn_when_the_client_goes(served: Served) -> None:
    name = {"class": "gpu", "name": "goes away"}
    server = served.admin.post("/v1/servers", json=name).json()["id"]

    def state() -> str:
        return str(next(one["state"] for one in served.admin.get("/v1/servers").json() if one["id"] == server))

    host, port = served.process.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        ask = (
            f"POST /v1/servers/{server}/lease?wait=30 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\n\r\n"
        )
        raw.sendall(ask.encode())
        wait_for(lambda: state() == "idle")
    wait_for(lambda: state() == "away")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_order_and_forgets_nothing(tmp_path: Path, number: signal.Signals) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    answers: list[int] = []
    with Process(tmp_path, database) as process, process.client(key) as client:
        job = client.post("/v1/jobs", json={"jobs": [{"class": "short", "key": "once"}]}).json()["jobs"][0]["id"]
        client.delete(f"/v1/jobs/{job}")
        server = client.post("/v1/servers", json={"class": "gpu", "name": "a"}).json()["id"]
        path = f"/v1/servers/{server}/lease?wait=60"
        poll = threading.Thread(target=lambda: answers.append(client.post(path).status_code))
        poll.start()
        wait_for(lambda: client.get("/v1/servers").json()[0]["state"] == "idle")
        start = time.monotonic()
        assert process.stop(number) == 0
        assert time.monotonic() - start < 5.0
        poll.join()
        assert answers == [204]
        assert [event["event"] for event in process.events()] == ["serving", "stopping", "stopped"]
    with Process(tmp_path, database) as process, process.client(key) as client:
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled"
        again = client.post("/v1/jobs", json={"jobs": [{"class": "short", "key": "once"}]})
        assert again.json()["jobs"] == [{"id": job, "state": "cancelled"}]
        assert process.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_kernels_are_compiled_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """Compiling takes minutes on a slow machine, and the thread that does it cannot be ended."""
    kernels, log = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}, tmp_path / "log.txt"
    with start(tmp_path, f"sqlite:///{tmp_path}/live.db", environment=kernels) as child:
        try:
            wait_for(lambda: "compiling kernels" in log.read_text(), 60.0)
            child.send_signal(number)
            assert child.wait(5.0) == 0
        finally:
            child.kill()
        assert child.stdout is not None and child.stdout.read() == ""
    told = [parse(line)["event"] for line in log.read_text().splitlines()]
    assert told[-2:] == ["stopping", "stopped"] and "serving" not in told


def test_it_says_what_is_missing(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    with Process(tmp_path, database, settings="") as process:
        told = [event["event"] for event in process.events() if event["level"] == "warning"]
        assert len(told) == 2
        assert f"bilinq keys create --scope admin --database {database}" in told[0]
        assert "job classes or server classes are missing" in told[1]
        assert process.stop() == 0


def test_what_is_wrong_is_one_line(served: Served, tmp_path: Path) -> None:
    port = served.process.address.rpartition(":")[2]
    fails(command("serve", "--port", port, "--database", f"sqlite:///{tmp_path}/a.db"), f"127.0.0.1:{port}", "in use")
    assert not (tmp_path / "a.db").exists()
    fails(command("serve", "--port", "0", "--database", served.database), "in use by process", "only one can write")
    fails(command("serve", "--port", "0", "--database", "mysql://x/y"), "database must be", "mysql://x/y")
    fails(command("serve", "--port", "0", "--database", "postgresql://u:secret@127.0.0.1:1/x"), "cannot be reached")
    config = tmp_path / "bad.toml"
    config.write_text("prot = 1")
    fails(command("serve", "--config", str(config)), "bad.toml: unknown key 'prot'")
    fails(command("serve", "--config", str(tmp_path / "none.toml")), "none.toml: cannot be read")
    fails(command("serve", "--port", "99999"), "--port: expected int <= 65535; got 99999")
    fails(command("serve", "--host", "no.such.host.invalid", "--port", "0"), "no.such.host.invalid:0")


def test_keys_of_a_database_in_use_are_left_to_the_service(served: Served) -> None:
    fails(command("keys", "create", "--scope", "read", "--database", served.database), "in use", "--url")
    made = command("keys", "create", "--scope", "read", "--url", served.process.address, "--key", served.key)
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    prefix = key[3:11]
    with served.process.client(key) as client:
        assert client.get("/v1/me").json()["scopes"] == ["read"]
        assert prefix in command("keys", "list", "--database", served.database).stdout
        done = command("keys", "revoke", prefix, "--url", served.process.address, "--key", served.key)
        assert done.stdout == f"{prefix} is revoked\n"
        assert client.get("/v1/me").status_code == 401


def test_admin_actions_are_in_the_audit(served: Served) -> None:
    made = served.admin.post("/v1/keys", json={"scopes": ["read"], "namespace": "audited"}).json()
    served.admin.delete(f"/v1/keys/{made['info']['prefix']}")
    served.admin.put("/v1/job-classes/audited", json={"features": [0.5, 0.5]})
    entries = served.admin.get("/v1/audit").json()["entries"]
    told = " | ".join(f"{entry['who']} {entry['what']} {entry['detail']}" for entry in entries[:3])
    assert made["info"]["prefix"] in told
    assert "audited" in told
    assert made["key"] not in str(entries)
    assert {entry["who"] for entry in entries[:3]} == {served.key[3:11]}


EXTREMES: list[tuple[str, str, Any]] = [
    *(("PATCH", "/v1/knobs", {name: value}) for name in ("V", "target_wait") for value in (1e-6, 1e9)),
    *(("PATCH", "/v1/knobs", {"weight": {"short": value}}) for value in (1e-6, 1e9)),
    ("PATCH", "/v1/knobs", {"V": 1e-6, "weight": {"short": 1e9}}),
    *(("PUT", path, {"features": features})
      for features in ([1e6, 1e6], [-1e6, 1e6], [0.0, 0.0], [5e-324, 0.0], [1.0, 0.2])
      for path in ("/v1/job-classes/short", "/v1/server-classes/gpu")),
]  # fmt: skip


def test_extreme_knobs_and_classes_do_not_stop_the_slots(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database) as process, process.client(key) as client:
        client.post("/v1/jobs", json={"jobs": [{"class": "short"}] * 100})
        server = client.post("/v1/servers", json={"class": "gpu"}).json()["id"]
        for method, path, body in EXTREMES:
            assert client.request(method, path, json=body).status_code == 200
            lease = client.post(f"/v1/servers/{server}/lease?wait=10")
            assert lease.status_code == 200, body
            end = {"fence": lease.json()["fence"], "reward": 1.0}
            assert client.post(f"/v1/leases/{lease.json()['lease']}/finish", json=end).status_code == 200
            assert client.get("/v1/state").status_code == 200
        for value in (0.0, 5e-324, 1e308):
            assert client.patch("/v1/knobs", json={"V": value}).status_code == 422
        assert process.stop() == 0
        assert [event for event in process.events() if event["level"] != "info"] == []


def test_the_environment_sets_everything(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    environment = {"BILINQ_RATE": "1", "BILINQ_LOG_REQUESTS": "true", "BILINQ_PORT": "1"}
    key = make_key(database, "read")
    with Process(tmp_path, database, environment=environment) as process, process.client(key) as client:
        assert [client.get("/v1/me").status_code for _ in range(2)] == [200, 429]
        assert process.stop() == 0
        told = [event for event in process.events() if event["event"] == "request"]
        assert [(event["path"], event["status"], event["key"]) for event in told] == [
            ("/v1/me", "200", key[3:11]), ("/v1/me", "429", key[3:11]),
        ]  # fmt: skip


def test_it_answers_while_it_starts(tmp_path: Path) -> None:
    """Kernels are compiled in a folder that has none; meanwhile it lives, is not ready, and says why; a command waits."""
    database, port = f"sqlite:///{tmp_path}/live.db", free_port()
    key = make_key(database, "admin")
    words = [sys.executable, "-m", "bilinq.commands.app", "serve", "--database", database, "--port", str(port)]
    with subprocess.Popen(
        words, stderr=subprocess.DEVNULL, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    ) as child:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30.0) as client:
                assert wait_for(lambda: answer(client, "/healthz"), 60.0).status_code == 200
                assert client.get("/readyz").status_code == 503
                shown = "the service is starting: compiling kernels for this machine"
                wait_for(lambda: client.get("/readyz").json()["detail"].startswith(shown), 60.0)
                told = client.get("/v1/state", headers={"Authorization": f"Bearer {key}"})
                assert told.status_code == 503 and told.json()["detail"].startswith(shown)
                assert told.json()["type"] == "urn:bilinq:starting" and float(told.headers["retry-after"]) > 0.0
                create = ("keys", "create", "--scope", "read", "--url", str(client.base_url), "--key", key)
                while "repeat the command when the service is ready" in (made := command(*create)).stderr:
                    pass  # it gives up after 30 s, which a busy machine may need
                assert made.returncode == 0, made.stderr
                assert client.get("/v1/me", headers={"Authorization": f"Bearer {made.stdout.strip()}"}).is_success
        finally:
            child.kill()


def answer(client: httpx.Client, path: str) -> httpx.Response | None:
    with contextlib.suppress(httpx.ConnectError):
        return client.get(path)
    return None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
