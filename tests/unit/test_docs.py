"""Every Python block of README and docs runs, each page in a namespace of its own."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.exists()]


def blocks(text: str) -> list[tuple[int, str]]:
    """Return line number and code of every Python block."""
    fences = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text[: fence.start(1)].count("\n"), fence[1]) for fence in fences]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


def test_blocks_are_found_with_their_line() -> None:
    assert blocks("a\n```python\nx = 1\n```\n```sh\nls\n```\n") == [(2, "x = 1\n")]
