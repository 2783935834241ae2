"""The command line as a whole: help, completion, exit codes, JSON, similar names, and the file that `bilinq init` writes."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from bilinq.commands import app as cli
from bilinq.commands.init import KINDS
from bilinq.commands.shared import BAD_INPUT, INTERRUPTED, NOT_DONE
from bilinq.live.settings import SETTINGS, load


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, words, input=stdin, env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command and group with the words that call it."""
    group = group or typer.main.get_command(cli.app)
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


EVERY = dict(commands())
GROUPS = [path for path, command in EVERY.items() if hasattr(command, "commands")]
LEAVES = [path for path in EVERY if path not in GROUPS]


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_lists_of_commands_have_whole_sentences(path: tuple[str, ...]) -> None:
    shown = run(*path, "-h").stdout
    listed = shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(listed) == len(EVERY[path].commands)
    for line in listed:
        assert line.endswith((".", ")", ". ")) and "..." not in line and len(line) <= 80, line


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_has_short_help_and_fits_80_columns(path: tuple[str, ...]) -> None:
    short, long = run(*path, "-h"), run(*path, "--help")
    assert short.exit_code == 0 and short.stdout == long.stdout
    assert max(map(len, short.stdout.splitlines())) <= 80


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_has_json(path: tuple[str, ...]) -> None:
    assert any("--json" in parameter.opts for parameter in EVERY[path].params), path


def completed(shell: str, **variables: str) -> str:
    environment = os.environ | {"_BILINQ_COMPLETE": f"complete_{shell}"} | variables
    words = [sys.executable, "-c", "from bilinq.commands.app import app; app(prog_name='bilinq')"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout


def test_shells_complete_commands_and_options() -> None:
    assert completed("bash", COMP_WORDS="bilinq se", COMP_CWORD="1").split() == ["serve", "settings"]
    assert completed("bash", COMP_WORDS="bilinq jobs c", COMP_CWORD="2").split() == ["cancel"]
    assert "--target-wait" in completed("bash", COMP_WORDS="bilinq serve --targ", COMP_CWORD="2").split()
    assert "cancel" in completed("zsh", _TYPER_COMPLETE_ARGS="bilinq jobs c")
    assert "--install-completion" in run("-h").stdout


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["serv"], "Did you mean 'serve'?"),
        (["serve", "--targt-wait", "3"], "--target-wait"),
        (["jobs", "lst"], "Did you mean 'list'?"),
        (["simulate", "--set", "v=3"], "did you mean 'V'?"),
        (["settings", "set", "targt_wait=3"], "did you mean 'target_wait'?"),
        (["settings", "set", "work-conserving=true"], "did you mean 'work_conserving'?"),
        (["init", "servce"], "did you mean 'service'?"),
    ],
)
def test_similar_names_are_suggested(words: list[str], meant: str) -> None:
    result = run(*words)
    assert result.exit_code == BAD_INPUT
    assert meant in result.stderr


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("prot = 1", "did you mean 'port'?"),
        ("target-wait = 1.0", "did you mean 'target_wait'?"),
        ("reward = { lo = 1.0 }", "did you mean 'low'?"),
        (
            '[[job_class]]\nname = "a"\nwieght = 2.0',
            "job_class[0].wieght: is not a known field (did you mean 'weight'?)",
        ),
        (
            '[[server_class]]\nname = "a"\nzzz = 1',
            "server_class[0].zzz: is not a known field; known are name, features",
        ),
    ],
)
def test_similar_settings_are_suggested(tmp_path: Path, text: str, meant: str) -> None:
    (tmp_path / "service.toml").write_text(text)
    result = run("serve", "--config", str(tmp_path / "service.toml"))
    assert result.exit_code == BAD_INPUT
    assert meant in result.stderr
    assert result.stderr.count("\n") == 1


def test_exit_codes_are_those_of_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = " ".join(run("-h").stdout.split())
    for code in (0, NOT_DONE, BAD_INPUT, INTERRUPTED):
        assert f" {code} " in shown.partition("Exit codes:")[2]
    assert run("--version").exit_code == 0
    assert run("simulate", "--slots", "0").exit_code == BAD_INPUT
    assert run("simulate", "--no-such-option").exit_code == BAD_INPUT
    assert run("jobs", "cancel", "--state", "queued", stdin="n\n").exit_code == NOT_DONE  # the user said no

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bilinq.experiments.sweep.load", interrupt)
    assert run("sweep", "x.toml").exit_code == INTERRUPTED


def test_init_writes_a_file_that_serve_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("init")
    assert result.exit_code == 0 and "bilinq serve --config service.toml" in result.stdout
    found = load("service.toml", environment={})
    assert [one.name for one in found.job_class] == ["chat", "code"]
    assert [one.name for one in found.server_class] == ["small", "large"]
    again = run("init")
    assert again.exit_code == BAD_INPUT and "service.toml: exists already; use --force" in again.stderr
    Path("service.toml").write_text("")
    assert json.loads(run("init", "--force", "--json").stdout)["file"] == "service.toml"
    assert load("service.toml", environment={}) == found
    assert "cannot be written" in run("init", "--out", str(tmp_path / "no" / "x.toml")).stderr


def test_init_shows_every_setting_with_its_default() -> None:
    """With all comments of settings removed, the file means the same as without."""
    lines = KINDS["service"].text().splitlines()
    others = [name for name in SETTINGS if name not in ("target_wait", "reward_low", "reward_high")]
    for name in others:
        place = next(k for k, line in enumerate(lines) if line.startswith(f"# {name} ="))
        assert lines[place - 1] == f"# {SETTINGS[name].description}"
    shown = [line.removeprefix("# ") for line in lines if line.startswith("# ") and " = " in line]
    values = tomllib.loads("\n".join(shown))
    assert values == {name: SETTINGS[name].default for name in others if SETTINGS[name].default is not None}
