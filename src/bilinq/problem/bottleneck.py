"""How far a load can grow before queues do, by a linear program over eligible pairs, and what limits it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.errors import NotSolved

ROUNDING = 1e-9  # relative accuracy of a load that a linear program computes
NAMES = 4  # how many classes a message lists


@dataclass(frozen=True, eq=False)
class Bottleneck:
    """The offered load of a problem, and the classes that determine it.

    Attributes
    ----------
    load : float
        The least part of their time that the busiest servers work if all jobs are served, Eq. (50); stable below one.
    jobs, servers : int arrays
        Job classes that could be served only by the server classes that limit the load, and these server classes.
    """

    load: float
    jobs: IntArray
    servers: IntArray

    def text(self, job_names: Sequence[str], server_names: Sequence[str]) -> str:
        """Return the bottleneck in words."""
        servers, jobs = _listed(server_names, self.servers), _listed(job_names, self.jobs)
        return f"the bottleneck is the servers of {servers} for the jobs of {jobs}"


def find_bottleneck(rho: Array, n: Array, m: Array, eligible: BoolArray) -> Bottleneck:
    """Return the load, Eq. (50), of traffic rho (I,) on servers n (J,), with durations m and eligible pairs (I, J)."""
    from scipy.optimize import linprog
    from scipy.sparse import hstack

    busy, open_ = np.flatnonzero(rho > 0.0), np.flatnonzero(n > 0.0)
    if not busy.size:
        return Bottleneck(0.0, busy, open_[:0])
    pair, top = np.ix_(busy, open_), float(rho.max())
    rho = rho / top
    size = float((rho[busy] * np.where(eligible[pair], m[pair], np.inf).min(axis=1)).sum() / n.sum())
    used, rows = share_rows(rho[busy] / size, n[open_], m[pair], eligible[pair])
    ones: Any = np.ones((open_.size, 1))
    none: Any = np.zeros((busy.size, 1))
    within, whole = hstack([used, -ones]), hstack([rows, none])
    cost = np.append(np.zeros(used.shape[1]), 1.0)  # the last variable is the load
    answer = linprog(cost, A_ub=within, b_ub=np.zeros(open_.size), A_eq=whole, b_eq=np.ones(busy.size), method="highs")
    if answer.x is None:
        raise NotSolved(f"the linear program of the load failed: {answer.message}")
    price, worth = -answer.ineqlin.marginals, answer.eqlin.marginals
    full, alone = price > ROUNDING * price.max(), worth > ROUNDING * worth.max()
    return Bottleneck(float(answer.x[-1]) * size * top, busy[alone], open_[full])


def share_rows(rho: Array, n: Array, m: Array, eligible: BoolArray) -> tuple[Any, Any]:
    """Return the constraints on shares of P eligible pairs, row by row: used part of servers (J, P), sums of rows (I, P)."""
    from scipy.sparse import csr_array

    i, j = np.nonzero(eligible)
    k = np.arange(i.size)
    part = rho[i] * (1.0 / n)[j] * m[i, j]
    used = csr_array((part, (j, k)), shape=(n.size, i.size))
    return used, csr_array((np.ones(i.size), (i, k)), shape=(rho.size, i.size))


def _listed(names: Sequence[str], chosen: IntArray) -> str:
    listed = ", ".join(repr(names[k]) for k in chosen[:NAMES].tolist())
    return listed if chosen.size <= NAMES else f"{listed} and {chosen.size - NAMES} more"
