"""What an operator does on the dashboard: filter jobs, change many, hold servers, ask why; on desktop and phone."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, hard_to_read, opened
from playwright.sync_api import Browser, Page, Route, expect
from watched import Watched, is_live

pytest_plugins = ["watched"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")
PICTURES = os.environ.get("BILINQ_PICTURES")  # a folder for screenshots

DECISION: dict[str, Any] = {
    "job": "j1", "class": "code", "lease": "l1", "at": 1.0, "chosen": "large", "probability": 0.9, "explored": "thompson",
    "options": [
        {"server_class": name, "value": 0.8, "uncertainty": 0.02, "duration": 1.5, "price": 0.1, "score": 0.7,
         "probability": 0.9} for name in ("large", "small")
    ],
}  # fmt: skip


def submit(watched: Watched, tag: str, count: int, job_class: str = "code") -> list[str]:
    body = {"jobs": [{"class": job_class, "tags": [tag], "not_before": 3600.0}] * count}
    return [job["id"] for job in watched.client.post("/v1/jobs", json=body).json()["jobs"]]


def show(page: Page, state: str = "", job_class: str = "", tag: str = "") -> None:
    form = page.locator("#jobs form")
    form.get_by_label("State").select_option(state)
    form.get_by_label("Class").select_option(job_class)
    form.get_by_label("Tag").fill(tag)
    form.get_by_role("button", name="Show").click()


def listed(page: Page, ids: list[str]) -> None:
    expect(page.locator("#jobs tbody tr td:first-child")).to_have_text(ids)


def test_jobs_are_filtered_and_cancelled_after_a_question(page: Page, watched: Watched) -> None:
    ids, others = submit(watched, "many", 25), submit(watched, "many", 1, "chat")
    show(page, "queued", "code", "many")
    listed(page, ids[:4:-1])
    page.locator("#jobs button", has_text="Show older").click()
    listed(page, ids[::-1])
    page.locator("#jobs").get_by_role("button", name="Cancel all").click()
    dialog = page.locator("#confirm")
    expect(dialog).to_contain_text("All jobs with state queued, class code, tag many that have not ended")
    dialog.get_by_role("button", name="Do nothing").click()
    assert watched.get(f"/v1/jobs/{ids[0]}")["state"] == "queued"
    page.locator("#jobs").get_by_role("button", name="Cancel all").click()
    dialog.get_by_role("button", name="Cancel all").click()
    expect(page.locator("#jobs [role=status]")).to_have_text("25 jobs cancelled")
    assert {watched.get(f"/v1/jobs/{id}")["state"] for id in ids} == {"cancelled"}
    assert watched.get(f"/v1/jobs/{others[0]}")["state"] == "queued"
    show(page, "", "", "many")
    page.locator("#jobs tbody button").first.click()
    expect(page.locator("#job")).to_contain_text("Tagsmany")
    watched.client.post("/v1/jobs/cancel?tag=many")


def test_dead_jobs_are_retried_together(page: Page, watched: Watched) -> None:
    job = watched.dead_job()
    many = len(watched.get("/v1/jobs?state=dead&class=code")["jobs"])
    show(page, "dead", "code")
    expect(page.locator(f"#jobs tr[data-job={job}]")).to_contain_text("no good")
    cancel, retry = (page.locator("#jobs").get_by_role("button", name=name) for name in ("Cancel all", "Retry all"))
    expect(cancel).to_be_disabled()
    retry.click()
    page.locator("#confirm").get_by_role("button", name="Retry all").click()
    expect(page.locator("#jobs [role=status]")).to_have_text(re.compile(f"^{many} jobs? queued again$"))
    assert watched.get(f"/v1/jobs/{job}")["state"] == "queued"
    watched.client.post("/v1/jobs/cancel?class=code")
    show(page)
    for button in (cancel, retry):
        expect(button).to_be_disabled()  # without a filter


def test_a_server_is_held_and_released(page: Page, watched: Watched) -> None:
    server = watched.client.post("/v1/servers", json={"class": "large", "name": "rack 3"}).json()["id"]
    page.reload()
    row = page.locator(f"#fleet tr[data-server={server}]")
    expect(row).to_contain_text("rack 3")
    for what, held in (("Drain", "draining"), ("Quarantine", "quarantined")):
        row.get_by_role("button", name=f"{what} rack 3").click()
        expect(row.locator(".chip")).to_have_text(held)
        expect(row).to_contain_text("an operator holds it")
        assert held in str(watched.get("/v1/servers"))
        row.get_by_role("button", name="Release rack 3").click()
        expect(row.locator(".chip")).to_have_text("away")
    watched.client.delete(f"/v1/servers/{server}")


def test_who_may_only_read_gets_no_buttons(browser: Browser, watched: Watched) -> None:
    server = watched.client.post("/v1/servers", json={"class": "large", "name": "seen"}).json()["id"]
    page, trouble = opened(browser, watched.page("read"))
    is_live(page)
    expect(page.locator(f"#fleet tr[data-server={server}]")).to_be_visible()
    expect(page.locator("#fleet button, #jobs button", has_text="all")).to_have_count(0)
    expect(page.locator("#fleet button")).to_have_count(0)
    page.close()
    assert trouble == []
    watched.client.delete(f"/v1/servers/{server}")


def test_a_decision_is_shown_when_it_is_asked_for(page: Page, watched: Watched) -> None:
    page.route("**/decision", lambda route: answer(route, DECISION))
    page.locator("#leases tbody button").first.click()
    page.locator("#job summary", has_text="Why this server?").click()
    expect(page.locator("#job .decision")).to_contain_text("large was chosen, which had a chance of 90 %")
    expect(page.locator("#job .decision tbody tr")).to_have_count(2)
    expect(page.locator("#job .decision tbody tr").first).to_have_text("large ✓0.8 ± 0.021.5 s0.10.790 %")


def answer(route: Route, body: Any) -> None:
    route.fulfill(status=200, content_type="application/json", body=json.dumps(body))


def test_a_job_is_shown_with_all_that_it_has_of_its_own(page: Page, watched: Watched) -> None:
    [job] = submit(watched, "shown", 1)
    own = {"features": [0.5, -1.25], "weight": 2.5, "not_before": 2e9, "deadline": 2.1e9, "max_attempts": 4}
    shown = watched.get(f"/v1/jobs/{job}") | own  # the policy of this service takes no features
    page.route(f"**/v1/jobs/{job}", lambda route: answer(route, shown))
    page.get_by_label("Job id or key").fill(job)
    page.get_by_role("button", name="Find job").click()
    facts = page.locator("#job .facts")
    for text in ("Features0.5, -1.25", "Weight2.5", "Not before", "Deadline", "Failed attempts0 of 4"):
        expect(facts).to_contain_text(text)
    watched.client.post(f"/v1/jobs/{job}/cancel")


def test_tiles_count_servers_without_jobs_and_rewards_that_are_awaited(page: Page, watched: Watched) -> None:
    """Also while the page is open: the list of servers is loaded every ten seconds, the rest comes with the stream."""
    server = watched.client.post("/v1/servers", json={"class": "large", "name": "rack 9"}).json()["id"]
    watched.client.post(f"/v1/servers/{server}/quarantine")
    page.reload()
    tile = page.locator("#tiles > div", has_text="Paused or held servers")
    expect(tile).to_contain_text("0 paused after failures, 1 held by operators")
    page.locator(f"#fleet tr[data-server={server}]").get_by_role("button", name="Release rack 9").click()
    expect(tile).to_contain_text("0 paused after failures, 0 held by operators")
    watched.client.post("/v1/jobs", json={"jobs": [{"class": "code"}]})
    lease = watched.client.post(f"/v1/servers/{server}/lease?wait=5").json()
    job = lease["job"]["id"]
    watched.client.post(f"/v1/leases/{lease['lease']}/finish", json={"fence": lease["fence"]})
    waiting = page.locator("#tiles > div", has_text="Rewards awaited")
    expect(waiting).to_contain_text("1jobs that are done without a reward")
    page.get_by_label("Job id or key").fill(job)
    page.get_by_role("button", name="Find job").click()
    expect(page.locator("#job .facts")).to_contain_text("Rewardawaited")
    watched.client.post(f"/v1/jobs/{job}/reward", json={"reward": 0.5})
    expect(waiting).to_have_count(0)
    watched.client.delete(f"/v1/servers/{server}")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_or_hard_to_read(browser: Browser, watched: Watched, width: int, scheme: Any) -> None:
    ids, dead = submit(watched, "a tag of some length", 3), watched.dead_job()
    servers = [
        {"id": f"s{k}", "class": "large", "name": f"rack 3, card {k}", "state": "idle", "seen": 1.8e9, "held": held,
         "reason": reason}
        for k, (held, reason) in enumerate([(None, None), ("draining", "an operator holds it"), (
            "paused", "it fails more often than others; the next trial is in 12.5 s")])
    ]  # fmt: skip
    page, _ = opened(browser, "about:blank", viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.route("**/v1/servers", lambda route: answer(route, servers))
    page.route("**/decision", lambda route: answer(route, DECISION))
    page.goto(watched.page())
    is_live(page)
    show(page, "queued", "code", "a tag of some length")
    listed(page, ids[::-1])
    expect(page.locator("#fleet tbody tr").first).to_contain_text("draining")
    assert hard_to_read(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator("#tiles")).to_contain_text("1 paused after failures, 1 held by operators")
    take(page, f"tiles-{width}-{scheme}", "#tiles")
    expect(page.locator(f"#dead tr[data-job={dead}]").get_by_role("button", name="Retry")).to_be_visible()
    expect(page.locator("#leases tbody td[data-name=Reward]").first).to_be_visible()
    for card in ("jobs", "fleet", "dead", "leases"):
        take(page, f"{card}-{width}-{scheme}", f"#{card}")
        wide = page.locator(f"#{card} .scroll").evaluate("it => it.scrollWidth - it.clientWidth")
        assert wide <= 0, f"{card} scrolls by {wide} px"
    page.locator("#jobs tbody button").first.click()
    page.locator("#job summary").click()
    expect(page.locator("#job .decision tbody tr")).to_have_count(2)
    assert hard_to_read(page) == []
    take(page, f"job-{width}-{scheme}", "#job")
    assert page.locator("#job .scroll").evaluate("it => it.scrollWidth <= it.clientWidth")
    page.close()
    watched.client.post("/v1/jobs/cancel?state=queued")


def take(page: Page, name: str, part: str) -> None:
    if PICTURES:
        page.locator(part).screenshot(path=Path(PICTURES) / f"{name}.png")
