"""An interior point method for Eq. (33), over all pairs or some, and exact rates from its answer."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.distributed.penalties import Penalty


class Pairs(ABC):
    """The pairs of a program: values of pairs are (B, I, K), those of server classes (B, J)."""

    @abstractmethod
    def loads(self, value: Array) -> Array:
        """Return the sums of `value` (B, I, K) over the pairs of each server class, (B, J)."""

    @abstractmethod
    def spread(self, price: Array) -> Array:
        """Return for every pair the `price` (B, J) of its server class; broadcasts to (B, I, K)."""

    @abstractmethod
    def gram(self, value: Array, scale: Array) -> Array:
        """Return the sums over rows of `scale` (B, I) times products of `value` (B, I, K), (B, J, J)."""

    @abstractmethod
    def server(self, i: IntArray, k: IntArray) -> IntArray:
        """Return the server classes of pairs k of rows i."""


class AllPairs(Pairs):
    """Every job class with every server class: K = J."""

    def loads(self, value: Array) -> Array:
        return np.asarray(value.sum(axis=1))

    def spread(self, price: Array) -> Array:
        return price[:, None, :]

    def gram(self, value: Array, scale: Array) -> Array:
        return np.asarray(np.matmul((value * scale[:, :, None]).swapaxes(1, 2), value))

    def server(self, i: IntArray, k: IntArray) -> IntArray:
        return k


class SomePairs(Pairs):
    """The `chosen` (I, K) ones of J = `columns` server classes, different ones in a row, for a batch of one."""

    def __init__(self, chosen: IntArray, columns: int) -> None:
        self.chosen, self.columns = chosen, columns

    def loads(self, value: Array) -> Array:
        return np.bincount(self.chosen.ravel(), value.ravel(), self.columns)[None].astype(np.float64, copy=False)

    def spread(self, price: Array) -> Array:
        return np.asarray(price[:, self.chosen])

    def gram(self, value: Array, scale: Array) -> Array:
        from scipy.sparse import csr_array

        rows, width = self.chosen.shape
        place = (self.chosen.ravel(), np.arange(0, rows * width + 1, width))
        size = rows, self.columns
        left, right = (csr_array((part.ravel(), *place), size) for part in (value * scale[:, :, None], value))
        return np.asarray((left.T @ right).toarray())[None]

    def server(self, i: IntArray, k: IntArray) -> IntArray:
        return np.asarray(self.chosen[i, k])


EXACT = 1e-13  # the residual at which rounding errors dominate
AIM = 1e-14  # the relative gap at which the search stops: below it, steep penalties only amplify rounding errors
PATIENCE = 3  # steps without a better residual, once the gap is closed, after which the search stops
SAFETY = 0.99  # part of the way to the boundary that one step may go
TINY = 1e-300


@dataclass
class Program:
    """A batch of programs and the point that the search has reached.

    a, s: (B, I); c, y, zeta, live, weight: (B, I, K) by `pairs`; n: (B, J), one where there is no server. `live` pairs
    have demand and servers; the central path has y zeta = mu weight.
    """

    pairs: Pairs
    a: Array
    c: Array
    n: Array
    penalty: Penalty
    live: BoolArray
    weight: Array
    y: Array
    zeta: Array

    @property
    def gap(self) -> Array:
        """The sum of complementarity products over the sum of their weights, (B,)."""
        return np.asarray((self.y * self.zeta).sum(axis=(1, 2)) / np.maximum(self.weight.sum(axis=(1, 2)), TINY))

    @property
    def marginal(self) -> Array:
        """a_i / s_i, (B, I), zero for rows without live pairs."""
        served = self.y.sum(axis=2)
        return np.where(served > 0.0, self.a / np.maximum(served, TINY), 0.0)

    @property
    def residual(self) -> Array:
        """The certificate, Eq. (34), among these pairs, (B,)."""
        price = self.penalty.price(self.pairs.loads(self.y), self.n)
        return residual(self.y, self.a, self.c + self.pairs.spread(price), self.live)


def residual(y: Array, a: Array, price: Array, live: BoolArray) -> Array:
    """Return the largest relative violation of Eq. (34) (B,): y, live, price = p_j(z_j) + c_ij (B, I, K), a (B, I)."""
    served, on = y.sum(axis=2), live.any(axis=2)
    least = np.where(on, price.min(axis=2, where=live, initial=np.inf), 1.0)
    scale = np.maximum(served, TINY)
    row = np.where(on, np.abs(a / (scale * least) - 1.0), served)
    over = np.where(live, price / least[:, :, None] - 1.0, 0.0)
    over *= y
    over /= scale[:, :, None]
    return np.asarray(np.maximum(row.max(axis=1), over.max(axis=(1, 2))))


def start(
    pairs: Pairs, a: Array, c: Array, n: Array, penalty: Penalty, eligible: BoolArray | None = None
) -> Program:  # fmt: skip
    """Return a point with every row spread in proportion to capacity, and no more than half of any capacity used."""
    live = (a > 0.0)[:, :, None] & (pairs.spread(n) > 0.0)
    if eligible is not None:
        live &= eligible
    share = np.where(live, pairs.spread(n), 0.0)
    share /= np.maximum(share.sum(axis=2, keepdims=True), TINY)
    least = np.where(live.any(axis=2), c.min(axis=2, where=live, initial=np.inf), 1.0)
    servers = np.maximum(n.sum(axis=1, keepdims=True), TINY)
    marginal = 2.0 * np.maximum(least, a.sum(axis=1, keepdims=True) / servers)
    open_n = np.where(n > 0.0, n, 1.0)
    crowd = pairs.loads((a / marginal)[:, :, None] * share) / (0.5 * open_n)
    marginal *= np.maximum(crowd.max(axis=1, keepdims=True), 1.0)
    y = (a / marginal)[:, :, None] * share
    slack = pairs.spread(penalty.price(pairs.loads(y), open_n)) + c - marginal[:, :, None]
    zeta = np.where(live, np.maximum(slack, 0.5 * marginal[:, :, None]), 1.0)
    weight = a[:, :, None] * share
    return Program(pairs=pairs, a=a, c=c, n=open_n, penalty=penalty, live=live, weight=weight, y=y, zeta=zeta)


def search(program: Program, limit: int, aim: float = AIM, enough: float = EXACT) -> int:
    """Take steps until every residual is `enough` or gets no better; return their number. Solved members do not move."""
    best, y, zeta = np.full(len(program.a), np.inf), program.y, program.zeta
    stalled = np.zeros(len(program.a), np.int64)
    for step in range(limit + 1):
        left, gap = program.residual, program.gap
        better = (gap > 2.0 * aim) | (left < best)
        best = np.where(better, left, best)
        y, zeta = (np.where(better[:, None, None], new, old) for new, old in ((program.y, y), (program.zeta, zeta)))
        stalled = np.where(better, 0, stalled + 1)
        moving = (stalled < PATIENCE) & (left > enough)
        if step == limit or not moving.any():
            break
        _advance(program, moving, aim)
    program.y, program.zeta = y, zeta
    return step


def filled(value: Array) -> Array:
    """Return `value` with ones for zeros, to divide by."""
    return np.where(value == 0.0, 1.0, value)


def _advance(program: Program, moving: BoolArray, aim: float) -> None:
    """Take one predictor-corrector step where `moving`."""
    newton = _Newton(program)
    gap, total = program.gap, np.maximum(program.weight.sum(axis=(1, 2)), TINY)
    dy, dzeta = newton.direction(np.zeros(len(gap)), np.zeros_like(program.y))
    length = newton.length(dy, dzeta, 1.0)[:, None, None]
    reached = ((program.y + length * dy) * (program.zeta + length * dzeta)).sum(axis=(1, 2)) / total
    mu = np.maximum(gap * np.clip(reached / np.maximum(gap, TINY), 1e-8, 1.0) ** 3, aim)
    dy, dzeta = newton.direction(mu, length**2 * dy * dzeta)
    length = np.where(moving, newton.length(dy, dzeta, SAFETY), 0.0)[:, None, None]
    program.y, program.zeta = program.y + length * dy, program.zeta + length * dzeta


class _Newton:
    """The linear system of one step, and the length to which a direction may be followed."""

    def __init__(self, program: Program) -> None:
        pairs, self.program, self.z = program.pairs, program, program.pairs.loads(program.y)
        self.price = program.penalty.price(self.z, program.n)
        slope = program.penalty.slope(np.maximum(self.z, 1e-12 * program.n), program.n)
        self.give = 1.0 / np.maximum(slope, TINY)
        self.ratio = np.where(program.live, program.y / program.zeta, 0.0)
        marginal = program.marginal
        self.bend = marginal**2 / np.maximum(program.a, TINY)
        self.damp = 1.0 / (1.0 + self.bend * self.ratio.sum(axis=2))
        off = marginal[:, :, None] - program.c - pairs.spread(self.price) + program.zeta
        self.off = np.where(program.live, off, 0.0)
        self.schur = -pairs.gram(self.ratio, self.bend * self.damp)
        diagonal = np.arange(self.z.shape[1])
        self.schur[:, diagonal, diagonal] += self.give + pairs.loads(self.ratio)

    def direction(self, mu: Array, second: Array) -> tuple[Array, Array]:
        """Return the step of y and of its slack towards products `mu` (B,) times their weight, less `second` (B, I, K)."""
        p, pairs = self.program, self.program.pairs
        wanted = mu[:, None, None] * p.weight - second
        pull = np.where(p.live, self.ratio * (self.off - p.zeta) + wanted / p.zeta, 0.0)
        pulls = pull.sum(axis=2)
        right = pairs.loads(pull) - pairs.loads(self.ratio * (self.bend * self.damp * pulls)[:, :, None])
        raised = np.asarray(np.linalg.solve(self.schur, right[:, :, None]), dtype=np.float64)
        taken = self.ratio * pairs.spread(raised[:, :, 0])
        rise = self.bend * self.damp * (pulls - taken.sum(axis=2))
        dy = pull - taken - self.ratio * rise[:, :, None]
        return dy, np.where(p.live, (wanted - p.zeta * dy) / filled(p.y) - p.zeta, 0.0)

    def length(self, dy: Array, dzeta: Array, safety: float) -> Array:
        """Return the multiple of a step, at most one, that keeps all values positive and prices near their tangents."""
        p, dz = self.program, self.program.pairs.loads(dy)
        room = p.penalty.most(p.n) - self.z
        worst = np.maximum((-dy / filled(p.y)).max(axis=(1, 2)), (-dzeta / p.zeta).max(axis=(1, 2)))
        worst = np.maximum(worst, (dz / np.maximum(room, TINY)).max(axis=1))
        length = np.minimum(1.0, safety / np.maximum(worst, TINY))
        level = p.a.sum(axis=1) / p.n.sum(axis=1)
        for _ in range(60):
            tangent = length[:, None] * dz / self.give
            gone = np.abs(p.penalty.price(self.z + length[:, None] * dz, p.n) - self.price - tangent)
            straight = (gone <= 0.5 * (self.price + np.abs(tangent) + level[:, None])).all(axis=1)
            if straight.all():
                break
            length = np.where(straight, length, 0.6 * length)
        return np.asarray(length)


TIDY, POLISH, RIDGE = 1e-11, 20, 1e-10
"""A polished answer is accepted if its residual is below TIDY or the search's; POLISH is the number of its steps, and RIDGE
a part of the diagonal that is added, since ties leave the split of a row open."""
UNCLEAR = 1e-3  # a pair is idle if its share of the row is below this part of its relative slack
DENSE, TIED = 300, 2
"""More than DENSE used pairs are solved for as a sparse system, since they form a forest or nearly so; more than TIED for
each row and column are tied, and the search's answer is kept."""


