"""`bilinq doctor`: what it finds, and the exit code."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bilinq import jit
from bilinq.commands import app as cli
from bilinq.extras import EXTRAS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("BILINQ_PORT", str(free.getsockname()[1]))
    return tmp_path


def findings(code: int = 0, *words: str) -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(cli.app, ["doctor", "--json", *words])
    assert result.exit_code == code, result.output
    found = json.loads(result.stdout)
    assert found["ok"] is (code == 0)
    return {one["area"]: one for one in found["findings"]}


def test_a_complete_installation_is_in_order(folder: Path) -> None:
    found = findings()
    assert {one["state"] for one in found.values()} == {"ok"}
    assert {f"[{extra}]" for extra in EXTRAS} < found.keys()
    assert "does not exist yet" in found["database"]["text"] and "is free" in found["port"]["text"]
    assert not list(folder.iterdir())  # it looks, and creates nothing
    text = CliRunner().invoke(cli.app, ["doctor"]).stdout
    assert len(text.splitlines()) == len(found) and "ok       kernels" in text


def test_what_is_missing_or_wrong_comes_with_advice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "ray", ("no_such_package",))
    monkeypatch.setenv("BILINQ_TARGT_WAIT", "3")
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    (folder / "bilinq.db").write_text("no database" * 1000)
    with socket.create_server(("127.0.0.1", 0)) as used:
        monkeypatch.setenv("BILINQ_PORT", str(used.getsockname()[1]))
        found = findings(1)
    assert found["[ray]"]["state"] == "missing" and found["[ray]"]["advice"] == "run: pip install 'bilinq[ray]'"
    assert "did you mean 'BILINQ_TARGET_WAIT'?" in found["environment"]["text"]
    assert "NUMBA_CACHE_DIR" in found["kernels"]["advice"]
    assert found["port"]["advice"] == "use another --port"
    assert {name for name, one in found.items() if one["state"] == "problem"} == {
        "environment", "kernels", "port", "database",
    }  # fmt: skip


def test_missing_extras_are_no_problem(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "ray", ("no_such_package",))
    assert findings()["[ray]"]["state"] == "missing"


def test_bad_settings_are_a_finding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILINQ_SLOT", "never")
    assert "BILINQ_SLOT" in findings(1)["settings"]["text"]
