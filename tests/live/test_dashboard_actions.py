"""What a person does on the dashboard: find jobs, retry them, change settings, enter a key."""

import re

import pytest
from browser import CHROMIUM, opened
from playwright.sync_api import Browser, Page, expect
from small_load import Load
from watched import Watched, is_live

from bilinq.live.keys import make_key as random_key

pytest_plugins = ["watched"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")


def test_a_job_is_found_and_opened(page: Page, watched: Watched) -> None:
    job = watched.submit("order <77>")
    for wanted in (job, "order <77>"):
        page.locator("#wanted").fill(wanted)
        page.keyboard.press("Enter")
        dialog = page.locator("dialog[open]")
        expect(dialog.locator("h2")).to_have_text(f"Job {job}")
        expect(dialog.locator("pre").first).to_contain_text('"prompt": "<b>hello</b>"')
        expect(dialog.locator(".history li").first).to_contain_text("submitted")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
    page.locator("#wanted").fill("nobody's")
    page.locator("#search button").click()
    expect(page.locator("dialog [role=alert]")).to_contain_text("no job has the id or key nobody's")
    page.locator("dialog .close").click()
    watched.client.delete(f"/v1/jobs/{job}")


def test_a_lease_leads_to_the_history_of_its_job(page: Page, watched: Watched) -> None:
    lease = watched.get("/v1/leases")["leases"][0]
    page.locator("#leases tbody button").first.click()
    job = watched.get(f"/v1/jobs/{lease['job']}")
    events = page.locator("dialog .history li")
    expect(events).to_have_count(len(job["history"]))
    for shown, event in zip(events.all(), job["history"], strict=True):
        assert event["what"] in shown.inner_text()
    expect(page.locator("dialog .chip")).to_have_text(job["state"])


def test_a_dead_letter_is_retried(page: Page, watched: Watched) -> None:
    job = watched.dead_job()
    row = page.locator(f"#dead tr[data-job={job}]")
    expect(row).to_contain_text("no good")
    row.get_by_role("button", name=f"Retry {job}").click()
    expect(row).to_have_count(0)
    assert watched.get(f"/v1/jobs/{job}")["state"] == "queued"
    watched.client.delete(f"/v1/jobs/{job}")


def test_settings_are_changed_after_a_prediction(page: Page, watched: Watched) -> None:
    wait, apply = page.locator("[data-setting=target_wait]"), page.locator("#settings button", has_text="Apply")
    expect(apply).to_be_disabled()
    with Load(watched.client):
        watched.see_served()
        wait.fill("2.5")
        with page.expect_response(lambda one: '"weight":{"code":3}' in (one.request.post_data or "")) as answer:
            page.locator("[data-setting='weight code']").fill("3")
        predicted = answer.value.json()
    shown = page.locator("#settings .prediction")
    expect(shown).to_contain_text(predicted["note"])
    expect(shown.locator("dd").first).to_have_text(f"{predicted['V_now']:.3g} → {predicted['V_then']:.3g}")
    rows = [row.locator("th, td").all_inner_texts() for row in shown.locator("tbody tr").all()]
    assert [row[0] for row in rows] == ["chat", "code", "vision"]
    for row, one in zip(rows, predicted["job_classes"], strict=True):
        for cell, value in zip(row[2].split(" → "), (one["wait_now"], one["wait_then"]), strict=True):
            assert seconds(cell) == pytest.approx(value, rel=0.01)
    assert watched.get("/v1/settings")["target_wait"] == 0.5, "a prediction changes nothing"
    apply.click()
    expect(page.locator("#settings form .note")).to_contain_text("Applied at")
    assert watched.get("/v1/settings")["target_wait"] == 2.5
    assert {one["name"]: one["weight"] for one in watched.get("/v1/state")["job_classes"]}["code"] == 3.0
    expect(page.locator("#waits .legend")).to_contain_text("target of the mean2.5 s")
    wait.fill("-1")
    expect(page.locator("#settings form .note")).to_contain_text("above zero")
    expect(apply).to_be_disabled()
    watched.client.patch("/v1/settings", json={"target_wait": 0.5, "weight": {"code": 1.0}})


def seconds(text: str) -> float:
    """Return a duration as it is shown, in seconds."""
    value, unit = text.split()
    return float(value) * {"ms": 0.001, "s": 1.0, "min": 60.0}[unit]


def test_who_may_only_read_can_change_nothing(browser: Browser, watched: Watched) -> None:
    job = watched.dead_job()
    page, trouble = opened(browser, watched.page("read"))
    is_live(page)
    expect(page.locator(f"#dead tr[data-job={job}]")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Retry|Apply"))).to_have_count(0)
    page.locator("[data-setting=target_wait]").fill("4")
    expect(page.locator("#settings .prediction")).to_contain_text("What the theory predicts")
    expect(page.locator("#settings form .note")).to_contain_text("needs a key with scope fleet")
    assert trouble == []
    page.close()


def test_a_wrong_key_is_explained_and_a_right_one_is_kept_in_the_tab_only(browser: Browser, watched: Watched) -> None:
    page, _ = opened(browser, watched.process.address + "/")
    form, key = page.locator("#sign-in"), page.locator("#key")
    expect(key).to_be_focused()
    for wrong, words in (
        ("bq_nothing", "look like"),
        (random_key(), "not known"),
        (watched.keys["submit"], "needs read, admin or fleet"),
    ):
        key.fill(wrong)
        key.press("Enter")
        expect(form.get_by_role("alert")).to_contain_text(words)
        expect(page.locator("main")).to_be_hidden()
    key.fill(watched.keys["read"])
    key.press("Enter")
    is_live(page)
    page.reload()
    is_live(page)
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.get_by_role("button", name="Forget key").click()
    expect(form).to_be_visible()
    page.close()


def test_a_key_in_the_address_is_removed_from_it(page: Page, watched: Watched) -> None:
    assert page.url == watched.process.address + "/"


def test_a_key_that_is_revoked_closes_the_page(browser: Browser, watched: Watched) -> None:
    made = watched.client.post("/v1/keys", json={"scopes": ["read"]}).json()
    page, _ = opened(browser, f"{watched.process.address}/#key={made['key']}")
    is_live(page)
    watched.client.delete(f"/v1/keys/{made['info']['prefix']}")
    expect(page.locator("#sign-in").get_by_role("alert")).to_contain_text("no longer accepts this key")
    page.close()


def test_a_tenant_sees_its_namespace_and_no_settings(browser: Browser, watched: Watched) -> None:
    """Last, since another namespace hides what is shared from those who see one only."""
    job = watched.submit("not for others")
    made = watched.client.post("/v1/keys", json={"scopes": ["admin"], "namespace": "other"}).json()
    page, trouble = opened(browser, f"{watched.process.address}/#key={made['key']}")
    is_live(page)
    expect(page.locator("#namespaces")).to_have_text("Namespaces: other")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator("#leases tbody tr")).to_have_count(0)
    page.locator("#wanted").fill(job)
    page.locator("#search button").click()
    expect(page.locator("dialog[open]")).to_contain_text("no job")
    page.close()
    assert len(trouble) <= 1  # the browser logs the answer 404
