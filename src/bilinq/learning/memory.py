"""What `PairModel` remembers, sums over observations, and the regressions and likelihoods that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array, IntArray, within
from bilinq.errors import BadState

PRIOR_COUNT = 4.0  # observations that the first guess of the noise counts for


LARGEST = {
    "gram": 1e250, "moment": 1e150, "square": 1e40, "number": 1e30, "total": 1e30, "sums": 1e150, "rewards": 1e40,
    "theta": 1e20, "inverse": 1e6,
}  # fmt: skip
"""Sizes beyond which no observations lead, features of 1e100 included; products of such numbers are still finite."""


SLACK = 1e4  # by how much rounding may have changed the mean square of a regressor


class Memory(NamedTuple):
    """Sums over observations by server class, and the regression on them. `d` counts the constant. Arrays change in place.

    gram (J, d, d), moment (J, d), square (J,) and number (J,) are sums of xx', xy, y^2 and 1; total (I, J), sums (I, J, d)
    and rewards (I, J) are sums of 1, x and y for each pair of classes. theta (J, d) and inverse (J, d, d) are the
    coefficients and the inverse of their precision, Eq. (58).
    """

    gram: Array
    moment: Array
    square: Array
    number: Array
    total: Array
    sums: Array
    rewards: Array
    theta: Array
    inverse: Array

    @classmethod
    def empty(cls, I: int, J: int, d: int) -> Memory:
        """Return a memory without observations."""
        return cls(*map(np.zeros, _shapes(I, J, d)))

    @classmethod
    def layout(cls, I: int, J: int, d: int) -> Memory:
        """Return a memory that takes no room, to compare the shapes of a stored one with."""
        return cls(*(np.broadcast_to(0.0, shape) for shape in _shapes(I, J, d)))

    def check(self, name: str) -> None:
        """Raise `BadState` unless all numbers can be sums over observations; `name` is that of the memory."""
        for field, high in LARGEST.items():
            low = 0.0 if field in ("number", "total") else -high
            within(f"{name}.{field}", getattr(self, field), low, high)
        constants = (("number", self.number, self.gram[:, 0, 0]), ("total", self.total, self.sums[:, :, 0]))
        for field, sums, constant in constants:
            if not np.allclose(sums, constant, rtol=1e-6, atol=1e-6):
                gap = float(np.abs(sums - constant).max())
                raise BadState(f"{name}.{field} must be the sum of the constant regressor; they differ by {gap:g}")
        self._check_products(name)

    def _check_products(self, name: str) -> None:
        """Raise unless no sum of products is larger than the sums of squares allow (Cauchy and Schwarz).

        Squares of regressors may have lost all their digits when features were standardised that hardly vary, hence `SLACK`.
        """
        x = np.abs(np.diagonal(self.gram, axis1=1, axis2=2)) + SLACK * self.number[:, None]
        y = np.maximum(self.square, 0.0)
        limits = {
            "gram": x[:, :, None] * x[:, None, :], "moment": x * y[:, None], "sums": self.total[:, :, None] * x[None],
            "rewards": self.total * y,
        }  # fmt: skip
        for field, limit in limits.items():
            within(
                f"{name}.{field} relative to squares", np.abs(getattr(self, field)) / (np.sqrt(limit) + 1e-3), 0.0, 1.01
            )

    def temper(self, j: int, part: float) -> None:
        """Let the observations of a server class count only for `part` of what they did."""
        from bilinq.learning.pair_kernels import transfer

        transfer(self, self, j, part)

    def transform(self, change: Array) -> None:
        """Express the sums in regressors x' = change @ x, of which each depends on the constant, its neighbour and itself.

        That is, only the first column of `change`, the diagonal and what is next to it on the left are not zero.
        """
        from bilinq.learning.fit_kernels import transform

        left = np.append(0.0, np.diag(change, -1))
        left[:2] = 0.0  # the neighbour of the second is the constant
        transform(self, change[:, 0].copy(), left, np.diag(change).copy())

    def widened(self, more: int) -> Memory:
        """Return the memory with `more` features, which were zero in all observations."""
        one, two = (0, 0), (0, more)
        return self._replace(
            gram=np.pad(self.gram, (one, two, two)), moment=np.pad(self.moment, (one, two)),
            sums=np.pad(self.sums, (one, one, two)), theta=np.pad(self.theta, (one, two)),
            inverse=np.pad(self.inverse, (one, two, two)),
        )  # fmt: skip

    def selected(self, kept: IntArray) -> Memory:
        """Return the memory with some of the features."""
        return self._replace(
            gram=self.gram[:, kept][:, :, kept], moment=self.moment[:, kept], sums=self.sums[:, :, kept],
            theta=self.theta[:, kept], inverse=self.inverse[:, kept][:, :, kept],
        )  # fmt: skip

    def arranged(self, rows: Sequence[int | None], columns: Sequence[int | None]) -> Memory:
        """Return the memory for other classes: for each new one the number it had, or None."""
        found = Memory.empty(len(rows), len(columns), self.moment.shape[1])
        new, old = ([k for k, was in enumerate(columns) if was is not None], [k for k in columns if k is not None])
        for name in ("gram", "moment", "square", "number", "theta", "inverse"):
            getattr(found, name)[new] = getattr(self, name)[old]
        place = np.ix_([k for k, was in enumerate(rows) if was is not None], new)
        source = np.ix_([k for k in rows if k is not None], old)
        for name in ("total", "sums", "rewards"):
            getattr(found, name)[place] = getattr(self, name)[source]
        return found


def _shapes(I: int, J: int, d: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the arrays of a memory."""
    return (J, d, d), (J, d), (J,), (J,), (I, J), (I, J, d), (I, J), (J, d), (J, d, d)


