"""A primal-dual interior point method in NumPy for the program whose optimum the nodes' rules rest at, Eq. (33).

Prices follow the loads, q_j = p_j(z_j), so the unknowns are the allocation and its slacks, and a step costs one system of
order J. A step is shortened where a penalty bends too much for its tangent.
"""

from dataclasses import dataclass

import numpy as np

from bilinq.arrays import Array, BoolArray
from bilinq.distributed.pairs import Pairs
from bilinq.distributed.penalties import Penalty

EXACT = 1e-13
"""The residual at which rounding begins."""
AIM = 1e-14
"""The relative gap at which the search stops: beyond, steep penalties only blow up rounding."""
PATIENCE = 3
"""Steps without a better residual, once the gap is closed, after which rounding has the last word."""
SAFETY = 0.99
"""How far towards the boundary one step may go."""
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
    """Return the largest relative violation of Eq. (34) in each program of a batch, (B,).

    y, live and price, which is p_j(z_j) + c_ij: (B, I, K); a: (B, I).
    """
    served, on = y.sum(axis=2), live.any(axis=2)
    least = np.where(on, price.min(axis=2, where=live, initial=np.inf), 1.0)
    scale = np.maximum(served, TINY)
    row = np.where(on, np.abs(a / (scale * least) - 1.0), served)
    over = np.where(live, price / least[:, :, None] - 1.0, 0.0)
    over *= y
    over /= scale[:, :, None]
    return np.asarray(np.maximum(row.max(axis=1), over.max(axis=(1, 2))))


def start(pairs: Pairs, a: Array, c: Array, n: Array, penalty: Penalty) -> Program:
    """Return a point with every row spread in proportion to capacity, and no more than half of any capacity used."""
    live = (a > 0.0)[:, :, None] & (pairs.spread(n) > 0.0)
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
    return Program(pairs, a, c, open_n, penalty, live, a[:, :, None] * share, y, zeta)


def search(program: Program, limit: int, aim: float = AIM, enough: float = EXACT) -> int:
    """Take steps until every residual is `enough` or gets no better; return how many. What is done stands still."""
    best, y, zeta = np.full(len(program.a), np.inf), program.y, program.zeta
    in_vain = np.zeros(len(program.a), np.int64)
    for step in range(limit + 1):
        left, gap = program.residual, program.gap
        better = (gap > 2.0 * aim) | (left < best)
        best = np.where(better, left, best)
        y, zeta = (np.where(better[:, None, None], new, old) for new, old in ((program.y, y), (program.zeta, zeta)))
        in_vain = np.where(better, 0, in_vain + 1)
        moving = (in_vain < PATIENCE) & (left > enough)
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
    program.y = program.y + length * dy
    program.zeta = program.zeta + length * dzeta


class _Newton:
    """The linear system of one step, and how far a direction may be followed."""

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
        dzeta = np.where(p.live, (wanted - p.zeta * dy) / filled(p.y) - p.zeta, 0.0)
        return dy, dzeta

    def length(self, dy: Array, dzeta: Array, safety: float) -> Array:
        """Return the multiple of a step, at most one, that keeps all positive, and prices near their tangents."""
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
