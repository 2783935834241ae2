"""The look-ahead: which waiting job should take which server, counting servers that are free soon, Eq. (63)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, IntArray, as_floats, non_negative, require, shaped
from bilinq.errors import BadInput


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """An answer of `look_ahead`.

    Attributes
    ----------
    server : (N,) int array
        The server class of each job; -1 where none is eligible.
    delay : (N,) array
        How long the job waits for its server; zero: it starts now.
    toll : (N, J) array
        What each server class costs each job: the price of waiting for it, and what other jobs would pay for the place.
    residual : float
        The most that a job could gain elsewhere at these tolls; zero, up to rounding, for the best answer.
    """

    server: IntArray
    delay: Array
    toll: Array
    residual: float


def look_ahead(
    value: ArrayLike,
    urgency: ArrayLike,
    idle: ArrayLike,
    gap: ArrayLike,
    *,
    bend: ArrayLike = 0.0,
    ahead: ArrayLike = 0.0,
) -> Match:
    """Return the places for all jobs that are worth most together.

    Server class j has `idle` places without delay, then one more after each `gap`. A job earns its value there, less
    (urgency + bend * delay) * delay.

    Parameters
    ----------
    value : (N, J) array
        What each job earns on each server class; minus infinity where it is not eligible.
    urgency, bend : (N,) arrays or numbers
        Price of a unit of delay, and how fast it grows.
    idle, gap : (J,) arrays
        Idle servers, and the mean time between two releases of a server; infinity if none will be free.
    ahead : (J,) array or number
        Jobs that already wait for each server class.

    Examples
    --------
    Two jobs prefer the first server class, whose only idle server goes to the one that gains more there; the other waits:

    >>> look_ahead([[1.0, 0.2], [1.0, 0.8]], urgency=0.1, idle=[1, 0], gap=[2.0, 2.0]).server.tolist()
    [0, 0]
    """
    r = as_floats("value", value)
    if r.ndim != 2 or np.isnan(r).any() or (r == np.inf).any():
        raise BadInput(f"value must be an (N, J) array below infinity; got shape {r.shape}")
    rows, J = r.shape
    now, more = (shaped(name, non_negative(name, one), (rows,)) for name, one in (("urgency", urgency), ("bend", bend)))
    free, before = (shaped(name, non_negative(name, one), (J,)) for name, one in (("idle", idle), ("ahead", ahead)))
    between = shaped("gap", require("gap", as_floats("gap", gap), lambda x: x > 0.0, "positive"), (J,))
    return solve(r, now, more, free, before, between)


def solve(value: Array, now: Array, bend: Array, idle: Array, ahead: Array, gap: Array) -> Match:
    """Call the kernel with arrays that need no checks."""
    from bilinq.assignment.match_kernels import match

    rows, J = value.shape
    server, delay, toll = np.empty(rows, np.int64), np.empty(rows), np.empty((rows, J))
    residual = match(value, now, bend, idle, ahead, gap, server, delay, toll)
    return Match(server, delay, toll, residual)
