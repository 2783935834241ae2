"""`bilinq work` and `bilinq submit`: a command as a worker, and jobs from the command line; against the API with faults."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty import Faulty, until
from typer.testing import CliRunner, Result

from bilinq.client import Client, Done, HeldJob, NewJob
from bilinq.client.command import Command, CommandEnd, last_line_reward, reward_rule
from bilinq.client.guard import watch
from bilinq.commands import app as cli
from bilinq.errors import BadInput
from bilinq.live.wire.messages import Lease, LeasedJob

HELD = HeldJob(Lease("l7", 7, "s1", 0.0, 30.0, LeasedJob("j3", "short", {"a": [1, "ü"]}, 2, 1)))


pytest_plugins = ["workers"]


@pytest.fixture
def client(live: Faulty) -> Iterator[Client]:
    with Client(live.url, live.key, timeout=5.0) as client:
        yield client


EXIT = reward_rule("exit", 0.0, 1.0, 1.0)


@pytest.fixture
def environment(live: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILINQ_URL", live.url)
    monkeypatch.setenv("BILINQ_KEY", live.key)


def serve(*words: str, rule: Any = None, limit: float | None = None, held: HeldJob = HELD) -> Done:
    """Run a command for a job."""
    with Command(words, rule or EXIT, limit) as command:
        return asyncio.run(command(held))


def python(text: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", text


def test_the_command_gets_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILINQ_KEY", "bq_secret")
    monkeypatch.setenv("BILINQ_KEY_FILE", "/run/secrets/key")
    code = (
        "import json, os, sys; e = os.environ; print('first'); print(json.dumps({'reward': 0.5, 'result': "
        "[json.load(sys.stdin), {k: e[k] for k in sorted(e) if k.startswith('BILINQ_')}]})); print()"
    )
    done = serve(*python(code), rule=last_line_reward)
    assert done.reward == 0.5
    assert done.result == [
        {"a": [1, "ü"]},
        {"BILINQ_ATTEMPTS": "1", "BILINQ_FENCE": "7", "BILINQ_JOB_CLASS": "short", "BILINQ_JOB_ID": "j3",
         "BILINQ_UNITS_LEFT": "2"},
    ]  # fmt: skip


def test_a_command_may_leave_its_input_unread_and_write_a_lot(capfd: pytest.CaptureFixture[str]) -> None:
    held = HeldJob(Lease("l1", 1, "s1", 0.0, 30.0, LeasedJob("j1", "short", "x" * 500_000, 1, 0)))
    code = "print('y' * 1_000_000); print(0.25)"
    assert serve(*python(code), rule=last_line_reward, held=held).reward == 0.25
    assert len(capfd.readouterr().out) > 1_000_000


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("sh", "-c", "echo no such model >&2; exit 3"), "exit code 3: no such model"),
        (("sh", "-c", "kill -9 $$"), "killed by SIGKILL"),
        (("false",), "exit code 1"),
    ],
)
def test_a_failure_has_a_reason(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ChildProcessError) as caught:
        serve(*words)
    assert str(caught.value) == text


def test_a_command_is_ended_at_its_limit() -> None:
    start = time.monotonic()
    with pytest.raises(ChildProcessError, match=r"after 0.2 s"):
        serve("sleep", "30", limit=0.2)
    assert time.monotonic() - start < 2.0


def test_a_command_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinq.client.guard.GRACE", 0.2)
    with pytest.raises(ChildProcessError, match=r"limit"):
        serve("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done", limit=0.2)


def test_processes_left_by_a_command_are_ended(tmp_path: Path) -> None:
    start = time.monotonic()
    serve("sh", "-c", f"sleep 30 & echo $! > {tmp_path}/pid")
    assert time.monotonic() - start < 3.0
    child = int((tmp_path / "pid").read_text())
    until(lambda: not alive(child))


def test_a_missing_program_is_an_error_before_jobs_are_accepted() -> None:
    for words in (["no-such-program"], []):
        with pytest.raises(BadInput, match="command must be a program"):
            Command(words, EXIT)
    with pytest.raises(BadInput, match="limit must be"):
        Command(["true"], EXIT, 0.0)


def test_rewards() -> None:
    assert reward_rule("exit", 0.0, 5.0, 1.0)(CommandEnd(1.0, "")).reward == 5.0
    duration = reward_rule("duration", -1.0, 3.0, half=10.0)
    assert [duration(CommandEnd(seconds, "")).reward for seconds in (0.0, 10.0, 1e9)] == [3.0, 1.0, -1.0]
    last = reward_rule("last-line", 0.0, 1.0, 1.0)
    assert last(CommandEnd(1.0, "0.5")) == last(CommandEnd(1.0, '{"reward": 0.5}')) == Done(0.5)
    assert last(CommandEnd(1.0, '{"done": false, "result": [1]}')) == Done(None, False, [1])
    for line in ("", "good", "NaN", "[1]", '{"rewards": 1}', '"0.5"', "null"):
        with pytest.raises(BadInput, match="the last line must be"):
            last(CommandEnd(1.0, line))


@pytest.mark.parametrize(("seconds", "warned"), [(0.01, True), (0.6, False), (30.0, False), (60.0, True)])
def test_durations_far_from_half_are_reported_once(
    seconds: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Below a twentieth and above five times of the half, 3 % of the range of rewards are left to learn from."""
    duration = reward_rule("duration", 0.0, 1.0, half=10.0)
    for _ in range(50):
        duration(CommandEnd(seconds, ""))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("best", 0.0, 1.0, 1.0), "reward must be one of exit, duration, last-line"),
        (("exit", 1.0, 1.0, 1.0), "low must be below high"),
        (("exit", 0.0, float("inf"), 1.0), "both finite"),
        (("duration", 0.0, 1.0, 0.0), "half must be"),
    ],
)
def test_bad_rules_are_refused(values: Any, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        reward_rule(*values)


def test_the_guard_knows_which_commands_run() -> None:
    assert watch(["+12\n", "+34\n", "-12\n", "-56\n"]) == {34}


@contextmanager
def at_work(live: Faulty, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run `bilinq work` in a process."""
    command = [sys.executable, "-m", "bilinq.commands.app", "work", *words]
    environment = os.environ | {"BILINQ_URL": live.url, "BILINQ_KEY": live.key}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def alive(process: int) -> bool:
    """Return whether a process runs; one that has ended may still be listed."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_work_runs_a_command_for_each_job(live: Faulty, client: Client) -> None:
    refs = client.submit_all([NewJob("short", k) for k in (0.25, 0.5, "bad")])
    with at_work(live, "gpu", "--servers", "2", "--reward", "last-line", "--", "cat") as process:
        until(lambda: len(live.service.of_state("done")) == 2 and live.service.of_state("dead"), 30.0)
        process.send_signal(signal.SIGTERM)
        output, log = process.communicate(timeout=10.0)
    assert process.returncode == 0
    assert [client.job(ref.id).reward for ref in refs] == [0.25, 0.5, None]
    assert "the last line must be a number" in str(client.job(refs[2].id).error)
    assert sorted(output.replace('"bad"', "").split("0.")) == ["", "25", "5"]
    assert 'event="leaving' in log
    assert live.key not in log
    assert live.service.all_servers == {}


def test_a_signal_lets_the_command_finish_and_a_second_one_stops_it(
    live: Faulty, client: Client, tmp_path: Path
) -> None:
    first = client.submit("short", 0.4)
    with at_work(live, "gpu", "--", "sh", "-c", f"touch {tmp_path}/begun; sleep $(cat)") as process:
        until((tmp_path / "begun").exists, 30.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(10.0) == 0
    assert client.job(first.id).state == "done"
    second = client.submit("short")
    with at_work(live, "gpu", "--", "sh", "-c", f"sleep 30 & echo $! > {tmp_path}/pid; wait") as process:
        until((tmp_path / "pid").exists, 30.0)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert process.wait(10.0) == 0
    assert live.service.failed == [(second.id, "the worker was stopped")]
    until(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_killing_the_worker_ends_the_command(live: Faulty, client: Client, tmp_path: Path) -> None:
    client.submit("short")
    with at_work(live, "gpu", "--", "sh", "-c", f"sleep 30 & echo $! > {tmp_path}/pid; wait") as process:
        until((tmp_path / "pid").exists, 30.0)
        until(lambda: (tmp_path / "pid").read_text())
        child = int((tmp_path / "pid").read_text())
        assert alive(child)
        process.kill()
        until(lambda: not alive(child))


def test_a_command_that_kills_its_worker_at_once_is_ended_too(live: Faulty, client: Client, tmp_path: Path) -> None:
    client.submit("short")
    script = f"sleep 30 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; kill -9 $PPID; wait"
    with at_work(live, "gpu", "--", "sh", "-c", script) as process:
        assert process.wait(30.0) == -signal.SIGKILL
        until((tmp_path / "pid").exists)
        until(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_a_worker_continues_without_a_killed_guard() -> None:
    with Command(["cat"], last_line_reward) as command:
        command._guard.kill()
        command._guard.wait()
        held = HeldJob(Lease("l1", 1, "s1", 0.0, 30.0, LeasedJob("j1", "short", 0.5, 1, 0)))
        assert asyncio.run(command(held)).reward == 0.5


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, words, input=stdin)


def fails(result: Result, *parts: str) -> None:
    """Check for exit code 2 and a last line of errors that has all `parts`."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    for part in parts:
        assert part in last


@pytest.mark.usefixtures("environment")
def test_submit_prints_ids(live: Faulty) -> None:
    assert run("submit", "short", "--payload", '{"a": 1}', "--units", "2").stdout == "j1\n"
    assert run("submit", "short", "--payload", "-", stdin="[2]\n").stdout == "j2\n"
    assert run("submit", "short", "--count", "3").stdout == "j3\nj4\nj5\n"
    assert run("submit", "short", "--lines", "-", stdin="1\n\n  2\n").stdout == "j6\nj7\n"
    assert json.loads(run("submit", "short", "--json").stdout) == {"jobs": [{"id": "j8", "state": "queued"}]}
    payloads = [job.payload for job in live.service.all_jobs.values()]
    assert payloads == [{"a": 1}, [2], None, None, None, 1, 2, None]
    assert live.service.all_jobs["j1"].units == 2


@pytest.mark.usefixtures("environment")
def test_submit_sets_what_a_job_may_have(live: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[NewJob] = []
    submit = live.service._submit

    def noted(who: Any, job: NewJob) -> Any:
        found.append(job)
        return submit(who, job)

    monkeypatch.setattr(live.service, "_submit", noted)
    words = "--features 0.5,2 --servers gpu --weight 3 --deadline 600 --not-before 60 --max-attempts 2 --tag a --tag b"
    assert run("submit", "short", "--count", "2", *words.split()).stdout == "j1\nj2\n"
    for job in found:
        assert (job.features, job.servers, job.weight, job.tags) == ([0.5, 2.0], ["gpu"], 3.0, ["a", "b"])
        assert (job.deadline, job.not_before, job.max_attempts) == (600.0, 60.0, 2)
    assert len(found) == 2


@pytest.mark.usefixtures("environment")
def test_submit_once_submits_once(live: Faulty) -> None:
    words = "submit", "short", "--count", "3", "--once", "nightly"
    assert run(*words).stdout == run(*words).stdout == "j1\nj2\nj3\n"


@pytest.mark.usefixtures("environment")
def test_submit_sends_many_jobs_in_batches(live: Faulty, tmp_path: Path) -> None:
    assert run("submit", "short", "--count", "2500").exit_code == 0
    assert live.asked("/v1/jobs") == 3
    (tmp_path / "lines").write_text("\n".join(json.dumps("x" * 300_000) for _ in range(7)))
    assert run("submit", "short", "--lines", str(tmp_path / "lines")).exit_code == 0
    assert live.asked("/v1/jobs") == 3 + 4
    assert len(live.service.all_jobs) == 2507


@pytest.mark.usefixtures("environment")
def test_submit_says_how_to_continue_after_an_error(live: Faulty) -> None:
    live.service.backlog = 1500
    result = run("submit", "short", "--count", "2000", "--timeout", "2")
    fails(result, "the backlog is full")
    hint = result.stderr.splitlines()[0]
    assert hint.startswith("1000 of 2000 jobs were submitted; add --once ")
    live.service.backlog = 3000
    assert run("submit", "short", "--count", "2000", "--once", hint.split()[-5]).exit_code == 0
    assert len(live.service.all_jobs) == 2000


@pytest.mark.usefixtures("environment")
def test_submit_soon_says_that_the_service_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinq.commands.shared.SLOW", 0.05)
    result = run("submit", "short", "--url", "http://127.0.0.1:1", "--timeout", "0.5")
    fails(result, "cannot reach http://127.0.0.1:1")
    assert result.stderr.splitlines()[0] == "waiting for http://127.0.0.1:1; gives up after 0.5 s without an answer"


@pytest.mark.usefixtures("environment")
def test_submit_waits_for_the_end(live: Faulty, client: Client) -> None:
    with at_work(live, "gpu", "--reward", "last-line", "--", "cat"):
        result = run("submit", "short", "--wait", "30", "--payload", '{"reward":0.5,"result":[1]}')
        assert result.stdout == "j1\tdone\t0.5\t[1]\n"
        assert result.exit_code == 0
        result = run("submit", "short", "--wait", "30", "--payload", "7", "--json")
        assert result.exit_code == 1
        assert json.loads(result.stdout)["jobs"][0]["error"] == "reward must be between 0 and 1; got 7"
    assert run("submit", "short", "--wait", "0").exit_code == 1


@pytest.mark.usefixtures("environment")
def test_an_error_is_one_clear_line(live: Faulty, tmp_path: Path) -> None:
    fails(run("submit", "long"), "class must be one of")
    fails(run("submit", "short", "--payload", "{"), "payload must be JSON")
    fails(run("submit", "short", "--payload", "NaN"), "payload must be JSON")
    fails(run("submit", "short", "--lines", "-", stdin="1\n{\n"), "standard input, line 2 must be JSON")
    fails(run("submit", "short", "--lines", str(tmp_path / "none")), "cannot be read")
    fails(run("submit", "short", "--lines", "-", "--count", "2", stdin="1"), "--lines excludes --payload and --count")
    fails(run("submit", "short", "--count", "0"), "count must be a whole number of at least 1")
    fails(run("submit", "short", "--features", "1,x"), "features[1]: expected float, got str")
    fails(run("submit", "short", "--weight", "0"), "weight: expected float >= 1e-06")
    fails(run("submit", "short", "--key", "bq_other"), "key")
    fails(run("submit", "short", "--url", "ftp://host"), "url must be an address")
    fails(run("submit", "short", "--url", "http://127.0.0.1:1", "--timeout", "0.1"), "cannot reach http://127.0.0.1:1")
    fails(run("work", "gpu", "--reward", "best", "--", "true"), "reward must be one of")
    fails(run("work", "gpu", "--", "no-such-program"), "command must be a program")
    fails(run("work", "tpu", "--", "true"), "no server class 'tpu'")
    assert live.service.all_jobs == {}
