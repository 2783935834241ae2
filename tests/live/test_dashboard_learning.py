"""What the dashboard shows of the default policy: why a job got its server, and rewards that come later."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, hard_to_read, opened
from playwright.sync_api import Browser, Locator, Page, expect
from process import wait_for
from watched import Watched, is_live

pytest_plugins = ["watched"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")
PICTURES = os.environ.get("BILINQ_PICTURES")  # a folder for screenshots
UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "%": 0.01}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    watched = Watched(tmp_path_factory.mktemp("learning"), "look-ahead")
    with watched.process:
        watched.client.post("/v1/jobs/cancel?state=queued")  # the load leaves some that wait for a better server
        watched.client.patch("/v1/settings", json={"work_conserving": True})  # for the large ones that are away now
        yield watched
        watched.client.close()


def submit(watched: Watched, **own: Any) -> str:
    body = {"jobs": [{"class": "chat", "features": [0.5, -1.25], "tags": ["shown"], **own}]}
    return str(watched.client.post("/v1/jobs", json=body).json()["jobs"][0]["id"])


def serve(watched: Watched, count: int, **own: Any) -> list[str]:
    """Serve new jobs on a large server without a reward; return their ids."""
    server = watched.client.post("/v1/servers", json={"class": "large", "name": "for one"}).json()["id"]
    ids = [submit(watched, **own) for _ in range(count)]
    for _ in ids:
        lease = wait_for(lambda: watched.client.post(f"/v1/servers/{server}/lease?wait=5").json(), 30.0)
        watched.client.post(f"/v1/leases/{lease['lease']}/finish", json={"fence": lease["fence"]})
    watched.client.delete(f"/v1/servers/{server}")
    return ids


def number(text: str) -> float:
    """Return a number as it is shown, with its unit."""
    value, _, unit = text.replace(",", "").partition(" ")
    return float(value) * UNITS.get(unit, 1.0)


def unfold(page: Page, job: str) -> Locator:
    """Find a job and unfold its decision."""
    page.get_by_label("Job id or key").fill(job)
    page.get_by_role("button", name="Find job").click()
    page.locator("#job summary", has_text="Why this server?").click()
    expect(page.locator("#job .decision tbody tr").first).to_be_visible()
    return page.locator("#job .decision")


def shows(decision: Locator, told: dict[str, Any]) -> None:
    """The table has the numbers of the API, in its order."""
    for row, one in zip(decision.locator("tbody tr").all(), told["options"], strict=True):
        name, value, time, price, score, chance = row.locator("th, td").all_inner_texts()
        assert name == one["server_class"] + (" ✓" if one["server_class"] == told["chosen"] else "")
        shown = [*map(number, value.split(" ± ")), *map(number, (time, price, score))]
        wanted = [one[what] for what in ("value", "uncertainty", "duration", "price", "score")]
        assert shown == pytest.approx(wanted, rel=0.006)
        least = one["probability"] < 1e-4
        assert chance == "< 0.01 %" if least else number(chance) == pytest.approx(one["probability"], rel=0.006)


def test_the_decision_of_a_lease_is_that_of_the_service(page: Page, watched: Watched) -> None:
    """Both server classes are idle; value, uncertainty, time, price, score and chance of each are shown."""
    idle = [watched.client.post("/v1/servers", json={"class": name}).json()["id"] for name in ("small", "large")]
    job = submit(watched)
    [lease] = wait_for(
        lambda: watched.client.post("/v1/work", json={"lease": idle, "wait": 5.0}).json()["leases"], 30.0
    )
    told = watched.get(f"/v1/jobs/{job}/decision")
    assert (lease["job"]["id"], lease["lease"]) == (job, told["lease"])
    decision = unfold(page, job)
    expect(decision).to_contain_text(f"{told['chosen']} was chosen, which had a chance of")
    assert len(told["options"]) == 2
    shows(decision, told)
    expect(page.locator("#job .facts")).to_contain_text("Features0.5, -1.25")
    watched.client.post(f"/v1/leases/{lease['lease']}/finish", json={"fence": lease["fence"], "reward": 0.5})
    for server in idle:
        watched.client.delete(f"/v1/servers/{server}")


def test_the_decision_of_a_job_that_waits_is_that_of_now(page: Page, watched: Watched) -> None:
    """It is for a class whose servers are held, and others may not serve it."""
    job = submit(watched)
    decision = unfold(page, job)
    expect(decision).to_contain_text("The job waits; the numbers are those of now.")
    told = watched.get(f"/v1/jobs/{job}/decision")
    assert told["chosen"] is None
    names = [row.locator("th").inner_text() for row in decision.locator("tbody tr").all()]
    assert sorted(names) == sorted(one["server_class"] for one in told["options"])
    watched.client.delete(f"/v1/jobs/{job}")


def learnt(page: Page) -> tuple[float, float]:
    """Return the learnt reward of chat on large and its standard error, from the table of the card."""
    if page.locator("#learnt details.behind").get_attribute("open") is None:
        page.locator("#learnt details.behind > summary").click()
    cell = page.locator("#learnt tbody tr", has_text="chat").locator("td").nth(1).inner_text()
    mean, width = map(float, cell.split(" ± "))
    return mean, width


def test_later_rewards_are_counted_down_and_learnt(page: Page, watched: Watched) -> None:
    """Six jobs are done; their rewards come in two parts, far below what the class earned before."""
    before = learnt(page)
    jobs = serve(watched, 6, features=None)
    waiting = page.locator("#tiles > div", has_text="Rewards awaited")
    for left in (6, 3):
        expect(waiting).to_contain_text(f"{left}jobs that are done without a reward")
        for job in jobs[left - 3 : left]:
            assert watched.client.post(f"/v1/jobs/{job}/reward", json={"reward": 0.0}).status_code == 200
    expect(waiting).to_have_count(0)
    state = watched.get("/v1/state")
    row, column = ([one["name"] for one in state[kind]] for kind in ("job_classes", "server_classes"))
    mean = state["mean"][row.index("chat")][column.index("large")]
    while learnt(page)[0] != pytest.approx(mean, rel=1e-5):  # until the test takes too long
        page.wait_for_timeout(50)
    assert mean < before[0] - 0.02


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_decision_can_be_read_on_every_screen(browser: Browser, watched: Watched, width: int, scheme: Any) -> None:
    page, trouble = opened(browser, watched.page(), viewport={"width": width, "height": 900}, color_scheme=scheme)
    is_live(page)
    [job, _] = serve(watched, 2)
    unfold(page, job)
    assert hard_to_read(page) == []
    assert page.locator("#job .scroll").first.evaluate("it => it.scrollWidth <= it.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"decision-{width}-{scheme}.png")
        page.keyboard.press("Escape")
        page.screenshot(path=Path(PICTURES) / f"page-{width}-{scheme}.png", full_page=True)
    page.close()
    assert trouble == []
