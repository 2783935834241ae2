"""The price of learning, Eq. (32): regret at an equal time-average queue, above that of known rewards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilinq import KnownRewards, Policy, Problem, Sabr, UgdaOl, simulate
from bilinq.arrays import Array, IntArray

GROUPS = 20
"""Groups of instances for the jackknife standard error."""

Maker = Callable[[float], Policy]


@dataclass(frozen=True)
class Setting:
    """Random instances, a horizon, and the queue at which policies are compared."""

    name: str
    problem: dict[str, Any]
    slots: int
    instances: int
    queue: float
    V: tuple[float, ...]


PAPER = Setting("I=10 J=2 d=2 n=4 T=500", {}, 500, 400, 15.0, (16, 24, 36, 52, 76, 110))
LARGE = Setting(
    "I=30 J=6 d=3 n=12 T=2000",
    {"job_classes": 30, "server_classes": 6, "dimension": 3, "servers": 12},
    2000,
    100,
    40.0,
    (40, 60, 90, 135, 200, 300),
)

POLICIES: dict[str, Maker] = {
    "known rewards": lambda V: KnownRewards(V=V),
    "paper's radius": lambda V: Sabr(V=V, radius="paper"),
    "public code's radius": lambda V: Sabr(V=V, radius="published"),
    "calibrated UCB": lambda V: Sabr(V=V, radius="calibrated"),
    "Thompson sampling (default)": lambda V: Sabr(V=V),
    "Thompson, noise estimated": lambda V: Sabr(V=V, noise="estimate"),
    "no exploration": lambda V: Sabr(V=V, exploration="none"),
    "UGDA-OL per class pair": lambda V: UgdaOl("class", V=V),
}


def curve(setting: Setting, make: Maker) -> tuple[Array, Array]:
    """Return time-average queue and final regret of every instance, (V, instances) each."""
    problems = [Problem.synthetic(**setting.problem, seed=k) for k in range(setting.instances)]
    queue, regret = [], []
    for V in setting.V:
        runs = simulate(problems, make(V), slots=setting.slots, seed=1, record_jobs=False)
        queue.append(runs.queue.sum(axis=2).mean(axis=1))
        regret.append(runs.regret[:, -1])
    return np.array(queue), np.array(regret)


def at_queue(setting: Setting, queue: Array, regret: Array) -> float:
    """Return the mean regret where the mean queue is the setting's, by linear interpolation over V."""
    q, r = queue.mean(axis=1), regret.mean(axis=1)
    if not q[0] <= setting.queue <= q[-1]:
        raise AssertionError(f"the grid of V gives queues {q[0]:.1f} to {q[-1]:.1f}, not {setting.queue}")
    return float(np.interp(setting.queue, q, r))


def price(setting: Setting, policy: tuple[Array, Array], known: tuple[Array, Array]) -> tuple[float, float]:
    """Return the price of learning and its jackknife standard error over groups of instances."""

    def value(keep: IntArray) -> float:
        parts = [at_queue(setting, q[:, keep], r[:, keep]) for q, r in (policy, known)]
        return parts[0] - parts[1]

    group = np.arange(setting.instances) % GROUPS
    left_out = np.array([value(np.flatnonzero(group != g)) for g in range(GROUPS)])
    error = np.sqrt((GROUPS - 1) / GROUPS * ((left_out - left_out.mean()) ** 2).sum())
    return value(np.arange(setting.instances)), float(error)


def measure(setting: Setting, names: Sequence[str] = tuple(POLICIES)) -> dict[str, tuple[float, float]]:
    """Return price and standard error of each policy."""
    known = curve(setting, POLICIES["known rewards"])
    return {name: price(setting, curve(setting, POLICIES[name]), known) for name in names if name != "known rewards"}


if __name__ == "__main__":
    import sys
    import time

    for chosen in (PAPER, LARGE) if len(sys.argv) < 2 else ((PAPER,), (LARGE,))[int(sys.argv[1])]:
        began = time.time()
        print(chosen.name)
        for name, (mean, error) in measure(chosen).items():
            print(f"  {name:30s} {mean:7.2f} ± {error:.2f}", flush=True)
        print(f"  {time.time() - began:.0f} s")
