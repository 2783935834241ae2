"""Kernels of the allocation: linear algebra against NumPy, and which pairs the steps work on."""

import numpy as np
import pytest

from bilinq.allocation.interior import U, Y, gram, start_cold
from bilinq.allocation.packing import TRACE, pack, thin


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
