"""A real browser: Debian's chromium, or another Chromium or Chrome on the path."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def launched() -> Iterator[Browser]:
    """Yield a browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Browser, address: str, **options: Any) -> tuple[Page, list[str]]:
    """Open a page, and list what it logs and its requests to others than the service."""
    page = browser.new_page(**({"viewport": {"width": 1200, "height": 900}} | options))
    page.set_default_timeout(15_000)
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda one: None if one.url.startswith(address.partition("#")[0]) else trouble.append(one.url))
    page.goto(address)
    return page, trouble


def hard_to_read(page: Page) -> list[Any]:
    """Return texts whose contrast to their background is below 4.5 to 1 (WCAG AA), with their contrast."""
    found: list[Any] = page.evaluate(CONTRAST)
    return found


CONTRAST = """() => {
  const light = text => {
    const part = text.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
        .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2]
  }
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor
      if (colour !== 'rgba(0, 0, 0, 0)') return colour
    }
    return 'rgb(255, 255, 255)'
  }
  const words = 'p, td, th, dt, dd, a, h1, h2, h3, label, summary, button:enabled, li span, li b, caption, figcaption, input'
  const poor = []
  for (const node of document.querySelectorAll(words + ', .chip, .unit, svg text')) {
    if (!node.checkVisibility() || node.closest('.unseen')) continue
    const style = getComputedStyle(node)
    const [a, b] = [light(node.closest('svg') ? style.fill : style.color), light(behind(node))]
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
    if (ratio < 4.5) poor.push([node.textContent, ratio])
  }
  return poor
}"""