def polished(program: Program, b: int) -> Array:
    """Return member b (I, K) with idle pairs at zero and the others solved by Newton's method, if that is better."""
    p = program
    share = p.y[b] / np.maximum(p.y[b].sum(axis=1, keepdims=True), TINY)
    y = np.where(p.live[b] & (share > UNCLEAR * p.zeta[b] / filled(p.marginal[b])[:, None]), p.y[b], 0.0)
    best, left = p.y[b], max(_residual(p, b, p.y[b]), TIDY)
    if np.count_nonzero(y) > max(DENSE, TIED * (len(y) + p.n.shape[1])):
        return np.asarray(best)
    for _ in range(POLISH):
        now = _residual(p, b, y)
        if now <= left:
            best, left = y, now
        if now <= 1e-14:
            break
        y = _newton(p, b, y)
    return np.asarray(best)


def _residual(p: Program, b: int, y: Array) -> float:
    price = p.penalty.price(p.pairs.loads(y[None]), p.n[[b]])
    return float(residual(y[None], p.a[[b]], p.c[[b]] + p.pairs.spread(price), p.live[[b]])[0])


def _newton(p: Program, b: int, y: Array) -> Array:
    """Return y (I, K) after a Newton step on its used pairs, as far as all stay positive; those at zero become idle."""
    i, k = np.nonzero(y)
    j, n = p.pairs.server(i, k), p.n[b]
    served, z = y.sum(axis=1)[i], p.pairs.loads(y[None])[0]
    off = p.a[b, i] / served - p.c[b, i, k] - p.penalty.price(z, n)[j]
    bend, slope = p.a[b, i] / served**2, p.penalty.slope(np.maximum(z, TINY), n)[j]
    step = (_dense if len(i) <= DENSE else _sparse)(i, j, bend, slope, off)
    new, most = y.copy(), np.where(step < 0.0, y[i, k] / np.where(step < 0.0, -step, 1.0), np.inf)
    length = min(1.0, float(most.min()))
    new[i, k] = np.where(most <= length, 0.0, y[i, k] + length * step)
    return new


