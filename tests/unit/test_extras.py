"""Packages that are not installed: one line with the command to run, wherever bilinq needs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bilinq
from bilinq.errors import BilinqError, NotInstalled
from bilinq.extras import EXTRAS, OTHERS, missing, not_installed, optional_imports

PACKAGES = [package for packages in EXTRAS.values() for package in packages] + list(OTHERS)
BLOCKED = """
import importlib, json, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

packages, tried = json.loads(sys.argv[1]), json.loads(sys.argv[2])
sys.meta_path.insert(0, Block())
import bilinq
from bilinq.errors import NotInstalled
from bilinq.commands.app import app
from typer.testing import CliRunner

def attempt(text):
    if text.startswith("bilinq "):
        done = CliRunner().invoke(app, text.split()[1:])
        return done.stderr.strip().removeprefix("error: ") if done.exit_code == 2 else f"exit code {done.exit_code}"
    try:
        importlib.import_module(text) if "(" not in text else eval(text)
    except NotInstalled as error:
        return str(error)
    except Exception as error:
        return repr(error)
    return "works"

print(json.dumps([attempt(text) for text in tried]))
"""
"""A machine without any extra, simulated: imports of modules, calls, and commands."""

NEEDED = {
    "live": (
        "bilinq.client.Client()",
        "importlib.import_module('bilinq.live.run').run(None, None)",
        "bilinq serve",
        "bilinq serve --demo",
        "bilinq jobs list --key k",
        "bilinq settings show --key k",
        "bilinq submit a --key k",
        "bilinq top --key k",
        "bilinq work a --key k -- true",
        "bilinq keys list --url http://127.0.0.1:1 --key k",
    ),
    "postgres": (
        "importlib.import_module('bilinq.live.store').open_store('postgresql://127.0.0.1/x')",
        "bilinq keys list --database postgresql://127.0.0.1/x",
        "bilinq backup --out x --database postgresql://127.0.0.1/x",
    ),
    "lab": (
        "bilinq.traces.reward_table('x.csv', servers={'a': 1})",
        "bilinq.Workload.from_table('x.csv', servers={'a': 1}, arrival='arrival')",
        "next(bilinq.traces.batches('machine.csv', 'machine_events'))",
        "importlib.import_module('bilinq.display').new_axes()",
        "importlib.import_module('bilinq.routing.contest_report').style_module()",
        "bilinq paper",
        "bilinq trace digest .",
    ),
    "ray": ("bilinq.ray_cluster.imported()", "bilinq distributed --engine ray"),
    "peers": ("importlib.import_module('bilinq.routing.peers').library('mabwiser')",),
    "text": ("importlib.import_module('bilinq.traces.routing_tables')._hashed(['a', 'b'], 1, 0)",),
    "gymnasium": ("bilinq.plugins.gymnasium", "bilinq.plugins.events_env"),
}
"""What needs which extra: calls of the library and commands."""


def without_extras(tried: list[str], folder: Path) -> list[str]:
    words = [sys.executable, "-c", BLOCKED, json.dumps(PACKAGES), json.dumps(tried)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def importers() -> list[str]:
    """Return the modules of bilinq whose text imports a package of an extra."""
    root = Path(bilinq.__file__).parent
    starts = tuple(f"{word} {package}" for word in ("import", "from") for package in PACKAGES)
    found = [
        path
        for path in root.rglob("*.py")
        if any(line.lstrip().startswith(starts) for line in path.read_text().splitlines())
    ]
    return [
        ".".join(("bilinq", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__") for path in found
    ]


def command(extra: str) -> str:
    return f"bilinq[{extra}] is not installed; run: pip install 'bilinq[{extra}]'"


def test_whatever_needs_an_extra_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "machine.csv").write_text("time,machine_id\n")
    (tmp_path / "x.csv").write_text("arrival\n1\n")
    wanted = {text: command(extra) for extra, texts in NEEDED.items() for text in texts}
    modules = importers()
    found = without_extras([*wanted, *modules], tmp_path)
    assert dict(zip(wanted, found, strict=False)) == wanted
    assert len(modules) > 15
    lines = {"works", *map(command, EXTRAS)}
    assert {text: got for text, got in zip(modules, found[len(wanted) :], strict=True) if got not in lines} == {}


def test_other_missing_packages_are_not_disguised() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"), optional_imports():
        __import__("no_such_package")
    assert not_installed("no_such_package") is None
    assert str(not_installed("pandas")) == "pandas is not installed; run: pip install pandas"


def test_the_error_is_both_ours_and_pythons() -> None:
    assert issubclass(NotInstalled, BilinqError) and issubclass(NotInstalled, ImportError)
    assert missing("live") == []
