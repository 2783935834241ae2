"""What to expect of other settings: the mean-field equilibrium of the present load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array
from bilinq.live.settings import ServiceSettings
from bilinq.live.watch.load import Load
from bilinq.live.wire.samples import ClassPrediction, Prediction

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


FULL = "More jobs came than the servers can serve: queues grow, and no knob changes that."
PAPER = (
    "Queues and waits are those at which the allocation takes as many jobs as came in the last minute, with learnt rewards "
    "and measured service times. The reward is rough: what is lost against that equilibrium is supposed to go with 1 / V. "
    "Holds once queues have settled and rewards are known well, for waits that are not much shorter than a service."
)
EAGER = (
    "No server idles while a job waits, so the wait depends on the load: by Erlang's formula, for arrivals and services "
    "of random length; regular ones wait less. V and weights only decide who goes first, which it does not tell."
)
NOTHING = "Nothing can be said before jobs came, were served and were rewarded within the last minute."


@dataclass(frozen=True)
class Turned:
    """Knobs to predict for: the options, and the weights of the job classes (I,)."""

    options: ServiceSettings
    weight: Array


def predict(
    names: Sequence[str], waits: Sequence[float | None], load: Load | None, now: Turned, then: Turned
) -> Prediction:
    """Return what to expect of knobs as they are now and as they would be; `waits` are those measured, in seconds."""
    if load is None:
        classes = [ClassPrediction(name, None, None, None, None, wait) for name, wait in zip(names, waits, strict=True)]
        return Prediction(now.options.V, then.options.V, classes, None, None, NOTHING)
    expected = [expected_waits(load, turned) for turned in (now, then)]
    columns = [[None] * len(names) if wait is None else [_known(x) for x in wait.tolist()] for wait in expected]
    rows = zip(names, load.rate.tolist(), *columns, waits, strict=True)
    classes = [ClassPrediction(name, _times(rate, a), _times(rate, b), a, b, wait) for name, rate, a, b, wait in rows]
    note = FULL if load.factor >= 1.0 else EAGER if then.options.work_conserving else PAPER
    reward = expected_reward(load, now, then)
    return Prediction(current_V(load, now), current_V(load, then), classes, load.earned, reward, note)


def current_V(load: Load, turned: Turned) -> float:
    """Return V as the policy takes it, Eq. (22), with the learnt means in place of what it explores."""
    options = turned.options
    if options.target_wait is None:
        assert options.V is not None
        return options.V
    cost = (options.gamma - load.scaled.max(axis=1)) / turned.weight
    return float(options.target_wait / options.slot / cost.mean())


def expected_waits(load: Load, turned: Turned) -> Array | None:
    """Return the wait of each class in seconds (I,), by Little's law, NaN where nothing came; None without equilibrium."""
    if load.factor >= 1.0:
        return None
    if turned.options.work_conserving:
        n, busy = int(load.servers.sum()), float(load.traffic.sum())
        return np.full(load.rate.size, waiting(busy, n, busy / float(load.rate.sum())))
    rate = load.rate * turned.options.slot
    queue = _settled(load, turned).queue * current_V(load, turned)
    return np.asarray(turned.options.slot * queue / np.where(rate > 0.0, rate, np.nan))


def expected_reward(load: Load, now: Turned, then: Turned) -> float | None:
    """Return the reward per second to expect: what is lost against the equilibrium goes with 1 / V, as in Eq. (26).

    None where that says nothing: with too much load, and where no server idles.
    """
    if load.factor >= 1.0:
        return None
    if now.options.work_conserving or then.options.work_conserving:
        return load.earned if now.options == then.options else None
    settled = [float((_settled(load, turned).flow * load.mean).sum()) / turned.options.slot for turned in (now, then)]
    at_random = float(load.rate @ (load.mean @ (load.servers / load.servers.sum())))
    lost = max(settled[0] - load.earned, 0.0) * current_V(load, now) / current_V(load, then)
    gained = max(load.earned - settled[0], 0.0)
    return max(settled[1] + gained - lost, min(at_random, load.earned))


def _settled(load: Load, turned: Turned) -> Equilibrium:
    slot = turned.options.slot
    gamma = turned.options.gamma
    return equilibrium(load.rate * slot, load.seconds / slot, load.servers, load.scaled, turned.weight, gamma)


def _known(wait: float) -> float | None:
    return None if wait != wait else wait


def _times(rate: float, wait: float | None) -> float | None:
    return None if wait is None else rate * wait
