"""The fixed point of the nodes' rules computed directly, Eq. (33): a primal-dual interior point method in NumPy.

Prices follow the loads, q_j = p_j(z_j), so the unknowns are the allocation and its slacks, and a step costs one system of
order J. A step is shortened where a penalty bends too much for its tangent.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from bilinq.arrays import Array, BoolArray
from bilinq.distributed.penalties import Penalty
from bilinq.errors import NotSolved

AIM = 1e-14
"""The relative gap at which the search stops: beyond, steep penalties only blow up rounding."""
TOLERANCE = 1e-9
"""The largest residual that is returned."""
STEPS = 100
EXACT, CLOSE = 1e-13, 1e-6
"""Residuals at which a search stops: where rounding begins, and where draws of jobs cannot tell any more."""
SAFETY = 0.99
"""How far towards the boundary one step may go."""
TIDY, POLISH, RIDGE = 1e-11, 20, 1e-10
"""A polished answer is taken if its residual is below the first or the search's; the number of its steps; and a part of
the diagonal that is added, since ties leave the split of a row open."""
UNCLEAR = 1e-3
"""A pair is idle if its share of the row is below this part of its relative slack."""
TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """Where the nodes' rules rest, with its certificate.

    Attributes
    ----------
    expected : (..., I, J) array
        y, exactly zero for idle pairs. Row sums and loads are unique; a split over tied server classes is not.
    price : (..., J) array
        p_j of the load; zero for a server class without servers.
    residual : (...) array
        The largest relative violation of Eq. (34), recomputed from y.
    steps : int
        Interior point steps.
    """

    expected: Array
    price: Array
    residual: Array
    steps: int


@dataclass
class Program:
    """A batch of programs and the point that the search has reached.

    a, s: (B, I); c, y, zeta, live, weight: (B, I, J); n: (B, J), one where there is no server. `live` pairs have demand
    and servers; the central path has y zeta = mu weight.
    """

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
    def residual(self) -> Array:
        """The certificate, Eq. (34), (B,)."""
        return residual(self.y, self.a, self.c, self.n, self.penalty, self.live)


def equilibrium(a: Array, c: Array, n: Array, penalty: Penalty) -> Equilibrium:
    """Return the fixed points of a batch: a (B, I), c (B, I, J), n (B, J)."""
    program = _start(a, c, n, penalty)
    steps = _search(program, EXACT)
    y = np.array([_polished(program, b) for b in range(len(a))]).reshape(c.shape)
    left = residual(y, a, c, program.n, penalty, program.live)
    _certify(left, TOLERANCE, steps)
    price = np.where(n > 0.0, penalty.price(y.sum(axis=1), program.n), 0.0)
    return Equilibrium(y, price, left, steps)


def close_rates(a: Array, c: Array, n: Array, penalty: Penalty) -> Array:
    """Return fixed points (B, I, J) with residuals of at most 1e-6, in a third of the time; for schedulers' slots."""
    program = _start(a, c, n, penalty)
    steps = _search(program, CLOSE)
    _certify(program.residual, CLOSE, steps)
    return np.where(program.live, program.y, 0.0)


def _certify(left: Array, most: float, steps: int) -> None:
    """Raise where a residual (B,) is above `most`."""
    if np.max(left, initial=0.0) > most:
        raise NotSolved(
            f"fixed point not certified: residual {np.max(left):.1e} after {steps} steps; "
            "rescale queue / V or capacity so that they span fewer orders of magnitude, or choose a milder penalty"
        )


def residual(y: Array, a: Array, c: Array, n: Array, penalty: Penalty, live: BoolArray) -> Array:
    """Return the largest relative violation of Eq. (34) in each program of a batch, (B,)."""
    price = np.where(live, penalty.price(y.sum(axis=1), n)[:, None, :] + c, np.inf)
    served, on = y.sum(axis=2), live.any(axis=2)
    least, scale = np.where(on, price.min(axis=2), 1.0), np.maximum(served, TINY)
    row = np.where(on, np.abs(a / (scale * least) - 1.0), served)
    over = np.where(live, price / least[:, :, None] - 1.0, 0.0)
    return np.asarray(np.maximum(row.max(axis=1), (y / scale[:, :, None] * over).max(axis=(1, 2))))


