"""Services to learn from, the model of pairs, and a dense regression that it must equal."""

from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.learning.pair_model import USUAL, PairModel

I, J, D = 3, 4, 2  # job classes, server classes, features
CENTER, SCALE = np.array([0.7, -3.0]), np.array([0.2, 5.0])


class Data(NamedTuple):
    """Services: features (n, D), job classes, server classes, values and weights (n,)."""

    x: Array
    kind: IntArray
    column: IntArray
    value: Array
    weight: Array


def data(n: int, seed: int = 0, weighted: bool = True) -> Data:
    rng = np.random.default_rng(seed)
    x, kind, column = rng.normal(size=(n, D)), rng.integers(I, size=n), rng.integers(J, size=n)
    value = rng.normal(size=(J, D))[column]
    deviation = rng.normal(size=(I, J))[kind, column]
    weight = rng.uniform(0.5, 3.0, n) if weighted else np.ones(n)
    return Data(x, kind, column, (x * value).sum(axis=1) + deviation + 0.3 * rng.normal(size=n), weight)


def close(found: Array, wanted: Array) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8)


def model(
    server_features: Array | None = None, forgets: bool = False, start: float = 0.3, squares: bool = False
) -> PairModel:
    return PairModel.new(I, np.zeros((J, 0)) if server_features is None else server_features, D, start=start,
                         forgets=forgets, squares=squares)  # fmt: skip


def feed(one: PairModel, some: Data) -> PairModel:
    for k in range(len(some.value)):
        one.observe(some.x[k], int(some.kind[k]), int(some.column[k]), float(some.value[k]), float(some.weight[k]))
    return one


def settle(one: PairModel) -> PairModel:
    """Refresh until neither shrinkage nor the shared part changes any more."""
    for _ in range(300):
        before = one.shrinkage, one.shared_shrinkage, one.mean, one.shared
        one.refresh()
        after = one.shrinkage, one.shared_shrinkage, one.mean, one.shared
        if all(np.abs(x - y).max() < 1e-13 for x, y in zip(before, after, strict=True)):
            return one
    raise AssertionError("the search for shrinkage and shared part does not end")


def grid(seed: int = 9) -> tuple[Array, IntArray]:
    """Return jobs (K, D) of all classes to predict."""
    return np.random.default_rng(seed).normal(size=(4 * I, D)), np.tile(np.arange(I), 4)


def regressors(one: PairModel, x: Array, kind: IntArray) -> Array:
    """Return a constant, standardised features, each with its square if the model has them, and one-hot job classes."""
    if one.squares:
        z = (x - one.center[1::2]) / one.scale[1::2]
        scaled = np.stack([z, (z * z - one.center[2::2]) / one.scale[2::2]], axis=2).reshape(len(x), 2 * D)
    else:
        scaled = (x - one.center[1:]) / one.scale[1:]
    return np.concatenate([np.ones((len(x), 1)), scaled, np.eye(len(one.shared))[kind]], axis=1)


def prior(one: PairModel, j: int) -> tuple[Array, Array]:
    """Return means and precisions, in units of the noise, of the coefficients of `regressors` for server class j."""
    pairs, slopes, constant, squares = np.exp(one.shrinkage)
    own = [slopes, squares] * D if one.squares else [slopes] * (one.center.size - 1)
    precision = [constant, *own, *[pairs] * len(one.shared)]
    return np.concatenate([one.mean[j], one.shared]), np.array(precision)


def dense(one: PairModel, some: Data, x: Array, kind: IntArray) -> tuple[Array, Array]:
    """Return mean and standard error (K, J) of a dense regression with the model's own prior and noise."""
    mean, error = [], []
    for j in range(len(one.mean)):
        mine = some.column == j
        X, w = regressors(one, some.x[mine], some.kind[mine]), some.weight[mine]
        m, precision = prior(one, j)
        P = X.T @ (w[:, None] * X) + np.diag(precision)
        beta = np.linalg.solve(P, X.T @ (w * some.value[mine]) + precision * m)
        Z = regressors(one, x, kind)
        mean.append(Z @ beta)
        number = np.bincount(some.kind[mine], w, minlength=len(one.shared))[kind]
        doubt = (one.kappa / (number + one.kappa)) ** 2 * one.doubt[kind]
        error.append(np.sqrt(one.noise * ((Z * np.linalg.solve(P, Z.T).T).sum(axis=1) + doubt)))
    return np.array(mean).T, np.array(error).T


def assert_dense(one: PairModel, some: Data) -> None:
    x, kind = grid()
    for mine, wanted in zip(one.predict(x, kind), dense(one, some, x, kind), strict=True):
        close(mine, wanted)


def alike(one: PairModel, other: PairModel) -> None:
    """Let both search the shrinkage from the same point until it ends, and assert that they predict the same."""
    for each in (one, other):
        each.shrinkage, each.shared_shrinkage = USUAL.copy(), USUAL.copy()
        settle(each)
        settle(each)
    same(one, other)


def same(one: PairModel, other: PairModel) -> None:
    x, kind = grid()
    np.testing.assert_allclose(one.shrinkage, other.shrinkage, atol=1e-12)
    mean, width = one.predict(x, kind)
    mean_2, width_2 = other.predict(x, kind)
    close(mean, mean_2)
    close(width / one.noise**0.5, width_2 / other.noise**0.5)
