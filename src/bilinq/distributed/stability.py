"""Stability of the rules with delays: growth rates, margins, boundaries, and gains that are safe."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinq.arrays import Array, BoolArray, as_floats, count, one_of, require
from bilinq.distributed.network import Network
from bilinq.distributed.rounds import iterate
from bilinq.distributed.system import Nodes, Rule, System, Time, gain_within
from bilinq.errors import BadInput, Diverged, NotSolved, UnsafeGain

Complex: TypeAlias = NDArray[np.complex128]


class Links(NamedTuple):
    """How pairs with the same job class, or the same server class, act on each other.

    `same` (P, P) marks these pairs; the deviation of pair m acts on pair k after `delay` (P, P) with `strength` (P,) of k.
    """

    strength: Array
    same: BoolArray
    delay: Array


@dataclass(frozen=True)
class Linear:
    """The linearised rules over the P used pairs of one system.

    A deviation x obeys x_k' = - sum_m same[k, m] strength[k] x_m(t - delay[k, m]), summed over rows and columns; in
    discrete time the left side is x_k(r + 1) - x_k(r). The strength is the gain times 1 / s_i in rows, and times
    p'_j / lambda_ij in columns; with the factor y_ij in the scaled rule.
    """

    row: Links
    column: Links
    time: Time

    @property
    def size(self) -> int:
        """Number of used pairs."""
        return len(self.row.strength)

    @property
    def longest(self) -> float:
        """The longest delay."""
        return float(max(self.row.delay.max(), self.column.delay.max()))

    @property
    def open_ends(self) -> int:
        """Directions in which the split of rows over tied server classes is free; they do not change row sums and loads."""
        links = self.row.same.astype(float) + self.column.same.astype(float)
        return self.size - int(np.linalg.matrix_rank(links, hermitian=True))

    def coupling(self, root: complex) -> tuple[Complex, Complex]:
        """Return the matrix by which deviations that grow as exp(root t) act on each other, and its derivative."""
        by_row, by_column = (
            np.where(same, strength[:, None] * np.exp(-root * delay), 0.0)
            for strength, same, delay in (self.row, self.column)
        )
        change = self.row.delay * by_row + self.column.delay * by_column
        return np.asarray(by_row + by_column), np.asarray(-change)

    def characteristic(self, root: complex) -> tuple[Complex, Complex]:
        """Return the matrix that is singular exactly at the roots of Eq. (41), and its derivative."""
        matrix, change = self.coupling(root)
        own, slope = (root, 1.0) if self.time == "continuous" else (np.expm1(root), np.exp(root))
        return matrix + own * np.eye(self.size), change + slope * np.eye(self.size)

    def refined(self, root: complex, steps: int = 12) -> complex | None:
        """Return the root of Eq. (41) near `root` by Newton's method, or None if it does not converge nearby."""
        matrix, _ = self.characteristic(root)
        vector = np.linalg.svd(matrix)[2][-1].conj()
        fixed = vector.conj()
        now = complex(root)
        for _ in range(steps):
            matrix, change = self.characteristic(now)
            bordered = np.block([[matrix, (change @ vector)[:, None]], [fixed[None, :], np.zeros((1, 1))]])
            step = np.linalg.lstsq(bordered, np.append(-(matrix @ vector), 0.0), rcond=None)[0]
            vector, now = vector + step[:-1], now + complex(step[-1])
            if abs(step[-1]) <= 1e-13 * (1.0 + abs(now)):
                near = abs(now - root) <= 0.1 * (abs(root) + 1.0 / (1.0 + self.row.delay.max()))
                return now if near else None
        return None