def _dense(i: IntArray, j: IntArray, bend: Array, slope: Array, off: Array) -> Array:
    """Return the step x (P,) of used pairs with bend sum_row x + slope sum_column x = off."""
    matrix = np.where(i[:, None] == i, bend, 0.0) + np.where(j[:, None] == j, slope, 0.0)
    np.fill_diagonal(matrix, matrix.diagonal() * (1.0 + RIDGE))
    return np.linalg.solve(matrix, off)


def _sparse(i: IntArray, j: IntArray, bend: Array, slope: Array, off: Array) -> Array:
    """Return the same with the sums of rows and columns as further unknowns."""
    from scipy.sparse import block_array, coo_array, diags_array, eye_array
    from scipy.sparse.linalg import spsolve

    node = np.unique(np.concatenate([i, i.max() + 1 + j]), return_inverse=True)[1]
    place = node, np.tile(np.arange(len(i)), 2)
    sums = coo_array((np.ones(2 * len(i)), place))
    force = coo_array((np.concatenate([bend, slope]), place[::-1]), sums.shape[::-1])
    nodes = sums.shape[0]
    matrix = block_array([[diags_array(RIDGE * (bend + slope)), force], [sums, -eye_array(nodes)]], format="csc")
    return np.asarray(spsolve(matrix, np.concatenate([off, np.zeros(nodes)])))[: len(i)]
