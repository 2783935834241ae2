"""The wheel: complete without the source tree, with licence and citation that fit."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from bilinq.commands.app import app
from package import PROMISES, ROOT, build

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(build("wheel", folder)) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"


def test_the_wheel_has_every_file_of_the_package(unpacked: Path) -> None:
    def files(root: Path) -> set[str]:
        found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return {str(path) for path in found if "__pycache__" not in path.parts}

    assert files(unpacked / "bilinq") == files(ROOT / "src" / "bilinq")
    (licence,) = unpacked.glob("*.dist-info/licenses/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_runs_without_the_source_tree(unpacked: Path, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(unpacked)!r}); from bilinq.commands.app import app, __file__ as place; "
    )
    code += f"assert {str(unpacked)!r} in place; app(sys.argv[1:])"
    for words in (["--version"], ["init"], ["trace", "show", "--json"], ["keys", "create", "--scope", "admin"]):
        done = subprocess.run(
            [sys.executable, "-B", "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"service.toml", "bilinq.db"}


def test_every_extra_has_a_promise_that_is_checked() -> None:
    assert set(PROMISES) - {""} == set(PROJECT["optional-dependencies"]) - {"bench", "dev"}


@pytest.mark.parametrize(
    "command", [line for lines in PROMISES.values() for line in lines if line.startswith("bilinq")]
)
def test_the_commands_of_the_promises_exist(command: str) -> None:
    """Their options too: an unknown one is an error even where help is asked for."""
    done = CliRunner().invoke(app, [*command.split()[1:], "--help"])
    assert done.exit_code == 0, done.stderr


def test_the_licence_is_complete() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.findall(r"^   (\d)\. ", text, re.M) == list("123456789")
    assert "END OF TERMS AND CONDITIONS" in text and PROJECT["license"] == "Apache-2.0"


def test_the_citation_fits_the_project() -> None:
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (about["cff-version"], about["version"], about["license"]) == (
        "1.2.0",
        PROJECT["version"],
        PROJECT["license"],
    )
    (paper,) = about["references"]
    assert [one["family-names"] for one in paper["authors"]] == ["Kim", "Vojnović"]
    assert paper["title"] in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
