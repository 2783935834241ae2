"""One job a row: programs that are solved block by block, with rewards from a table or from features."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from bilinq.allocation.arguments import ALL_ELIGIBLE, Program
from bilinq.allocation.batch import Allocation
from bilinq.allocation.flows import Flows, spread
from bilinq.allocation.smooth import Rows
from bilinq.allocation.tall import allocate_rows
from bilinq.arrays import Array, IntArray, finite, non_negative, positive, require, shaped
from bilinq.errors import BadInput
from bilinq.jit import fast_kernel


class Features(NamedTuple):
    """Rewards u_i' Theta v_j of job features u (I, d1), server features v (J, d2) and Theta (d1, d2), clipped to [-1, 1]."""

    job: Array
    server: Array
    theta: Array

    @classmethod
    def checked(cls, job: ArrayLike | None, server: ArrayLike | None, theta: ArrayLike | None) -> "Features":
        """Return the three arrays if all are there and fit each other."""
        given, found = {"job_features": job, "server_features": server, "theta": theta}, list[Array]()
        for name, value in given.items():
            if value is None:
                raise BadInput(f"{name} must be given with {' and '.join(other for other in given if other != name)}")
            found.append(finite(name, value))
            if found[-1].ndim != 2 or not found[-1].size:
                raise BadInput(f"{name} must have two axes, none of them empty; got shape {found[-1].shape}")
        u, v, middle = found
        if middle.shape != (u.shape[1], v.shape[1]):
            raise BadInput(f"theta must have shape {(u.shape[1], v.shape[1])} to fit the features; got {middle.shape}")
        return cls(u, v, middle)


def solve_table(program: Program, price: Array) -> Allocation | None:
    """Return the answer to one program as a batch of one; None if an argument breaks a rule."""
    rows, capacity = _rows_of(program), program.capacity[0]
    if rows is None:
        return None
    tall = allocate_rows(rows, capacity, price[0] if price.size else None)
    y = np.empty(program.reward.shape[1:])
    column, amount, pairs = tall.flows
    rows.each(lambda block: spread(column[block], amount[block], y[block]))
    y[pairs.row, pairs.column] = pairs.amount
    return Allocation(y[None], tall.price[None], np.array([tall.residual]), tall.steps, np.array([tall.gap]))


def _rows_of(program: Program) -> Rows | None:
    """Return the rows of one program; None if an argument breaks a rule."""
    queue, reward, capacity, weight, limit = (value[0] for value in (*program[:3], *program[5:7]))
    V, gamma, masked = float(program.V[0]), float(program.gamma[0]), program.eligible is not ALL_ELIGIBLE

    def rewards(rows: slice | IntArray) -> Array:
        if masked:
            return np.where(program.eligible[0][rows], reward[rows], -np.inf)
        return np.require(reward[rows], requirements=("C", "W"))

    with np.errstate(all="ignore"):
        a = weight * queue / V
    sound = queue.min() >= 0.0 and weight.min() > 0.0 and limit.min() >= 0.0 and a.max() < np.inf
    sound = sound and 0.0 <= capacity.min() <= capacity.max() < np.inf and 0.0 < V < np.inf and 1.0 < gamma < np.inf
    rows = Rows(a, limit, gamma, capacity.size, rewards, masked)
    return rows if sound and all(rows.each(lambda block: positive_costs(reward[block], gamma))) else None


def solve_features(given: Program, features: Features, price: Array) -> Allocation:
    """Return the answer to a program whose rewards come from features; `expected` is a sparse array."""
    queue, _, capacity, V, gamma, weight, limit, eligible, _ = given
    rows, columns = len(features.job), len(features.server)
    for name, value in (("V", V), ("gamma", gamma)):
        if value.ndim:
            raise BadInput(f"{name} must be one number where rewards come from features; got shape {value.shape}")
    V, gamma = positive("V", V), require("gamma", finite("gamma", gamma), lambda x: x > 1.0, "above one")
    queue = shaped("queue", non_negative("queue", queue), (rows,))
    capacity = shaped("capacity", non_negative("capacity", capacity), (columns,))
    weight = shaped("weight", positive("weight", weight), (rows,))
    limit = shaped("limit", require("limit", limit, lambda x: x >= 0.0, "non-negative"), (rows,))
    masked = eligible is not ALL_ELIGIBLE
    if masked and eligible.shape != (rows, columns):
        raise BadInput(f"eligible must have shape {(rows, columns)} to fit the features; got {eligible.shape}")
    parameters = features.theta @ features.server.T

    def reward(some: slice | IntArray) -> Array:
        table: Array = np.clip(features.job[some] @ parameters, -1.0, 1.0)
        return np.where(eligible[some], table, -np.inf) if masked else table

    a = weight * queue / V
    tall = allocate_rows(
        Rows(a, limit, float(gamma), columns, reward, masked), capacity, price[0] if price.size else None
    )
    return Allocation(_sparse(tall.flows, (rows, columns)), tall.price, tall.residual, tall.steps, tall.gap)


def _sparse(flows: Flows, shape: tuple[int, int]) -> Any:
    single = csr_array((flows.amount, flows.column, np.arange(shape[0] + 1)), shape=shape)
    row, column, amount = flows.pairs
    return single + csr_array((amount, (row, column)), shape=shape)  # a sum has no zeros


@fast_kernel
def positive_costs(reward: Array, gamma: float) -> bool:
    """Return whether all costs are positive and finite; not if there is a NaN."""
    bad, nothing = 0, 0.0
    flat = reward.reshape(-1)
    for k in range(flat.size):
        cost = gamma - flat[k]
        bad += cost <= 0.0
        nothing += cost * 0.0  # NaN if a cost is not finite; this makes the loop as fast as the memory
    return bad == 0 and nothing == 0.0
