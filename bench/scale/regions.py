"""A fleet in ten regions as a system of nodes, and changes of its queues."""

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.distributed import Penalty, System

Size = tuple[int, int]
"""Job classes and server classes."""
REGIONS, SERVERS = 10, 1000.0
"""Regions, and servers of each class: 1000 server classes are a million servers."""
REMOTE = 0.2
"""Reward that a job loses outside its own region."""
APART, USUAL = 0.1, 5
"""Seconds between regions, and the usual delay in rounds."""
ROUND, EXCHANGE = APART / USUAL, 2 * APART
"""Seconds of a round at that delay, and of an exchange."""
CHANGES = {"1 %": 0.01, "10 %": 0.1}
SURGE = "a region doubles"


def name(size: Size) -> str:
    """Return a size as text."""
    return f"{size[0]}x{size[1]}"


def homes(classes: int) -> IntArray:
    """Return the region of each of so many classes, (classes,)."""
    return np.arange(classes) * REGIONS // classes


def fleet(
    rows: int,
    columns: int,
    delay: int = 0,
    *,
    change: str = "",
    load: float = 1.2,
    remote: float = REMOTE,
    bilinear: bool = False,
    penalty: Penalty | None = None,
    seed: int = 0,
) -> System:
    """Return a system whose job classes and server classes are spread over the regions.

    A message takes `delay` rounds from one region to another and none within one. The sum of all a_i is `load` servers'
    worth, so that prices are near one at 1.2. `change` is how the queues have changed: "1 %" and "10 %" move each of
    them by up to as much, at random; SURGE doubles those of one region.
    """
    rng = np.random.default_rng([seed, 7])
    local = homes(rows)[:, None] == homes(columns)
    reward = _bilinear(rng, rows, columns) if bilinear else rng.uniform(0.0, 1.0, (rows, columns))
    reward -= np.where(local, 0.0, remote)
    queue = rng.uniform(0.1, 1.9, rows)
    queue *= load * SERVERS * columns / queue.sum() * _changed(rng, rows, change)
    late = np.where(local, 0.0, float(delay))
    return System(queue, reward, np.full(columns, SERVERS), 1.0, penalty=penalty, forward=late, backward=late)


def _bilinear(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Return rewards in [0, 1] that are bilinear in four features of each side."""
    job, theta, server = (rng.uniform(0.0, 1.0, (size, 4)) for size in (rows, 4, columns))
    value = job @ (2.0 * theta - 1.0) @ server.T
    return np.asarray((value - value.min()) / np.ptp(value))


def _changed(rng: np.random.Generator, rows: int, change: str) -> Array:
    """Return what queues are multiplied by, (rows,)."""
    if change == SURGE:
        return np.where(homes(rows) == 0, 2.0, 1.0)
    return 1.0 + CHANGES.get(change, 0.0) * rng.uniform(-1.0, 1.0, rows)
