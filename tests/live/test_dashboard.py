"""The dashboard in a real browser on a real service: it shows what the API returns."""

import csv
import re
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, hard_to_read, opened
from playwright.sync_api import Browser, Locator, Page, expect
from process import wait_for
from watched import Watched, is_live
from wire import Wire

pytest_plugins = ["watched"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")


NOTHING = "\u2013"
"""What the page shows for an unknown value."""


def table(card: Locator) -> list[list[str]]:
    """Open the table behind a chart and return its cells, and at the end of rows of samples their time."""
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
    """Return a value that equals a number up to six digits."""
    return pytest.approx(float("nan") if value is None else value, rel=1e-5, abs=1e-9, nan_ok=True)


def test_matrices_are_those_of_the_api(page: Page, watched: Watched) -> None:
    state = watched.get("/v1/state")
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


def test_samples_are_those_of_the_api(page: Page, watched: Watched) -> None:
    shown = {name: table(page.locator(f"#{name}")) for name in ("queues", "reward", "waits", "servers")}
    history = watched.get("/v1/history")
    known = {one["at"]: one for one in history["moments"]}
    assert shown["queues"][0] == ["Time", "all", *history["layout"]["job_classes"]]
    assert shown["servers"][0] == ["Time", *history["layout"]["server_classes"]]
    for name, rows in shown.items():
        assert len(rows) > 10
        for _, *cells, at in rows[1:]:
            values = list(map(number, cells))
            assert values == [near(value) for value in wanted(name, known[float(at)], history)]


def test_the_hour_is_saved_as_csv(page: Page, watched: Watched) -> None:
    table(page.locator("#queues"))
    with page.expect_download() as saved:
        page.locator("#queues button", has_text="CSV").click()
    rows = list(csv.reader(saved.value.path().read_text().splitlines()))
    history = watched.get("/v1/history")
    known = {one["at"]: one["queued"] for one in history["moments"]}
    assert rows[0] == ["at", "all", *history["layout"]["job_classes"]]
    assert len(rows) > 10
    assert all(list(map(float, row[2:])) == known[float(row[0])] for row in rows[1:])


def samples_of(page: Page, card: str) -> list[float]:
    found: list[float] = page.locator(f"#{card} tbody").evaluate(
        "it => [...it.rows].map(row => Number(row.dataset.at))"
    )
    return found


def wanted(card: str, sample: dict[str, Any], history: dict[str, Any]) -> list[float | None]:
    """Return a row of a card's table as it must be."""
    if card == "queues":
        return [sum(sample["queued"]), *sample["queued"]]
    if card == "reward":
        return [sample["earned"], sample["best"]]
    if card == "waits":
        waits = [sample[name] for name in ("wait_p50", "wait_p90", "wait_p99")]
        return [sample["wait_mean"], history["layout"]["target_wait"], *waits]
    recent = [one for one in history["moments"] if 0.0 <= sample["at"] - one["at"] < 10.0]
    busy, idle = (np.sum([one[name] for one in recent], axis=0) for name in ("busy", "idle"))
    return [b / (b + i) if b + i else None for b, i in zip(busy.tolist(), idle.tolist(), strict=True)]


def test_numbers_and_leases_are_those_of_the_api(page: Page, watched: Watched) -> None:
    state, leases = watched.get("/v1/state"), watched.get("/v1/leases")["leases"]
    tile = page.locator("#tiles > div", has_text="Waiting").locator(".value")
    expect(tile).to_have_text(str(sum(one["queued"] for one in state["job_classes"])))
    names = {one["id"]: one["name"] or one["id"] for one in watched.get("/v1/servers")}
    rows = page.locator("#leases tbody tr")
    expect(rows).to_have_count(len(leases))
    expect(rows.first.locator("td").nth(2)).to_have_text(names[leases[0]["server"]])  # known when servers are loaded
    for row, lease in zip(rows.all(), leases, strict=True):
        cells = row.locator("td").all_inner_texts()
        assert cells[:4] == [lease["job"], lease["class"], names[lease["server"]], lease["server_class"]]
        assert cells[6] == lease["state"]
        assert number(cells[7]) == (
            pytest.approx(lease["reward"], rel=0.01) if lease["reward"] is not None else near(None)
        )
    expect(page.locator("[data-setting=target_wait]")).to_have_value(re.compile(r"^0\.5$"))


def test_reading_a_chart_by_keyboard(page: Page, watched: Watched) -> None:
    chart = page.locator("#queues canvas")
    chart.focus()
    assert chart.evaluate("it => parseFloat(getComputedStyle(it).outlineWidth)") >= 2
    page.keyboard.press("Home")
    expect(page.locator("#readout")).to_have_text(
        re.compile(r"^\d\d:\d\d:\d\d: all \d+, chat \d+, code \d+, vision \d+$")
    )
    expect(page.locator("#reward .hair")).to_be_visible()  # all charts show the same time
    page.keyboard.press("Escape")
    expect(page.locator("#reward .hair")).to_be_hidden()
    page.locator("#learnt canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    mean, width = (watched.get("/v1/state")[name][1][0] for name in ("mean", "width"))
    words = re.compile(r"^code on small: (\S+) ± (\S+)$")
    for place in ("#learnt .reading", "#readout"):
        expect(page.locator(place)).to_have_text(words)  # the next frame writes it
        found = words.match(page.locator(place).inner_text())
        assert found is not None
        assert [float(found[1]), float(found[2])] == pytest.approx([mean, width], rel=0.01)


def test_everything_is_reached_by_tab(page: Page) -> None:
    """From the top, each stop of the Tab key has a name and can be seen to have the focus."""
    page.locator("[data-setting=target_wait]").wait_for()
    stops: list[dict[str, Any]] = []
    for _ in range(150):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None:
            break
        stops.append(stop)
    places = [stop["place"] for stop in stops]
    assert places[0] == "skip"
    for card in (
        "search",
        "window",
        "queues",
        "reward",
        "waits",
        "servers",
        "allocation",
        "learnt",
        "settings",
        "jobs",
        "leases",
    ):
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


def test_a_lost_connection_is_caught_up_with(browser: Browser, watched: Watched) -> None:
    with Wire(watched.process.address) as wire:
        page, _ = opened(browser, f"{wire.address}/#key={watched.keys['read']}")
        is_live(page)
        table(page.locator("#queues"))
        wire.set_cut(True)
        expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
        newest = samples_of(page, "queues")[0]
        wait_for(lambda: watched.get("/v1/history")["moments"][-4]["at"] > newest)
        wire.set_cut(False)
        is_live(page)
        wait_for(lambda: samples_of(page, "queues")[0] > newest)
        shown = samples_of(page, "queues")
        page.close()
    known = [one["at"] for one in watched.get("/v1/history")["moments"]]
    assert shown == sorted(shown, reverse=True)
    assert set(shown) == {at for at in known if shown[-1] <= at <= shown[0]}, "no sample is missing"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_without_scrolling_sideways(browser: Browser, watched: Watched, scheme: Any) -> None:
    page, trouble = opened(
        browser, watched.page(), viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True
    )
    is_live(page)
    for name in ("queues", "learnt"):
        table(page.locator(f"#{name}"))
    page.locator("[data-setting=target_wait]").fill("4")
    expect(page.locator("#settings .prediction")).to_contain_text("redict")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#queues canvas").bounding_box()
    assert box is not None
    assert box["width"] > 300
    page.locator("#queues canvas").tap()
    expect(page.locator("#queues .hair")).to_be_visible()
    page.locator("#learnt canvas").tap()
    expect(page.locator("#learnt .reading")).to_contain_text(" on ")
    expect(page.locator("#queues .hair")).to_be_hidden()
    assert page.locator("#leases tr[data-state=active] td[data-name=Reward]:visible").count() == 0
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
    assert page.locator("#queues canvas").evaluate(BRIGHTNESS) > text + 40.0, "text gets lighter"


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
