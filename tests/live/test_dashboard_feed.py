"""The dashboard on a generated service: smooth with 50 x 20 classes and an hour of history, and with a baseline beside."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from browser import CHROMIUM, hard_to_read, launched, opened
from generated_feed import KEY, Feed, Generated
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")

LONGEST = 100.0
"""Milliseconds."""
SAMPLES = 3600


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


class Task(NamedTuple):
    """A task of the main thread, with its milliseconds of processor time."""

    cost: float
    name: str


def tasks(trace: bytes, address: str) -> list[Task]:
    """Return the tasks of the main thread of the page that loads from `address`."""
    events: list[dict[str, Any]] = json.loads(trace)["traceEvents"]
    mains = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "ResourceSendRequest" and one["args"]["data"]["url"].startswith(address)
    }
    return [
        Task(one["tdur"] / 1000.0, one["args"].get("src_func", ""))
        for one in events
        if one["name"] == "ThreadControllerImpl::RunTask" and (one["pid"], one["tid"]) in mains and "tdur" in one
    ]


def test_no_task_takes_longer_than_a_tenth_of_a_second(browser: Browser) -> None:
    """An hour arrives at once, then ten samples a second; the pointer moves, the window changes, tables are open.

    What counts is the processor time of the page's main thread in each of its tasks (the browser's own trace), not the
    wall-clock time: on a busy machine that includes the time in which the thread does not run.
    """
    with Feed(Generated(50, 20, SAMPLES, every=0.1)) as feed:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
        page.goto(f"{feed.address}/#key={KEY}")
        page.wait_for_selector("#queues .legend b:not(:empty)")
        page.locator("#window label").nth(2).click()
        page.locator("#queues summary").click()
        page.locator("#learnt summary").click()
        box = page.locator("#queues canvas").bounding_box()
        assert box is not None
        for step in range(20):
            page.mouse.move(box["x"] + 60 + 10 * step, box["y"] + 60)
            page.wait_for_timeout(50)
        page.locator("#window label").nth(0).click()
        page.wait_for_timeout(500)
        found = tasks(browser.stop_tracing(), feed.address)
        page.locator("#queues summary").scroll_into_view_if_needed()  # a table that cannot be seen is not filled
        expect(page.locator("#queues tbody tr")).to_have_count(20)  # one fewer for a frame at times
        page.close()
    assert len(found) > 500, "the trace must have the page's work in it"
    longest = max(found)
    assert longest.cost < LONGEST, longest


def test_a_baseline_is_shown_beside_and_of_many_classes_the_longest_queues(browser: Browser) -> None:
    source = Generated(12, 2, 100)
    with Feed(source) as feed:
        page, trouble = opened(browser, f"{feed.address}/#key={KEY}")
        expect(page.locator("#tiles")).to_contain_text("Baseline: first-come")
        expect(page.locator("#tiles > div", has_text="Baseline").locator(".value")).to_have_text(re.compile(r"^3[5-8]"))
        names = page.locator("#reward .legend .name")
        expect(names).to_have_text(["earned", "best possible", "baseline: first-come"])
        expect(page.locator("#waits .legend")).to_contain_text("baseline: first-come, p902.3 s")
        expect(page.locator("#queues .legend li")).to_have_count(6)
        expect(page.locator("#queues .legend .name").first).to_have_text("all")
        expect(page.locator("#queues .note")).to_contain_text("The largest of 13 lines")
        page.locator("#queues summary").click()
        expect(page.locator("#queues thead th")).to_have_text(["Time", "all", *source.layout["job_classes"]])
        page.close()
    assert trouble == []


class Unused(Generated):
    """A service that has no jobs and no servers yet."""

    def sample(self, number: int, at: float) -> dict[str, Any]:
        unknown = dict.fromkeys(("wait_mean", "wait_p50", "wait_p90", "wait_p99", "best", "earned", "rival"))
        counts = ("queued", "leased", "submitted", "finished", "reward", "idle", "busy")
        return super().sample(number, at) | unknown | {name: [0] * self.n_jobs for name in counts}

    def state(self, number: int) -> dict[str, Any]:
        return super().state(number) | {"rate": [[0.0] * self.n_servers] * self.n_jobs}

    def leases(self, number: int) -> dict[str, Any]:
        return {"leases": []}


DRAWN = """
window.drawn = []
const fill = CanvasRenderingContext2D.prototype.fillText
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { drawn.push(text); fill.call(this, text, ...rest) }
"""
"""Keeps all texts that are drawn."""


def test_before_the_first_job_nothing_is_a_tiny_number(browser: Browser) -> None:
    """Scales end at one, tiles say what is missing, and there is no table without rows."""
    with Feed(Unused(2, 2, 5)) as feed:
        page, _ = opened(browser, "about:blank", viewport={"width": 1200, "height": 2000})
        page.add_init_script(DRAWN)
        page.goto(f"{feed.address}/#key={KEY}")
        expect(page.locator("#tiles")).to_contain_text("target 2 s; no job has started")
        expect(page.locator("#tiles")).to_contain_text("no server is connected")
        expect(page.locator("#tiles")).to_contain_text("best not known yet")
        expect(page.locator("#leases")).to_contain_text("No leases yet")
        expect(page.locator("#leases .scroll")).to_be_hidden()
        page.wait_for_function("drawn.includes('job class 2') && drawn.includes('1')")
        assert page.evaluate("drawn.filter(text => text.includes('e-'))") == []
        page.close()


def test_more_than_the_best_is_not_a_share_of_it(browser: Browser) -> None:
    """While a backlog is served, more is earned than arrivals allow."""
    source = Generated(2, 2, 100)
    source.best = 15.0
    with Feed(source) as feed:
        page, trouble = opened(browser, f"{feed.address}/#key={KEY}")
        expect(page.locator("#tiles")).to_contain_text("above the best for this load, 15")
        page.close()
    assert trouble == []


def test_a_policy_that_neither_learns_nor_has_settings_is_shown_as_such(browser: Browser) -> None:
    with Feed(Generated(2, 2, 5, learns=False)) as feed:
        page, trouble = opened(browser, f"{feed.address}/#key={KEY}")
        expect(page.locator("#settings .about")).to_have_text("The policy first-come has no settings")
        expect(page.locator("#settings form")).to_be_hidden()
        expect(page.locator("#learnt .note")).to_contain_text("does not learn")
        expect(page.locator("#allocation canvas")).to_be_visible()
        page.close()
    assert trouble == []


SHADOW = {
    "policy": "sabr", "state": "on", "error": None, "choices": 5000, "compared": 4100, "agreement": 0.71,
    "predicted_gain": 0.021, "earned": {"mean": 0.5, "low": 0.49, "high": 0.51},
    "estimate": {"mean": 0.532, "low": 0.51, "high": 0.554}, "gain": {"mean": 0.032, "low": 0.011, "high": 0.053},
    "notes": ["Queues and waits would differ."],
}  # fmt: skip


def test_a_shadow_has_a_card_of_its_own_and_none_has_none(browser: Browser) -> None:
    source = Generated(2, 2, 5, every=0.2)
    with Feed(source) as feed:
        page, trouble = opened(browser, f"{feed.address}/#key={KEY}", viewport={"width": 390, "height": 800})
        card = page.locator("#shadow")
        expect(page.locator("#learnt canvas")).to_be_visible()
        expect(card).to_be_hidden()
        source.shadow = SHADOW
        expect(card.locator(".about")).to_contain_text("sabr decides beside sabr")
        texts = ["0.532 instead of 0.5", "+0.032, 95 % interval +0.011 to +0.053", "71 %", "4,100 of 5,000 choices"]
        expect(card.locator("dd")).to_have_text([*texts, "+0.021 over all choices; predicted, not measured"])
        expect(card.get_by_role("img")).to_have_attribute(
            "aria-label", "Difference +0.032, 95 % interval from +0.011 to +0.053"
        )
        expect(card.locator("svg.better")).to_have_count(1)
        expect(card.locator(".note")).to_have_text(["Queues and waits would differ."])
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert hard_to_read(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        nothing = dict.fromkeys(("earned", "estimate", "gain", "agreement", "predicted_gain"))
        source.shadow = SHADOW | nothing | {"state": "failed", "error": "division by zero", "choices": 0, "compared": 0}
        expect(card.locator(".note").first).to_have_text("It has failed and is switched off")
        expect(card.locator(".note").nth(1)).to_have_text("division by zero")
        expect(card.locator("svg")).to_have_count(0)
        source.shadow = None
        expect(card).to_be_hidden()
        page.close()
    assert trouble == []


def test_what_is_not_predicted_leaves_no_empty_place(browser: Browser) -> None:
    """For the look-ahead the mean wait and the queue are predicted, or nothing, which is said."""
    source, names = Generated(2, 2, 5), ("V", "reward", "queue", "wait")
    rows = [{"name": name, "measured_wait": 1.0} | dict.fromkeys(("queue_now", "queue_then", "wait_now", "wait_then"))
            for name in source.layout["job_classes"]]  # fmt: skip
    nothing = {f"{name}_{when}": None for name in names for when in ("now", "then")}
    source.prediction = nothing | {"job_classes": rows, "note": "It keeps the target.", "V_now": 300.0, "wait_now": 2.2,
                                   "wait_then": 5.0, "queue_now": 24.0, "queue_then": 57.0}  # fmt: skip
    with Feed(source) as feed:
        page, trouble = opened(browser, f"{feed.address}/#key={KEY}")
        shown = page.locator("#settings .prediction")
        page.locator("[data-setting=target_wait]").fill("5")
        expect(shown.locator("h3")).to_have_text("What the theory predicts")
        expect(shown.locator("dt, dd")).to_have_text(["Waiting jobs", "24 → 57", "Mean wait", "2.2 s → 5 s"])
        expect(shown.locator("table")).to_have_count(0)
        source.prediction = nothing | {"job_classes": rows, "note": "No prediction: V is set."}
        page.locator("[data-setting=target_wait]").fill("6")
        expect(shown.locator("h3")).to_have_text("No prediction")
        expect(shown.locator("dl, table")).to_have_count(0)
        expect(shown.locator(".note")).to_have_text("No prediction: V is set.")
        page.close()
    assert trouble == []
