"""The report in a real browser: light, dark, on a phone and on paper."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, hard_to_read, launched
from playwright.sync_api import Browser, Page

from bilinq.lab.figure import ReportOptions
from bilinq.lab.paper import redraw

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")
FIGURES = ["comparison", "weights"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    redraw(ReportOptions(quick=True, replications=3), out, FIGURES, workers=1)
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def opened(browser: Browser, folder: Path, width: int, scheme: str = "light") -> tuple[Page, list[str]]:
    """Open the report; also return console messages, page errors and requests for other files."""
    dark = scheme == "dark"
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: trouble.append(request.url) if not request.is_navigation_request() else None)
    page.goto((folder / "report.html").as_uri())
    return page, trouble


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_report_is_complete_and_loads_nothing(browser: Browser, folder: Path, width: int, scheme: str) -> None:
    page, trouble = opened(browser, folder, width, scheme)
    for name in FIGURES:
        drawing = page.locator(f"#figure-{name} .picture svg")
        assert drawing.is_visible()
        box = drawing.bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 150
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert trouble == []


def test_rows_are_the_claims(browser: Browser, folder: Path) -> None:
    page, _ = opened(browser, folder, 1200)
    claims = json.loads((folder / "claims.json").read_text())["claims"]
    rows = page.locator("tr[data-claim]")
    assert [row.get_attribute("data-claim") for row in rows.all()] == [claim["id"] for claim in claims]
    for row, claim in zip(rows.all(), claims, strict=True):
        assert claim["statement"] in row.inner_text()
        assert claim["verdict"] in row.inner_text()
        assert page.locator(f"tbody:has(#claim-{claim['id']}) tr.finding").count() == len(claim["findings"])


def test_links_have_targets(browser: Browser, folder: Path) -> None:
    page, _ = opened(browser, folder, 1200)
    links = [link.get_attribute("href") or "" for link in page.locator("a").all()]
    assert {f"data/{name}.csv" for name in FIGURES} <= set(links)
    for link in links:
        if link.startswith("https://arxiv.org/abs/"):  # the paper, the only link that leaves the folder
            continue
        found = page.locator(f"[id='{link[1:]}']").count() == 1 if link.startswith("#") else (folder / link).is_file()
        assert found, link


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser: Browser, folder: Path, scheme: str) -> None:
    """Contrast of at least 4.5 to 1 (WCAG AA) for words on the page, on chips and in drawings."""
    page, _ = opened(browser, folder, 1200, scheme)
    assert hard_to_read(page) == []


def test_report_prints(browser: Browser, folder: Path) -> None:
    page, _ = opened(browser, folder, 1200, "dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
