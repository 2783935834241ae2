"""The price of learning, Eq. (32): regret at an equal time-average queue, above that of known rewards. And its time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.report import Report, best_seconds
from bilinq import KnownRewards, Policy, Problem, Sabr, UgdaOl, simulate
from bilinq.arrays import Array, IntArray
from bilinq.lab.presets import PRINTED
from bilinq.learning import Bilinear, BilinearState, Outcome
from bilinq.problem.instances import Instances, stack

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


PAPER = Setting("I=10 J=2 d=2 n=4 T=500", {}, 500, 1000, 15.0, (16, 24, 36, 52, 76, 110))
LARGE = Setting(
    "I=30 J=6 d=3 n=12 T=2000",
    {"job_classes": 30, "server_classes": 6, "dimension": 3, "servers": 12},
    2000,
    200,
    40.0,
    (40, 60, 90, 135, 200, 300),
)

POLICIES: dict[str, Maker] = {
    "known rewards": lambda V: KnownRewards(V=V, **PRINTED),
    "paper's radius": lambda V: Sabr(V=V, **PRINTED, radius="paper"),
    "public code's radius": lambda V: Sabr(V=V, **PRINTED, radius="published"),
    "calibrated UCB": lambda V: Sabr(V=V, **PRINTED, radius="calibrated"),
    "Thompson sampling (default)": lambda V: Sabr(V=V, **PRINTED),
    "Thompson sampling, scale 1": lambda V: Sabr(V=V, **PRINTED, scale=1.0),
    "Thompson sampling, scale 0.7": lambda V: Sabr(V=V, **PRINTED, scale=0.7),
    "Thompson sampling, scale 0.35": lambda V: Sabr(V=V, **PRINTED, scale=0.35),
    "Thompson, noise estimated": lambda V: Sabr(V=V, **PRINTED, noise="estimate"),
    "no exploration": lambda V: Sabr(V=V, **PRINTED, exploration="none"),
    "UGDA-OL per class pair": lambda V: UgdaOl("class", V=V, **PRINTED),
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


ONE_HOT = ((15, 30, 100.0), (32, 30, 300.0))
"""Features of jobs, one-hot servers, and how many times faster a slot must be in blocks."""


def one_hot(d: int, servers: int) -> Instances:
    """Return jobs with d random features and one-hot servers; there are twice as many job classes as features."""
    rng = np.random.default_rng(d)
    u = rng.standard_normal((2 * d, d))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    theta = rng.standard_normal((d, servers))
    problem = Problem(
        arrival_rate=np.full(2 * d, 0.01), servers=np.ones(servers), job_features=u, server_features=np.eye(servers),
        theta=theta / np.abs(u @ theta).max(),
    )  # fmt: skip
    return stack([problem])


def in_one_block(learner: Bilinear, state: BilinearState, instances: Instances) -> BilinearState:
    """Return the state with a dense Gram matrix: classes with all features non-zero have linked all columns."""
    problem = Problem(
        arrival_rate=np.full(instances.mean_reward.shape[1], 0.01), servers=instances.servers[0],
        job_features=instances.job_features[0], server_features=np.ones_like(instances.server_features[0]),
        mean_reward=np.zeros_like(instances.mean_reward[0]),
    )  # fmt: skip
    return learner.adapt(learner.adapt(state, stack([problem])), instances)


def slot(learner: Bilinear, state: BilinearState, seen: Outcome) -> Array:
    """Learn and return the indices of the next slot."""
    return learner.index(learner.learn(state, seen))


def blocks() -> Report:
    """Return the time of a slot of Thompson sampling with one-hot servers, in blocks and in one; draws must be equal."""
    report = Report("Thompson sampling, one-hot servers", ("parameters", "one block, ms", "in blocks, ms", "ratio"))
    learner, rng = Bilinear(), np.random.default_rng(0)
    for d, servers, least in ONE_HOT:
        instances = one_hot(d, servers)
        count = (rng.random(instances.mean_reward.shape) < 40.0 / instances.mean_reward.size).astype(np.int64)
        total = count * instances.mean_reward
        seen = Outcome(1, count, total, total**2, np.zeros(count.shape[:2], np.bool_))
        state = learner.start(instances, 1000, [rng])
        whole = in_one_block(learner, state, instances)
        for _ in range(4):  # the fifth slot has no inversion from scratch
            state, whole = learner.learn(state, seen), learner.learn(whole, seen)
        if np.abs(state.drawn - whole.drawn).max() > 1e-9:
            raise AssertionError(f"draws differ by {np.abs(state.drawn - whole.drawn).max():.1e}")
        seconds = [best_seconds(partial(slot, learner, now, seen)) for now in (whole, state)]
        report.row(d * servers, 1e3 * seconds[0], 1e3 * seconds[1], seconds[0] / seconds[1])
        report.at_least(f"{d * servers} parameters, times faster in blocks", seconds[0] / seconds[1], least)
    return report


if __name__ == "__main__":
    import sys
    import time

    for chosen in (PAPER, LARGE) if len(sys.argv) < 2 else ((PAPER,), (LARGE,))[int(sys.argv[1])]:
        began = time.time()
        print(chosen.name)
        for name, (mean, error) in measure(chosen).items():
            print(f"  {name:30s} {mean:7.2f} ± {error:.2f}", flush=True)
        print(f"  {time.time() - began:.0f} s")
