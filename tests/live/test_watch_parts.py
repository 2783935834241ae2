"""The parts of the watcher: the ring of samples, the window of totals, and the feed."""

import asyncio
import time

import msgspec
import numpy as np
import pytest

from bilinq.errors import Busy, Unavailable
from bilinq.live.metrics import Meters
from bilinq.live.watch import feed as feeds
from bilinq.live.watch.feed import COMMENT, Feed, KeptSample, Ring, event
from bilinq.live.watch.load import THIN, Window
from bilinq.live.wire.samples import Layout, Sample


def sample(id: str, jobs: int = 2, servers: int = 1) -> Sample:
    counts = list(range(1, jobs + 1))
    return Sample(id, 0.0, 1, 0.1, counts, counts, counts, counts, [0.5 * x for x in counts], 1.0, 2.0, 3.0,
                  [7] * servers, [8] * servers, None, None, None)  # fmt: skip


def filled(count: int, size: int) -> Ring:
    ring = Ring("ab-c", size)
    for _ in range(count):
        ring.add(sample(ring.next_id))
    return ring


def numbers(kept: list[KeptSample]) -> list[int]:
    return [int(one.id.rpartition("-")[2]) for one in kept]


def test_the_ring_keeps_the_newest_and_returns_those_after_an_id() -> None:
    ring = filled(10, size=4)
    assert numbers(ring.after(None)) == [7, 8, 9, 10]
    assert numbers(ring.after("ab-c-8")) == [9, 10]
    assert numbers(ring.after("ab-c-10")) == []
    assert numbers(ring.after(None, limit=2)) == [9, 10]
    assert numbers(ring.after("ab-c-7", limit=2)) == [9, 10]
    [last] = ring.after("ab-c-9")
    assert msgspec.json.decode(last.json, type=Sample) == sample("ab-c-10")


@pytest.mark.parametrize(
    "id", ["", "x", "other-9", "ab-c-", "ab-c-99", "ab-c--1", "ab-c-x", "ab-c-²", "ab-c-" + "9" * 30]
)
def test_an_unknown_id_returns_everything(id: str) -> None:
    assert numbers(filled(3, size=9).after(id)) == [1, 2, 3]


def test_samples_are_rearranged_with_their_classes() -> None:
    ring = filled(2, size=9)
    before = Layout(1, ["a", "b"], ["x"], None, 0.0, 1.0)
    ring.rearrange(before, Layout(2, ["new", "b"], ["y", "x"], None, 0.0, 1.0))
    for kept in ring.after(None):
        moved = msgspec.json.decode(kept.json, type=Sample)
        assert (moved.queued, moved.reward, moved.idle, moved.busy) == ([0, 2], [0.0, 1.0], [0, 7], [0, 8])
        assert moved.id == kept.id


def test_an_updated_setting_leaves_samples_as_they_are() -> None:
    ring = filled(3, size=9)
    before = ring.after(None)
    layout = Layout(1, ["a", "b"], ["x"], None, 0.0, 1.0)
    ring.rearrange(layout, msgspec.structs.replace(layout, version=2, target_wait=3.0))
    assert all(new is old for new, old in zip(ring.after(None), before, strict=True))


def test_a_window_has_the_differences_of_the_last_minute() -> None:
    meters = Meters()
    window = Window(meters, at=100.0)
    for second in range(1, 101):
        meters.submit("a", units=3)
        meters.leases_ended["a", "finished"] += 1
        meters.finish("a", seconds=0.5, reward=0.25 if second > 90 else None)
        meters.granted["a", "x"] += 2
        window.add(100.0 + second)
    latest, minute = window.latest, window.within()
    assert (latest.duration, latest.submitted, latest.reward) == (1.0, {"a": 1}, {"a": 0.25})
    assert (minute.duration, minute.submitted, minute.units) == (60.0, {"a": 60}, {"a": 180})
    assert (minute.finished, minute.seconds, minute.reward) == ({"a": 60}, {"a": 30.0}, {"a": 2.5})
    assert minute.earned == pytest.approx(2.5 / 60.0)
    assert window.within(10.0).granted == {("a", "x"): 20}
    assert len(window._totals) < 65


def test_a_window_stays_small_when_samples_are_frequent() -> None:
    meters = Meters()
    window = Window(meters, at=0.0)
    for number in range(1, 2001):
        meters.submit("a", units=1)
        window.add(0.05 * number)
    assert len(window._totals) < 125
    assert window.latest.submitted == {"a": 1}
    assert window.within().duration == pytest.approx(60.0, abs=0.6)
    assert window.within().submitted["a"] == pytest.approx(window.within().duration / 0.05)


def test_a_new_window_has_its_own_duration() -> None:
    meters = Meters()
    meters.submit("a", 1)
    window = Window(meters, at=0.0)
    window.add(2.5)
    assert (window.within().duration, window.within().submitted) == (2.5, {"a": 1})
    assert window.waits(0.5, 0.9) == [None, None]
    assert window.mean_wait() is None
    assert window.within().earned is None


