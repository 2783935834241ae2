"""What a job is worth, or how long it takes, on each server class: a regression that finds its own scales.

A value is x'theta_j + b_cj for a job with regressors x of class c on server class j, Eq. (57): a constant, features and
their squares. Coefficients and deviations of class pairs shrink to a part that all server classes share, as strongly as
the data say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array, IntArray, within
from bilinq.errors import BadState
from bilinq.learning.memory import PRIOR_COUNT, Equations, Levels, Memory
from bilinq.learning.regressors import (
    LARGEST_SHARED,
    SQUARED,
    UNKNOWN,
    carried_over,
    server_regressors,
    square_of,
    unknown_standards,
)

USUAL = np.log([10.0, 100.0, 1.0, 1000.0])
"""Logarithms of the usual shrinkage, in observations: of class pairs, of coefficients, of constants, of squares."""
CAUTIOUS = np.log([300.0, 1000.0, 100.0, 10_000.0])
"""The same where differences between server classes are the exception, as in durations."""
LOOSE = 3.0  # standard deviation, on the same scale, of what is expected before there are data
RANGE = (log(0.3), log(3e4))
STEP = log(3.0)  # of the search for shrinkage
ROUNDS = 2  # passes of that search at one refresh; the next continues from there
GROWTH = 1.25  # observations between two refreshes, as a factor
FLAT = 0.01  # shrinkage of the constant that all server classes share
RECENT = 30.0  # observations that the recent memory counts for when it starts, and again when it has twice as many
LOST, CHANGED = -4.0, 9.2
"""Log-likelihood by which the recent memory is behind and starts again, or ahead and replaces the long one, Eq. (62)."""
MOST_SURPRISING = 2.0  # log-likelihood that a single observation can add
NOISE_WINDOW = 2000.0
ROUNDING = 1e-9  # part of the largest eigenvalue of a matrix that may be missing in the smallest one
SYMMETRIC = 1e-3  # part of the largest entry of a matrix by which it may differ from its transpose
LIMITS = {
    "center": (-1e150, 1e150), "scale": (1e-150, UNKNOWN), "shrinkage": (RANGE[0] - ROUNDING, RANGE[1] + ROUNDING),
    "shared_shrinkage": (RANGE[0] - ROUNDING, RANGE[1] + ROUNDING), "mean": (-1e20, 1e20), "shared": (-1e20, 1e20),
    "doubt": (0.0, 1e20), "version": (1, 2**60), "ahead": (LOST - MOST_SURPRISING, CHANGED), "changes": (0, 2**60),
    "epoch": (0, 2**60), "start": (-1e3, 1e3), "noise": (1e-200, 1e250), "surprise": (0.0, 1e250), "seen": (0, 2**53),
}  # fmt: skip
"""The smallest and the largest value that a model may have after a restore."""


class Model(NamedTuple):
    """What kernels need to know of a `PairModel`, with its names. `ridge` (d,) is the diagonal of Lambda, Eq. (57)."""

    long: Memory
    recent: Memory
    center: Array
    scale: Array
    mean: Array
    shared: Array
    doubt: Array
    version: IntArray
    ahead: Array
    changes: IntArray
    epoch: IntArray
    surprise: Array
    ridge: Array
    kappa: float
    noise: float
    changed: float
    forgets: bool
    squares: bool


@dataclass
class PairModel:
    """Predictions of a quantity for jobs on server classes, learnt one observation at a time.

    Create it with `PairModel.new`. Features are standardised, so their units do not matter; a constant is added, and the
    square of each feature if `squares`, Eq. (71).

    Attributes
    ----------
    long, recent : Memory
        Everything that counts, and a shorter memory that takes over where it predicts better, Eq. (62).
    server_features : (J, e) array
        A constant, then the features of the server classes, standardised.
    center, scale : (d,) arrays
        What features, and squares of standardised features, are reduced by and divided by; 0 and 1 for the constant.
    usual, shrinkage, shared_shrinkage : (4,) arrays
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
    squares: bool = False

    @classmethod
    def new(
        cls, classes: int, server_features: Array, features: int, *, start: float = 0.0, noise: float = 0.5,
        usual: Array = USUAL, forgets: bool = True, squares: bool = True,
    ) -> PairModel:  # fmt: skip
        """Return a model without observations for `features` numbers a job.

        `start` is the value to expect at first, and `usual` the shrinkage. Squares are only used of few features.
        """
        J, squares = len(server_features), squares and features <= SQUARED
        center, scale = unknown_standards(features, squares)
        d = 1 + center.size
        made = cls(
            long=Memory.empty(classes, J, d), recent=Memory.empty(classes, J, d),
            server_features=server_regressors(server_features, d), center=np.concatenate([[0.0], center]),
            scale=np.concatenate([[1.0], scale]), usual=usual, shrinkage=usual.copy(), shared_shrinkage=usual.copy(),
            mean=np.zeros((J, d)), shared=np.zeros(classes), doubt=np.full(classes, exp(-usual[0])),
            version=np.ones(J, np.int64), ahead=np.full(J, LOST), changes=np.zeros(J, np.int64),
            epoch=np.zeros(J, np.int64), start=start, guess=noise**2, noise=noise**2,
            surprise=np.array([PRIOR_COUNT * noise**2, PRIOR_COUNT]), forgets=forgets,
            squares=squares,
        )  # fmt: skip
        made.mean[:, 0] = start
        made._solve(made._equations())
        return made

    @property
    def kappa(self) -> float:
        """How many observations the shared part counts for in a pair of classes."""
        return exp(self.shrinkage[0])

    def regressors(self, features: Array) -> Array:
        """Return the regressors (d,) of a job with `features` (f,), Eq. (71); NaN is the mean."""
        from bilinq.learning.pair_kernels import standardise

        x = np.empty(self.center.size)
        standardise(features, self.center, self.scale, self.squares, x)
        return x

    def arrays(self) -> Model:
        """Return what kernels need to know; they change the arrays."""
        return Model(
            self.long, self.recent, self.center, self.scale, self.mean, self.shared, self.doubt, self.version, self.ahead,
            self.changes, self.epoch, self.surprise, self._ridge(), self.kappa, self.noise, CHANGED, self.forgets,
            self.squares,
        )  # fmt: skip

    def standards(self, center: Array, scale: Array) -> tuple[Array, Array]:
        """Return center and scale (d - 1,) of all regressors for those of features (f,), by the squares seen so far."""
        if not self.squares:
            return center, scale
        all_center, all_scale = unknown_standards(center.size, True)
        all_center[::2], all_scale[::2] = center, scale
        gram = self.long.gram.sum(axis=0)
        for h in range(1, self.center.size, 2):
            all_center[h], all_scale[h] = 1.0, 2.0**0.5  # as if a feature were normal
            if self.scale[h + 1] < UNKNOWN:
                row = square_of(h, self.center, self.scale, center[h // 2], scale[h // 2])
                mean = row @ gram[0] / max(gram[0, 0], 1e-300)
                spread = max(row @ gram @ row / max(gram[0, 0], 1e-300) - mean * mean, 0.0) ** 0.5
                all_center[h], all_scale[h] = mean, spread if spread > 1e-6 else 1.0
        return all_center, all_scale

    def rescale(self, center: Array, scale: Array) -> None:
        """Standardise regressors by another center and scale (d - 1,) from now on; what was learnt stays."""
        change = np.diag(self.scale / np.concatenate([[1.0], scale]))
        change[1:, 0] = (self.center[1:] - center) / scale
        for h in range(1, self.center.size, 2) if self.squares else ():
            change[h + 1] = 0.0
            if self.scale[h + 1] < UNKNOWN:
                row = square_of(h, self.center, self.scale, center[h - 1], scale[h - 1])
                row[0] -= center[h]
                change[h + 1] = row / scale[h]
            else:
                change[h + 1, h + 1] = 1.0  # it was nothing so far
        self.center[1:], self.scale[1:] = center, scale
        self.mean = carried_over(self.mean, change)
        for memory in (self.long, self.recent):
            memory.transform(change)
        self.refresh()

    def begin(self, value: float) -> None:
        """Expect `value` before there are observations."""
        self.start = value
        self.refresh()

    def widen(self, first: Array) -> None:
        """Make room for more features, of which `first` is an example; in earlier observations they count as these."""
        known = (self.center.size - 1) // (2 if self.squares else 1)
        if self.squares and known + first.size > SQUARED:
            self._leave_squares_out()
        center, scale = unknown_standards(first.size, self.squares)
        center[:: 2 if self.squares else 1] = first if self.seen else 0.0
        self.long, self.recent = self.long.widened(center.size), self.recent.widened(center.size)
        self.center, self.scale = np.concatenate([self.center, center]), np.concatenate([self.scale, scale])
        self.mean = np.pad(self.mean, ((0, 0), (0, center.size)))
        if self.center.size * self.server_features.shape[1] > LARGEST_SHARED:
            self.server_features = self.server_features[:, :1]
        self.refresh()

    def _leave_squares_out(self) -> None:
        """Go on without squares."""
        kept = np.r_[0, 1 : self.center.size : 2]
        self.long, self.recent = self.long.selected(kept), self.recent.selected(kept)
        self.center, self.scale, self.mean = self.center[kept], self.scale[kept], self.mean[:, kept]
        self.squares = False

    def predict(self, features: Array, kind: IntArray) -> tuple[Array, Array]:
        """Return the mean (K, J) for jobs with features (K, f) of classes `kind` (K,), and its standard error."""
        from bilinq.learning.pair_kernels import predict

        mean, width = np.empty((len(kind), len(self.version))), np.empty((len(kind), len(self.version)))
        predict(self.arrays(), np.ascontiguousarray(features), kind, mean, width)
        return mean, width

    def observe(self, features: Array, kind: int, column: int, value: float, weight: float = 1.0) -> None:
        """Learn from one service, Eq. (59); a `weight` of two counts as two of them."""
        self.learn(features[None], np.array([kind]), np.array([column]), np.array([value]), np.array([weight]))

    def learn(self, features: Array, kind: IntArray, column: IntArray, value: Array, weight: Array) -> Array:
        """Learn from services (n,) with features (n, f), one after the other; where the value is NaN, nothing is learnt.

        Return by how much each value differed from its prediction (n,).
        """
        from bilinq.learning.pair_kernels import observe

        error, done = np.empty(value.size), 0
        while done < value.size:
            done, learnt, replaced = observe(
                self.arrays(), features, kind, column, value, weight, done, max(self.next_refresh - self.seen, 1), error
            )
            self.seen += learnt
            if replaced or self.seen >= self.next_refresh:
                self.refresh()
        return error

    def correct(self, features: Array, kind: int, column: int, before: float, after: float) -> None:
        """Replace the value `before` of an observation by `after`; its epoch must be the present one."""
        from bilinq.learning.pair_kernels import correct

        correct(self.arrays(), self.regressors(features), kind, column, before, after)

    def forget(self, column: int, part: float = 0.0) -> None:
        """Let what was learnt of a server class count only for `part` of it: the class starts from the shared part."""
        self.long.temper(column, part)
        self.ahead[column] = LOST
        self.epoch[column] += 1
        self.refresh()

    def arrange(self, rows: Sequence[int | None], columns: Sequence[int | None], server_features: Array) -> None:
        """Change the classes: for each new one the number it had, or None."""
        self.long, self.recent = (one.arranged(rows, columns) for one in (self.long, self.recent))
        self.server_features = server_regressors(server_features, self.center.size)
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
        self._fit_coefficients()
        self.long.theta[:] = self._equations().coefficients(self._ridge())
        self._shrink_classes()
        self._solve(self._equations())

    def _equations(self) -> Equations:
        return Equations.of(self.long, self.mean, self.shared, self.kappa)

    def _fit_coefficients(self) -> None:
        """Find the shrinkage of coefficients and of what server classes share of them, and that part, Eq. (60) and (61)."""
        mean = np.zeros(self.mean.shape)
        mean[:, 0] = self.start
        equations = Equations.of(self.long, mean, self.shared, self.kappa)
        features = self.server_features

        @cache
        def levels(*shrinkage: float) -> Levels:
            return equations.levels(self._ridge(np.array(shrinkage)), features)

        def shared_ridge(shrinkage: Array) -> Array:
            made = np.repeat(self._ridge(shrinkage), features.shape[1])
            made[1 : features.shape[1]] = exp(shrinkage[1])
            made[0] = FLAT
            return made

        slopes = (1, 3) if self.squares else (1,)
        found = _climb(
            lambda both: levels(*both[:4].tolist()).evidence(shared_ridge(both[4:]), self.guess),
            np.concatenate([self.shrinkage, self.shared_shrinkage]), np.tile(self.usual, 2),
            (*slopes, 2, *(4 + k for k in slopes)),
        )  # fmt: skip
        self.shrinkage, self.shared_shrinkage = found[:4].copy(), found[4:].copy()
        shared = levels(*self.shrinkage.tolist()).shared(shared_ridge(self.shared_shrinkage))
        shared[0, 0] += self.start
        self.mean = features @ shared.T

    def _shrink_classes(self) -> None:
        """Find the shrinkage of class pairs and of what they share, and that part itself, Eq. (60) and (61)."""
        from bilinq.learning.fit_kernels import class_loss, unexplained

        m, rest = self.long, np.empty(self.long.total.shape)
        unexplained(m, rest)
        usual, (_, noise) = self.usual[[0, 0]], self._equations().evidence(self._ridge(), self.guess)
        found = _climb(
            lambda both: class_loss(m.total, rest, exp(both[0]), exp(both[1]), noise),
            np.array([self.shrinkage[0], self.shared_shrinkage[0]]), usual, (0, 1),
        )  # fmt: skip
        self.shrinkage[0], self.shared_shrinkage[0] = found
        part = self.kappa / (m.total + self.kappa)
        self.doubt = 1.0 / ((part * m.total).sum(axis=1) + exp(found[1]))
        self.shared = (part * rest).sum(axis=1) * self.doubt

    def check(self) -> None:
        """Raise `BadState` unless numbers are such that observations can lead to, and the precision is positive definite.

        Shapes must be right already, except for that of `server_features`.
        """
        self.long.check("long")
        self.recent.check("recent")
        for name, (low, high) in LIMITS.items():
            within(name, getattr(self, name), low, high)
        within("next_refresh", self.next_refresh, 0, int(GROWTH * self.seen) + len(self.version) + 16)
        within("surprise[1]", self.surprise[1], 1e-200, 1e250)
        if self.center[0] != 0.0 or self.scale[0] != 1.0:
            raise BadState(
                f"center and scale of the constant must be 0 and 1; got {self.center[0]:g}, {self.scale[0]:g}"
            )
        self._check_server_features()
        inverse = self.long.inverse
        if (
            np.abs(inverse - inverse.swapaxes(1, 2)) > SYMMETRIC * np.abs(inverse).max(axis=(1, 2), keepdims=True)
        ).any():
            raise BadState("inverse must be symmetric")
        values = np.linalg.eigvalsh(inverse)
        if (values[:, 0] < -ROUNDING * values[:, -1]).any() or (values[:, -1] <= 0.0).any():
            raise BadState("inverse must be positive definite")

    def _check_server_features(self) -> None:
        """Raise unless there is a constant for each server class, and at most as many features as the shared part has."""
        J, columns = len(self.version), self.server_features.shape[1]
        rows = len(self.server_features)
        if rows != J or columns < 1 or (columns > 1 and columns * self.center.size > LARGEST_SHARED):
            rule = f"server_features must have {J} rows and at most {LARGEST_SHARED} coefficients with other features"
            raise BadState(f"{rule}; got shape {self.server_features.shape}")
        within("server_features", self.server_features, -2.0 * J, 2.0 * J)
        within("the constant of server_features", self.server_features[:, 0], 1.0, 1.0)

    def layout(self, own: int) -> PairModel:
        """Return a model that takes no room, to compare stored ones with: this one with `own` features of jobs."""
        features = (self.center.size - 1) // (2 if self.squares else 1) + own
        squares = self.squares and features <= SQUARED
        (I, J), d = self.long.total.shape, 1 + (2 if squares else 1) * features
        memory, row = Memory.layout(I, J, d), np.broadcast_to(0.0, (d,))
        mean = np.broadcast_to(0.0, (J, d))
        return replace(self, long=memory, recent=memory, center=row, scale=row, mean=mean, squares=squares)

    def check_fixed(self, like: PairModel) -> None:
        """Raise `BadState` unless what never changes is as in `like`; take its usual shrinkage, which versions change."""
        for name in ("guess", "forgets", "squares"):
            mine, theirs = getattr(self, name), getattr(like, name)
            if not np.array_equal(mine, theirs):
                raise BadState(f"{name} must be {theirs}; got {mine}")
        self.usual = like.usual

    def _ridge(self, shrinkage: Array | None = None) -> Array:
        """Return the diagonal of Lambda (d,) for a shrinkage; default: the present one."""
        _, slopes, constant, squares = (self.shrinkage if shrinkage is None else shrinkage).tolist()
        ridge = np.full(self.center.size, exp(slopes))
        if self.squares:
            ridge[2::2] = exp(squares)
        ridge[0] = exp(constant)
        return ridge

    def _solve(self, own: Equations) -> None:
        """Compute coefficients and inverse precision of both memories, of the recent one where it is in use."""
        from bilinq.learning.pair_kernels import fit_recent

        own.solve_into(self.long, self._ridge())
        self.noise = float(self.surprise[0] / self.surprise[1])
        fit_recent(self.arrays())
        self.version += 1


def fit_work(classes: int, server_classes: int, features: int) -> float:
    """Return about how many steps a fit of scales takes; a step is a multiplication of a factorisation."""
    d = 1 + (2 * features if features <= SQUARED else features)
    return server_classes * d**2 * (d + 0.5 * classes)


def _climb(loss: Callable[[Array], float], shrinkage: Array, usual: Array, coordinates: Sequence[int]) -> Array:
    """Return the shrinkage near the given one with the largest likelihood, Eq. (60): one coordinate after the other."""
    known: dict[tuple[float, ...], float] = {}

    def penalised(value: Array) -> float:
        key = tuple(value.tolist())
        if key not in known:
            known[key] = loss(value) + float((((value - usual) / LOOSE) ** 2).sum())
        return known[key]

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
