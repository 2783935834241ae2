"""The dashboard in a real browser on a real service: what it shows is what the API says."""

import csv
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, hard_to_read, launched, opened
from playwright.sync_api import Browser, Locator, Page, expect
from process import Process, make_key, wait_for
from small_load import SETTINGS, Load
from wire import Wire

from bilinq.live.keys import make_key as random_key

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")


NOTHING = "\u2013"
"""What the page shows where nothing is known."""


class Live:
    """A service that has seen some jobs and is still now, with keys of several kinds."""

    def __init__(self, folder: Path) -> None:
        database = f"sqlite:///{folder / 'live.db'}"
        self.keys = {scope: make_key(database, scope) for scope in ("admin", "read", "submit")}
        self.process = Process(folder, database, settings=SETTINGS.format(sample=0.25))
        self.client = self.process.client(self.keys["admin"])
        with Load(self.client):
            self.see_served()

    def see_served(self) -> None:
        """Wait until some leases were finished and a moment was taken since: something is known of the last minute."""
        before = self.finished()
        wait_for(lambda: self.finished() > before + 15, 30.0)
        last = self.newest_moment()
        wait_for(lambda: self.newest_moment() != last)

    def finished(self) -> int:
        return int(self.get("/v1/state")["counters"].get("finished", 0))

    def newest_moment(self) -> str:
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
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("dashboard"))
    with live.process:
        yield live
        live.client.close()


@pytest.fixture(scope="module")
def browser(live: Live) -> Iterator[Browser]:  # after the service, since keys are not made while Playwright's loop runs
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, live: Live) -> Iterator[Page]:
    """The page of an admin; it must not complain, nor ask anything of others."""
    page, trouble = opened(browser, live.page())
    is_live(page)
    yield page
    page.close()
    assert trouble == []


def is_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("#queues .legend b").first).not_to_be_empty()


def table(card: Locator) -> list[list[str]]:
    """Open the table behind a chart and return its cells, and at the end of rows that are moments their time."""
    if card.locator("details.behind").get_attribute("open") is None:
        card.locator("details.behind > summary").click()
    expect(card.locator("tbody tr").first).to_be_visible()
    found: list[list[str]] = card.locator("table").evaluate(
        "it => [...it.rows].map(row => [...row.cells].map(cell => cell.textContent).concat(row.dataset.at ?? []))"
    )
    return found


def number(text: str) -> float:
    return float("nan") if text == NOTHING else float(text)


def near(value: float | None) -> Any:
    """Return what equals a number with six digits."""
    return pytest.approx(float("nan") if value is None else value, rel=1e-5, abs=1e-9, nan_ok=True)


def test_matrices_are_those_of_the_api(page: Page, live: Live) -> None:
    state = live.get("/v1/state")
    rows = table(page.locator("#learnt"))
    assert rows[0] == ["Job class", "small", "large"]
    assert [row[0] for row in rows[1:]] == ["chat", "code", "vision"]
    for row, mean, width in zip(rows[1:], state["mean"], state["width"], strict=True):
        pairs = [tuple(map(float, cell.split(" ± "))) for cell in row[1:]]
        assert [pair[0] for pair in pairs] == near_all(mean)
        assert [pair[1] for pair in pairs] == near_all(width)
    page.locator("#allocated label").nth(1).click()
    expected = [list(map(float, row[1:])) for row in table(page.locator("#allocation"))[1:]]
    assert expected == [near_all(row) for row in state["expected"]]


def near_all(values: list[float]) -> Any:
    return pytest.approx(values, rel=1e-5, abs=1e-9)


def test_moments_are_those_of_the_api(page: Page, live: Live) -> None:
    shown = {name: table(page.locator(f"#{name}")) for name in ("queues", "reward", "waits", "servers")}
    history = live.get("/v1/history")
    known = {one["at"]: one for one in history["moments"]}
    assert shown["queues"][0] == ["Time", *history["layout"]["job_classes"]]
    assert shown["servers"][0] == ["Time", *history["layout"]["server_classes"]]
    for name, rows in shown.items():
        assert len(rows) > 10
        for _, *cells, at in rows[1:]:
            values = list(map(number, cells))
            assert values == [near(value) for value in wanted(name, known[float(at)], history)]