def test_quantiles_of_waits_are_those_of_the_last_minute() -> None:
    """Against all values at once; thinning moves a quantile by less than a fiftieth of the values."""
    rng, meters = np.random.default_rng(1), Meters()
    window, kept = Window(meters, at=0.0), []
    for second in range(1, 121):
        waits = rng.exponential(size=rng.integers(0, 8 * THIN)) + (50.0 if second <= 60 else 0.0)
        for wait in waits:
            meters.wait("a", float(wait))
        kept += list(waits) if second > 60 else []
        window.add(float(second))
    for part, found in zip((0.5, 0.9, 0.99), window.waits(0.5, 0.9, 0.99), strict=True):
        assert found is not None
        assert abs(np.mean(np.array(kept) <= found) - part) < 0.02
    assert window.mean_wait() == pytest.approx(np.mean(kept), rel=0.02)


def test_few_waits_have_exact_quantiles() -> None:
    meters = Meters()
    window = Window(meters, at=0.0)
    for wait in (3.0, 1.0, 2.0, 4.0):
        meters.wait("a", wait)
    window.add(1.0)
    assert window.waits(0.5, 0.9, 0.25) == [2.0, 4.0, 1.0]
    assert window.mean_wait() == 2.5


def test_an_event_is_in_the_format_of_the_standard() -> None:
    assert event("moment", b"{}", "a-1") == b"id: a-1\nevent: moment\ndata: {}\n\n"
    assert event("layout", Layout(1, ["line\nbreak"], [], None, 0.0, 1.0)).count(b"\n") == 3


async def take(parts: object, many: int) -> list[bytes]:
    return [await anext(parts) for _ in range(many)]  # type: ignore[call-overload]


def test_all_viewers_get_the_same_bytes() -> None:
    async def watch() -> None:
        feed = Feed()
        viewers = [feed.follow(None, lambda seen: b"first") for _ in range(3)]
        assert [await anext(viewer) for viewer in viewers] == [b"first"] * 3
        assert feed.viewers == 3
        feed.publish("a-1", b"news")
        found = [await anext(viewer) for viewer in viewers]
        assert found == [b"news"] * 3
        assert found[0] is found[1] is found[2]
        for viewer in viewers:
            await viewer.aclose()
        assert feed.viewers == 0

    asyncio.run(watch())


def test_a_slow_viewer_gets_what_it_missed() -> None:
    async def watch() -> None:
        feed, requested = Feed(), []

        def catch_up(seen: str | None) -> bytes:
            requested.append(seen)
            return b"since %b" % (seen or "nothing").encode()

        viewer = feed.follow("a-0", catch_up)
        assert await anext(viewer) == b"since a-0"
        feed.publish("a-1", b"one")
        assert await anext(viewer) == b"one"
        for number in range(2, 6):
            feed.publish(f"a-{number}", b"more")
        assert await anext(viewer) == b"since a-1"
        feed.publish("a-6", b"six")
        assert await anext(viewer) == b"six"
        assert requested == ["a-0", "a-1"]

    asyncio.run(watch())


def test_a_quiet_connection_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "QUIET", 0.01)

    async def watch() -> None:
        feed = Feed()
        viewer = feed.follow(None, lambda seen: b"first")
        assert await take(viewer, 3) == [b"first", COMMENT, COMMENT]
        feed.publish("a-1", b"news")
        assert await take(viewer, 2) == [b"news", COMMENT]

    asyncio.run(watch())


def test_streams_end_when_the_feed_disconnects_them() -> None:
    async def watch() -> None:
        feed = Feed()
        first = feed.follow(None, lambda seen: b"first")
        await anext(first)
        began = time.monotonic()
        asyncio.get_running_loop().call_later(0.01, feed.disconnect)
        assert [part async for part in first] == []
        second = feed.follow(None, lambda seen: b"second")
        assert await anext(second) == b"second"
        handed_on = asyncio.create_task(feed.until_end(asyncio.sleep(30.0)))
        await asyncio.sleep(0.01)
        feed.end()
        assert [part async for part in second] == []
        await asyncio.wait_for(handed_on, 1.0)
        with pytest.raises(Unavailable, match="stopping"):
            await anext(feed.follow(None, lambda seen: b""))
        assert feed.viewers == 0
        assert time.monotonic() - began < 5.0, "also a stream whose viewer was busy ends at once"

    asyncio.run(watch())


def test_the_number_of_viewers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "VIEWERS", 1)

    async def watch() -> None:
        feed = Feed()
        one = feed.follow(None, lambda seen: b"first")
        await anext(one)
        with pytest.raises(Busy, match="1 viewers"):
            await anext(feed.follow(None, lambda seen: b"first"))
        await one.aclose()
        assert await anext(feed.follow(None, lambda seen: b"first")) == b"first"

    asyncio.run(watch())
