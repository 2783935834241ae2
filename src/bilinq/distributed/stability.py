"""Growth rates of the linearised rules, and the gain at which they turn positive.

In continuous time a delay system has infinitely many modes. Replacing each pair's past by its values at Chebyshev points
turns it into a matrix whose rightmost eigenvalues are close to its roots (Breda, Maset and Vermiglio); each candidate is
then corrected on the exact equation, so that what is returned does not depend on the number of points.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, one_of
from bilinq.distributed.kinds import Nodes, Rule, Time
from bilinq.distributed.linear import Complex, Linear, linearise
from bilinq.distributed.system import System
from bilinq.errors import BadInput, NotSolved

POINTS = (8, 12, 18, 27, 40, 60)
"""Chebyshev points to try, in turn."""
LARGEST = 3000
"""Order of the largest matrix whose eigenvalues are computed."""
CANDIDATES = 12
"""Eigenvalues, from the right, that are corrected on the exact equation."""


def growth_rate(
    system: System, gain: ArrayLike, *, nodes: Nodes = "job", rule: Rule = "scaled", time: Time = "continuous"
) -> Array:
    """Return the growth rate (...) of small deviations from the fixed point, per unit of time; negative is stable.

    It is the largest real part of the roots of Eq. (41) over the used pairs. In discrete time, deviations grow by exp(rate)
    a round. Idle pairs do not matter to it: in either rule they fall to zero and stay there.
    """
    members = _linearised(system, gain, nodes, rule, time)
    return np.array([rightmost(member).real for member in members]).reshape(system.batch)


def _linearised(system: System, gain: ArrayLike, nodes: Nodes, rule: Rule, time: Time) -> list[Linear]:
    one_of("nodes", nodes, ("job", "server"))
    one_of("rule", rule, ("scaled", "delayed", "printed"))
    one_of("time", time, ("continuous", "discrete"))
    given = system.checked_gain(gain).reshape(system.flat.c.shape)
    return linearise(system, given, nodes, rule, time)


def rightmost(linear: Linear) -> complex:
    """Return the root of Eq. (41) with the largest real part; minus infinity where no pair is used."""
    if not linear.size:
        return complex(-np.inf)
    if linear.time == "discrete":
        return _best(linear, np.log(_eigenvalues(companion(linear), 1e-12)))
    if not max(linear.row_delay.max(), linear.column_delay.max()):
        return _best(linear, -_eigenvalues(linear.coupling(0.0)[0].real, 0.0))
    before: complex | None = None
    for points in POINTS:
        found = _best(linear, _eigenvalues(generator(linear, points), 0.0))
        if before is not None and abs(found.real - before.real) <= 1e-6 * max(abs(found), 1e-3):
            return found
        before = found
    raise NotSolved(f"growth rate not settled with {POINTS[-1]} points; delays differ by too many orders of magnitude")


def _eigenvalues(matrix: Array, least: float) -> Complex:
    """Return the eigenvalues of at least that modulus."""
    values = np.linalg.eigvals(matrix).astype(np.complex128)
    return values[np.abs(values) >= least]


def _best(linear: Linear, values: Complex) -> complex:
    """Return the rightmost of the candidates that the exact equation confirms."""
    values = values[values.imag > -1e-12]
    order = values[np.argsort(-values.real)][:CANDIDATES]
    scale = linear.row.max() + linear.column.max()
    skip = linear.open_ends
    roots = []
    for value in order:
        if skip and abs(value) < 1e-6 * scale:
            continue
        root = linear.refined(complex(value))
        if root is not None:
            roots.append(root)
    return max(roots, key=lambda root: root.real) if roots else complex(values.real.max())


def companion(linear: Linear) -> Array:
    """Return the matrix that takes the last deviations to the next ones, in discrete time."""
    depth = int(max(linear.row_delay.max(), linear.column_delay.max())) + 1
    order = linear.size * depth
    _fits(order)
    matrix = np.zeros((depth, linear.size, depth, linear.size))
    for lag in range(depth):
        matrix[0, :, lag, :] -= np.where(linear.same_row & (linear.row_delay == lag), linear.row[:, None], 0.0)
        matrix[0, :, lag, :] -= np.where(linear.same_column & (linear.column_delay == lag), linear.column[:, None], 0.0)
    matrix[0, :, 0, :] += np.eye(linear.size)
    for lag in range(1, depth):
        matrix[lag, :, lag - 1, :] = np.eye(linear.size)
    return matrix.reshape(order, order)


def generator(linear: Linear, points: int) -> Array:
    """Return the matrix whose rightmost eigenvalues approximate the roots of Eq. (41), in continuous time.

    Pair m is held at `points` + 1 Chebyshev points of its own past, as long as anybody looks back on it.
    """
    size = linear.size
    _fits(size * (points + 1))
    seen = np.maximum(
        np.where(linear.same_row, linear.row_delay, 0.0), np.where(linear.same_column, linear.column_delay, 0.0)
    )
    span = seen.max(axis=0)
    span = np.where(span > 0.0, span, max(span.max(), 1.0))
    nodes, weights = _chebyshev(points)
    matrix = np.zeros((size, points + 1, size, points + 1))
    for weight, same, delay in (
        (linear.row, linear.same_row, linear.row_delay),
        (linear.column, linear.same_column, linear.column_delay),
    ):
        k, m = np.nonzero(same)
        basis = _interpolate(1.0 - 2.0 * delay[k, m] / span[m], nodes, weights)
        matrix[k, 0, m] -= weight[k, None] * basis
    slopes = _differentiate(nodes, weights)[1:]
    for own in range(size):
        matrix[own, 1:, own, :] = 2.0 / span[own] * slopes
    return matrix.reshape(size * (points + 1), size * (points + 1))


def _fits(order: int) -> None:
    if order > LARGEST:
        raise BadInput(f"system must have fewer used pairs or shorter delays for eigenvalues; matrix of order {order}")


def _chebyshev(points: int) -> tuple[Array, Array]:
    """Return Chebyshev points from 1 to -1 and their barycentric weights."""
    k = np.arange(points + 1)
    weights = np.where(k % 2, -1.0, 1.0)
    weights[[0, -1]] *= 0.5
    return np.asarray(np.cos(np.pi * k / points)), weights


def _interpolate(at: Array, nodes: Array, weights: Array) -> Array:
    """Return the values (len(at), points + 1) of the Lagrange polynomials at `at`."""
    gap = at[:, None] - nodes
    hit = np.abs(gap) < 1e-14
    terms = weights / np.where(hit, 1.0, gap)
    terms = np.where(hit.any(axis=1, keepdims=True), hit.astype(float), terms)
    return np.asarray(terms / terms.sum(axis=1, keepdims=True))


def _differentiate(nodes: Array, weights: Array) -> Array:
    """Return the matrix that takes values at the points to derivatives."""
    gap = nodes[:, None] - nodes + np.eye(len(nodes))
    matrix = weights / weights[:, None] / gap
    np.fill_diagonal(matrix, 0.0)
    np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return np.asarray(matrix)


def boundary(
    system: System, gain: ArrayLike, *, nodes: Nodes = "job", rule: Rule = "scaled", time: Time = "continuous"
) -> Array:
    """Return the multiple (...) of `gain` at which the growth rate turns positive; infinite if it does not up to 1000."""
    members = _linearised(system, gain, nodes, rule, time)
    return np.array([_crossing(member) for member in members]).reshape(system.batch)


def _crossing(linear: Linear) -> float:
    """Return the multiple of the gain at which the rightmost root crosses the axis, by bisection in its logarithm."""
    from scipy.optimize import brentq

    def rate(log_factor: float) -> float:
        factor = float(np.exp(log_factor))
        return rightmost(replace(linear, row=factor * linear.row, column=factor * linear.column)).real

    low, high = -7.0, 0.0
    while rate(high) < 0.0:
        low, high = high, high + 0.7
        if high > np.log(1000.0):
            return float("inf")
    while rate(low) >= 0.0:
        high, low = low, low - 0.7
    return float(np.exp(brentq(rate, low, high, xtol=1e-8)))
