"""Where queues settle when services last: a mean-field model of the live scheduler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array

STEPS, TOLERANCE = 500, 1e-8


class Equilibrium(NamedTuple):
    """Waiting jobs for each unit of V (I,), services per slot of each pair (I, J), how often a server class is full (J,)."""

    queue: Array
    flow: Array
    full: Array


def equilibrium(rate: Array, slots: Array, servers: Array, reward: Array, weight: Array, gamma: float) -> Equilibrium:
    """Return where the queues settle.

    By Eq. (8) a class with Q_i waiting jobs takes w_i Q_i / (V (gamma - r_ij)) services per slot of the best server class
    that has an idle server. A server class is full as often as Erlang's loss formula says for what is asked of it, and
    independently of the others. With room everywhere that is Eq. (21). Chance and what is not known yet are left out.

    Parameters
    ----------
    rate, slots : (I,) arrays
        Services asked for per slot, and slots that one takes.
    servers : (J,) array
    reward : (I, J) array
        On the scale of [-1, 1].
    weight : (I,) array
    gamma : float
    """
    order = np.argsort(-reward, axis=1, kind="stable")
    pace = weight[:, None] / (gamma - np.take_along_axis(reward, order, axis=1))
    full = np.where(servers > 0, 0.0, 1.0)
    asked = np.zeros_like(reward)
    for _ in range(STEPS):
        busy = full[order]
        reached = np.cumprod(np.hstack([np.ones((rate.size, 1)), busy[:, :-1]]), axis=1)
        queue = rate / np.maximum((pace * reached * (1.0 - busy)).sum(axis=1), 1e-12)
        np.put_along_axis(asked, order, queue[:, None] * pace * reached, axis=1)
        then = np.array([blocking(a, int(n)) for a, n in zip(slots @ asked, servers, strict=True)])
        if np.abs(then - full).max() < TOLERANCE:
            break
        full = 0.5 * (full + then)
    return Equilibrium(queue, asked * (1.0 - full), full)


def blocking(traffic: float, servers: int) -> float:
    """Return how often all servers are busy when who finds them so does not wait: Erlang's loss formula.

    Examples
    --------
    >>> round(blocking(traffic=1.0, servers=2), 6)
    0.2
    """
    if not servers:
        return 1.0
    if traffic <= 0.0:
        return 0.0
    with np.errstate(over="ignore"):
        return float(1.0 / (1.0 + np.cumprod(np.arange(servers, 0, -1) / traffic).sum()))


def waiting(traffic: float, servers: int, seconds: float) -> float:
    """Return the mean wait of random arrivals at servers that each serve for `seconds` on average: Erlang's delay formula.

    Examples
    --------
    >>> round(waiting(traffic=0.5, servers=1, seconds=2.0), 6)
    2.0
    """
    lost = blocking(traffic, servers)
    delayed = lost / (1.0 - traffic / servers * (1.0 - lost))
    return delayed * seconds / (servers - traffic)
