"""The pages on the live service are true: their commands run, their tests exist, their settings are those of the service."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import to_builtins

from bilinq.live.settings import Settings

ROOT = Path(__file__).parents[2]
LIVE = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def script(text: str, folder: Path) -> str:
    """Write the files of a text and return its shell commands as one script."""
    commands = ["set -e"]
    for kind, name, body in FENCE.findall(text):
        if name:
            (folder / name).write_text(body)
        elif kind == "sh":
            commands.append(body)
    return "\n".join(commands)


def run(commands: str, folder: Path) -> str:
    """Return what commands print in a folder, with a `bilinq` and a `python` of this source and a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (folder / "bin").mkdir()
    for name, words in (("bilinq", "-m bilinq.cli"), ("python", "")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        program.chmod(0o755)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BILINQ_")}
    environment |= {"PATH": path, "BILINQ_PORT": port, "BILINQ_URL": f"http://127.0.0.1:{port}"}
    with (folder / "out.txt").open("w") as out, (folder / "err.txt").open("w") as err:
        shell = subprocess.Popen(
            ["sh", "-c", commands], cwd=folder, env=environment, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code = shell.wait(120.0)
        finally:
            with suppress(ProcessLookupError):  # nothing is left in the background
                os.killpg(shell.pid, signal.SIGTERM)
                time.sleep(1.0)
                os.killpg(shell.pid, signal.SIGKILL)
    assert code == 0, (folder / "err.txt").read_text()
    return (folder / "out.txt").read_text()


def test_the_first_steps_work_as_written(tmp_path: Path) -> None:
    text = section(LIVE, "A client and a worker")
    printed = run(script(text, tmp_path), tmp_path)
    for kind, _, said in FENCE.findall(text):
        assert kind != "text" or said in printed
    assert "bilinq serves http://127.0.0.1:" in printed
    assert len(re.findall(r"^j\d+\tdone\t0\.[58]\b", printed, re.MULTILINE)) == 3, printed


def test_the_example_of_the_readme_works_with_the_classes_of_the_page(tmp_path: Path) -> None:
    script(section(LIVE, "A client and a worker"), tmp_path)
    commands = script(section(README, "As a running service"), tmp_path)
    assert run(f"{commands}\npython worker.py &\npython client.py\n", tmp_path).endswith("done\n")


def test_a_script_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no-such-option"):
        run(script("```sh\nbilinq keys create --no-such-option\ntrue\n```\n", tmp_path), tmp_path)


def test_every_promise_has_a_test() -> None:
    rows = re.findall(
        r"^\| .+ \| `(tests/\S+)::(test_\w+)` \|$", section(LIVE, "What is promised, and which test keeps it"), re.M
    )
    assert len(rows) > 20
    for file, name in rows:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"


def test_the_table_of_settings_is_complete_and_right() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section(LIVE, "Settings"), re.M))
    defaults = to_builtins(Settings())
    assert list(rows) == list(defaults)
    for name, value in defaults.items():
        if name == "reward":
            assert rows[name] == f"{value['low']:g} to {value['high']:g}"
        else:
            shown = (
                "none" if value in (None, [], ()) else f"`{str(value).lower() if value in (True, False) else value}`"
            )
            assert rows[name] == shown, name
