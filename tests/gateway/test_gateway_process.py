"""The gateway as a process: the commands of a new user, the demo, and kills under load."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import httpx
import openai
from gateway_stand import SEA, wait_for
from soak import soak

COMMAND = (sys.executable, "-m", "bilinq.commands.app")


def bilinq(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def process(*words: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    one = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield one
    finally:
        one.send_signal(signal.SIGTERM)
        one.communicate(timeout=60)


def first_line(one: subprocess.Popen[str]) -> str:
    assert one.stdout is not None
    return one.stdout.readline()


def test_from_nothing_to_an_answer_as_docs_gateway_md_says(tmp_path: Path) -> None:
    """`bilinq init gateway`, fakes at the ports of that file, `--check`, `bilinq gateway`, an answer and feedback."""
    assert "bilinq gateway --config gateway.toml" in bilinq("init", "gateway", folder=tmp_path).stdout
    again = bilinq("init", "gateway", folder=tmp_path)
    assert again.returncode == 2 and "--force" in again.stderr
    text = (tmp_path / "gateway.toml").read_text()
    (tmp_path / "gateway.toml").write_text(text.replace("9001", "9521").replace("9003", "9523"))
    assert "2 back ends and 0 tenants" in bilinq("gateway", "--check", folder=tmp_path).stdout
    fakes = (sys.executable, "-m", "bilinq.gateway.fakes", "--port", "9521", "--speed", "50")
    with (
        process(*fakes, folder=tmp_path) as behind,
        process(*COMMAND, "gateway", "--port", "0", folder=tmp_path) as one,
    ):
        assert "judge" in first_line(behind)
        address = re.findall(r"http://\S+(?=/v1)", first_line(one))[0]
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model="auto", messages=SEA)
            assert answer.model in ("small", "large")
            client.post("/feedback", cast_to=object, body={"id": answer.id, "thumbs": "up"})
        why = httpx.get(f"{address}/v1/requests/{answer.id}/decision", trust_env=False).json()
        assert why["worth"]["quality_from"] == "feedback" and why["worth"]["quality"] == 1.0
        assert "bilinq gateway" in httpx.get(f"{address}/", trust_env=False).text
    assert one.returncode == 0 and (tmp_path / "gateway.db").exists()


def test_a_new_key_is_shown_with_its_hash(tmp_path: Path) -> None:
    shown = bilinq("gateway", "--new-key", folder=tmp_path).stdout
    key, stored = re.findall(r'key: (\S+)\nkey_sha256 = "(\w+)"', shown)[0]
    assert sha256(key.encode()).hexdigest() == stored


def test_wrong_settings_end_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text("prot = 1")
    wrong = bilinq("gateway", folder=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: gateway.toml: 'prot' is not a setting")
    assert "bilinq init gateway" in bilinq("gateway", "--config", "none.toml", folder=tmp_path).stderr


def test_the_demo_shows_a_page_and_learns(tmp_path: Path) -> None:
    with process(*COMMAND, "gateway", "--demo", "--port", "0", folder=tmp_path) as one:
        address = re.findall(r"http://[\d.:]+(?=/ )", first_line(one))[0]
        state = wait_for(
            lambda: (found := httpx.get(f"{address}/v1/gateway", trust_env=False).json())["quality_from"] and found,
            60.0,
        )
    assert {one["name"] for one in state["backends"]} == {"small", "coder", "large", "reader"}
    assert state["recent"] and state["learnt"]


def test_kills_of_the_gateway_under_load_lose_and_repeat_nothing() -> None:
    counted = soak(kills=2, seconds=1.0, port=9530)
    assert counted["answers"] >= 10 and counted["observations"] >= 10
