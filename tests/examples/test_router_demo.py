"""The router starts as the README says."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from llm_router import overhead
from llm_router.__main__ import main

ROOT = Path(__file__).parents[2]
ROUTER = [sys.executable, "-W", "error", "-m", "examples.llm_router"]


def test_the_demo_learns_and_ends() -> None:
    options = ["--demo", "--seconds", "3", "--port", "0"]
    done = subprocess.run(ROUTER + options, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert "requests; the last" in done.stdout
    assert "long code with tools" in done.stdout
    assert done.stderr == ""


def test_the_router_serves_until_it_is_told_to_stop() -> None:
    options = ["--config", "examples/llm_router/router.toml", "--port", "0"]
    with subprocess.Popen(
        ROUTER + options, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        address = child.stdout.readline().split()[-1]
        assert [one["id"] for one in httpx.get(f"{address}/models", trust_env=False).json()["data"]] == [
            "auto", "small-1", "large-1",
        ]  # fmt: skip
        child.send_signal(signal.SIGTERM)
        assert child.wait(30.0) == 0
        assert child.stderr.read() == ""


def test_what_is_wrong_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["llm_router", "--config", "nowhere.toml"])
    with pytest.raises(SystemExit, match=r"^error: nowhere\.toml: cannot be read; No such file or directory$"):
        main()


def test_the_router_costs_little_beside_client_and_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four times as much processor time as they take: some milliseconds."""
    monkeypatch.setattr(overhead, "REQUESTS", 40)
    monkeypatch.setattr(overhead, "ROUNDS", 2)
    found = asyncio.run(overhead.measure())
    assert found["directly"] < found["through the router"]
    assert found["through the router"][0] < 5.0 * found["directly"][0]
