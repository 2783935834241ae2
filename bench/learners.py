"""Learning alone, without queues: what bandits earn where a price keeps each server class at its share of the jobs.

`python -m bench.learners [DATA]` prints a table; DATA has the folders "paretobandit" and "mmlu". Each job goes to the server
class with the largest value less its price, and the reward is learnt at once. A price rises with each job that its server
class gets, and falls with the others. This is a contest in the limit of long waits, without the chance that queues
add, so small differences between learners show. Made tables count the mean reward of a job, not what was drawn.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.learning import PairModel
from bilinq.routing.arena import Arena
from bilinq.routing.peers import LiteLlmBeta
from bilinq.routing.router import FleetView, WaitingJob
from bilinq.routing.scores import LinearThompson, LinearUcb, Score, Values
from bilinq.scheduler.look_ahead import SCALE
from bilinq.simulation.records import interval
from bilinq.traces import load_mmlu, load_paretobandit
from bilinq.traces.routing_tables import RoutingTable

JOBS, LOAD, SEEDS, SEED, WORKERS = 4000, 0.8, 12, 4000, 2
ROWS = 12_000  # of a made table
STEP = 0.01  # by which a price rises for a job, in the range of rewards


class World(NamedTuple):
    """Jobs in order: what each is worth (N, J), what is observed (N, J), and what a learner sees of them."""

    mean: Array
    reward: Array
    kind: IntArray
    features: Array


@dataclass
class Bilinq(Score):
    """The value model of `bilinq.Scheduler`, with values drawn as there; with `both` it sees the rewards of all servers."""

    both: bool = False
    model: PairModel = field(init=False)

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        assert fleet.class_features is not None
        d, J = fleet.class_features.shape[1], len(fleet.servers)
        self.model = PairModel.new(len(fleet.job_classes), np.zeros((J, 0)), d)
        self._sums, self._low, self._span = np.zeros((3, d)), fleet.reward_range[0], np.ptp(fleet.reward_range)

    def value(self, job: WaitingJob) -> Values:
        assert job.features is not None
        mean, width = self.model.predict(job.features[None], np.array([job.job_class]))
        spread = width[0] * np.maximum(SCALE, width[0] ** 2 / (width[0] ** 2 + self.model.noise))
        drawn: Values = (mean[0] + spread * self.rng.standard_normal(mean.size)).tolist()
        return [self._low + 0.5 * self._span * (1.0 + part) for part in drawn]

    def learn(self, job: WaitingJob, server: int, reward: float) -> None:
        assert job.features is not None
        self.model.observe(job.features, job.job_class, server, 2.0 * (reward - self._low) / self._span - 1.0)
        self._sums += np.stack([np.ones(job.features.size), job.features, job.features**2])
        number = int(self._sums[0, 0])
        if number >= 8 and not number & (number - 1):  # features are standardised anew, as in the scheduler
            center = self._sums[1] / number
            spread = np.sqrt(np.maximum(self._sums[2] / number - center**2, 0.0))
            self.model.rescale(*self.model.standards(center, np.where(spread > 1e-9, spread, 1.0)))


LEARNERS: dict[str, Callable[[], Score]] = {
    "bilinq": Bilinq,
    "linear Thompson": LinearThompson,
    "LinUCB": LinearUcb,
    "LiteLLM": LiteLlmBeta,
    "bilinq, sees all rewards": lambda: Bilinq(both=True),
}


# Made tables: mean rewards (ROWS, J), the class of each job, features, and whether rewards are zero or one

Made = tuple[Array, IntArray, Array, float]  # the last: noise, or zero for rewards of zero or one


def one_feature(rng: np.random.Generator) -> Made:
    """One feature tells which of three servers is right, seven say nothing: lengths of prompts, for example."""
    z = rng.random(ROWS)
    wave = 0.15 * np.sin(6.0 * z)
    mean = np.column_stack([0.9 - 0.8 * z, 0.7 - 0.3 * z + wave, 0.55 - wave])
    return mean, rng.integers(4, size=ROWS), np.column_stack([z, rng.normal(size=(ROWS, 7))]), 0.0


def low_rank(rng: np.random.Generator) -> Made:
    """Twelve servers whose rewards depend on two directions of ten features."""
    x = rng.normal(size=(ROWS, 10))
    mean = 0.5 + 0.3 * x @ rng.normal(size=(10, 2)) @ rng.normal(size=(2, 12)) / 10**0.5
    return mean, rng.integers(3, size=ROWS), x, 0.3


def difficulty(rng: np.random.Generator) -> Made:
    """Jobs are hard or easy on all servers alike, which differ little."""
    x = rng.normal(size=(ROWS, 16)) / 4.0
    hard = 1.5 * x @ rng.normal(size=16)
    shift = 1.0 + hard[:, None] + 0.5 * x @ rng.normal(size=(16, 4)) + np.array([0.0, 0.3, 0.6, 0.9])
    return 1.0 / (1.0 + np.exp(-shift)), rng.integers(10, size=ROWS), x, 0.0


def clusters(rng: np.random.Generator) -> Made:
    """Twenty kinds of jobs that nobody names: features show them, but no line separates them."""
    kind = rng.integers(20, size=ROWS)
    x = 1.5 * rng.normal(size=(20, 8))[kind] + 0.5 * rng.normal(size=(ROWS, 8))
    return rng.uniform(0.2, 0.9, (20, 4))[kind], np.zeros(ROWS, np.int64), x, 0.0


def classes_only(rng: np.random.Generator) -> Made:
    """Forty classes of jobs, and 32 features that say nothing."""
    kind = rng.integers(40, size=ROWS)
    return rng.beta(4.0, 2.0, (40, 4))[kind], kind, rng.normal(size=(ROWS, 32)), 0.0


def one_hot(rng: np.random.Generator) -> Made:
    """Classes of very different sizes, which are also one-hot features, and little noise."""
    kind = rng.choice(24, ROWS, p=rng.dirichlet(np.full(24, 0.5)))
    return rng.beta(3.0, 2.0, (24, 5))[kind], kind, np.eye(24)[kind], 0.15


def skewed(rng: np.random.Generator) -> Made:
    """Logistic rewards of six servers that depend on class and features."""
    x, kind = rng.normal(size=(ROWS, 16)) / 4.0, rng.integers(8, size=ROWS)
    shift = 0.8 + 2.0 * x @ rng.normal(size=(16, 6)) + 0.5 * rng.normal(size=(8, 6))[kind]
    return 1.0 / (1.0 + np.exp(-shift)), kind, x, 0.0


MADE = {made.__name__.replace("_", " "): made
        for made in (one_feature, low_rank, difficulty, clusters, classes_only, one_hot, skewed)}  # fmt: skip


@cache
def table(name: str, data: str) -> tuple[RoutingTable, Array]:
    """Return a table and what its jobs are worth, in the order of its rows."""
    if name not in MADE:
        load = load_paretobandit if name == "paretobandit" else load_mmlu
        real = load(Path(data) / name).with_features()
        return real, real.reward
    rng = np.random.default_rng(sum(map(ord, name)))
    mean, kind, x, noise = MADE[name](rng)
    mean = np.clip(mean, 0.0, 1.0)
    drawn = mean + noise * rng.normal(size=mean.shape) if noise else (rng.random(mean.shape) < mean).astype(float)
    servers = tuple(f"server {j}" for j in range(mean.shape[1]))
    kinds = np.array([f"class {c}" for c in kind])
    return RoutingTable(reward=np.clip(drawn, 0.0, 1.0), job_class=kinds, servers=servers, source="made", licence="",
                        vectors=x), mean  # fmt: skip


def earned(case: tuple[str, str, str, int]) -> float:
    """Return the mean reward of a learner on a table, in percentage points."""
    data, name, learner, seed = case
    whole, worth = table(name, data)
    order = np.concatenate(
        [np.random.default_rng((seed, k)).permutation(len(whole)) for k in range(-(-JOBS // len(whole)))]
    )
    chosen = order[:JOBS]
    some = whole.rows(chosen)
    fleet = Arena(some, LOAD, JOBS)(seed)  # for what a router sees of it
    work = World(
        worth[chosen], some.reward, np.unique(some.job_class, return_inverse=True)[1], np.asarray(some.vectors)
    )
    score = LEARNERS[learner]()
    score.start(FleetView(fleet), np.random.default_rng((seed, 1)))
    J = work.reward.shape[1]
    price, share, total = np.zeros(J), np.full(J, 1.0 / (J * LOAD)), 0.0
    for k in range(JOBS):
        job = WaitingJob(k, 0.0, int(work.kind[k]), work.features[k], tuple(range(J)), inf)
        net = np.array(score.value(job)) - price
        best = np.flatnonzero(net == net.max())
        j = int(best[k % best.size])
        total += work.mean[k, j]
        for h in range(J) if getattr(score, "both", False) else (j,):
            score.learn(job, h, float(work.reward[k, h]))
        price = np.maximum(price + STEP * np.ptp(work.reward) * ((np.arange(J) == j) - share), 0.0)
    return 100.0 * total / JOBS


def lines(data: str, names: list[str]) -> Iterator[str]:
    """Yield the rows of the table: what bilinq earns, and the paired differences of the others."""
    yield "| table | " + " | ".join(LEARNERS) + " |"
    yield "| --- |" + " ---: |" * len(LEARNERS)
    with ProcessPoolExecutor(WORKERS) as workers:
        for name in names:
            cases = [(data, name, learner, SEED + k) for learner, k in product(LEARNERS, range(SEEDS))]
            found = np.array(list(workers.map(earned, cases, chunksize=4))).reshape(len(LEARNERS), SEEDS)
            cells = [f"{found[0].mean():.1f}"]
            for row in found[1:] - found[0]:
                gap = interval(row)
                cells.append(f"{gap.mean:+.2f} ± {gap.high - gap.mean:.2f}")
            yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table, of made tables and, if they are there, of real ones."""
    data = sys.argv[1] if len(sys.argv) > 1 else ""
    for line in lines(data, [*MADE, *(("paretobandit", "mmlu") if data else ())]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