def linearise(system: System, gain: ArrayLike, nodes: Nodes, rule: Rule, time: Time) -> list[Linear]:
    """Return the linearised rules of every member of the batch."""
    one_of("nodes", nodes, ("job", "server"))
    one_of("rule", rule, ("scaled", "delayed", "printed"))
    one_of("time", time, ("continuous", "discrete"))
    _, c, n, forward, backward = system.flat
    gains = system.checked_gain(gain).reshape(c.shape)
    y = system.equilibrium.expected.reshape(c.shape)
    price = system.equilibrium.price.reshape(n.shape)
    members = []
    for b in range(len(c)):
        i, j = np.nonzero(y[b])
        z = np.where(y[b].sum(axis=0) > 0.0, y[b].sum(axis=0), 1.0)
        slope = system.penalty.slope(z, np.where(n[b] > 0.0, n[b], 1.0))
        strength = gains[b, i, j] * (1.0 if rule == "printed" else y[b, i, j])
        row_delay, column_delay = delays(forward[b, i, j], backward[b, i, j], nodes)
        row = Links(strength / y[b].sum(axis=1)[i], i[:, None] == i, row_delay)
        column = Links(strength * slope[j] / (price[b, j] + c[b, i, j]), j[:, None] == j, column_delay)
        members.append(Linear(row, column, time))
    return members


def delays(forward: Array, backward: Array, nodes: Nodes) -> tuple[Array, Array]:
    """Return the age of pair m's rate when it reaches pair k through its row and through its column, (P, P) each."""
    loop = np.broadcast_to(forward + backward, (len(forward), len(forward)))
    if nodes == "job":
        return loop, backward[:, None] + forward
    return forward[:, None] + backward, loop


POINTS = (8, 12, 18, 27, 40, 60)  # numbers of Chebyshev points to try, in this order
LARGEST = 3000  # order of the largest matrix whose eigenvalues are computed
CANDIDATES = 12  # eigenvalues, from the right, that are corrected on the exact equation


def growth_rate(
    system: System, gain: ArrayLike, *, nodes: Nodes = "job", rule: Rule = "scaled", time: Time = "continuous"
) -> Array:
    """Return the growth rate (...) of small deviations from the fixed point, per unit of time; negative is stable.

    It is the largest real part of the roots of Eq. (41) over the used pairs. In discrete time, deviations grow by exp(rate)
    a round. Idle pairs do not matter: in either rule they fall to zero and stay there.
    """
    members = linearise(system, gain, nodes, rule, time)
    return np.array([rightmost(member).real for member in members]).reshape(system.batch)


def rightmost(linear: Linear) -> complex:
    """Return the root of Eq. (41) with the largest real part; minus infinity where no pair is used."""
    if not linear.size:
        return complex(-np.inf)
    if linear.time == "discrete":
        return _best(linear, np.log(_eigenvalues(companion(linear), 1e-12)))
    if not linear.longest:
        return _best(linear, -_eigenvalues(linear.coupling(0.0)[0].real, 0.0))
    before: complex | None = None
    for points in POINTS:
        found = _best(linear, _eigenvalues(generator(linear, points), 0.0))
        if before is not None and abs(found.real - before.real) <= 1e-6 * max(abs(found), 1e-3):
            return found
        before = found
    raise NotSolved(f"growth rate not settled with {POINTS[-1]} points; delays differ by too many orders of magnitude")


def _eigenvalues(matrix: Array, least: float) -> Complex:
    values = np.linalg.eigvals(matrix).astype(np.complex128)
    return values[np.abs(values) >= least]


def _best(linear: Linear, values: Complex) -> complex:
    """Return the rightmost of the candidates that the exact equation confirms."""
    values = values[values.imag > -1e-12]
    order = values[np.argsort(-values.real)][:CANDIDATES]
    if linear.open_ends:
        order = order[np.abs(order) >= 1e-6 * (linear.row.strength.max() + linear.column.strength.max())]
    roots = [root for value in order if (root := linear.refined(complex(value))) is not None]
    return max(roots, key=lambda root: root.real) if roots else complex(values.real.max())


