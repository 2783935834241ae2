"""The dashboard while its service restarts."""

import re
from pathlib import Path

import pytest
from browser import CHROMIUM, launched, opened
from playwright.sync_api import Page, expect
from process import Process, make_key
from small_load import SETTINGS

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")


def samples(page: Page) -> list[float]:
    found: list[float] = page.locator("#queues tbody").evaluate("it => [...it.rows].map(row => Number(row.dataset.at))")
    return found


def test_it_continues_after_a_restart_of_the_service(tmp_path: Path) -> None:
    """The page shows that the connection is lost, reconnects by itself, and keeps its history."""
    database = f"sqlite:///{tmp_path / 'live.db'}"
    key = make_key(database, "read")
    settings = SETTINGS.format(sample=0.25)
    with launched() as browser:
        with Process(tmp_path, database, settings=settings) as service:
            page, _ = opened(browser, f"{service.address}/#key={key}")
            connection = page.locator("#connection")
            expect(connection).to_have_attribute("data-state", "live")
            page.locator("#queues summary").click()
            expect(page.locator("#queues tbody tr").nth(3)).to_be_attached()
            before = samples(page)
            assert service.stop() == 0, "a viewer does not keep the service from ending"
            expect(connection).to_have_attribute("data-state", "lost")
            expect(connection).to_contain_text("Connection lost")
        with Process(tmp_path, database, "--port", service.address.rpartition(":")[2], settings=settings) as again:
            assert again.address == service.address
            expect(connection).to_have_attribute("data-state", "live", timeout=20_000)
            newest = f"#queues tbody tr:not([data-at='{before[0]}'])"
            expect(page.locator(newest).first).to_be_attached()
            page.wait_for_timeout(800)
            after = samples(page)
            assert set(before) <= set(after)
            assert len(after) > len(before)
            assert after == sorted(set(after), reverse=True)
            expect(connection).to_have_text(re.compile("Live"))
