"""Kernels that fill servers by rank of a score."""

import numpy as np

from bilinq.arrays import Array
from bilinq.jit import kernel


@kernel
def fill_by_rank(score: Array, queue: Array, capacity: Array, y: Array) -> None:
    """Fill y (R, I, J): serve the pair of highest score first, until jobs or servers run out; ties in proportion.

    A score of minus infinity is never served.
    """
    for r in range(score.shape[0]):
        y[r] = 0.0
        fill_pairs(score[r], queue[r].copy(), capacity[r].copy(), y[r])


@kernel
def fill_idle(score: Array, queue: Array, capacity: Array, y: Array) -> None:
    """Add to y (R, I, J) the idle servers for the jobs that still wait, the pair of highest score first."""
    rows, columns = score.shape[1:]
    for r in range(score.shape[0]):
        waiting = queue[r].copy()
        idle = capacity[r].copy()
        for i in range(rows):
            for j in range(columns):
                waiting[i] -= y[r, i, j]
                idle[j] -= y[r, i, j]
        fill_pairs(score[r], np.maximum(waiting, 0.0), np.maximum(idle, 0.0), y[r])


@kernel
def fill_pairs(score: Array, waiting: Array, idle: Array, y: Array) -> None:
    """Add to y (I, J), the pair of highest score first, until no job waits or no server is idle; reduces both arrays."""
    rows, columns = score.shape
    for _ in range(rows + columns):
        best = -np.inf
        for i in range(rows):
            for j in range(columns):
                if waiting[i] > 0.0 and idle[j] > 0.0:
                    best = max(best, score[i, j])
        if best == -np.inf:
            break
        fill_tied(score, best, waiting, idle, y)


@kernel
def fill_tied(score: Array, best: float, waiting: Array, idle: Array, y: Array) -> None:
    """Serve the pairs whose score is `best` in proportion to jobs times servers, until jobs or servers run out."""
    rows, columns = score.shape
    row = np.zeros(rows)
    column = np.zeros(columns)
    for i in range(rows):
        for j in range(columns):
            if score[i, j] == best:
                row[i] += waiting[i] * idle[j]
                column[j] += waiting[i] * idle[j]
    step = np.inf
    for i in range(rows):
        if row[i] > 0.0:
            step = min(step, waiting[i] / row[i])
    for j in range(columns):
        if column[j] > 0.0:
            step = min(step, idle[j] / column[j])
    for i in range(rows):
        for j in range(columns):
            if score[i, j] == best:
                y[i, j] += step * waiting[i] * idle[j]
    for i in range(rows):
        waiting[i] -= step * row[i]
        if waiting[i] <= 1e-12 * row[i] * step:
            waiting[i] = 0.0
    for j in range(columns):
        idle[j] -= step * column[j]
        if idle[j] <= 1e-12 * column[j] * step:
            idle[j] = 0.0
