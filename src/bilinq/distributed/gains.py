"""Gains from measured delays: what nodes set for themselves, without knowing the fixed point."""

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, as_floats, require
from bilinq.distributed.bounds import gain_within
from bilinq.distributed.kinds import Time
from bilinq.distributed.system import System
from bilinq.errors import BadInput


def automatic_gain(
    system: System, round_trips: ArrayLike, fraction: float = 0.5, time: Time = "discrete", *, spare: float = 0.1
) -> Array:
    """Return gains (..., I, J) from measured round trips; the delays of `system` itself are not looked at.

    Parameters
    ----------
    system : System
        Costs and penalty. Where the penalty's special case, Eq. (39), bounds the stiffness, nothing is solved; for a
        penalty of the user's own it is taken at the fixed point.
    round_trips : (samples, ..., I, J) array
        Measurements, at least zero; NaN where there is none. The longest of each pair counts, since a gain must suit the
        worst delay; a pair without any gets the longest of all.
    fraction : float
        Part of the stability condition to use.
    time : {"discrete", "continuous"}
        The clock of the nodes: rounds, or none.
    spare : float
        Part of its capacity that every server class leaves idle; only the barrier needs it.

    Examples
    --------
    >>> system = System(queue=[3, 1], reward=[[0.2, 0.9], [0.5, 0.4]], capacity=[1, 1], V=10.0)
    >>> automatic_gain(system, [[[2, 3], [2, np.nan]], [[4, 3], [2, np.nan]]]).round(3).tolist()
    [[0.058, 0.074], [0.103, 0.058]]
    """
    given = as_floats("round_trips", round_trips)
    if given.ndim < 3 or given.shape[-2:] != system.shape:
        raise BadInput(
            f"round_trips must have shape (samples, ..., {system.shape[0]}, {system.shape[1]}); got {given.shape}"
        )
    require("round_trips", given, lambda x: np.isnan(x) | ((x >= 0.0) & np.isfinite(x)), "non-negative")
    seen = np.where(np.isnan(given), -1.0, given).max(axis=0)
    if not (seen >= 0.0).any():
        raise BadInput("round_trips must have at least one measurement; got only NaN")
    delay = np.broadcast_to(np.where(seen < 0.0, seen.max(), seen), system.reward.shape)
    known = system.penalty.stiffness(system.cost, spare)
    return gain_within(known if np.isfinite(known).all() else system.stiffness(), delay, fraction, time)
