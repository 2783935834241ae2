"""The nodes' rules linearised at their fixed point, Eq. (41): the equation of its modes, and Newton's method on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bilinq.arrays import Array, BoolArray
from bilinq.distributed.kinds import Nodes, Rule, Time
from bilinq.distributed.system import System

Complex: TypeAlias = NDArray[np.complex128]


@dataclass(frozen=True)
class Linear:
    """The linearised rules over the P used pairs of one system.

    A deviation x obeys x_k' = - sum_m same_row[k, m] row[k] x_m(t - row_delay[k, m]) and the like for columns; in discrete
    time x_k(r + 1) - x_k(r) stands on the left.

    Attributes
    ----------
    row, column : (P,) arrays
        Gain times 1 / s_i, and gain times p'_j / lambda_ij; with the factor y_ij in the scaled rule.
    same_row, same_column : (P, P) arrays
        Which pairs share a job class, a server class.
    row_delay, column_delay : (P, P) arrays
        How old the deviation of pair m is when it acts on pair k.
    time : {"continuous", "discrete"}
        Differential or difference equation.
    """

    row: Array
    column: Array
    same_row: BoolArray
    same_column: BoolArray
    row_delay: Array
    column_delay: Array
    time: Time

    @property
    def size(self) -> int:
        """Number of used pairs."""
        return len(self.row)

    @property
    def open_ends(self) -> int:
        """Directions in which the split of rows over tied server classes is free; they are no modes of rows and loads."""
        links = self.same_row.astype(float) + self.same_column.astype(float)
        return self.size - int(np.linalg.matrix_rank(links, hermitian=True))

    def coupling(self, root: complex) -> tuple[Complex, Complex]:
        """Return the matrix by which deviations that grow as exp(root t) act on each other, and its derivative."""
        by_row = np.where(self.same_row, self.row[:, None] * np.exp(-root * self.row_delay), 0.0)
        by_column = np.where(self.same_column, self.column[:, None] * np.exp(-root * self.column_delay), 0.0)
        change = self.row_delay * by_row + self.column_delay * by_column
        return np.asarray(by_row + by_column), np.asarray(-change)

    def characteristic(self, root: complex) -> tuple[Complex, Complex]:
        """Return the matrix that is singular exactly at the roots of Eq. (41), and its derivative."""
        matrix, change = self.coupling(root)
        own, slope = (root, 1.0) if self.time == "continuous" else (np.expm1(root), np.exp(root))
        return matrix + own * np.eye(self.size), change + slope * np.eye(self.size)

    def refined(self, root: complex, steps: int = 12) -> complex | None:
        """Return the root of Eq. (41) near `root` by Newton's method, or nothing if it goes astray."""
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
                near = abs(now - root) <= 0.1 * (abs(root) + 1.0 / (1.0 + self.row_delay.max()))
                return now if near else None
        return None


def linearise(system: System, gain: Array, nodes: Nodes, rule: Rule, time: Time) -> list[Linear]:
    """Return the linearised rules of every member of the batch; gain (B, I, J)."""
    a, c, n, forward, backward = system.flat
    y = system.equilibrium.expected.reshape(c.shape)
    price = system.equilibrium.price.reshape(n.shape)
    members = []
    for b in range(len(a)):
        i, j = np.nonzero(y[b])
        z = np.where(y[b].sum(axis=0) > 0.0, y[b].sum(axis=0), 1.0)
        slope = system.penalty.slope(z, np.where(n[b] > 0.0, n[b], 1.0))
        strength = gain[b, i, j] * (1.0 if rule == "printed" else y[b, i, j])
        members.append(
            Linear(
                strength / y[b].sum(axis=1)[i],
                strength * slope[j] / (price[b, j] + c[b, i, j]),
                i[:, None] == i,
                j[:, None] == j,
                *delays(forward[b, i, j], backward[b, i, j], nodes),
                time,
            )
        )
    return members


def delays(forward: Array, backward: Array, nodes: Nodes) -> tuple[Array, Array]:
    """Return how old pair m's rate is when pair k hears of it in its row and in its column, (P, P) each."""
    loop = np.broadcast_to(forward + backward, (len(forward), len(forward)))
    if nodes == "job":
        return loop, backward[:, None] + forward
    return forward[:, None] + backward, loop
