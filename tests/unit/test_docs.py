"""Every Python block of README and docs runs, each page in a namespace of its own, and prints what the page shows."""

import re
from pathlib import Path

import pytest

from pages import BLOCK, shown_by

ROOT = Path(__file__).parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.exists()]


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class")  # LiteLLM, when it is imported
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run_and_print_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # LiteLLM fetches nothing
    namespace: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(page), "exec"), namespace)
        printed = trimmed(capsys.readouterr().out)
        assert block[2] is None or shown_by(printed, block[2], 0.011), f"line {line} of {page.name} prints:\n{printed}"


def trimmed(text: str) -> str:
    """Return a text without spaces at the ends of its lines, which pages do not have."""
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def test_blocks_are_found_with_what_they_print() -> None:
    found = BLOCK.findall("a\n```python\nx = 1\n```\n```sh\nls\n```\n\n```python\ny\n```\n\n```text\n2\n```\n")
    assert found == [("x = 1\n", ""), ("y\n", "2\n")]


def test_pages_for_newcomers_show_what_is_printed() -> None:
    shown = {page.name: sum(bool(block[2]) for block in BLOCK.finditer(page.read_text("utf-8"))) for page in PAGES}
    assert shown["README.md"] == 1
    assert shown["tutorial-embed.md"] >= 6 and shown["tutorial-simulate.md"] >= 5 and shown["tutorial-replay.md"] >= 4


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("queue  24.3 of 12\n[0.2, -1.0]", True),
        ("queue 24.9 of 12\n[0.2, -1.0]", True),
        ("queue 26.3 of 12\n[0.2, -1.0]", False),
        ("queues 24.3 of 12\n[0.2, -1.0]", False),
        ("queue 24.3 of 13\n[0.2, -1.0]", False),
        ("queue 24.3 of 12\n[0.2, 1.0]", False),
    ],
)
def test_another_output_is_noticed(printed: str, same: bool) -> None:
    assert shown_by(f"before\n{printed}\n", "queue 24.3 of 12\n[0.2, -1.0]") is same


def test_every_cited_equation_exists() -> None:
    tags = set(re.findall(r"\\tag\{(\d+)\}", (ROOT / "docs" / "maths.md").read_text(encoding="utf-8")))
    cited: set[str] = set()
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").rglob("*.py")]:
        cited |= set(re.findall(r"Eq\. \((\d+)\)", path.read_text(encoding="utf-8")))
    assert cited <= tags
    assert len(cited) > 20