def _start(a: Array, c: Array, n: Array, penalty: Penalty) -> Program:
    """Return a point with every row spread over the server classes in proportion to capacity, at most half of it used."""
    live = (a > 0.0)[:, :, None] & (n > 0.0)[:, None, :]
    servers = np.maximum(n.sum(axis=1), TINY)[:, None]
    share = np.where(live, (n / servers)[:, None, :], 0.0)
    least = np.where(live, c, np.inf).min(axis=2)
    marginal = 2.0 * np.maximum(np.where(live.any(axis=2), least, 1.0), a.sum(axis=1, keepdims=True) / servers)
    y = (a / marginal)[:, :, None] * share
    open_n = np.where(n > 0.0, n, 1.0)
    slack = penalty.price(y.sum(axis=1), open_n)[:, None, :] + c - marginal[:, :, None]
    zeta = np.where(live, np.maximum(slack, 0.5 * marginal[:, :, None]), 1.0)
    return Program(a, c, open_n, penalty, live, a[:, :, None] * share, y, zeta)


def _search(program: Program, enough: float) -> int:
    """Take steps until every residual is `enough` or gets no better; return how many. What is done stands still."""
    best, y, zeta = np.full(len(program.a), np.inf), program.y, program.zeta
    for step in range(STEPS + 1):
        left, gap = program.residual, program.gap
        better = (gap > 2.0 * AIM) | (left < best)
        best = np.where(better, left, best)
        y, zeta = (np.where(better[:, None, None], new, old) for new, old in ((program.y, y), (program.zeta, zeta)))
        moving = better & (left > enough)
        if step == STEPS or not moving.any():
            break
        _advance(program, moving)
    program.y, program.zeta = y, zeta
    return step


def _polished(program: Program, b: int) -> Array:
    """Return member b (I, J) with idle pairs at zero and the rest by Newton's method on their own, if that is better."""
    p = program
    single = partial(residual, a=p.a[[b]], c=p.c[[b]], n=p.n[[b]], penalty=p.penalty, live=p.live[[b]])
    share = p.y[b] / np.maximum(p.y[b].sum(axis=1, keepdims=True), TINY)
    y = np.where(p.live[b] & (share > UNCLEAR * p.zeta[b] / _filled(_marginal(p)[b])[:, None]), p.y[b], 0.0)
    best, left = p.y[b], max(float(single(p.y[[b]])[0]), TIDY)
    for _ in range(POLISH):
        now = float(single(y[None])[0])
        if now <= left:
            best, left = y, now
        if now <= 1e-14:
            break
        y = _newton_on(y, p.a[b], p.c[b], p.n[b], p.penalty)
    return np.asarray(best)


def _newton_on(y: Array, a: Array, c: Array, n: Array, penalty: Penalty) -> Array:
    """Return one Newton step on the used pairs of y (I, J); a pair that would turn negative leaves them."""
    i, j = np.nonzero(y)
    served, z = y.sum(axis=1), y.sum(axis=0)
    off = a[i] / served[i] - c[i, j] - penalty.price(z, n)[j]
    bend, slope = a[i] / served[i] ** 2, penalty.slope(np.maximum(z, TINY), n)[j]
    matrix = np.where(i[:, None] == i, bend, 0.0) + np.where(j[:, None] == j, slope, 0.0)
    np.fill_diagonal(matrix, matrix.diagonal() * (1.0 + RIDGE))
    new = y.copy()
    new[i, j] = np.maximum(y[i, j] + np.linalg.solve(matrix, off), 0.0)
    return new


