"""Which pairs a search for the fixed point looks at: all of a batch, or the few in each row that can matter."""

from abc import ABC, abstractmethod

import numpy as np

from bilinq.arrays import Array, IntArray


class Pairs(ABC):
    """How values of pairs (B, I, K) meet those of server classes (B, J)."""

    @abstractmethod
    def loads(self, value: Array) -> Array:
        """Return the sums of `value` (B, I, K) over what belongs to each server class, (B, J)."""

    @abstractmethod
    def spread(self, price: Array) -> Array:
        """Return for every pair what `price` (B, J) says of its server class; broadcasts to (B, I, K)."""

    @abstractmethod
    def gram(self, value: Array, scale: Array) -> Array:
        """Return the sums over rows of `scale` (B, I) times products of `value` (B, I, K), (B, J, J)."""

    @abstractmethod
    def server(self, i: IntArray, k: IntArray) -> IntArray:
        """Return the server classes of pairs k of rows i."""


class AllPairs(Pairs):
    """Every job class with every server class: K = J."""

    def loads(self, value: Array) -> Array:
        """Return plain sums."""
        return np.asarray(value.sum(axis=1))

    def spread(self, price: Array) -> Array:
        """Return `price` with an axis for the rows."""
        return price[:, None, :]

    def gram(self, value: Array, scale: Array) -> Array:
        """Return matrix products."""
        return np.asarray(np.matmul((value * scale[:, :, None]).swapaxes(1, 2), value))

    def server(self, i: IntArray, k: IntArray) -> IntArray:
        """Return k."""
        return k


class SomePairs(Pairs):
    """K server classes for each job class of a batch of one.

    Parameters
    ----------
    chosen : (I, K) array
        Which server classes, different ones in a row.
    columns : int
        J, how many there are.
    """

    def __init__(self, chosen: IntArray, columns: int) -> None:
        self.chosen, self.columns = chosen, columns

    def loads(self, value: Array) -> Array:
        """Return sums by server class."""
        return np.bincount(self.chosen.ravel(), value.ravel(), self.columns)[None].astype(np.float64, copy=False)

    def spread(self, price: Array) -> Array:
        """Return prices looked up."""
        return np.asarray(price[:, self.chosen])

    def gram(self, value: Array, scale: Array) -> Array:
        """Return a sparse matrix product, filled up."""
        from scipy.sparse import csr_array

        rows, width = self.chosen.shape
        place = (self.chosen.ravel(), np.arange(0, rows * width + 1, width))
        left, right = (
            csr_array((part.ravel(), *place), (rows, self.columns)) for part in (value * scale[:, :, None], value)
        )
        return np.asarray((left.T @ right).toarray())[None]

    def server(self, i: IntArray, k: IntArray) -> IntArray:
        """Return the chosen ones."""
        return np.asarray(self.chosen[i, k])
