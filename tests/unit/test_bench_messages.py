"""What the benchmark counts as messages, against regions that really send them."""

from typing import Any

import numpy as np
import pytest
from bench.scale import messages
from bench.scale.exchanges import Regions
from bench.scale.regions import REGIONS, fleet, homes

from bilinq import allocate
from bilinq.distributed import Network
from plain_regions import play


@pytest.mark.parametrize("nodes", ["job", "server"])
@pytest.mark.parametrize(("rows", "columns", "delay"), [(40, 20, 1), (30, 10, 3), (24, 3, 2)])
def test_sums_and_answers_by_region_are_enough(nodes: Any, rows: int, columns: int, delay: int) -> None:
    """Regions that exchange only sums compute the same rates as nodes that exchange everything, with the bytes counted."""
    system = fleet(rows, columns, delay)
    gain = system.special_gain(0.9, "discrete")
    rates, sent = play(system, gain, 60, delay, nodes)
    wanted = Network(system, gain, nodes=nodes).advance(60)
    np.testing.assert_allclose(rates, wanted, rtol=1e-9, atol=1e-9)
    counted = messages.regions(rows, columns, nodes)
    assert (len(sent), sum(map(len, sent.values()))) == (counted.messages, counted.bytes)


@pytest.mark.parametrize(("rows", "columns"), [(40, 20), (24, 3)])
def test_exchanges_send_what_is_counted(rows: int, columns: int) -> None:
    """By the shards of the Ray engine; a region without servers is sent nothing."""
    regions = Regions(fleet(rows, columns))
    for _ in range(3):
        regions.exchange(2)
    counted = messages.exchange(columns)
    assert (regions.messages, regions.bytes) == (3 * counted.messages, 3 * counted.bytes)


@pytest.mark.parametrize(("rows", "columns"), [(40, 20), (1000, 100), (10_000, 1000)])
def test_formulas_of_the_page(rows: int, columns: int) -> None:
    """With R regions that have equally many classes: 2 I J (1 - 1/R) messages, or R (R - 1) of 16 J / R bytes and so on."""
    apart = REGIONS - 1
    assert messages.pairs(rows, columns).messages * 10 == 2 * rows * columns * apart
    assert messages.regions(rows, columns).messages == 10 * apart
    assert messages.regions(rows, columns).bytes == 16 * columns * apart
    assert messages.regions(rows, columns, "server").bytes == 16 * rows * apart
    assert messages.exchange(columns).bytes == 24 * columns * apart
    assert messages.every_place(rows).bytes == 8 * rows * apart


def test_counts_by_hand() -> None:
    """40 x 20 in ten regions: 720 pairs are apart; a region has 4 job and 2 server classes."""
    assert messages.pairs(40, 20) == messages.Traffic(2 * 720, 2 * 720 * 8, 2 * 720 * 48)
    assert messages.regions(40, 20) == messages.Traffic(90, 90 * 4 * 8, 90 * (4 * 8 + 40))
    assert messages.regions(40, 20, "server") == messages.Traffic(90, 90 * 8 * 8, 90 * (8 * 8 + 40))
    assert messages.exchange(20) == messages.Traffic(180, 90 * 2 * 24, 90 * (2 * 24 + 80))
    assert messages.every_place(40) == messages.Traffic(90, 90 * 4 * 8, 90 * (4 * 8 + 40))
    assert messages.Traffic.of([1460, 1461, 0]) == messages.Traffic(2, 2921, 2921 + 3 * 40)


def test_one_place_gets_queues_and_returns_used_pairs() -> None:
    system = fleet(40, 20)
    best = allocate(system.queue, system.reward, system.capacity, 1.0).expected
    away = int(np.count_nonzero(best[homes(40) > 0]))
    assert messages.one_place(best) == messages.Traffic(18, 36 * 8 + 12 * away, 36 * 8 + 12 * away + 18 * 40)
