"""What a job is worth, or how long it takes, on each server class: a regression that finds its own scales.

A value is x'theta_j + b_cj for a job with features x of class c on server class j, Eq. (57). Coefficients and deviations of
class pairs shrink to a part that all server classes share, as strongly as the data say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import exp, log

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.errors import BadState
from bilinq.learning.memory import PRIOR_COUNT, Fit, Memory, class_loss, regress

USUAL = np.log([10.0, 30.0, 1.0])
"""Logarithms of the usual shrinkage, in observations: of class pairs, of coefficients, of constants."""
CAUTIOUS = np.log([300.0, 1000.0, 100.0])
"""The same where differences between server classes are the exception, as in durations."""
LOOSE = 3.0  # standard deviation, on the same scale, of what is expected before there are data
RANGE = (log(0.3), log(3e4))
STEP = log(3.0)  # of the search for shrinkage
ROUNDS = 2  # passes of that search at one refresh; the next continues from there
GROWTH = 1.25  # observations between two refreshes, as a factor
FLAT = 0.01  # shrinkage of the constant that all server classes share
LARGEST_SHARED = 256  # coefficients of the shared part beyond which features of servers are left to the deviations
RECENT = 30.0  # observations that the recent memory counts for when it starts, and again when it has twice as many
LOST, CHANGED = -4.0, 9.2
"""Log-likelihood by which the recent memory is behind and starts again, or ahead and replaces the long one, Eq. (62)."""
MOST_SURPRISING = 2.0  # log-likelihood that a single observation can add
NOISE_WINDOW = 2000.0


@dataclass
class PairModel:
    """Predictions of a quantity for jobs on server classes, learnt one observation at a time.

    Create it with `PairModel.new`. Features are standardised, so their units do not matter; a constant is added.

    Attributes
    ----------
    long, recent : Memory
        Everything that counts, and a shorter memory that takes over where it predicts better, Eq. (62).
    server_features : (J, e) array
        A constant, then the features of the server classes, standardised.
    center, scale : (d,) arrays
        What features are reduced by and divided by; 0 and 1 for the constant.
    usual, shrinkage, shared_shrinkage : (3,) arrays
        Logarithms of kappa and lambda, Eq. (57): as expected, found for the deviations, found for the shared part.
    mean, shared, doubt : (J, d), (I,) and (I,) arrays
        Prior means of coefficients and of class pairs: the shared part, Eq. (61), and the variance of the latter.
    version : (J,) int array
        Changes with every change of the predictions of a server class.
    ahead : (J,) array
        Log-likelihood by which the recent memory is ahead of the long one.
    changes, epoch : (J,) int arrays
        How often the recent memory has replaced the long one, and how often observations were dropped for any reason.
    """

    long: Memory
    recent: Memory
    server_features: Array
    center: Array
    scale: Array
    usual: Array
    shrinkage: Array
    shared_shrinkage: Array
    mean: Array
    shared: Array
    doubt: Array
    version: IntArray
    ahead: Array
    changes: IntArray
    epoch: IntArray
    start: float
    guess: float
    noise: float
    surprise: Array
    seen: int = 0
    next_refresh: int = 16
    forgets: bool = True

    @classmethod
    def new(
        cls, classes: int, server_features: Array, features: int, *, start: float = 0.0, noise: float = 0.5,
        usual: Array = USUAL, forgets: bool = True,
    ) -> PairModel:  # fmt: skip
        """Return a model without observations for `features` numbers a job.

        `start` is the value to expect at first, and `usual` the shrinkage.
        """
        J, d = len(server_features), 1 + features
        made = cls(
            long=Memory.empty(classes, J, d), recent=Memory.empty(classes, J, d),
            server_features=_standardised(server_features, d), center=np.zeros(d),
            scale=np.ones(d), usual=usual, shrinkage=usual.copy(), shared_shrinkage=usual.copy(),
            mean=np.zeros((J, d)), shared=np.zeros(classes), doubt=np.full(classes, exp(-usual[0])),
            version=np.ones(J, np.int64), ahead=np.full(J, LOST), changes=np.zeros(J, np.int64),
            epoch=np.zeros(J, np.int64), start=start, guess=noise**2, noise=noise**2,
            surprise=np.array([PRIOR_COUNT * noise**2, PRIOR_COUNT]), forgets=forgets,
        )  # fmt: skip
        made.mean[:, 0] = start
        made._solve()
        return made

    @property
    def kappa(self) -> float:
        """How many observations the shared part counts for in a pair of classes."""
        return exp(self.shrinkage[0])

    def regressors(self, features: Array) -> Array:
        """Return the regressors (d,) of a job with `features` (d - 1,): a constant, then standardised; NaN is the mean."""
        from bilinq.learning.pair_kernels import standardise

        x = np.empty(self.center.size)
        standardise(features, self.center, self.scale, x)
        return x

    def rescale(self, center: Array, scale: Array) -> None:
        """Standardise by another center and scale (d - 1,) from now on; what was learnt stays."""
        change = np.diag(self.scale / np.concatenate([[1.0], scale]))
        change[1:, 0] = (self.center[1:] - center) / scale
        self.center[1:], self.scale[1:] = center, scale
        self.mean = self.mean @ np.linalg.inv(change)
        for memory in (self.long, self.recent):
            memory.transform(change)
        self.refresh()

    def begin(self, value: float) -> None:
        """Expect `value` before there are observations."""
        self.start = value
        self.refresh()

    def widen(self, first: Array) -> None:
        """Make room for more features, of which `first` is an example; in earlier observations they count as these."""
        more, first = first.size, first if self.seen else np.zeros(first.size)
        self.long, self.recent = self.long.widened(more), self.recent.widened(more)
        self.center, self.scale = np.concatenate([self.center, first]), np.concatenate([self.scale, np.ones(more)])
        self.mean = np.pad(self.mean, ((0, 0), (0, more)))
        if self.center.size * self.server_features.shape[1] > LARGEST_SHARED:
            self.server_features = self.server_features[:, :1]
        self.refresh()

    def predict(self, features: Array, kind: IntArray) -> tuple[Array, Array]:
        """Return the mean (K, J) for jobs with features (K, d - 1) of classes `kind` (K,), and its standard error."""
        mean, width = np.empty((len(kind), len(self.version))), np.empty((len(kind), len(self.version)))
        self.predict_into(features, kind, np.arange(len(kind)), np.zeros(mean.shape, np.int64), mean, width)
        return mean, width

    def predict_into(
        self, features: Array, kind: IntArray, rows: IntArray, stamp: IntArray, mean: Array, width: Array
    ) -> None:
        """Fill `rows` (K,) of `mean` and `width` (R, J) where they are not of the present version."""
        from bilinq.learning.pair_kernels import predict

        m = self.long
        predict(features, kind, rows, self.center, self.scale, self.version, m.total, m.sums, m.rewards, self.shared,
                self.doubt, self.kappa, self.noise, m.inverse, m.theta, stamp, mean, width)  # fmt: skip

    def observe(self, features: Array, kind: int, column: int, value: float, weight: float = 1.0) -> None:
        """Learn from one service, Eq. (59); a `weight` of two counts as two of them."""
        x = self.regressors(features)
        error, variance = self._add(self.long, x, kind, column, value, weight)
        self.version[column] += 1
        self.surprise *= 1.0 - 1.0 / NOISE_WINDOW
        self.surprise += error * error / variance, 1.0
        if self.forgets:
            self._compare(x, kind, column, value, weight, (error, variance))
        self.seen += 1
        if self.seen >= self.next_refresh:
            self.refresh()

    def correct(self, features: Array, kind: int, column: int, before: float, after: float) -> None:
        """Replace the value `before` of an observation by `after`; its epoch must be the present one."""
        m, x, change = self.long, self.regressors(features), after - before
        m.square[column] += after * after - before * before
        m.moment[column] += change * x
        m.rewards[kind, column] += change
        z = x - m.sums[kind, column] / (m.total[kind, column] + self.kappa)
        m.theta[column] += change * (m.inverse[column] @ z)
        self.ahead[column] = LOST  # the recent memory may or may not have the observation
        self.version[column] += 1

    def forget(self, column: int, part: float = 0.0) -> None:
        """Let what was learnt of a server class count only for `part` of it: the class starts from the shared part."""
        self.long.temper(column, part)
        self.ahead[column] = LOST
        self.epoch[column] += 1
        self.refresh()

    def arrange(self, rows: Sequence[int | None], columns: Sequence[int | None], server_features: Array) -> None:
        """Change the classes: for each new one the number it had, or None."""
        self.long, self.recent = (one.arranged(rows, columns) for one in (self.long, self.recent))
        self.server_features = _standardised(server_features, self.center.size)
        self.shared = np.array([0.0 if old is None else self.shared[old] for old in rows])
        self.doubt = np.array([exp(-self.shared_shrinkage[0]) if old is None else self.doubt[old] for old in rows])
        self.ahead = np.array([LOST if old is None else self.ahead[old] for old in columns])
        self.changes = np.array([0 if old is None else self.changes[old] for old in columns], np.int64)
        self.epoch = np.array([0 if old is None else self.epoch[old] for old in columns], np.int64)
        self.version = np.full(len(columns), self.version.max() + 1, np.int64)
        usual = self.mean.mean(axis=0)
        self.mean = np.array([usual if old is None else self.mean[old] for old in columns])
        self.refresh()

    def refresh(self) -> None:
        """Fit the shared part and the shrinkage to all observations, Eq. (60) and (61), and solve from scratch."""
        self.next_refresh = int(GROWTH * self.seen) + len(self.version) + 16
        self._solve()
        pooled = self._pooled()
        prior = np.zeros((1, pooled.moment.shape[1]))
        prior[0, 0] = self.start

        def shared_fit(shrinkage: Array) -> Fit:
            ridge = self._ridge(shrinkage, prior.size, FLAT)
            return regress(pooled, prior, np.zeros(len(self.shared)), ridge, exp(shrinkage[0]), self.guess)

        self.shared_shrinkage = _climb(lambda one: shared_fit(one).loss, self.shared_shrinkage, self.usual, (1,))
        theta = shared_fit(self.shared_shrinkage).theta[0]
        self.mean = self.server_features @ theta.reshape(self.center.size, -1).T
        self._shrink_classes()
        self.shrinkage = _climb(lambda one: self._own_fit(one).loss, self.shrinkage, self.usual, (1, 2))
        self._solve()

    def _shrink_classes(self) -> None:
        """Find the shrinkage of class pairs and of what they share, and that part itself, Eq. (60) and (61)."""
        m = self.long
        rest = m.rewards - np.einsum("cjd,jd->cj", m.sums, m.theta)
        usual, noise = np.array([self.usual[0], self.usual[0]]), self._own_fit(self.shrinkage).noise

        def loss(both: Array) -> float:
            return class_loss(m.total, rest, exp(both[0]), exp(both[1]), noise)

        found = _climb(loss, np.array([self.shrinkage[0], self.shared_shrinkage[0]]), usual, (0, 1))
        self.shrinkage[0], self.shared_shrinkage[0] = found
        part = self.kappa / (m.total + self.kappa)
        self.doubt = 1.0 / ((part * m.total).sum(axis=1) + exp(found[1]))
        self.shared = (part * rest).sum(axis=1) * self.doubt

    def check(self) -> None:
        """Raise `BadState` unless all arrays are finite and the precision is positive definite."""
        for memory in (self.long, self.recent):
            for field in fields(memory):
                if not np.isfinite(getattr(memory, field.name)).all():
                    raise BadState(f"{field.name} must be finite")
            if (memory.number < 0.0).any() or (memory.total < 0.0).any():
                raise BadState("numbers of observations must be at least zero")
        if (np.linalg.eigvalsh(self.long.inverse)[:, 0] <= 0.0).any():
            raise BadState("inverse must be positive definite")

    def _ridge(self, shrinkage: Array, size: int, constant: float | None = None) -> Array:
        ridge = np.full(size, exp(shrinkage[1]))
        ridge[0] = exp(shrinkage[2]) if constant is None else constant
        return ridge

    def _own_fit(self, shrinkage: Array) -> Fit:
        ridge = self._ridge(shrinkage, self.center.size)
        return regress(self.long, self.mean, self.shared, ridge, exp(shrinkage[0]), self.guess)

    def _solve(self) -> None:
        """Compute coefficients and inverse precision of both memories from their sums."""
        ridge = self._ridge(self.shrinkage, self.center.size)
        for memory in (self.long, self.recent):
            fit = regress(memory, self.mean, self.shared, ridge, self.kappa, self.guess)
            memory.theta, memory.inverse = fit.theta, 0.5 * (fit.inverse + fit.inverse.swapaxes(1, 2))
        self.noise = float(self.surprise[0] / self.surprise[1])
        self.version += 1

    def _better(self) -> Array:
        """Return by how much the constant of each server class is above what its features say (J,), or above the mean."""
        constant, V = self.long.theta[:, 0], self.server_features
        weighted = V * self.long.number[:, None]
        ridge = np.ones(V.shape[1])
        ridge[0] = FLAT
        return np.asarray(constant - V @ np.linalg.solve(weighted.T @ V + np.diag(ridge), weighted.T @ constant))

    def _pooled(self) -> Memory:
        """Return the sums of all server classes in regressors x (x) v, Eq. (61), as one server class.

        Values count without what a server class is better or worse than the others on average: otherwise classes of jobs
        that are mostly on good servers would look good.
        """
        m, V = self.long, self.server_features
        I, d, e = len(self.shared), m.moment.shape[1], V.shape[1]
        better = self._better()
        moment = m.moment - better[:, None] * m.gram[:, 0]
        square = m.square - better * (2.0 * m.moment[:, 0] - better * m.number)
        return replace(
            m, gram=np.einsum("jab,jx,jy->axby", m.gram, V, V).reshape(1, d * e, d * e),
            moment=np.einsum("ja,jx->ax", moment, V).reshape(1, d * e), square=np.array([square.sum()]),
            number=np.array([m.number.sum()]), total=m.total.sum(axis=1, keepdims=True),
            sums=np.einsum("cja,jx->cax", m.sums, V).reshape(I, 1, d * e),
            rewards=(m.rewards - better * m.total).sum(axis=1, keepdims=True),
        )  # fmt: skip

    def _add(
        self, memory: Memory, x: Array, kind: int, column: int, value: float, weight: float
    ) -> tuple[float, float]:
        from bilinq.learning.pair_kernels import observe

        memory.square[column] += weight * value * value
        memory.number[column] += weight
        return observe(x, kind, column, value, weight, memory.gram, memory.moment, memory.total, memory.sums, memory.rewards,
                       self.shared, self.kappa, memory.inverse, memory.theta)  # fmt: skip

    def _compare(self, x: Array, kind: int, j: int, value: float, weight: float, before: tuple[float, float]) -> None:
        """Update which memory predicts server class j better; start or adopt the recent one where it is due, Eq. (62)."""
        if self.ahead[j] <= LOST:
            if self.long.number[j] < 2.0 * RECENT:
                return
            self.recent.take(self.long, j)
            self._temper_recent(j)
            self.ahead[j] = 0.0
            return
        if self.recent.number[j] > 2.0 * RECENT:
            self._temper_recent(j)
        after = self._add(self.recent, x, kind, j, value, weight)
        gain = _log_density(*after, self.noise) - _log_density(*before, self.noise)
        self.ahead[j] += min(max(gain, -MOST_SURPRISING), MOST_SURPRISING)
        if self.ahead[j] > CHANGED:
            self.long.take(self.recent, j)
            self.ahead[j] = LOST
            self.changes[j] += 1
            self.epoch[j] += 1
            self.refresh()

    def _temper_recent(self, j: int) -> None:
        """Let what the recent memory knows of server class j count for `RECENT` observations."""
        m, ridge = self.recent, self._ridge(self.shrinkage, self.center.size)
        m.temper(j, RECENT / m.number[j])
        fit = regress(m.column(j), self.mean[j : j + 1], self.shared, ridge, self.kappa, self.guess)
        m.theta[j], m.inverse[j] = fit.theta[0], fit.inverse[0]


def _climb(loss: Callable[[Array], float], shrinkage: Array, usual: Array, coordinates: Sequence[int]) -> Array:
    """Return the shrinkage near the given one with the largest likelihood, Eq. (60): one coordinate after the other."""

    def penalised(value: Array) -> float:
        return loss(value) + float((((value - usual) / LOOSE) ** 2).sum())

    best = penalised(shrinkage)
    for _ in range(ROUNDS):
        before = best
        for k in coordinates:
            for step in (STEP, -STEP):
                tried = shrinkage.copy()
                tried[k] = min(max(tried[k] + step, RANGE[0]), RANGE[1])
                found = penalised(tried)
                if found < best:
                    best, shrinkage = found, tried
                    break
        if best == before:
            break
    return shrinkage


def _log_density(error: float, variance: float, noise: float) -> float:
    """Return the logarithm of a normal density, without the constant; `variance` is in units of the noise."""
    return -0.5 * (error * error / (noise * variance) + log(variance))


def _standardised(features: Array, d: int) -> Array:
    """Return a constant and features of servers (J, e) with mean 0 and root mean square 1; a constant if they tell nothing.

    They do not where there are as many of them as server classes (one-hot features, for example): coefficients of each
    server class then say the same.
    """
    J, e = features.shape
    if not 0 < e < J or d * (1 + e) > LARGEST_SHARED:
        return np.ones((J, 1))
    away = features - features.mean(axis=0)
    size = np.sqrt((away * away).mean(axis=0))
    return np.concatenate([np.ones((J, 1)), away / np.where(size > 0.0, size, 1.0)], axis=1)
