"""Features for a bilinear model, and what it says about pairs that were never seen."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, IntArray, as_floats
from bilinq.errors import BadInput

SPANNED = 1e-8
"""A pair is predictable if its features are a combination of observed ones up to this part of their length."""


def scaled_features(raw: ArrayLike) -> Array:
    """Return features (classes, d): each column divided by its largest entry, then all by the length of the longest.

    The theory asks for vectors of length at most one; what a bilinear model can express stays the same.

    Examples
    --------
    >>> scaled_features([[1.0, 0.0], [1.0, 300.0]]).round(3)
    array([[0.707, 0.   ],
           [0.707, 0.707]])
    """
    vectors = as_floats("features", raw)
    largest = np.abs(vectors).max(axis=0)
    level = vectors / np.where(largest > 0.0, largest, 1.0)
    longest = float(np.linalg.norm(level, axis=1).max())
    return np.asarray(level / longest if longest > 0.0 else level)


def fill_unseen(mean: Array, count: IntArray, u: Array, v: Array, names: Sequence[Sequence[str]]) -> Array:
    """Return the means (I, J) with the pairs that were not observed predicted, Eq. (1).

    Parameters
    ----------
    mean : (I, J) array
        Mean rewards of the observed pairs; what stands elsewhere does not matter.
    count : (I, J) int array
        Observations of each pair: least squares weighs means by them.
    u, v : (I, d1) and (J, d2) arrays
        Features of the job classes and of the server classes.
    names : two sequences of str
        Of the job classes and of the server classes, for errors.

    Raises
    ------
    BadInput
        Naming a pair whose features are no combination of those of observed pairs.
    """
    seen, products = count > 0, np.einsum("ia,jb->ijab", u, v).reshape(*count.shape, -1)
    root = np.sqrt(count[seen])
    basis = _row_space(products[seen])
    inside = products @ basis.T
    missed = np.linalg.norm(products - inside @ basis, axis=2)
    for i, j in np.argwhere(~seen & (missed > SPANNED * np.linalg.norm(products, axis=2))):
        pair = f"job {names[0][i]!r} on server {names[1][j]!r}"
        raise BadInput(f"unseen = 'predicted' must find {pair} in the span of observed features; got none of its kind")
    weights = np.linalg.lstsq(inside[seen] * root[:, None], mean[seen] * root, rcond=None)[0]
    return np.where(seen, mean, inside @ weights)


def _row_space(rows: Array) -> Array:
    """Return an orthonormal basis (rank, p) of what the rows (n, p) span."""
    _, size, basis = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(basis[size > SPANNED * size[0]])
