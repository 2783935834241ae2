"""How large a gain may be: the theorem's bound for continuous time, Eq. (38), and its counterpart for rounds, Eq. (40)."""

import numpy as np

from bilinq.arrays import Array, one_of, positive, scalar
from bilinq.distributed.kinds import Time


def allowance(delay: Array, time: Time) -> Array:
    """Return what gain times stiffness may be at most: pi / (2 tau), or 2 sin(pi / (4 tau + 2)) in rounds."""
    one_of("time", time, ("continuous", "discrete"))
    if time == "discrete":
        return np.asarray(2.0 * np.sin(0.5 * np.pi / (2.0 * delay + 1.0)))
    with np.errstate(divide="ignore"):
        return np.asarray(0.5 * np.pi / delay)


def gain_within(stiffness: Array, delay: Array, fraction: float, time: Time) -> Array:
    """Return the gains that use up `fraction` of what is allowed; without delay, of what a round allows."""
    most = allowance(delay, time)
    return np.asarray(scalar("fraction", fraction, positive) * np.where(np.isinf(most), 2.0, most) / stiffness)
