"""The page in a real browser: it shows what happens, why a request went where it did, and asks for a key."""

import shutil
from hashlib import sha256
from typing import Any

import pytest
from gateway_stand import CODER, SMALL, Stand
from playwright.sync_api import Page, sync_playwright

from bilinq.gateway.config import Tenant

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

SCROLLED = """() => {
  const card = document.getElementById("backends").closest(".wide");
  card.scrollLeft = 1000;
  const cell = card.querySelector("tr:nth-child(2) td");
  return {edge: card.getBoundingClientRect().left, first: cell.getBoundingClientRect().left};
}"""
"""Scroll a table sideways; return where its card and the first cell of a row are."""


def shown(page: Page, address: str) -> list[str]:
    """Open the page; return what it logs, and requests to others than the gateway."""
    trouble: list[str] = []
    page.set_default_timeout(30_000)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda one: None if one.url.startswith((address, "data:")) else trouble.append(one.url))
    page.goto(f"{address}/")
    return trouble


@pytest.mark.parametrize("size", [(1200, 900), (390, 800)], ids=["desktop", "phone"])
def test_the_page_shows_back_ends_what_was_learnt_and_why(size: tuple[int, int]) -> None:
    tenants = (Tenant(name="a", key_sha256=sha256(b"k").hexdigest(), scopes=("admin",), budget=5.0),)
    viewport: Any = {"width": size[0], "height": size[1]}
    with Stand([SMALL, CODER], tenant=tenants) as stand, sync_playwright() as playwright:
        for _ in range(5):
            stand.ask(key="k", messages=[{"role": "user", "content": "Tell <b>me</b> about the sea."}])
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=viewport)
        trouble = shown(page, stand.address)
        page.fill("#key", "k")
        page.press("#key", "Enter")
        page.wait_for_selector("#backends tr:nth-child(3)")
        assert page.locator("#learnt tr").count() == 2 and "short prose" in page.inner_text("#learnt")
        assert "small" in page.inner_text("#backends") and "a" in page.inner_text("#tenants")
        page.click("#recent tr.ask >> nth=0")
        assert "quality" in page.inner_text("td.why") and "chance" in page.inner_text("td.why")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "only tables scroll sideways"
        seen = page.evaluate(SCROLLED)
        assert seen["first"] >= seen["edge"] or size[0] > 600, "names of rows stay in sight on a phone"
        browser.close()
    assert trouble == []
