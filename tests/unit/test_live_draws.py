"""The numbers of a slot, and those of a job, are its own, whatever was drawn before."""

import numpy as np
from scipy import stats

from bilinq.scheduler.look_ahead_kernels import normal
from bilinq.scheduler.snapshot import Draws


def test_a_slot_has_its_numbers_in_whichever_order_slots_come() -> None:
    once, again = Draws(7), Draws(7)
    forward = {slot: once.of_slot(slot).random(200) for slot in (1, 2, 3, 2**40)}
    for slot in reversed(forward):
        again.of_slot(slot).integers(10, dtype=np.uint32)  # leaves half a number behind
        np.testing.assert_array_equal(again.of_slot(slot).random(200), forward[slot])
    assert len({tuple(numbers) for numbers in forward.values()}) == len(forward)
    assert Draws(8).of_slot(1).random() != forward[1][0]


def test_the_first_numbers_of_slots_are_uniform_and_independent() -> None:
    draws = Draws(1)
    first = np.array([draws.of_slot(slot).random(2) for slot in range(1, 4001)])
    assert stats.kstest(first[:, 0], "uniform").pvalue > 1e-3
    assert abs(stats.pearsonr(first[:-1, 0], first[1:, 0])[0]) < 0.05
    assert abs(stats.pearsonr(first[:, 0], first[:, 1])[0]) < 0.05
    assert stats.kstest(first[:, 0] ** 1.2, "uniform").pvalue < 1e-3  # the test would notice


def test_the_numbers_of_jobs_are_normal_and_independent() -> None:
    """By job, by server class and by key; neighbours have nothing in common. A spread of 1.05 would be noticed."""
    keys = [np.uint64(3), np.uint64(2**63 + 5)]
    drawn = np.array([[[normal(key, serial, j) for j in range(3)] for serial in range(1, 4001)] for key in keys])
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(1.05 * drawn.ravel(), "norm").pvalue < 1e-3
    for one, other in (
        (drawn[:, :-1], drawn[:, 1:]), (drawn[:, :, :-1], drawn[:, :, 1:]), (drawn[:1], drawn[1:]),
        (drawn[:, :-1] ** 2, drawn[:, 1:] ** 2), (drawn[:, :, :-1] ** 2, drawn[:, :, 1:] ** 2),
    ):  # fmt: skip
        assert abs(stats.pearsonr(one.ravel(), other.ravel())[0]) < 5.0 / np.sqrt(one.size)
    assert len(np.unique(drawn)) == drawn.size
