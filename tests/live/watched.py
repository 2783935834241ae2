"""A service that has served some jobs, and its dashboard in a browser.

A pytest plugin with the fixtures `watched`, `browser` and `page`. PYTEST_DONT_REWRITE: it may be imported.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import launched, opened
from playwright.sync_api import Browser, Page, expect
from process import Process, make_key, wait_for
from small_load import SETTINGS, Load


class Watched:
    """A service that has served some jobs and is idle now, with keys of several scopes."""

    def __init__(self, folder: Path, policy: str = "sabr") -> None:
        database = f"sqlite:///{folder / 'live.db'}"
        self.keys = {scope: make_key(database, scope) for scope in ("admin", "read", "submit")}
        settings = f'policy = "{policy}"\n{SETTINGS.format(sample=0.25)}'  # predictions are for sabr
        self.process = Process(folder, database, settings=settings)
        self.client = self.process.client(self.keys["admin"])
        with Load(self.client):
            self.see_served()

    def see_served(self) -> None:
        """Wait until some leases were finished and a sample was recorded since: the last minute is known."""
        before = self.finished()
        wait_for(lambda: self.finished() > before + 15, 30.0)
        last = self.newest_sample()
        wait_for(lambda: self.newest_sample() != last)

    def finished(self) -> int:
        return int(self.get("/v1/state")["counters"].get("finished", 0))

    def newest_sample(self) -> str:
        return str(self.get("/v1/history?limit=1")["moments"][-1]["id"])

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def page(self, scope: str = "admin") -> str:
        return f"{self.process.address}/#key={self.keys[scope]}"

    def dead_job(self) -> str:
        """Return a job whose only attempt failed."""
        job = self.submit(f"dies {time.monotonic()}")
        server = self.client.post("/v1/servers", json={"class": "large"}).json()["id"]
        while self.get(f"/v1/jobs/{job}")["state"] != "dead":
            answer = self.client.post(f"/v1/servers/{server}/lease?wait=5")
            if answer.status_code == 200:
                lease = answer.json()
                self.client.post(
                    f"/v1/leases/{lease['lease']}/fail", json={"fence": lease["fence"], "error": "no good"}
                )
        self.client.delete(f"/v1/servers/{server}")
        return job

    def submit(self, key: str) -> str:
        body = {"jobs": [{"class": "code", "payload": {"prompt": "<b>hello</b>"}, "key": key}]}
        return str(self.client.post("/v1/jobs", json=body).json()["jobs"][0]["id"])


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    watched = Watched(tmp_path_factory.mktemp("dashboard"))
    with watched.process:
        yield watched
        watched.client.close()


@pytest.fixture(scope="module")
def browser(watched: Watched) -> Iterator[Browser]:
    """A browser; after the service, since keys are not made while Playwright's loop runs."""
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, watched: Watched) -> Iterator[Page]:
    """The page of an admin; it must log nothing and send requests to the service only."""
    page, trouble = opened(browser, watched.page())
    is_live(page)
    yield page
    page.close()
    assert trouble == []


def is_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("#queues .legend b").first).not_to_be_empty()
