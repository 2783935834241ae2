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


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class")  # LiteLLM, when it is imported
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # LiteLLM fetches nothing
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


def test_blocks_are_found_with_their_line() -> None:
    assert blocks("a\n```python\nx = 1\n```\n```sh\nls\n```\n") == [(2, "x = 1\n")]


def test_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Words to the letter; numbers within 5 %, since another machine may round a draw differently."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert shown is not None
    exec(compile(blocks(text)[0][1], "README.md", "exec"), {})
    number = r"\d+\.\d+"
    printed = capsys.readouterr().out
    assert re.sub(r" *" + number, " #", printed) == re.sub(r" *" + number, " #", shown[1])
    found, expected = ([float(x) for x in re.findall(number, part)] for part in (printed, shown[1]))
    assert found == pytest.approx(expected, rel=0.05)


def test_every_cited_equation_exists() -> None:
    tags = set(re.findall(r"\\tag\{(\d+)\}", (ROOT / "docs" / "maths.md").read_text(encoding="utf-8")))
    cited: set[str] = set()
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").rglob("*.py")]:
        cited |= set(re.findall(r"Eq\. \((\d+)\)", path.read_text(encoding="utf-8")))
    assert cited <= tags
    assert len(cited) > 20
