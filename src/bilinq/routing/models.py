"""Models for off-policy estimates, fitted to some folds of a log and applied to the others."""

from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.errors import NotSolved
from bilinq.routing.log import Log

PENALTY = 1.0  # of ridge and logistic regression: the weight of one job


def folds(jobs: int, number: int, seed: int) -> IntArray:
    """Return the fold (N,) of each job: `number` of almost equal size, at random."""
    return np.random.default_rng(seed).permutation(np.arange(jobs) % number)


def design(log: Log) -> Array:
    """Return the columns (N, p) of the models: one, a column for each job class if there are several, and features.

    Features have mean 0 and variance 1.
    """
    names, code = log.classes
    parts = [np.ones((code.size, 1))]
    if len(names) > 1:
        parts.append((code[:, None] == np.arange(len(names))).astype(np.float64))
    if log.vectors is not None:
        spread = log.vectors.std(axis=0)
        parts.append((log.vectors - log.vectors.mean(axis=0)) / np.where(spread > 0, spread, 1.0))
    return np.concatenate(parts, axis=1)


def predicted_rewards(x: Array, log: Log, fold: IntArray) -> Array:
    """Return the reward of each job on each server (N, J) by ridge regressions on the other folds, one a server.

    Coefficients but the constant are shrunk. A server without a job in the other folds gets the mean reward of all.
    """
    found = np.empty((len(x), len(log.names)))
    for k in np.unique(fold):
        train, centre = fold != k, log.earned[fold != k].mean()
        for j in range(len(log.names)):
            rows = train & (log.chosen == j)
            found[fold == k, j] = centre + x[fold == k] @ _ridge(x[rows], log.earned[rows] - centre)
    return found


def balance(x: Array, log: Log, policy: Array) -> Array:
    """Return by how much the direct estimate changes, times N, for one unit of reward of each job (N,)."""
    weight = np.zeros(len(x))
    for j in range(len(log.names)):
        rows = log.chosen == j
        weight[rows] = x[rows] @ np.linalg.solve(_gram(x[rows]), x.T @ policy[:, j])
    return weight


def estimated_chances(x: Array, log: Log, fold: IntArray) -> Array:
    """Return the chance of each server for each job (N, J), from the other folds.

    Frequencies by class where the log has no features, otherwise multinomial logistic regression.
    """
    fit = _frequencies if log.vectors is None else _logistic
    found = np.empty((len(x), len(log.names)))
    for k in np.unique(fold):
        found[fold == k] = fit(x, log, fold != k)[fold == k]
    return found


def _gram(x: Array) -> Array:
    penalty = np.full(x.shape[1], PENALTY)
    penalty[0] = 1e-9
    return x.T @ x + np.diag(penalty)


def _ridge(x: Array, y: Array) -> Array:
    return np.asarray(np.linalg.solve(_gram(x), x.T @ y))


def _frequencies(x: Array, log: Log, train: BoolArray) -> Array:
    """Return chances (N, J) by class, of the servers that are eligible for a job."""
    names, code = log.classes
    counts = np.zeros((len(names), len(log.names)))
    np.add.at(counts, (code[train], log.chosen[train]), 1.0)
    mine = counts[code] * log.allowed
    total = mine.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(mine, total, out=np.zeros_like(mine), where=total > 0))


def _logistic(x: Array, log: Log, train: BoolArray) -> Array:
    """Return chances (N, J) by logistic regression; a server that is not eligible has chance zero."""
    shape = (x.shape[1], len(log.names))
    closed = np.where(log.allowed, 0.0, -1e9)
    taken = (log.chosen[:, None] == np.arange(shape[1])).astype(np.float64)[train]
    penalty = np.full((shape[0], 1), PENALTY)
    penalty[0] = 1e-6

    def loss(flat: Array) -> tuple[float, Array]:
        theta = flat.reshape(shape)
        logits = x[train] @ theta + closed[train]
        value = -(taken * log_softmax(logits, axis=1)).sum() + (penalty * theta**2).sum() / 2.0
        slope = x[train].T @ (softmax(logits, axis=1) - taken) + penalty * theta
        return float(value) / len(taken), slope.ravel() / len(taken)

    answer: Any = minimize(loss, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 2000})
    if not answer.success:
        raise NotSolved(f"logistic regression of the chances did not converge: {answer.message}; give probability")
    return np.asarray(softmax(x @ answer.x.reshape(shape) + closed, axis=1))
