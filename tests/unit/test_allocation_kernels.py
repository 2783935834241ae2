"""Kernels of the allocation: linear algebra against NumPy, and which pairs the steps work on."""

from typing import Any

import numpy as np
import pytest

from bilinq import allocate
from bilinq.allocation.batch import kernels
from bilinq.allocation.interior import U, Y, gram, start_cold
from bilinq.allocation.packing import TRACE, pack, thin
from bilinq.arrays import Array


@pytest.mark.parametrize(("height", "size"), [(1, 1), (7, 5), (8, 6), (29, 48), (64, 50)])
def test_the_weighted_product_agrees_with_numpy(height: int, size: int) -> None:
    rng = np.random.default_rng(size)
    d, weight, m = rng.uniform(size=(height, size)), rng.uniform(size=height), np.full((size, size), 7.0)
    gram(d, weight, m)
    below = np.tril_indices(size, -1)
    np.testing.assert_allclose(m[below], -(d.T * weight @ d)[below], rtol=1e-13)
    assert (m[np.triu_indices(size)] == 7.0).all()


def test_pairs_that_are_ruled_out_leave() -> None:
    """Three of four pairs carry next to nothing; the others keep their row's sum and their own proportions."""
    rows, columns = 6, 8
    c = np.full((rows, columns), 1.0)
    row, col = np.ones((18, rows)), np.ones((12, columns))
    row[U] = np.inf
    member = np.zeros(c.shape, np.bool_)
    pair, cols, width = pack(c, np.zeros(columns), columns, member)
    start_cold(pair, row, col, cols, width)
    assert not thin(pair, col, cols, width, member) and (width == columns).all()
    pair[Y] = 0.01 * TRACE
    for i in range(rows):
        pair[Y, i, [i, i + 2]] = 1.0, 3.0
    sums = pair[Y].sum(axis=1)
    assert thin(pair, col, cols, width, member)
    assert (width == 2).all() and member.sum() == 2 * rows
    for i in range(rows):
        assert cols[i, :2].tolist() == [i, i + 2] == np.flatnonzero(member[i]).tolist()
        np.testing.assert_allclose(pair[Y, i, :2], sums[i] * np.array([0.25, 0.75]), rtol=1e-12)


def random_program(rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return queue, reward and capacity of a program of at most 250 pairs, with ties in one of three."""
    rows, columns = rng.integers(1, 15), rng.integers(1, 9)
    tied = rng.random() < 0.3
    reward = rng.choice([1.0, 0.5, 0.0], (rows, columns)) if tied else rng.uniform(-1, 1, (rows, columns))
    return rng.integers(0, 20, rows).astype(float), reward, rng.integers(0, 5, columns).astype(float)


def test_small_programs_have_bit_for_bit_the_answers_of_the_kernels_for_all_sizes() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        queue, reward, capacity = random_program(rng)
        answers = []
        for plain in (kernels().small_plain, kernels().plain):
            y, q = np.empty(reward.shape), np.empty(capacity.shape)
            answers.append((plain(queue, reward, capacity, 9.0, 1.2, y, q), y.tobytes(), q.tobytes()))
        assert answers[0] == answers[1]


def test_small_programs_that_need_another_way_are_solved_that_way(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    queue, reward, capacity = random_program(rng)
    queues, rewards = np.stack([queue, queue]), np.stack([reward, reward])
    expected = allocate(queues, rewards, capacity, V=9.0)
    found = kernels()

    def gives_up(*arguments: Any) -> int:
        steps = found.small_batch(*arguments)
        arguments[-2][1] = np.inf  # the certificate of the second program
        arguments[-4][1] = -1.0  # its answer is not to be used
        return steps - steps // 2

    monkeypatch.setattr("bilinq.allocation.batch.kernels", lambda: found._replace(small_batch=gives_up))
    again = allocate(queues, rewards, capacity, V=9.0)
    assert again.expected.tobytes() == expected.expected.tobytes() and again.steps == expected.steps
    assert np.array_equal(again.residual, expected.residual) and np.array_equal(again.price, expected.price)