def test_the_hour_is_saved_as_csv(page: Page, live: Live) -> None:
    table(page.locator("#queues"))
    with page.expect_download() as saved:
        page.locator("#queues button", has_text="CSV").click()
    rows = list(csv.reader(saved.value.path().read_text().splitlines()))
    history = live.get("/v1/history")
    known = {one["at"]: one["queued"] for one in history["moments"]}
    assert rows[0] == ["at", *history["layout"]["job_classes"]]
    assert len(rows) > 10
    assert all(list(map(float, row[1:])) == known[float(row[0])] for row in rows[1:])


def moments_of(page: Page, card: str) -> list[float]:
    found: list[float] = page.locator(f"#{card} tbody").evaluate(
        "it => [...it.rows].map(row => Number(row.dataset.at))"
    )
    return found


def wanted(card: str, moment: dict[str, Any], history: dict[str, Any]) -> list[float | None]:
    """Return a row of a card's table as it must be."""
    if card == "queues":
        return list(moment["queued"])
    if card == "reward":
        return [moment["earned"], moment["best"]]
    if card == "waits":
        return [moment["wait_p50"], moment["wait_p90"], moment["wait_p99"], history["layout"]["target_wait"]]
    recent = [one for one in history["moments"] if 0.0 <= moment["at"] - one["at"] < 10.0]
    busy, idle = (np.sum([one[name] for one in recent], axis=0) for name in ("busy", "idle"))
    return [b / (b + i) if b + i else None for b, i in zip(busy.tolist(), idle.tolist(), strict=True)]


def test_numbers_and_leases_are_those_of_the_api(page: Page, live: Live) -> None:
    state, leases = live.get("/v1/state"), live.get("/v1/leases")["leases"]
    tile = page.locator("#tiles > div", has_text="Waiting").locator(".value")
    expect(tile).to_have_text(str(sum(one["queued"] for one in state["job_classes"])))
    rows = page.locator("#leases tbody tr")
    expect(rows).to_have_count(len(leases))
    for row, lease in zip(rows.all(), leases, strict=True):
        cells = row.locator("td").all_inner_texts()
        assert cells[:4] == [lease["job"], lease["class"], lease["server"], lease["server_class"]]
        assert cells[6] == lease["state"]
        assert number(cells[7]) == (
            pytest.approx(lease["reward"], rel=0.01) if lease["reward"] is not None else near(None)
        )
    expect(page.locator("[data-knob=target_wait]")).to_have_value(re.compile(r"^0\.5$"))