def companion(linear: Linear) -> Array:
    """Return the matrix that takes the last deviations to the next ones, in discrete time."""
    depth = int(linear.longest) + 1
    order = linear.size * depth
    _fits(order)
    matrix = np.zeros((depth, linear.size, depth, linear.size))
    for lag in range(depth):
        for strength, same, delay in (linear.row, linear.column):
            matrix[0, :, lag, :] -= np.where(same & (delay == lag), strength[:, None], 0.0)
    matrix[0, :, 0, :] += np.eye(linear.size)
    for lag in range(1, depth):
        matrix[lag, :, lag - 1, :] = np.eye(linear.size)
    return matrix.reshape(order, order)


def generator(linear: Linear, points: int) -> Array:
    """Return the matrix whose rightmost eigenvalues approximate the roots of Eq. (41), in continuous time.

    Pair m is represented at `points` + 1 Chebyshev points of its history, as long as the longest delay at which it acts.
    """
    size = linear.size
    _fits(size * (points + 1))
    links = (linear.row, linear.column)
    span = np.maximum(*(np.where(same, delay, 0.0) for _, same, delay in links)).max(axis=0)
    span = np.where(span > 0.0, span, max(span.max(), 1.0))
    nodes, weights = _chebyshev(points)
    matrix = np.zeros((size, points + 1, size, points + 1))
    for strength, same, delay in links:
        k, m = np.nonzero(same)
        basis = _interpolate(1.0 - 2.0 * delay[k, m] / span[m], nodes, weights)
        matrix[k, 0, m] -= strength[k, None] * basis
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
    """Return the multiple (...) of `gain` at which the growth rate becomes positive; infinite if it does not up to 1000."""
    members = linearise(system, gain, nodes, rule, time)
    return np.array([_crossing(member) for member in members]).reshape(system.batch)


def _crossing(linear: Linear) -> float:
    """Return the multiple of the gain at which the rightmost root crosses the axis, by bisection in its logarithm."""
    from scipy.optimize import brentq

    def rate(log_factor: float) -> float:
        factor = float(np.exp(log_factor))
        row, column = (links._replace(strength=factor * links.strength) for links in (linear.row, linear.column))
        return rightmost(replace(linear, row=row, column=column)).real

    low, high = -7.0, 0.0
    while rate(high) < 0.0:
        low, high = high, high + 0.7
        if high > np.log(1000.0):
            return float("inf")
    while rate(low) >= 0.0:
        high, low = low, low - 0.7
    return float(np.exp(brentq(rate, low, high, xtol=1e-8)))


def automatic_gain(
    system: System, round_trips: ArrayLike, fraction: float = 0.5, time: Time = "discrete", *, spare: float = 0.1
) -> Array:
    """Return gains (..., I, J) from measured round trips; the delays of `system` itself are ignored.

    Parameters
    ----------
    system : System
        Costs and penalty. Where the penalty's special case, Eq. (39), bounds the stiffness, nothing is solved; for a
        penalty of the user's own the stiffness is that at the fixed point.
    round_trips : (samples, ..., I, J) array
        Measurements, at least zero; NaN where there is none. The longest of each pair is used, since a gain must suit the
        worst delay; for a pair without any, the longest of all.
    fraction : float
        Part of the stability condition to use.
    time : {"discrete", "continuous"}
        Whether the nodes work in rounds or continuously.
    spare : float
        Part of its capacity that every server class leaves idle; only the barrier needs it.

    Examples
    --------
    >>> system = System(queue=[3, 1], reward=[[0.2, 0.9], [0.5, 0.4]], capacity=[1, 1], V=10.0)
    >>> automatic_gain(system, [[[2, 3], [2, np.nan]], [[4, 3], [2, np.nan]]]).round(3).tolist()
    [[0.058, 0.074], [0.103, 0.058]]
    """
    given = as_floats("round_trips", round_trips)
    rows, columns = system.shape
    if given.ndim < 3 or given.shape[-2:] != system.shape:
        raise BadInput(f"round_trips must have shape (samples, ..., {rows}, {columns}); got {given.shape}")
    require("round_trips", given, lambda x: np.isnan(x) | ((x >= 0.0) & np.isfinite(x)), "non-negative")
    seen = np.where(np.isnan(given), -1.0, given).max(axis=0)
    if not (seen >= 0.0).any():
        raise BadInput("round_trips must have at least one measurement; got only NaN")
    delay = np.broadcast_to(np.where(seen < 0.0, seen.max(), seen), system.reward.shape)
    known = system.penalty.stiffness(system.cost, spare)
    return gain_within(known if np.isfinite(known).all() else system.stiffness(), delay, fraction, time)


