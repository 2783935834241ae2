"""Kernels of `PairModel`: predictions and observations, Eq. (58), (59) and (62). Precision is in units of the noise."""

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.jit import in_place_kernel, inlined_kernel, kernel
from bilinq.learning.fit_kernels import eliminate, factorise, invert, shift
from bilinq.learning.memory import Memory
from bilinq.learning.pair_model import LOST, MOST_SURPRISING, NOISE_WINDOW, RECENT, Model
from bilinq.learning.regressors import FARTHEST


@in_place_kernel
def standardise(features: Array, center: Array, scale: Array, squares: bool, x: Array) -> None:
    """Fill the regressors x (d,), Eq. (71): a constant, then standardised features, each with its square if `squares`.

    Features that are NaN count as average ones. The model may not know yet the last features.
    """
    x[0] = 1.0
    step = 2 if squares else 1
    for k in range((x.size - 1) // step):
        h = 1 + step * k
        z = (features[k] - center[h]) / scale[h]
        x[h] = 0.0 if np.isnan(z) else z
        if squares:
            x[h + 1] = 0.0 if np.isnan(z) else (min(z * z, FARTHEST) - center[h + 1]) / scale[h + 1]


@inlined_kernel
def center(m: Memory, shared: Array, kappa: float, x: Array, c: int, j: int, z: Array) -> tuple[float, float]:
    """Fill z (d,) of Eq. (58) for a job of class c on server class j; return the mean and 1 / (N + kappa).

    One loop writes and the other adds up: if one did both, the compiler would choose the order of the sum by the addresses
    of the arrays, so that the same state could predict two values that differ in the last digit.
    """
    g = 1.0 / (m.total[c, j] + kappa)
    mean = g * (m.rewards[c, j] + kappa * shared[c])
    sums, theta = m.sums[c, j], m.theta[j]
    for k in range(z.size):
        z[k] = x[k] - g * sums[k]
    for k in range(z.size):
        mean += z[k] * theta[k]
    return mean, g


@in_place_kernel
def expect(model: Model, x: Array, c: int, j: int, z: Array) -> tuple[float, float]:
    """Return the mean of a job with regressors x of class c on server class j, and its standard error, Eq. (58)."""
    mean, g = center(model.long, model.shared, model.kappa, x, c, j, z)
    q = g + (model.kappa * g) ** 2 * model.doubt[c]
    inverse = model.long.inverse[j]
    for k in range(z.size):
        s, row = 0.5 * inverse[k, k] * z[k], inverse[k]
        for h in range(k):
            s += row[h] * z[h]
        q += 2.0 * s * z[k]
    return mean, np.sqrt(model.noise * max(q, 0.0))


@kernel
def predict(model: Model, features: Array, kind: IntArray, mean: Array, width: Array) -> None:
    """Fill the `mean` and its standard error (K, J) of jobs with features (K, d - 1) of classes `kind` (K,)."""
    d = model.center.size
    x, z = np.empty(d), np.empty(d)
    for i in range(kind.size):
        standardise(features[i], model.center, model.scale, model.squares, x)
        for j in range(mean.shape[1]):
            mean[i, j], width[i, j] = expect(model, x, kind[i], j, z)


@in_place_kernel
def add(
    m: Memory, shared: Array, kappa: float, x: Array, c: int, j: int, y: float, weight: float, z: Array, step: Array
) -> tuple[float, float]:
    """Add an observation of class c on server class j, Eq. (59); return its error and the error's variance before it."""
    d = x.size
    mean, g = center(m, shared, kappa, x, c, j, z)
    variance, error = 1.0 / weight + g, y - mean
    inverse, gram, moment, sums, theta = m.inverse[j], m.gram[j], m.moment[j], m.sums[c, j], m.theta[j]
    for k in range(d):
        s, row = 0.0, inverse[k]
        for h in range(d):
            s += row[h] * z[h]
        step[k] = s
        variance += s * z[k]
    for k in range(d):
        a, b, row, products = step[k] / variance, weight * x[k], inverse[k], gram[k]
        theta[k] += a * error
        for h in range(d):
            row[h] -= a * step[h]
            products[h] += b * x[h]
        moment[k] += b * y
        sums[k] += b
    m.square[j] += weight * y * y
    m.number[j] += weight
    m.total[c, j] += weight
    m.rewards[c, j] += weight * y
    return error, variance


@in_place_kernel
def transfer(m: Memory, other: Memory, j: int, part: float) -> None:
    """Set the sums of server class j to `part` of those of another memory, which may be the same."""
    d = m.theta.shape[1]
    for k in range(d):
        m.moment[j, k] = part * other.moment[j, k]
        for h in range(d):
            m.gram[j, k, h] = part * other.gram[j, k, h]
    m.square[j], m.number[j] = part * other.square[j], part * other.number[j]
    for c in range(len(m.total)):
        m.total[c, j], m.rewards[c, j] = part * other.total[c, j], part * other.rewards[c, j]
        for k in range(d):
            m.sums[c, j, k] = part * other.sums[c, j, k]


@in_place_kernel
def fit(model: Model, m: Memory, j: int, vectors: Array, matrices: Array) -> None:
    """Compute the coefficients and the inverse precision of server class j from the sums of a memory, Eq. (58).

    `vectors` (2, d) and `matrices` (2, d, d) are overwritten.
    """
    P, L, right, w = matrices[0], matrices[1], vectors[0], vectors[1]
    eliminate(m, j, model.mean[j], model.shared, model.kappa, P, right)
    factorise(P, model.ridge, L)
    shift(L, right, model.mean[j], w, m.theta[j])
    invert(L, P, m.inverse[j])


@kernel
def fit_recent(model: Model) -> None:
    """Do so for the recent memory of all server classes where it is in use."""
    d = model.ridge.size
    vectors, matrices = np.empty((2, d)), np.empty((2, d, d))
    for j in range(model.ahead.size):
        if model.ahead[j] > LOST:
            fit(model, model.recent, j, vectors, matrices)


@inlined_kernel
def log_density(error: float, variance: float, noise: float) -> float:
    """Return the logarithm of a normal density, without the constant; `variance` is in units of the noise."""
    density: float = -0.5 * (error * error / (noise * variance) + np.log(variance))
    return density


@in_place_kernel
def replace_long(model: Model, j: int) -> None:
    """Let the recent memory of server class j replace the long one."""
    transfer(model.long, model.recent, j, 1.0)
    for k in range(model.ridge.size):
        model.long.theta[j, k] = model.recent.theta[j, k]
        for h in range(model.ridge.size):
            model.long.inverse[j, k, h] = model.recent.inverse[j, k, h]
    model.ahead[j] = LOST
    model.changes[j] += 1
    model.epoch[j] += 1


@in_place_kernel
def compare(
    model: Model,
    c: int,
    j: int,
    y: float,
    weight: float,
    error: float,
    variance: float,
    vectors: Array,
    matrices: Array,
) -> bool:
    """Update which memory predicts server class j better, Eq. (62); return whether the recent one has replaced the long one.

    `error` and `variance` are those of the long memory; the regressors are `vectors[0]`. A recent memory starts as the long
    one, and again whenever it has too much, at the weight of `RECENT` observations.
    """
    starts = model.ahead[j] <= LOST
    source = model.long if starts else model.recent
    if source.number[j] >= 2.0 * RECENT if starts else source.number[j] > 2.0 * RECENT:
        transfer(model.recent, source, j, RECENT / source.number[j])
        fit(model, model.recent, j, vectors[3:], matrices)
        if starts:
            model.ahead[j] = 0.0
    if starts:
        return False
    error_2, variance_2 = add(
        model.recent, model.shared, model.kappa, vectors[0], c, j, y, weight, vectors[1], vectors[2]
    )
    gain = log_density(error_2, variance_2, model.noise) - log_density(error, variance, model.noise)
    model.ahead[j] += min(max(gain, -MOST_SURPRISING), MOST_SURPRISING)
    if model.ahead[j] > model.changed:
        replace_long(model, j)
        return True
    return False


@inlined_kernel
def forecast(m: Memory, shared: Array, kappa: float, x: Array, c: int, j: int, z: Array) -> tuple[float, float]:
    """Fill z; return the mean of an observation of weight one by a memory, and the variance of its error, Eq. (59)."""
    mean, g = center(m, shared, kappa, x, c, j, z)
    variance, inverse = 1.0 + g, m.inverse[j]
    for k in range(z.size):
        s, row = 0.0, inverse[k]
        for h in range(z.size):
            s += row[h] * z[h]
        variance += s * z[k]
    return mean, variance


@in_place_kernel
def replace_value(m: Memory, x: Array, c: int, j: int, z: Array, before: float, after: float) -> None:
    """Replace the value of an observation of weight one in the sums and coefficients; z is that of the memory."""
    change, inverse, theta, moment = after - before, m.inverse[j], m.theta[j], m.moment[j]
    for k in range(z.size):
        s, row = 0.0, inverse[k]
        for h in range(z.size):
            s += row[h] * z[h]
        theta[k] += change * s
        moment[k] += change * x[k]
    m.square[j] += after * after - before * before
    m.rewards[c, j] += change


@inlined_kernel
def possible(m: Memory, j: int) -> bool:
    """Tell whether sums of values fit the sums of their squares (Cauchy and Schwarz)."""
    square, found = m.square[j], m.square[j] >= 0.0
    for c in range(len(m.total)):
        found = found and m.rewards[c, j] ** 2 <= m.total[c, j] * square
    for k in range(m.moment.shape[1]):
        found = found and m.moment[j, k] ** 2 <= m.gram[j, k, k] * square
    return bool(found)


@kernel
def correct(model: Model, x: Array, c: int, j: int, before: float, after: float) -> None:
    """Replace the value `before` of an observation with regressors x by `after`, in both memories, Eq. (62).

    The recent memory gets the whole change, whatever the observation still counts for there. If its sums are then
    impossible, it is given up.
    """
    z, z_2 = np.empty(x.size), np.empty(x.size)
    mean, variance = forecast(model.long, model.shared, model.kappa, x, c, j, z)
    replace_value(model.long, x, c, j, z, before, after)
    model.version[j] += 1
    if model.ahead[j] <= LOST:
        return
    mean_2, variance_2 = forecast(model.recent, model.shared, model.kappa, x, c, j, z_2)
    ahead = model.ahead[j]
    for y, sign in ((before, -1.0), (after, 1.0)):
        gain = log_density(y - mean_2, variance_2, model.noise) - log_density(y - mean, variance, model.noise)
        ahead += sign * min(max(gain, -MOST_SURPRISING), MOST_SURPRISING)
    model.ahead[j] = min(max(ahead, LOST), model.changed)
    replace_value(model.recent, x, c, j, z_2, before, after)
    if not possible(model.recent, j):
        transfer(model.recent, model.long, j, RECENT / max(model.long.number[j], RECENT))
        model.ahead[j] = LOST


@kernel
def observe(
    model: Model, features: Array, kind: IntArray, column: IntArray, value: Array, weight: Array, first: int, most: int,
    error: Array,
) -> tuple[int, int, bool]:  # fmt: skip
    """Learn from services (n,) in their order, beginning with number `first`, Eq. (59); those without a value are skipped.

    Stop after `most` of them, or when a recent memory has replaced a long one. Fill the `error` of each prediction (n,).
    Return the number of the next service, how many were learnt, and whether a memory was replaced.
    """
    d, learnt, kept = model.center.size, 0, 1.0 - 1.0 / NOISE_WINDOW
    vectors, matrices = np.empty((5, d)), np.empty((2, d, d))
    x, z, step = vectors[0], vectors[1], vectors[2]
    for k in range(first, value.size):
        if np.isnan(value[k]):
            continue
        if learnt == most:
            return k, learnt, False
        c, j = kind[k], column[k]
        standardise(features[k], model.center, model.scale, model.squares, x)
        error[k], variance = add(model.long, model.shared, model.kappa, x, c, j, value[k], weight[k], z, step)
        model.version[j] += 1
        model.surprise[0] = kept * model.surprise[0] + error[k] * error[k] / variance
        model.surprise[1] = kept * model.surprise[1] + 1.0
        learnt += 1
        if model.forgets and compare(model, c, j, value[k], weight[k], error[k], variance, vectors, matrices):
            return k + 1, learnt, True
    return value.size, learnt, False