class Equations(NamedTuple):
    """The regressions of all server classes for one `kappa`, before the shrinkage of coefficients, Eq. (58) and (60).

    precision (J, d, d), of which only the lower half counts, and right (J, d) are P_j - Lambda and the right side;
    mean (J, d) are the prior means. `square` is what is left of the squares without coefficients, `determinant` the
    logarithm of that of class pairs, and `number` counts observations.
    """

    precision: Array
    right: Array
    mean: Array
    square: float
    determinant: float
    number: float

    @classmethod
    def of(cls, memory: Memory, mean: Array, shared: Array, kappa: float) -> Equations:
        """Return the equations of a memory with prior means `mean` (J, d) and `shared` (I,)."""
        from bilinq.learning.fit_kernels import eliminate_all

        precision, right = np.empty(memory.gram.shape), np.empty(memory.moment.shape)
        square, determinant = eliminate_all(memory, mean, shared, kappa, precision, right)
        return cls(precision, right, mean, square, determinant, memory.number.sum() + PRIOR_COUNT)

    def evidence(self, ridge: Array, guess: float) -> tuple[float, float]:
        """Return minus twice the log-likelihood for a shrinkage (d,), Eq. (60), and the noise variance."""
        from bilinq.learning.fit_kernels import explain_all

        explained, determinant = explain_all(self.precision, self.right, ridge)
        noise = (max(self.square - explained, 0.0) + PRIOR_COUNT * guess) / self.number
        determinant += self.determinant - len(self.mean) * float(np.log(ridge).sum())
        return self.number * log(noise) + determinant, noise

    def levels(self, ridge: Array, server_features: Array) -> Levels:
        """Return what is left for the shared part once deviations with a shrinkage (d,) are integrated out, Eq. (61).

        The prior means must not contain the shared part.
        """
        from bilinq.learning.fit_kernels import integrate_all

        d, e = ridge.size, server_features.shape[1]
        precision, right = np.zeros((1, d * e, d * e)), np.zeros((1, d * e))
        explained, determinant = integrate_all(
            self.precision, self.right, ridge, server_features, precision[0], right[0]
        )
        determinant += self.determinant - len(self.mean) * float(np.log(ridge).sum())
        return Levels(precision, right, self.square - explained, determinant, self.number, d)

    def coefficients(self, ridge: Array) -> Array:
        """Return the coefficients (J, d) for a shrinkage (d,)."""
        from bilinq.learning.fit_kernels import solve_all

        theta = np.empty(self.right.shape)
        solve_all(self.precision, self.right, ridge, self.mean, theta)
        return theta

    def solve_into(self, memory: Memory, ridge: Array) -> None:
        """Set the coefficients and the inverse precision of a memory for a shrinkage (d,)."""
        from bilinq.learning.fit_kernels import invert_all

        invert_all(self.precision, self.right, ridge, self.mean, memory.theta, memory.inverse)


class Levels(NamedTuple):
    """The regression for the shared part B (d, e), as one server class; `features` is d, other fields as in `Equations`."""

    precision: Array
    right: Array
    square: float
    determinant: float
    number: float
    features: int

    def evidence(self, ridge: Array, guess: float) -> float:
        """Return minus twice the log-likelihood for a shrinkage (d e,) of the shared part, Eq. (60)."""
        from bilinq.learning.fit_kernels import explain_all

        explained, determinant = explain_all(self.precision, self.right, ridge)
        noise = (max(self.square - explained, 0.0) + PRIOR_COUNT * guess) / self.number
        return self.number * log(noise) + self.determinant + determinant - float(np.log(ridge).sum())

    def shared(self, ridge: Array) -> Array:
        """Return the shared part B (d, e) for a shrinkage (d e,)."""
        from bilinq.learning.fit_kernels import solve_all

        found = np.empty(self.right.shape)
        solve_all(self.precision, self.right, ridge, np.zeros(self.right.shape), found)
        return found.reshape(self.features, -1)


class Fit(NamedTuple):
    """A regression for given shrinkage: minus twice its log-likelihood, coefficients, inverse precision, noise variance."""

    loss: float
    theta: Array
    inverse: Array
    noise: float


def regress(memory: Memory, mean: Array, shared: Array, ridge: Array, kappa: float, guess: float) -> Fit:
    """Return the regression of each server class, with prior means `mean` (J, d) and `shared` (I,), Eq. (58) and (60)."""
    equations = Equations.of(memory, mean, shared, kappa)
    loss, noise = equations.evidence(ridge, guess)
    solved = memory._replace(theta=np.empty(mean.shape), inverse=np.empty(memory.gram.shape))
    equations.solve_into(solved, ridge)
    return Fit(loss, solved.theta, solved.inverse, noise)
