"""The benchmark behind `docs/scale.md` at small sizes, its picture, and the page's own numbers."""

import math

import numpy as np
import pytest
from bench.report import Report
from bench.scale import figure, messages, tables
from bench.scale import page as pages
from bench.scale.exchanges import settle_by_exchanges
from bench.scale.messages import bandwidth, traffic
from bench.scale.regions import REGIONS, SURGE, fleet, homes
from bench.scale.settings import _varied, elsewhere
from bench.scale.settling import Optimum, Settling, alone, settle, solve

from bilinq import style
from bilinq.distributed import iterate, shortfall
from bilinq.distributed.system import allowance

SMALL = ((10, 3),)


def test_rounds_are_those_of_iterate() -> None:
    """The benchmark checks few rounds; `iterate` checks all. They differ by no more than the steps between checks."""
    system = fleet(20, 10, 1)
    best = Optimum.of(system, system.fixed_point(), soft=True)
    seen = settle(system, best, level=1e-4, rounds=4000)
    run = iterate(system, system.special_gain(0.9, "discrete"), seen.rounds[-1])
    for level in (1e-2, 1e-4):
        wanted, found = float(run.settled(level)), seen.within(level)
        assert found is not None
        assert wanted <= found <= 1.03 * wanted + 1


def test_what_is_lost_is_the_shortfall() -> None:
    system = fleet(20, 10)
    best = Optimum.of(system, solve(system).expected, soft=False)
    assert best.gap(system, system.fixed_point()) == pytest.approx(float(shortfall(system)), abs=1e-9)


def test_settled_means_for_good() -> None:
    seen = Settling([0, 1, 2, 4], [0.5, 0.005, 0.02, 0.001])
    assert (seen.within(0.5), seen.within(1e-2), seen.within(1e-4)) == (0, 4, None)


def test_a_fleet_is_as_documented() -> None:
    """Ten regions, delays between them only, prices near 0.9; changes leave everything but the queues."""
    system, changed, doubled = (fleet(100, 20, 5, change=change) for change in ("", "10 %", SURGE))
    assert set(np.unique(system.forward)) == {0.0, 5.0}
    assert np.count_nonzero(system.forward == 0.0) == 100 * 20 // REGIONS
    assert system.capacity.sum() == 20_000
    assert float(system.equilibrium.price.mean()) == pytest.approx(0.9, abs=0.1)
    ratio = changed.queue / system.queue
    assert np.abs(ratio - 1.0).max() == pytest.approx(0.1, rel=0.1)
    np.testing.assert_allclose(doubled.queue / system.queue, np.repeat([2.0, 1.0], [10, 90]))
    assert (changed.reward == system.reward).all()


def test_exchanges_never_lose_what_was_gained() -> None:
    """So the first time within a level counts."""
    system = fleet(40, 20)
    best = Optimum.of(system, system.fixed_point(), soft=True)
    seen = settle_by_exchanges(system, best, iterations=20, level=1e-2, exchanges=100)
    assert (np.diff(seen.gaps) < 1e-12).all()
    assert 0.0 < seen.gaps[-1] <= 1e-2 < seen.gaps[-2]


def test_a_region_alone_uses_its_own_servers() -> None:
    system = fleet(40, 20)
    expected = alone(system)
    assert (expected[homes(40)[:, None] != homes(20)] == 0.0).all()
    assert (expected.sum(axis=0) <= system.capacity * (1.0 + 1e-9)).all()
    assert (expected.sum(axis=1) > 0.0).all()


def test_tables_of_the_page() -> None:
    """Rounds are the same on every machine but for rounding; the full benchmark compares all rows of all tables."""
    page = pages.read()
    found = [
        traffic(tables.SIZES[:2]), bandwidth(tables.FLEET), tables.cold(SMALL), tables.changes(SMALL),
        tables.exchanges(SMALL, None, (tables.FEW,)), tables.solves(SMALL), elsewhere(SMALL),
    ]  # fmt: skip
    assert [wrong for report in found for wrong in pages.differences(report, page)] == []