FRACTIONS = (0.25, 0.5, 0.9, 1.0, 1.5)  # parts of the stability condition of rounds, Eq. (40), that a survey tries.
NUDGE, LOST, LARGE = 1e-8, 1e-13, 1e-3
"""Relative deviation at which a measurement starts, and those at which it ends: rounding errors, or no longer linear."""


@dataclass(frozen=True)
class Trial:
    """One gain: the largest margins of any pair, growth per round, and rounds until Eq. (33) stays within 1 %.

    `growth` is missing where the system is too large for eigenvalues, `rounds` where rates did not settle.
    """

    fraction: float
    rule: str
    margin: float
    margin_rounds: float
    growth: float | None
    rounds: int | None


def survey(
    system: System,
    *,
    fractions: Sequence[float] = FRACTIONS,
    nodes: Nodes = "job",
    rules: Sequence[Rule] = ("scaled", "printed"),
    rounds: int = 4000,
) -> list[Trial]:
    """Return a trial of one system, from the usual start, for each rule and each part of what Eq. (40) allows."""
    if system.batch:
        raise BadInput(f"system must be a single one; got a batch {system.batch}")
    return [_trial(system, fraction, nodes, rule, rounds) for rule in rules for fraction in fractions]


def _trial(system: System, fraction: float, nodes: Nodes, rule: Rule, rounds: int) -> Trial:
    gain = system.safe_gain(fraction, "discrete")
    margin, margin_rounds = float(system.margin(gain).max()), float(system.margin(gain, "discrete").max())
    growth: float | None = None
    with suppress(BadInput):
        growth = float(growth_rate(system, gain, nodes=nodes, rule=rule, time="discrete"))
    settled = settling_rounds(system, gain, nodes=nodes, rule=rule, rounds=rounds)
    return Trial(
        fraction=fraction, rule=rule, margin=margin, margin_rounds=margin_rounds, growth=growth, rounds=settled
    )


def settling_rounds(
    system: System, gain: ArrayLike, *, nodes: Nodes = "job", rule: Rule = "scaled", rounds: int = 4000
) -> int | None:
    """Return the rounds until Eq. (33) stays within 1 %, or None if that takes more than `rounds`."""
    every = max(1, count("rounds", rounds) // 4000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeGain)
        try:
            needed = float(iterate(system, gain, rounds, nodes=nodes, rule=rule, record=every).settled())
        except Diverged:
            return None
    return int(needed) if np.isfinite(needed) else None


def measured_growth(
    system: System, gain: ArrayLike, *, nodes: Nodes = "job", rule: Rule = "scaled", rounds: int | None = None
) -> float:
    """Return the growth rate per round of a small deviation, measured on the rules, not on their linearisation."""
    best = system.fixed_point()
    signs = np.where(np.arange(best.size).reshape(best.shape) % 3 == 0, 1.0, -0.4)
    network = Network(system, gain, nodes=nodes, rule=rule, start=best * (1.0 + NUDGE * signs))
    memory = 2 * (1 + int(system.round_trip.max()))
    off: list[float] = []
    for _ in range(rounds or 80 * memory):
        network.step()
        off.append(float(np.abs(network.expected - best).max() / best.max()))
        if not LOST < off[-1] < LARGE and len(off) > 2 * memory:
            break
    size = np.log(np.convolve(np.square(off), np.ones(memory), "valid"))
    late = size[len(size) // 2 :]
    return float(0.5 * np.polyfit(np.arange(len(late)), late, 1)[0])
