"""Prediction for other settings: the mean-field equilibrium under the current load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilinq.live.wire.samples import ClassPrediction, Prediction

if TYPE_CHECKING:
    from bilinq.arrays import Array
    from bilinq.live.settings import ServiceSettings
    from bilinq.live.watch.load import ObservedLoad
    from bilinq.scheduler.waits import Waits

STEPS, TOLERANCE = 500, 1e-8  # most iterations to the equilibrium, and the change at which they end
FULL = "More jobs arrived than the servers can serve: queues grow, and no setting changes that."
PAPER = (
    "Queues and waits are those at which the allocation serves as many jobs as arrived in the last minute, with learnt "
    "rewards and measured service times. The reward is rough: it assumes that the loss against that equilibrium is "
    "proportional to 1 / V. Valid once queues have settled and rewards are known well, for waits that are not much "
    "shorter than a service."
)
EAGER = (
    "No server idles while a job waits, so the wait depends on the load: by Erlang's formula, for random arrivals and "
    "service times; regular ones wait less. V and weights only decide which job goes first; this is not predicted."
)
NOTHING = "No prediction: it needs jobs that arrived, were served and were rewarded within the last minute."


AHEAD = (
    "The policy look-ahead adjusts V until jobs wait as long as the target says, over some hundred jobs; the queue follows "
    "from the arrivals of the last minute. Rewards, and waits of single classes, are not predicted."
)
UNKNOWN = "No prediction: the policy look-ahead adjusts V to a target wait"


class MeanField(NamedTuple):
    """Queued jobs per unit of V (I,), services per slot of each pair (I, J), how often a server class is full (J,)."""

    queue: Array
    flow: Array
    full: Array


def mean_field(rate: Array, slots: Array, servers: Array, reward: Array, weight: Array, gamma: float) -> MeanField:
    """Return the equilibrium at which the queues settle; `reward` (I, J) is on the scale of [-1, 1].

    `rate` (I,) are services requested per slot, and `slots` (I,) the slots that one takes. By Eq. (8) a class with Q_i
    queued jobs takes w_i Q_i / (V (gamma - r_ij)) services per slot of the best server class that has an idle server. A
    server class is full as often as Erlang's loss formula gives for the services requested of it, independently of the
    others. If no class is ever full this is Eq. (21). Random fluctuations and errors of the learnt rewards are ignored.
    """
    order = np.argsort(-reward, axis=1, kind="stable")
    pace = weight[:, None] / (gamma - np.take_along_axis(reward, order, axis=1))
    full = np.where(servers > 0, 0.0, 1.0)
    requested = np.zeros_like(reward)
    for _ in range(STEPS):
        busy = full[order]
        reached = np.cumprod(np.hstack([np.ones((rate.size, 1)), busy[:, :-1]]), axis=1)
        queue = rate / np.maximum((pace * reached * (1.0 - busy)).sum(axis=1), 1e-12)
        np.put_along_axis(requested, order, queue[:, None] * pace * reached, axis=1)
        update = np.array([blocking(a, int(n)) for a, n in zip(slots @ requested, servers, strict=True)])
        if np.abs(update - full).max() < TOLERANCE:
            break
        full = 0.5 * (full + update)
    return MeanField(queue, requested * (1.0 - full), full)


def blocking(traffic: float, servers: int) -> float:
    """Return how often all servers are busy if jobs do not wait: Erlang's loss formula.

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
    """Return the mean wait of random arrivals at servers with a mean service of `seconds`: Erlang's delay formula.

    Examples
    --------
    >>> round(waiting(traffic=0.5, servers=1, seconds=2.0), 6)
    2.0
    """
    lost = blocking(traffic, servers)
    delayed = lost / (1.0 - traffic / servers * (1.0 - lost))
    return delayed * seconds / (servers - traffic)


@dataclass(frozen=True)
class Scenario:
    """Settings to predict for: the options, and the weights of the job classes (I,)."""

    options: ServiceSettings
    weight: Array


def predict(
    names: Sequence[str], waits: Sequence[float | None], load: ObservedLoad | None, now: Scenario, proposed: Scenario
) -> Prediction:
    """Return the prediction for the current and the proposed settings; `waits` are the measured ones, in seconds."""
    if load is None:
        classes = [_class_prediction(*row) for row in zip(names, waits, strict=True)]
        return Prediction(
            V_now=now.options.V, V_then=proposed.options.V, job_classes=classes, reward_now=None, reward_then=None,
            note=NOTHING,
        )  # fmt: skip
    expected = [expected_waits(load, scenario) for scenario in (now, proposed)]
    columns = [[None] * len(names) if wait is None else [_known(x) for x in wait.tolist()] for wait in expected]
    rows = zip(names, waits, load.rate.tolist(), *columns, strict=True)
    return Prediction(
        V_now=current_V(load, now), V_then=current_V(load, proposed),
        job_classes=[_class_prediction(*row) for row in rows], reward_now=load.earned,
        reward_then=expected_reward(load, now, proposed),
        note=FULL if load.factor >= 1.0 else EAGER if proposed.options.work_conserving else PAPER,
        **_totals(load, *(None if wait is None else float(np.nansum(load.rate * wait)) for wait in expected)),
    )  # fmt: skip


