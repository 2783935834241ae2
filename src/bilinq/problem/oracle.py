"""The reference for regret, Eq. (2): the best fixed split of the load over the server classes."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.errors import BadInput, NotSolved
from bilinq.problem.bottleneck import ROUNDING as LOAD_ROUNDING
from bilinq.problem.bottleneck import find_bottleneck, share_rows
from bilinq.problem.instances import Instances
from bilinq.problem.problem import Problem

TOLERANCE = 1e-7
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Oracle:
    """The oracle's policy, with a certificate.

    Attributes
    ----------
    value : float
        Best expected reward per slot, r*.
    share : (I, J) array
        Share of the jobs of each class that each server class completes, p*; rows sum to one.
    price : (J,) array
        How much one more server of each class would add to `value`, at least zero. For a class without servers, the
        lowest price at which nobody wants it.
    residual : float
        Certificate: the largest violation of a constraint, or the gap to the upper bound that follows from `price`.
    """

    value: float
    share: Array
    price: Array
    residual: float


class _Split(NamedTuple):
    """The numbers of Eq. (49), of one problem or of R: r, m, eligible (..., I, J), rho (..., I), n (..., J).

    r is the reward of serving a job for as long as its class takes on average: mean reward times duration.
    """

    r: Array
    rho: Array
    n: Array
    m: Array
    eligible: BoolArray

    @classmethod
    def of(cls, given: Problem | Instances) -> Self:
        m, eligible = given.pairs.filled(given.mean_reward.shape)
        return cls(given.mean_reward * m, given.traffic, given.servers, m, eligible)

    def of_replication(self, k: int) -> Self:
        return type(self)(*(array[k] for array in self))

    @property
    def key(self) -> bytes:
        return b"".join(array.tobytes() for array in self)


def oracle(problem: Problem) -> Oracle:
    """Return the split of the offered load over server classes that earns most per slot when rewards are known.

    It maximises ``sum_ij traffic_i share_ij mean_reward_ij`` over shares whose rows sum to one and that put no more
    traffic on a server class than it has servers; with rates by pair, traffic and reward count as long as the pair takes,
    Eq. (49). Only eligible pairs have a share. If sending every job class to its best server class (the first of equals)
    fits, that is the answer; otherwise a linear program is solved. A job class without arrivals goes to its best server
    class.

    Raises
    ------
    BadInput
        If the load exceeds capacity: then no split fits.
    NotSolved
        If the answer could not be certified.

    Examples
    --------
    >>> problem = Problem(arrival_rate=[0.5, 0.5], servers=[1, 1], mean_reward=[[0.2, 0.9], [0.5, 0.4]])
    >>> oracle(problem).share
    array([[0., 1.],
           [1., 0.]])
    """
    split = _Split.of(problem)
    _check_load("", split)
    return _solve(split)


def oracle_values(instances: Instances) -> Array:
    """Return the best reward per slot, r*, of every replication (R,).

    Replications whose best server classes have room are computed together; the others need one linear program for each
    different problem.
    """
    split = _Split.of(instances)
    best, fits = _best(split), _fits(split)
    value: Array = np.einsum("ri,ri->r", split.rho, np.take_along_axis(split.r, best[..., None], axis=-1)[..., 0])
    solved: dict[bytes, float] = {}
    for k in np.flatnonzero(~fits).tolist():
        one = split.of_replication(k)
        if one.key not in solved:
            _check_load(f" in replication {k}", one)
            solved[one.key] = _solve(one).value
        value[k] = solved[one.key]
    return value


def oracle_shares(instances: Instances) -> Array:
    """Return the best shares p* of every replication (R, I, J), one program for each different problem."""
    split = _Split.of(instances)
    share = np.empty(split.r.shape)
    solved: dict[bytes, Array] = {}
    for k in range(instances.count):
        one = split.of_replication(k)
        if one.key not in solved:
            _check_load(f" in replication {k}", one)
            solved[one.key] = _solve(one).share
        share[k] = solved[one.key]
    return share


def has_oracle(instances: Instances) -> BoolArray:
    """Return (R,) whether the load of each replication is within capacity, so that some split fits."""
    if instances.pairs.plain:
        return np.asarray(instances.traffic.sum(axis=1) <= instances.servers.sum(axis=1))
    split = _Split.of(instances)
    fits, known = _fits(split), dict[bytes, bool]()
    for k in np.flatnonzero(~fits).tolist():
        one = split.of_replication(k)
        fits[k] = known[one.key] if one.key in known else known.setdefault(one.key, _load(one) <= 1.0 + LOAD_ROUNDING)
    return fits


def _load(split: _Split) -> float:
    return find_bottleneck(split.rho, split.n, split.m, split.eligible).load


def _check_load(where: str, split: _Split) -> None:
    """Raise an error if no split fits: at once if the least traffic exceeds all servers, else by the program's load."""
    rho, n = float((split.rho * _least(split)).sum()), float(split.n.sum())
    if rho > n * (1 + ROUNDING):
        raise BadInput(f"the oracle exists only for a load within capacity{where}: rho = {rho:g}, n = {n:g}")
    if not (split.eligible.all() and (split.m == 1.0).all()) and (load := _load(split)) > 1.0 + LOAD_ROUNDING:
        raise BadInput(f"the oracle exists only for a load within capacity{where}: the load is {load:g}")


