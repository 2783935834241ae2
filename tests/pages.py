"""Pages of the documentation whose commands are run as they are written."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
"""A block of Python, and what it prints if that follows directly."""
NUMBER = r"(?<![\w.])(-?\d+(?:\.\d+)?)(?![\w.])"


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def shown_by(printed: str, shown: str, absolute: float = 0.0) -> bool:
    """Return whether a text was printed: words to the letter, numbers within 5 % or `absolute`, with any alignment.

    Another machine may round a draw differently.
    """
    words = re.split(NUMBER, shown)[::2]
    found = re.search(NUMBER.join(re.escape(one.rstrip(" ")) + " *" for one in words), printed)
    if found is None:
        return False
    pairs = zip(found.groups(), re.findall(NUMBER, shown), strict=True)
    return all(abs(float(one) - float(other)) <= max(0.05 * abs(float(other)), absolute) for one, other in pairs)


def script(text: str, folder: Path) -> str:
    """Write the files of a text and return its shell commands as one script."""
    commands = ["set -e"]
    for kind, name, body in FENCE.findall(text):
        if name:
            (folder / name).write_text(body)
        elif kind == "sh":
            commands.append(body)
    return "\n".join(commands)


def run(commands: str, folder: Path, given: Mapping[str, str] | None = None) -> str:
    """Return what commands print in a folder, with a `bilinq` and a `python` of this source and a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (folder / "bin").mkdir()
    for name, words in (("bilinq", "-m bilinq.commands.app"), ("python", "")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        program.chmod(0o755)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BILINQ_")}
    environment |= {"PATH": path, "BILINQ_PORT": port, "BILINQ_URL": f"http://127.0.0.1:{port}"} | dict(given or {})
    with (folder / "out.txt").open("w") as out, (folder / "err.txt").open("w") as err:
        shell = subprocess.Popen(
            ["sh", "-c", commands], cwd=folder, env=environment, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code = shell.wait(120.0)
        finally:
            with suppress(ProcessLookupError):  # nothing is left in the background
                os.killpg(shell.pid, signal.SIGTERM)
                for _ in range(20):
                    time.sleep(0.05)
                    os.killpg(shell.pid, 0)
                os.killpg(shell.pid, signal.SIGKILL)
    assert code == 0, (folder / "err.txt").read_text()
    return (folder / "out.txt").read_text()
