"""What the theory says of other knobs before they are turned: queues and waits of each class, and reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bilinq.arrays import Array
from bilinq.live.service.options import Options
from bilinq.live.watch.equilibrium import Equilibrium, equilibrium, waiting
from bilinq.live.watch.load import Load
from bilinq.live.watch_messages import ClassPrediction, Prediction

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

    options: Options
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