def _marginal(program: Program) -> Array:
    """Return a_i / s_i (B, I), zero for rows without live pairs."""
    served = program.y.sum(axis=2)
    return np.where(served > 0.0, program.a / np.maximum(served, TINY), 0.0)


def _filled(value: Array) -> Array:
    """Return `value` with ones for zeros, to divide by."""
    return np.where(value == 0.0, 1.0, value)


def _advance(program: Program, moving: BoolArray) -> None:
    """Take one predictor-corrector step where `moving`."""
    newton = _Newton(program)
    gap, total = program.gap, np.maximum(program.weight.sum(axis=(1, 2)), TINY)
    dy, dzeta = newton.direction(np.zeros(len(gap)), np.zeros_like(program.y))
    length = newton.length(dy, dzeta, 1.0)[:, None, None]
    reached = ((program.y + length * dy) * (program.zeta + length * dzeta)).sum(axis=(1, 2)) / total
    mu = np.maximum(gap * np.clip(reached / np.maximum(gap, TINY), 1e-8, 1.0) ** 3, AIM)
    dy, dzeta = newton.direction(mu, length**2 * dy * dzeta)
    length = np.where(moving, newton.length(dy, dzeta, SAFETY), 0.0)[:, None, None]
    program.y = program.y + length * dy
    program.zeta = program.zeta + length * dzeta


class _Newton:
    """The linear system of one step, and how far a direction may be followed."""

    def __init__(self, program: Program) -> None:
        self.program, self.z = program, program.y.sum(axis=1)
        self.price = program.penalty.price(self.z, program.n)
        slope = program.penalty.slope(np.maximum(self.z, 1e-12 * program.n), program.n)
        self.give = 1.0 / np.maximum(slope, TINY)
        self.ratio = np.where(program.live, program.y / program.zeta, 0.0)
        marginal = _marginal(program)
        self.bend = marginal**2 / np.maximum(program.a, TINY)
        self.damp = 1.0 / (1.0 + self.bend * self.ratio.sum(axis=2))
        off = marginal[:, :, None] - program.c - self.price[:, None, :] + program.zeta
        self.off = np.where(program.live, off, 0.0)
        self.schur = -np.matmul((self.ratio * (self.bend * self.damp)[:, :, None]).swapaxes(1, 2), self.ratio)
        diagonal = np.arange(self.z.shape[1])
        self.schur[:, diagonal, diagonal] += self.give + self.ratio.sum(axis=1)

    def direction(self, mu: Array, second: Array) -> tuple[Array, Array]:
        """Return the step of y and of its slack towards products `mu` (B,) times their weight, less `second` (B, I, J)."""
        p = self.program
        wanted = mu[:, None, None] * p.weight - second
        pull = np.where(p.live, self.ratio * (self.off - p.zeta) + wanted / p.zeta, 0.0)
        pulls = pull.sum(axis=2)
        right = pull.sum(axis=1) - (self.ratio * (self.bend * self.damp * pulls)[:, :, None]).sum(axis=1)
        taken = self.ratio * np.linalg.solve(self.schur, right[:, :, None])[:, None, :, 0]
        rise = self.bend * self.damp * (pulls - taken.sum(axis=2))
        dy = pull - taken - self.ratio * rise[:, :, None]
        dzeta = np.where(p.live, (wanted - p.zeta * dy) / _filled(p.y) - p.zeta, 0.0)
        return dy, dzeta

    def length(self, dy: Array, dzeta: Array, safety: float) -> Array:
        """Return the multiple of a step, at most one, that keeps all positive, and prices near their tangents."""
        p, dz = self.program, dy.sum(axis=1)
        room = p.penalty.most(p.n) - self.z
        worst = np.maximum((-dy / _filled(p.y)).max(axis=(1, 2)), (-dzeta / p.zeta).max(axis=(1, 2)))
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
