"""A bound on what routers can earn."""

from typing import Any

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.errors import NotSolved
from bilinq.routing.router import FleetView
from bilinq.routing.scores import class_rewards
from bilinq.routing.workload import Workload


def fluid_bound(workload: Workload) -> float:
    """Return the reward per job that no router can exceed in the long run if it knows jobs by their class only.

    A linear program shares the jobs of each class among server classes so that no server works more than all the time:

        maximise sum_ij p_i u_i r_ij x_ij  subject to  lam sum_i p_i u_i m_ij x_ij / (1 - f_j) <= n_j,  sum_j x_ij = 1

    with the part p_i of class i, its mean units u_i, mean rewards r_ij and durations m_ij over eligible jobs, and chances
    of a failure f_j. The sums are at most one where not all jobs can be served.

    Assumptions: rates and rewards do not change; which job of a class goes where does not depend on its own reward or
    duration (a router that sees features may earn more); no outages, no deadlines, and jobs retry until they succeed.
    """
    I, kind = len(workload.job_classes), workload.job_class
    share = _means(workload, workload.eligible.astype(float))
    reward = class_rewards(FleetView(workload, rewards=True))
    time = _means(workload, np.where(workload.eligible, workload.duration, 0.0)) / np.where(share > 0.0, share, 1.0)
    part = np.bincount(kind, workload.units, I) / workload.N
    rate = workload.rate if np.isfinite(workload.rate) else 0.0
    i, j = np.nonzero(share > 0.0)
    use = rate * part[i] * time[i, j] / (1.0 - workload.failure[j])
    present = (np.bincount(kind, minlength=I) > 0).astype(float)
    return _best(part[i] * reward[i, j], use, share[i, j], i, j, present, workload.capacity.astype(float))


def _best(worth: Array, use: Array, most: Array, i: IntArray, j: IntArray, whole: Array, n: Array) -> float:
    """Return the largest value of shares of P pairs: worth, use, most (P,) of each, in rows i that sum to `whole`."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, vstack

    k = np.arange(i.size)
    used: Any = csr_array((use, (j, k)), shape=(n.size, i.size))
    rows: Any = csr_array((np.ones(i.size), (i, k)), shape=(whole.size, i.size))
    limits: Any = np.column_stack([np.zeros(i.size), most])
    answer = linprog(-worth, A_ub=used, b_ub=n, A_eq=rows, b_eq=whole, bounds=limits, method="highs")
    if answer.x is None:  # not all jobs can be served
        within: Any = vstack([used, rows])
        answer = linprog(-worth, A_ub=within, b_ub=np.concatenate([n, whole]), bounds=limits, method="highs")
    if answer.fun is None:
        raise NotSolved(f"the linear program of the bound failed: {answer.message}")
    return float(-answer.fun)


def _means(workload: Workload, values: Array) -> Array:
    """Return the mean of `values` (N, J) over the jobs of each class (I, J); zero for a class without jobs."""
    I = len(workload.job_classes)
    number = np.maximum(np.bincount(workload.job_class, minlength=I), 1)[:, None]
    return np.stack([np.bincount(workload.job_class, column, I) for column in values.T], axis=1) / number
