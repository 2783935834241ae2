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
    """Open a page, and list what it complains about and what it asks of others than the service."""
    page = browser.new_page(**({"viewport": {"width": 1200, "height": 900}} | options))
    page.set_default_timeout(15_000)
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda one: None if one.url.startswith(address.partition("#")[0]) else trouble.append(one.url))
    page.goto(address)
    return page, trouble
