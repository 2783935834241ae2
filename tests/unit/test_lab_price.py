"""The price of learning on made-up records, where it can be done by hand."""

import math

import numpy as np
import pytest

from bilinq.experiments import Record
from bilinq.lab.price import learnt, price, price_gap


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
