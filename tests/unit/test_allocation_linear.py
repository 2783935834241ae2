"""Linear algebra inside an allocation, against NumPy."""

import numpy as np
import pytest

from bilinq.allocation.linear import gram


@pytest.mark.parametrize(("height", "size"), [(1, 1), (7, 5), (8, 6), (29, 48), (64, 50)])
def test_the_product_is_the_product(height: int, size: int) -> None:
    rng = np.random.default_rng(size)
    d, weight, m = rng.uniform(size=(height, size)), rng.uniform(size=height), np.full((size, size), 7.0)
    gram(d, weight, m)
    below = np.tril_indices(size, -1)
    np.testing.assert_allclose(m[below], -(d.T * weight @ d)[below], rtol=1e-13)
    assert (m[np.triu_indices(size)] == 7.0).all()