def test_sentences_of_the_page() -> None:
    """The sentences follow from the tables, which are compared with the benchmark's."""
    rounds = {(row["size"], row["delay"]): row for row in figure.rows(pages.read(), "rounds to 1 %", "delay")}
    small, large = rounds["10x3", "0"], rounds["10000x1000", "0"]
    assert float(large["rounds to 1 %"]) / float(small["rounds to 1 %"]) == pytest.approx(4.0, abs=0.5)
    assert float(large["rounds to 0.01 %"]) / float(small["rounds to 0.01 %"]) == pytest.approx(7.0, abs=0.5)
    apart = [row for (_, delay), row in rounds.items() if delay != "0"]
    assert all(3.5 < float(row["seconds to 1 %"]) < 14.5 for row in apart)
    assert all(50.0 < float(row["seconds to 0.01 %"]) < 200.0 for row in apart if row["seconds to 0.01 %"])
    after = {(row["size"], row["change"]): row for row in figure.rows(pages.read(), "gap at once, %")}
    need = {key: float(row["rounds to 0.01 %"]) for key, row in after.items()}
    assert all(float(row["gap at once, %"]) < 0.2 and need[key] < 20 for key, row in after.items() if key[1] == "10 %")
    for size, longer, less in (("100x10", 1.6, 0.65), ("1000x100", 2.0, 0.31)):
        warm, mixed, cold = (need[size, SURGE + how] for how in ("", ", 1 % spread", ", cold"))
        assert (warm / cold, 1.0 - mixed / warm) == pytest.approx((longer, less), abs=0.05)


def test_sentences_about_one_place() -> None:
    lost = {(row["size"], row["change"], row["who"]): row for row in figure.rows(pages.read(), "who")}
    late = {key: float(row["after 2 s"]) for key, row in lost.items() if key[0] == "10000x1000"}
    size, heavy = "10000x1000", "10 %, twice the load"
    assert late[size, "10 %", "exact, of before"] < late[size, "10 %", "nodes"]
    assert float(lost[size, heavy, "nodes"]["after 0.1 s"]) < 0.15 * late[size, heavy, "exact, of before"]
    surge = [late[size, SURGE, who] for who in ("exchanges", "exact, of before", "nodes")]
    assert surge == pytest.approx([0.28, 1.86, 2.09], abs=0.01)
    told = {(row["size"], row["change"], row["iterations"]): row for row in figure.rows(pages.read(), "to 0.01 %")}
    rounds = {row["size"]: row for row in figure.rows(pages.read(), "rounds to 1 %", "delay") if row["delay"] == "5"}
    for size in ("10x3", "100x10", "1000x100"):
        faster = float(rounds[size]["seconds to 0.01 %"]) / float(told[size, "cold", "100"]["seconds to 0.01 %"])
        assert 2.8 < faster < 3.7


def test_a_wrong_page_is_noticed() -> None:
    report = Report("rounds", ("size", "delay", "rounds to 1 %", "solve, s"), [("10x3", 1, 98, 0.5)])
    columns = list(report.columns)
    assert pages.differences(report, [(columns, [["10x3", "1", "97", "7.0"]])]) == []
    assert pages.differences(report, [(columns, [["10x3", "1", "80", "0.5"]])]) == ["10x3, 1: rounds to 1 %"]
    assert pages.differences(report, [(columns, [["10x3", "5", "98", "0.5"]])]) == ["no row 10x3, 1"]
    assert pages.differences(report, [(columns, [["10x3", "1", "not run", ""]])]) == ["10x3, 1: rounds to 1 %"]
    assert not pages.compared(report, []).bounds[0].met


def test_messages_of_the_largest_fleet() -> None:
    """At ten million pairs nothing needs to be solved but for one column."""
    row = next(rows[-1] for columns, rows in pages.read() if "exchange: kB" in columns)
    size = tables.FLEET
    jobs, servers, told = messages.regions(*size), messages.regions(*size, "server"), messages.exchange(size[1])
    counted = [messages.pairs(*size).messages, messages.pairs(*size).wire / 1e6, jobs.messages]
    counted += [way.wire / 1e3 for way in (jobs, servers, told)]
    assert [float(cell) for cell in row[1:7]] == pytest.approx(counted, rel=0.01)


def test_shorter_rounds_reach_a_limit() -> None:
    """What gains may add up to in 100 ms: the more rounds the better, but five are within 5 % of the limit."""
    delay = np.array([1.0, 5.0, 20.0, 1e6])
    speed = delay * allowance(2.0 * delay, "discrete")
    assert (np.diff(speed) > 0.0).all()
    assert speed / (math.pi / 4) == pytest.approx([0.787, 0.952, 0.988, 1.0], abs=1e-3)


def test_one_thing_varied() -> None:
    """Half of the gain costs almost twice the rounds; gains by the price received end like those by the fixed point."""
    plain, half, known, heard = (_varied((12, 10), gains=gains) for gains in ("", "half", "known", "heard"))
    assert half[1] == pytest.approx(1.8 * plain[1], rel=0.06)
    assert heard[1] == pytest.approx(known[1], rel=0.06)
    assert known[1] < plain[1]


def test_the_picture_is_drawn() -> None:
    drawn = figure.draw(pages.read())
    assert len(drawn.axes) == 3
    assert len(style.png(drawn)) > 20_000