def predict_ahead(
    names: Sequence[str], waits: Sequence[float | None], load: ObservedLoad | None, status: Waits | None,
    proposed: ServiceSettings,
) -> Prediction:  # fmt: skip
    """Return the prediction for the look-ahead: it keeps the target, so the mean wait is the proposed one.

    `status` is how waits compare with the present target. There is no prediction where that is not met, or if V is set.
    """
    now = None if status is None or status.met is None else status.measured
    then, note = None, f"{UNKNOWN}, and {'there is none' if status is None else status.note}."
    if load is None:
        note = NOTHING
    elif load.factor >= 1.0:
        note = FULL
    elif proposed.work_conserving:
        then, note = _eager_wait(load), EAGER
    elif proposed.target_wait is None:
        note = f"{UNKNOWN}, and with V set there is none."
    elif status is not None and status.met:
        then, note = proposed.target_wait, AHEAD
    found = "" if now is None or status is None else f" Now: mean wait {now:.3g} s, target {status.target:.3g} s."
    return Prediction(
        V_now=None if status is None or math.isinf(status.V) else status.V, V_then=proposed.V,
        job_classes=[_class_prediction(*row) for row in zip(names, waits, strict=True)],
        reward_now=None if load is None else load.earned, reward_then=None, note=note + found,
        **_totals(load, *(None if load is None or wait is None else load.rate.sum() * wait for wait in (now, then))),
    )  # fmt: skip


def _totals(load: ObservedLoad | None, now: float | None, then: float | None) -> dict[str, float | None]:
    """Return queues of all classes, and the mean waits that follow by Little's law."""
    rate = 0.0 if load is None else float(load.rate.sum())
    queues = [None if queue is None else float(queue) for queue in (now, then)]
    waits = [None if queue is None or not rate else queue / rate for queue in queues]
    return dict(zip(("queue_now", "queue_then", "wait_now", "wait_then"), queues + waits, strict=True))


def _class_prediction(
    name: str, measured: float | None, rate: float = 0.0, now: float | None = None, proposed: float | None = None
) -> ClassPrediction:
    """Return the prediction for a class from its rate and its expected waits; queues by Little's law."""
    queue_now, queue_then = (None if wait is None else rate * wait for wait in (now, proposed))
    return ClassPrediction(
        name=name, queue_now=queue_now, queue_then=queue_then, wait_now=now, wait_then=proposed, measured_wait=measured
    )


def current_V(load: ObservedLoad, scenario: Scenario) -> float:
    """Return V as the policy computes it, Eq. (22), with the learnt means and no exploration."""
    options = scenario.options
    if options.target_wait is None:
        assert options.V is not None
        return options.V
    cost = (options.gamma - load.scaled.max(axis=1)) / scenario.weight
    return float(options.target_wait / options.slot / cost.mean())


def expected_waits(load: ObservedLoad, scenario: Scenario) -> Array | None:
    """Return the waits in seconds (I,), by Little's law; NaN without arrivals, None without an equilibrium."""
    if load.factor >= 1.0:
        return None
    if scenario.options.work_conserving:
        return np.full(load.rate.size, _eager_wait(load))
    rate = load.rate * scenario.options.slot
    queue = _settled(load, scenario).queue * current_V(load, scenario)
    return np.asarray(scenario.options.slot * queue / np.where(rate > 0.0, rate, np.nan))


def _eager_wait(load: ObservedLoad) -> float:
    """Return the mean wait if no server idles while a job waits."""
    n, busy = int(load.servers.sum()), float(load.traffic.sum())
    return waiting(busy, n, busy / float(load.rate.sum()))


def expected_reward(load: ObservedLoad, now: Scenario, proposed: Scenario) -> float | None:
    """Return the expected reward per second: the loss against the equilibrium is proportional to 1 / V, as in Eq. (26).

    None where that does not apply: with too much load, or if no server idles while a job waits.
    """
    if load.factor >= 1.0:
        return None
    if now.options.work_conserving or proposed.options.work_conserving:
        return load.earned if now.options == proposed.options else None
    before, after = (float((_settled(load, one).flow * load.mean).sum()) / one.options.slot for one in (now, proposed))
    at_random = float(load.rate @ (load.mean @ (load.servers / load.servers.sum())))
    lost = max(before - load.earned, 0.0) * current_V(load, now) / current_V(load, proposed)
    gained = max(load.earned - before, 0.0)
    return max(after + gained - lost, min(at_random, load.earned))


def _settled(load: ObservedLoad, scenario: Scenario) -> MeanField:
    slot, gamma = scenario.options.slot, scenario.options.gamma
    return mean_field(load.rate * slot, load.seconds / slot, load.servers, load.scaled, scenario.weight, gamma)


def _known(wait: float) -> float | None:
    return None if math.isnan(wait) else wait
