"""The reference for regret, Eq. (2): the best fixed split of the load over the server classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.errors import BadInput, NotSolved
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
        Share of each job class that goes to each server class, p*; rows sum to one.
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


def oracle(problem: Problem) -> Oracle:
    """Return the split of the offered load over server classes that earns most per slot when rewards are known.

    It maximises ``sum_ij traffic_i share_ij mean_reward_ij`` over shares whose rows sum to one and that put no more
    traffic on a server class than it has servers. If sending every job class to its best server class (the first of
    equals) fits, that is the answer; otherwise a linear program is solved. A job class without arrivals goes to its
    best server class.

    Raises
    ------
    BadInput
        If the traffic exceeds the number of servers: then no split fits.
    NotSolved
        If the answer could not be certified.

    Examples
    --------
    >>> problem = Problem(arrival_rate=[0.5, 0.5], servers=[1, 1], mean_reward=[[0.2, 0.9], [0.5, 0.4]])
    >>> oracle(problem).share
    array([[0., 1.],
           [1., 0.]])
    """
    r, rho, n = problem.mean_reward, problem.traffic, problem.servers
    _check_load("", float(rho.sum()), float(n.sum()))
    return _solve(r, rho, n)


def oracle_values(instances: Instances) -> Array:
    """Return the best reward per slot, r*, of every replication (R,).

    Replications whose best server classes have room are computed together; the others need one linear program for each
    different problem.
    """
    r, rho, n = instances.mean_reward, instances.traffic, instances.servers
    for k in range(instances.count):
        _check_load(f" in replication {k}", float(rho[k].sum()), float(n[k].sum()))
    best = _best(r, n)
    value: Array = np.einsum("ri,ri->r", rho, np.take_along_axis(r, best[..., None], axis=-1)[..., 0])
    solved: dict[bytes, float] = {}
    for k in np.flatnonzero(~_fits(best, rho, n)).tolist():
        key = b"".join(array[k].tobytes() for array in (r, rho, n))
        if key not in solved:
            solved[key] = _solve(r[k], rho[k], n[k]).value
        value[k] = solved[key]
    return value


def oracle_shares(instances: Instances) -> Array:
    """Return the best shares p* of every replication (R, I, J), one program for each different problem."""
    r, rho, n = instances.mean_reward, instances.traffic, instances.servers
    share = np.empty(r.shape)
    solved: dict[bytes, Array] = {}
    for k in range(instances.count):
        _check_load(f" in replication {k}", float(rho[k].sum()), float(n[k].sum()))
        key = b"".join(array[k].tobytes() for array in (r, rho, n))
        if key not in solved:
            solved[key] = _solve(r[k], rho[k], n[k]).share
        share[k] = solved[key]
    return share


def _check_load(where: str, rho: float, n: float) -> None:
    if rho > n * (1 + ROUNDING):
        raise BadInput(f"the oracle exists only for a load within capacity{where}: rho = {rho:g}, n = {n:g}")


def _best(r: Array, n: Array) -> IntArray:
    """Return the best server class (..., I) among those that have a server."""
    return np.asarray(np.where(n[..., None, :] > 0, r, -np.inf).argmax(axis=-1), dtype=np.int64)


def _fits(best: IntArray, rho: Array, n: Array) -> BoolArray:
    """Return (...) whether the best server classes have room for the traffic sent there."""
    chosen = best[..., None] == np.arange(n.shape[-1])
    return np.asarray((np.einsum("...i,...ij->...j", rho, chosen) <= n).all(axis=-1))


def _solve(r: Array, rho: Array, n: Array) -> Oracle:
    best = _best(r, n)
    p = np.zeros_like(r)
    p[np.arange(rho.size), best] = 1.0
    q = np.zeros_like(n)
    if not _fits(best, rho, n):
        arrives, open_ = rho > 0, n > 0
        p[np.ix_(arrives, open_)], q[open_] = _program(r[np.ix_(arrives, open_)], rho[arrives], n[open_])
    worth = (r - q)[:, n > 0].max(axis=1)
    q = np.where(n > 0, q, np.maximum(r - worth[:, None], 0.0).max(axis=0))
    value = float(np.einsum("i,ij,ij->", rho, p, r))
    return _certified(Oracle(value, p, q, _residual(p, q, r, rho, n)), n)


def _program(r: Array, rho: Array, n: Array) -> tuple[Array, Array]:
    """Return shares (I, J) and prices (J,) of the linear program, scaled so that its numbers are about one."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, diags_array, eye_array, kron

    total, size = rho.sum(), np.abs(r).max() or 1.0
    gain = (rho / total)[:, None] * (r / size)
    used: Any = csr_array(kron(rho[None, :], diags_array(1.0 / n)))
    rows: Any = csr_array(kron(eye_array(rho.size), np.ones((1, n.size))))
    answer = linprog(-gain.ravel(), A_ub=used, b_ub=np.ones(n.size), A_eq=rows, b_eq=np.ones(rho.size), method="highs")
    if answer.x is None:
        raise NotSolved(f"the oracle's linear program failed: {answer.message}")
    p = np.maximum(answer.x.reshape(r.shape), 0.0)
    return p / p.sum(axis=1, keepdims=True), np.maximum(-answer.ineqlin.marginals, 0.0) * size * total / n


def _residual(p: Array, q: Array, r: Array, rho: Array, n: Array) -> float:
    """Return the largest violation of a constraint, or the duality gap if it is larger."""
    bound = n @ q + rho @ (r - q).max(axis=1)
    gap = bound - np.einsum("i,ij,ij->", rho, p, r)
    parts = (np.abs(p.sum(axis=1) - 1).max(), -p.min(), (rho @ p - n).max(), abs(gap))
    return float(max(0.0, *parts))


def _certified(answer: Oracle, n: Array) -> Oracle:
    if answer.residual > TOLERANCE * max(1.0, abs(answer.value), n.sum()):
        raise NotSolved(f"the oracle's residual is {answer.residual:.1e}; check the scales of traffic and rewards")
    return answer