def test_reading_a_chart_by_keyboard(page: Page, live: Live) -> None:
    chart = page.locator("#queues canvas")
    chart.focus()
    assert chart.evaluate("it => parseFloat(getComputedStyle(it).outlineWidth)") >= 2
    page.keyboard.press("Home")
    said = page.locator("#readout").inner_text()
    assert re.match(r"\d\d:\d\d:\d\d: chat \d+, code \d+, vision \d+$", said)
    expect(page.locator("#reward .hair")).to_be_visible()  # all charts show the same time
    page.keyboard.press("Escape")
    expect(page.locator("#reward .hair")).to_be_hidden()
    page.locator("#learnt canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    mean, width = (live.get("/v1/state")[name][1][0] for name in ("mean", "width"))
    for place in ("#learnt .reading", "#readout"):
        found = re.fullmatch(r"code on small: (\S+) ± (\S+)", page.locator(place).inner_text())
        assert found is not None
        assert [float(found[1]), float(found[2])] == near_all([mean, width])


def test_everything_is_reached_by_tab(page: Page) -> None:
    """From the top, each stop of the Tab key has a name and can be seen to have the focus."""
    page.locator("[data-knob=target_wait]").wait_for()
    stops: list[dict[str, Any]] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None:
            break
        stops.append(stop)
    places = [stop["place"] for stop in stops]
    assert places[0] == "skip"
    for card in ("search", "window", "queues", "reward", "waits", "servers", "allocation", "learnt", "knobs", "leases"):
        assert card in places, f"{card} cannot be reached"
    assert [stop for stop in stops if not stop["name"] or not stop["visible"]] == []


STOP = """() => {
  const it = document.activeElement
  if (it === document.body) return null
  const style = node => getComputedStyle(node)
  const shown = it.matches('.choice input') ? it.nextElementSibling : it
  const label = it.labels?.[0]?.textContent
  const place = it.classList[0] === 'skip' ? 'skip' : it.closest('.card, #search, #window, header')?.id
  const name = it.getAttribute('aria-label') || label || it.textContent
  return { place, name, visible: parseFloat(style(shown).outlineWidth) >= 2 }
}"""


def test_a_job_is_found_and_opened(page: Page, live: Live) -> None:
    job = live.submit("order <77>")
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
    live.client.delete(f"/v1/jobs/{job}")


def test_a_lease_leads_to_the_history_of_its_job(page: Page, live: Live) -> None:
    lease = live.get("/v1/leases")["leases"][0]
    page.locator("#leases tbody button").first.click()
    job = live.get(f"/v1/jobs/{lease['job']}")
    events = page.locator("dialog .history li")
    expect(events).to_have_count(len(job["history"]))
    for shown, event in zip(events.all(), job["history"], strict=True):
        assert event["what"] in shown.inner_text()
    expect(page.locator("dialog .chip")).to_have_text(job["state"])


def test_a_dead_letter_is_retried(page: Page, live: Live) -> None:
    job = live.dead_job()
    row = page.locator(f"#dead tr[data-job={job}]")
    expect(row).to_contain_text("no good")
    row.get_by_role("button", name=f"Retry {job}").click()
    expect(row).to_have_count(0)
    assert live.get(f"/v1/jobs/{job}")["state"] == "queued"
    live.client.delete(f"/v1/jobs/{job}")


def test_knobs_are_turned_after_a_prediction(page: Page, live: Live) -> None:
    wait, apply = page.locator("[data-knob=target_wait]"), page.locator("#knobs button", has_text="Apply")
    expect(apply).to_be_disabled()
    with Load(live.client):
        live.see_served()
        wait.fill("2.5")
        with page.expect_response(lambda one: '"weight":{"code":3}' in (one.request.post_data or "")) as answer:
            page.locator("[data-knob='weight code']").fill("3")
        told = answer.value.json()
    shown = page.locator("#knobs .prediction")
    expect(shown).to_contain_text(told["note"])
    expect(shown.locator("dd").first).to_have_text(f"{told['V_now']:.3g} → {told['V_then']:.3g}")
    rows = [row.locator("th, td").all_inner_texts() for row in shown.locator("tbody tr").all()]
    assert [row[0] for row in rows] == ["chat", "code", "vision"]
    for row, one in zip(rows, told["job_classes"], strict=True):
        for cell, value in zip(row[2].split(" → "), (one["wait_now"], one["wait_then"]), strict=True):
            assert seconds(cell) == pytest.approx(value, rel=0.01)
    assert live.get("/v1/knobs")["target_wait"] == 0.5, "a prediction changes nothing"
    apply.click()
    expect(page.locator("#knobs form .note")).to_contain_text("Applied at")
    assert live.get("/v1/knobs")["target_wait"] == 2.5
    assert {one["name"]: one["weight"] for one in live.get("/v1/state")["job_classes"]}["code"] == 3.0
    expect(page.locator("#waits .legend")).to_contain_text("target2.5 s")
    wait.fill("-1")
    expect(page.locator("#knobs form .note")).to_contain_text("above zero")
    expect(apply).to_be_disabled()
    live.client.patch("/v1/knobs", json={"target_wait": 0.5, "weight": {"code": 1.0}})


def seconds(text: str) -> float:
    """Return a duration as it is shown, in seconds."""
    value, unit = text.split()
    return float(value) * {"ms": 0.001, "s": 1.0, "min": 60.0}[unit]


def test_who_may_only_read_can_change_nothing(browser: Browser, live: Live) -> None:
    job = live.dead_job()
    page, trouble = opened(browser, live.page("read"))
    is_live(page)
    expect(page.locator(f"#dead tr[data-job={job}]")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Retry|Apply"))).to_have_count(0)
    page.locator("[data-knob=target_wait]").fill("4")
    expect(page.locator("#knobs .prediction")).to_contain_text("What the theory predicts")
    expect(page.locator("#knobs form .note")).to_contain_text("needs a key with scope admin")
    assert trouble == []
    page.close()


def test_a_wrong_key_is_told_and_a_right_one_is_kept_in_the_tab_only(browser: Browser, live: Live) -> None:
    page, _ = opened(browser, live.process.address + "/")
    door, key = page.locator("#door"), page.locator("#key")
    expect(key).to_be_focused()
    for wrong, words in (
        ("bq_nothing", "look like"),
        (random_key(), "not known"),
        (live.keys["submit"], "needs read or admin"),
    ):
        key.fill(wrong)
        key.press("Enter")
        expect(door.get_by_role("alert")).to_contain_text(words)
        expect(page.locator("main")).to_be_hidden()
    key.fill(live.keys["read"])
    key.press("Enter")
    is_live(page)
    page.reload()
    is_live(page)
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.get_by_role("button", name="Forget key").click()
    expect(door).to_be_visible()
    page.close()


def test_a_key_in_the_address_is_taken_from_there(page: Page, live: Live) -> None:
    assert page.url == live.process.address + "/"


def test_a_key_that_is_revoked_closes_the_page(browser: Browser, live: Live) -> None:
    made = live.client.post("/v1/keys", json={"scopes": ["read"]}).json()
    page, _ = opened(browser, f"{live.process.address}/#key={made['key']}")
    is_live(page)
    live.client.delete(f"/v1/keys/{made['info']['prefix']}")
    expect(page.locator("#door").get_by_role("alert")).to_contain_text("does not take this key any more")
    page.close()


def test_a_lost_connection_is_caught_up_with(browser: Browser, live: Live) -> None:
    with Wire(live.process.address) as wire:
        page, _ = opened(browser, f"{wire.address}/#key={live.keys['read']}")
        is_live(page)
        table(page.locator("#queues"))
        wire.set_cut(True)
        expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
        newest = moments_of(page, "queues")[0]
        wait_for(lambda: live.get("/v1/history")["moments"][-4]["at"] > newest)
        wire.set_cut(False)
        is_live(page)
        wait_for(lambda: moments_of(page, "queues")[0] > newest)
        shown = moments_of(page, "queues")
        page.close()
    known = [one["at"] for one in live.get("/v1/history")["moments"]]
    assert shown == sorted(shown, reverse=True)
    assert set(shown) == {at for at in known if shown[-1] <= at <= shown[0]}, "no moment is missing"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_without_scrolling_sideways(browser: Browser, live: Live, scheme: Any) -> None:
    page, trouble = opened(
        browser, live.page(), viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True
    )
    is_live(page)
    for name in ("queues", "learnt"):
        table(page.locator(f"#{name}"))
    page.locator("[data-knob=target_wait]").fill("4")
    expect(page.locator("#knobs .prediction")).to_contain_text("What the theory predicts")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#queues canvas").bounding_box()
    assert box is not None
    assert box["width"] > 300
    page.locator("#leases tbody button").first.click()
    expect(page.locator("dialog[open]")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert hard_to_read(page) == []
    assert trouble == []
    page.close()


def test_dark_is_dark_also_in_charts(page: Page) -> None:
    page.locator("#queues canvas").scroll_into_view_if_needed()
    background = "getComputedStyle(document.body).backgroundColor"
    light, text = page.evaluate(background), page.locator("#queues canvas").evaluate(BRIGHTNESS)
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(300)
    assert (light, page.evaluate(background)) == ("rgb(244, 246, 247)", "rgb(16, 19, 22)")
    assert page.locator("#queues canvas").evaluate(BRIGHTNESS) > text + 40.0, "what is written gets lighter"


BRIGHTNESS = """it => {
  const copy = Object.assign(document.createElement('canvas'), { width: 40, height: it.height })
  const pen = copy.getContext('2d', { willReadFrequently: true })
  pen.drawImage(it, 0, 0)
  const { data } = pen.getImageData(0, 0, 40, it.height)
  let [total, many] = [0, 0]
  for (let k = 0; k < data.length; k += 4) if (data[k + 3] > 100) { total += data[k] + data[k + 1] + data[k + 2]; many += 3 }
  return total / many
}"""
"""Mean brightness of the numbers at the left of a canvas."""
"""What has a contrast below 4.5 to 1 (WCAG AA)."""
