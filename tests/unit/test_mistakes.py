"""Typical mistakes of a first week: one line each, which says what to do next."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bilinq import BadInput, Problem, allocate
from bilinq.commands import app as cli

SLOT: dict[str, Any] = {
    "queue": [3, 1],
    "reward": [[0.2, 0.9], [0.5, 0.4]],
    "capacity": [1, 1],
    "V": 10.0,
    "gamma": 1.2,
}
NOBODY = "--url http://127.0.0.1:1 --key k --timeout 0.1"

COMMANDS = {
    "serv": "Did you mean 'serve'?",
    "serve --targt-wait 3": "--target-wait",
    "serve --config typo.toml": "unknown key 'prot' (did you mean 'port'?)",
    "serve --config nowhere.toml": "nowhere.toml: cannot be read; No such file or directory; run: bilinq init",
    "serve --database mysql://x": "database must be sqlite:///FILE or postgresql://...",
    "serve --fleet gpus": "add --demo",
    "serve --V 5 --target-wait 3": "target_wait and V exclude each other",
    "serve --port {used}": "use another --port, or 0 for any",
    "jobs list": "BILINQ_KEY or BILINQ_KEY_FILE be set; create one with `bilinq keys create`",
    f"submit chat {NOBODY}": "start a service there (bilinq serve), or give the address of one with --url",
    "submit chat --payload {{oops --key k": "payload must be JSON",
    "settings set target_wait --key k": "a setting must be given as NAME=VALUE",
    "jobs cancel --key k": "give either ids of jobs or some of --state, --class and --tag",
    "work small --key k -- no-such-program": "command must be a program that can be run; got 'no-such-program'",
    "keys create --scope root": "scope must be one of submit, work, read, admin, fleet",
    "keys list --database sqlite:///none.db": "database must exist; none.db does not; `bilinq keys create` makes it",
    "keys revoke bq_1 --database sqlite:///none.db": "database must exist; none.db does not",
    "init": "service.toml: exists already; use --force to replace it, or --out for another name",
    "allocate slot.json": "missing key 'gamma'; it must be a number",
    "simulate --policy best": "policy must be one of 'sabr'",
    "simulate --set v=58": "did you mean 'V'?",
}
"""Commands, and what their message says."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BILINQ_KEY", raising=False)
    Path("typo.toml").write_text("prot = 8000\n")
    Path("service.toml").write_text("")
    Path("slot.json").write_text(json.dumps({name: value for name, value in SLOT.items() if name != "gamma"}))
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistaken_command_says_what_to_do(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        done = CliRunner().invoke(cli.app, command.format(used=used.getsockname()[1]).split())
    assert done.exit_code == 2, done.output
    assert COMMANDS[command] in " ".join(done.stderr.split())
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"queue": [3, -1]}, r"queue must be non-negative; got queue\[1\] = -1"),
        ({"reward": [[0.2, 0.9], [0.5, 1.4]]}, r"reward must be below gamma = 1.2; got reward\[1, 1\] = 1.4"),
        ({"capacity": [1, 1, 1]}, r"capacity must have shape \(..., 2\) to fit reward \(2, 2\)"),
        ({"V": 0.0}, "V must be positive; got V = 0"),
    ],
)
def test_a_mistaken_call_names_argument_rule_and_value(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        allocate(**SLOT | changes)


def test_a_mistaken_problem_names_the_field() -> None:
    with pytest.raises(BadInput, match="arrival_rate"):
        Problem(arrival_rate=[0.3, -0.1], servers=[1, 1], mean_reward=[[0.2, 0.9], [0.5, 0.4]])