def _least(split: _Split) -> Array:
    """Return the shortest duration of each row (..., I)."""
    return np.asarray(np.where(_open(split), split.m, np.inf).min(axis=-1))


def _open(split: _Split) -> BoolArray:
    """Return which pairs (..., I, J) are eligible and have a server."""
    return np.asarray(split.eligible & (split.n[..., None, :] > 0))


def _best(split: _Split) -> IntArray:
    """Return the best server class (..., I) among those that are eligible and have a server."""
    return np.asarray(np.where(_open(split), split.r, -np.inf).argmax(axis=-1), dtype=np.int64)


def _fits(split: _Split) -> BoolArray:
    """Return (...) whether the best server classes have room for the traffic sent there."""
    chosen = _best(split)[..., None] == np.arange(split.n.shape[-1])
    used = np.einsum("...i,...ij->...j", split.rho, chosen * split.m)
    return np.asarray((used <= split.n).all(axis=-1))


def _solve(split: _Split) -> Oracle:
    r, rho, n, m, eligible = split
    p = np.zeros_like(r)
    p[np.arange(rho.size), _best(split)] = 1.0
    q = np.zeros_like(n)
    if not _fits(split):
        pair = np.ix_(rho > 0, n > 0)
        p[pair], q[n > 0] = _program(_Split(r[pair], rho[rho > 0], n[n > 0], m[pair], eligible[pair]))
    worth = np.where(_open(split), r - m * q, -np.inf).max(axis=1)
    wanted = np.where(eligible, np.maximum((r - worth[:, None]) / m, 0.0), 0.0)
    q = np.where(n > 0, q, wanted.max(axis=0))
    value = float(np.einsum("i,ij,ij->", rho, p, r))
    return _certified(Oracle(value, p, q, _residual(p, q, split)), n)


def _program(split: _Split) -> tuple[Array, Array]:
    """Return shares (I, J) and prices (J,) of the linear program, scaled so that its numbers are about one."""
    from scipy.optimize import linprog

    r, rho, n, m, eligible = split
    total, size = rho.sum(), np.abs(r).max() or 1.0
    gain = ((rho / total)[:, None] * (r / size))[eligible]
    used, rows = share_rows(rho, n, m, eligible)
    answer = linprog(-gain, A_ub=used, b_ub=np.ones(n.size), A_eq=rows, b_eq=np.ones(rho.size), method="highs")
    if answer.x is None:
        raise NotSolved(f"the oracle's linear program failed: {answer.message}")
    p = np.zeros(r.shape)
    p[eligible] = np.maximum(answer.x, 0.0)
    return p / p.sum(axis=1, keepdims=True), np.maximum(-answer.ineqlin.marginals, 0.0) * size * total / n


def _residual(p: Array, q: Array, split: _Split) -> float:
    """Return the largest violation of a constraint, or the duality gap if it is larger."""
    r, rho, n, m, eligible = split
    bound = n @ q + rho @ np.where(eligible, r - m * q, -np.inf).max(axis=1)
    gap = bound - np.einsum("i,ij,ij->", rho, p, r)
    parts = (np.abs(p.sum(axis=1) - 1).max(), -p.min(), (rho @ (p * m) - n).max(), abs(gap))
    return float(max(0.0, *parts))


def _certified(answer: Oracle, n: Array) -> Oracle:
    if answer.residual > TOLERANCE * max(1.0, abs(answer.value), n.sum()):
        raise NotSolved(f"the oracle's residual is {answer.residual:.1e}; check the scales of traffic and rewards")
    return answer
