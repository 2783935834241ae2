"""What `PairModel` remembers, sums over observations, and the regressions and likelihoods that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array

PRIOR_COUNT = 4.0  # observations that the first guess of the noise counts for


@dataclass
class Memory:
    """Sums over observations by server class, and the regression on them. `d` counts the constant.

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
        pairs = (I, J)
        return cls(
            np.zeros((J, d, d)), np.zeros((J, d)), np.zeros(J), np.zeros(J), np.zeros(pairs), np.zeros((I, J, d)),
            np.zeros(pairs), np.zeros((J, d)), np.zeros((J, d, d)),
        )  # fmt: skip

    def temper(self, j: int, part: float) -> None:
        """Let the observations of a server class count only for `part` of what they did."""
        for sums in (self.gram, self.moment, self.square, self.number):
            sums[j] *= part
        for sums in (self.total, self.sums, self.rewards):
            sums[:, j] *= part

    def column(self, j: int) -> Memory:
        """Return the memory of one server class, as views."""
        one = slice(j, j + 1)
        return Memory(
            self.gram[one], self.moment[one], self.square[one], self.number[one], self.total[:, one], self.sums[:, one],
            self.rewards[:, one], self.theta[one], self.inverse[one],
        )  # fmt: skip

    def take(self, other: Memory, j: int) -> None:
        """Take what another memory knows of a server class."""
        for name in ("gram", "moment", "square", "number", "theta", "inverse"):
            getattr(self, name)[j] = getattr(other, name)[j]
        for name in ("total", "sums", "rewards"):
            getattr(self, name)[:, j] = getattr(other, name)[:, j]

    def transform(self, change: Array) -> None:
        """Express the sums in features x' = change @ x."""
        self.gram = change @ self.gram @ change.T
        self.moment = self.moment @ change.T
        self.sums = self.sums @ change.T

    def widened(self, more: int) -> Memory:
        """Return the memory with `more` features, which were zero in all observations."""
        one, two = (0, 0), (0, more)
        return replace(
            self, gram=np.pad(self.gram, (one, two, two)), moment=np.pad(self.moment, (one, two)),
            sums=np.pad(self.sums, (one, one, two)),
        )  # fmt: skip

    def arranged(self, rows: Sequence[int | None], columns: Sequence[int | None]) -> Memory:
        """Return the memory for other classes: for each new one the number it had, or None."""
        found = Memory.empty(len(rows), len(columns), self.moment.shape[1])
        row = [(new, old) for new, old in enumerate(rows) if old is not None]
        column = [(new, old) for new, old in enumerate(columns) if old is not None]
        for name in ("gram", "moment", "square", "number", "theta", "inverse"):
            for new, old in column:
                getattr(found, name)[new] = getattr(self, name)[old]
        for name in ("total", "sums", "rewards"):
            for new, old in column:
                for new_row, old_row in row:
                    getattr(found, name)[new_row, new] = getattr(self, name)[old_row, old]
        return found


class Fit(NamedTuple):
    """A regression for given shrinkage: minus twice its log-likelihood, coefficients, inverse precision, noise variance."""

    loss: float
    theta: Array
    inverse: Array
    noise: float


def regress(memory: Memory, mean: Array, shared: Array, ridge: Array, kappa: float, guess: float) -> Fit:
    """Return the regression of each server class, with prior means `mean` (J, d) and `shared` (I,), Eq. (58) and (60)."""
    S, T, N, M = memory.sums.transpose(1, 2, 0), memory.rewards, memory.total, mean
    g = 1.0 / (N + kappa)
    away = S @ shared
    explained = np.einsum("jde,je->jd", memory.gram, M)
    residual = T - np.einsum("cjd,jd->cj", memory.sums, M) - N * shared[:, None]
    square = memory.square.sum() - 2.0 * ((M * memory.moment).sum() + (shared @ T).sum())
    square += (M * (explained + 2.0 * away)).sum() + (shared * shared @ N).sum()
    precision = memory.gram + np.diag(ridge) - (S * g.T[:, None]) @ S.transpose(0, 2, 1)
    right = memory.moment - explained - away - np.einsum("jdc,cj->jd", S, g * residual)
    inverse = np.linalg.inv(precision)
    shift = np.einsum("jde,je->jd", inverse, right)
    rest = max(square - (g * residual * residual).sum() - (right * shift).sum(), 0.0)
    number = memory.number.sum() + PRIOR_COUNT
    noise = (rest + PRIOR_COUNT * guess) / number
    determinant = np.linalg.slogdet(precision)[1].sum() - len(M) * np.log(ridge).sum() + np.log(N / kappa + 1.0).sum()
    return Fit(number * log(noise) + determinant, M + shift, np.asarray(inverse, np.float64), noise)


def class_loss(number: Array, rest: Array, kappa: float, shared: float, noise: float) -> float:
    """Return minus twice the log-likelihood of class pairs, Eq. (60), up to a constant.

    `number` and `rest` (I, J) are observations and sums of what coefficients leave of them. Deviations shrink by `kappa`
    observations, and what the server classes share of a job class by `shared`.
    """
    part = kappa / (number + kappa)
    weight, total = (part * number).sum(axis=1), (part * rest).sum(axis=1)
    determinant = -np.log(part).sum() + np.log1p(weight / shared).sum()
    explained = (rest * rest / (number + kappa)).sum() + (total * total / (weight + shared)).sum()
    return float(determinant - explained / noise)
