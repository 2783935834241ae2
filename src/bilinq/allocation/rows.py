"""One job a row: programs that are solved block by block, with rewards from a table or from features."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from bilinq.allocation.arguments import ALL_ELIGIBLE, Program
from bilinq.allocation.batch import Allocation
from bilinq.allocation.smooth import Rows
from bilinq.allocation.tall import Tall, allocate_rows, spread
from bilinq.arrays import Array, IntArray, finite, non_negative, positive, require, shaped
from bilinq.errors import BadInput


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
    rows.each(lambda block: spread(*tall.flows, block.start, y[block]))
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
    return rows if sound and all(rows.each(lambda block: _below(reward[block], gamma))) else None


def _below(reward: Array, gamma: float) -> bool:
    """Return whether all rewards are below gamma and their costs finite; not if there is a NaN."""
    return bool(reward.max() < gamma and gamma - reward.min() < np.inf)


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
    return Allocation(_sparse(tall, (rows, columns)), tall.price, tall.residual, tall.steps, tall.gap)


def _sparse(tall: Tall, shape: tuple[int, int]) -> Any:
    return csr_array((tall.flows.amount, tall.flows.column, tall.flows.first), shape=shape)
