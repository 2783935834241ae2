"""The price of learning and comparisons at an equal queue, on made-up records with results computed by hand."""

import math

import numpy as np
import pytest

from bilinq.experiments import Record
from bilinq.lab.effects import gap_at_equal_queue, late_growth, learnt, price, price_gap, ratio_at_equal_queue


def record(queue: float, regret: float) -> Record:
    """Return a record of 40 replications with these means."""
    spread = np.tile([-1.0, 1.0], 20)
    samples = {"queue": queue + 0.0 * spread, "regret": regret + spread}
    return Record(np.array([1]), samples, {}, 0.0)


KNOWN = [record(10.0, 2.0), record(20.0, 6.0)]


def test_price_is_the_height_above_the_frontier() -> None:
    assert price([record(15.0, 9.0)], KNOWN).value == pytest.approx(5.0)


def test_price_at_a_given_queue_interpolates_both() -> None:
    policy = [record(12.0, 10.0), record(16.0, 18.0)]
    assert price(policy, KNOWN, 14.0).value == pytest.approx(14.0 - 3.6)


def test_gap_and_share() -> None:
    good, blind = [record(10.0, 4.0)], [record(20.0, 16.0)]
    assert price_gap(good, blind, KNOWN).value == pytest.approx(2.0 - 10.0)
    assert learnt(good, blind, KNOWN).value == pytest.approx(0.8)
    assert learnt(blind, blind, KNOWN).value == pytest.approx(0.0)


def test_outside_the_frontier_there_is_no_price() -> None:
    assert math.isnan(price([record(25.0, 9.0)], KNOWN).value)


def test_comparison_at_an_equal_queue_interpolates_the_policy() -> None:
    """At queue 15 the policy, 2 at 10 and 6 at 20, has 4; the other has 9."""
    other = record(15.0, 9.0)
    assert gap_at_equal_queue(KNOWN, other, "regret").value == pytest.approx(4.0 - 9.0)
    assert ratio_at_equal_queue(KNOWN, other, "regret").value == pytest.approx(4.0 / 9.0)


def test_late_growth_is_per_slot_of_the_second_half() -> None:
    """Regret 0, 0, 3, 6 at slots 1, 2, 4, 6: from the third point to the last it grows by 3 in 2 slots."""
    path = np.array([[0.0, 0.0, 3.0, 6.0]], dtype=np.float32)
    assert late_growth(Record(np.array([1, 2, 4, 6]), {}, {"regret": path}, 0.0)) == pytest.approx([1.5])
