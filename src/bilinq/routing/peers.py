"""What other libraries learn, as scores: each of them with the queue price of `QueuePrice`, or in `Matching`.

`BestScore` decides as the library does, without a look at queues. Packages are imported when a run starts:
`pip install 'bilinq[peers]'`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Any, ClassVar

import numpy as np

from bilinq.arrays import Array
from bilinq.extras import optional_imports
from bilinq.routing.router import FleetView, WaitingJob
from bilinq.routing.scores import Score, Values

SEEDS = 2**31
MODULES = ("mabwiser", "pareto_bandit", "vowpalwabbit")  # of the extra


def library(name: str) -> Any:
    """Return a module of another library; raise an error that says how to install it."""
    with optional_imports():
        return import_module(name)


class PeerScore(Score):
    """A score that another library learns.

    The library gets rewards as their place in the reward range, from zero to one, and its values are mapped back. Features
    are a constant, those of the job's class one-hot if there are several classes, and those of the job.
    """

    package: ClassVar[str]
    """The distribution that it needs: its version decides results."""

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self._low, high = fleet.reward_range
        self._span = max(high - self._low, 1e-300)
        kinds = len(fleet.job_classes)
        self._kinds = np.eye(kinds) if kinds > 1 else np.zeros((1, 0))
        own = 0 if fleet.class_features is None else fleet.class_features.shape[1]
        self.columns, self.dimension = len(fleet.servers), 1 + self._kinds.shape[1] + own
        self.begin(int(rng.integers(SEEDS)))

    def value(self, job: WaitingJob) -> Values:
        return [self._low + self._span * part for part in self.predict(job)]

    def learn(self, job: WaitingJob, server: int, reward: float) -> None:
        self.update(job, server, (reward - self._low) / self._span)

    def features(self, job: WaitingJob) -> Array:
        """Return what the library knows about a job (d,)."""
        parts = [np.ones(1), self._kinds[job.job_class]]
        return np.concatenate(parts if job.features is None else [*parts, job.features])

    @abstractmethod
    def begin(self, seed: int) -> None:
        """Create the library's learner for `columns` server classes and `dimension` features."""

    @abstractmethod
    def predict(self, job: WaitingJob) -> Values:
        """Return the library's value of each server class for a job, from zero to one."""

    @abstractmethod
    def update(self, job: WaitingJob, server: int, part: float) -> None:
        """Give the library a reward, from zero to one."""


class MabWiserScore(PeerScore):
    """A score that MABWiser learns. Until it has the first `needs` rewards, values are random."""

    package = "mabwiser"
    needs: int = 1

    @abstractmethod
    def policies(self, mab: Any) -> dict[str, Any]:
        """Return the policies, as arguments of `mab.MAB`."""

    def begin(self, seed: int) -> None:
        mab = library("mabwiser.mab")
        self._mab = mab.MAB(arms=list(range(self.columns)), seed=seed, **self.policies(mab))
        self._first: list[tuple[int, float, Array]] | None = []

    def predict(self, job: WaitingJob) -> Values:
        if self._first is not None:
            return list(self.rng.random(self.columns).tolist())
        found = self._mab.predict_expectations(self.features(job)[None, :])
        return [float(found[j]) for j in range(self.columns)]

    def update(self, job: WaitingJob, server: int, part: float) -> None:
        if self._first is None:
            self._mab.partial_fit([server], [part], self.features(job)[None, :])
            return
        self._first.append((server, part, self.features(job)))
        if len(self._first) >= self.needs:
            servers, parts, rows = zip(*self._first, strict=True)
            self._mab.fit(list(servers), list(parts), np.array(rows))
            self._first = None


class MabWiserLinear(MabWiserScore):
    """A score of MABWiser with one regression for each server class.

    MABWiser's `partial_fit` copies the regressions of all arms for each reward. Here only the regression that gets the
    reward is fitted, which gives the same numbers in a fraction of the time. The first reward of an arm goes through
    `partial_fit`, since the copy that it makes has a random generator of its own.
    """

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._learnt = [False] * self.columns

    def update(self, job: WaitingJob, server: int, part: float) -> None:
        if self._learnt[server]:
            self._mab._imp.arm_to_model[server].fit(self.features(job)[None, :], np.array([part]))
        else:
            super().update(job, server, part)
            self._learnt[server] = True


@dataclass
class MabWiserLinTs(MabWiserLinear):
    """Linear Thompson sampling of MABWiser: one ridge regression for each server class, coefficients drawn."""

    alpha: float = 0.2
    l2_lambda: float = 1.0

    def policies(self, mab: Any) -> dict[str, Any]:
        return {"learning_policy": mab.LearningPolicy.LinTS(alpha=self.alpha, l2_lambda=self.l2_lambda)}


@dataclass
class MabWiserLinUcb(MabWiserLinear):
    """LinUCB of MABWiser: one ridge regression for each server class, plus `alpha` standard errors."""

    alpha: float = 0.2
    l2_lambda: float = 1.0

    def policies(self, mab: Any) -> dict[str, Any]:
        return {"learning_policy": mab.LearningPolicy.LinUCB(alpha=self.alpha, l2_lambda=self.l2_lambda)}


@dataclass
class MabWiserKNearest(MabWiserScore):
    """Nearest neighbours of MABWiser: the mean reward of each server class among the k jobs most alike.

    With chance `epsilon` values are random. Time and memory grow with the number of jobs.
    """

    k: int = 50
    epsilon: float = 0.05

    def policies(self, mab: Any) -> dict[str, Any]:
        self.needs = self.k
        nearest = mab.NeighborhoodPolicy.KNearest(k=self.k)
        return {"learning_policy": mab.LearningPolicy.EpsilonGreedy(self.epsilon), "neighborhood_policy": nearest}


@dataclass
class ParetoBandit(PeerScore):
    """LinUCB of ParetoBandit with forgetting (arXiv 2604.00136), without its budget: costs belong into rewards.

    Defaults are the library's settings for a cold start. Its clock counts rewards.
    """

    package = "paretobandit"

    alpha: float = 0.05
    forgetting_factor: float = 0.997
    init_lambda: float = 1.0

    def begin(self, seed: int) -> None:
        self._policy = library("pareto_bandit.policy").DisjointLinUCBPolicy(
            [str(j) for j in range(self.columns)], dim=self.dimension, alpha=self.alpha, init_lambda=self.init_lambda,
            forgetting_factor=self.forgetting_factor, seed=seed,
        )  # fmt: skip

    def predict(self, job: WaitingJob) -> Values:
        x, policy = self.features(job), self._policy
        return [
            policy.get_expected_reward(arm, x) + self.alpha * max(policy.get_ucb_variance(arm, x), 1e-12) ** 0.5
            for arm in policy.models
        ]

    def update(self, job: WaitingJob, server: int, part: float) -> None:
        self._policy.update(str(server), self.features(job), part)


@dataclass
class LiteLlmBeta(PeerScore):
    """The posterior of LiteLLM's adaptive router: a Beta distribution for each pair of classes, drawn for each job.

    A cell starts as Beta(5, 5), LiteLLM's prior for a model of the middle tier, and learns nothing more once it holds
    200 rewards. The cost of a model belongs into the reward. LiteLLM itself is not needed: this is its rule, and a test
    compares the decisions with those of the package.
    """

    package = "litellm"
    PRIOR: ClassVar[float] = 5.0
    CAP: ClassVar[float] = 200.0

    def begin(self, seed: int) -> None:
        self._random = Random(seed)
        cell = (self.PRIOR, self.PRIOR)
        self._cells = [[cell] * self.columns for _ in self.fleet.job_classes]

    def predict(self, job: WaitingJob) -> Values:
        return [self._random.betavariate(*cell) for cell in self._cells[job.job_class]]

    def update(self, job: WaitingJob, server: int, part: float) -> None:
        good, bad = self._cells[job.job_class][server]
        if good + part + (bad + (1.0 - part)) <= self.CAP:
            self._cells[job.job_class][server] = good + part, bad + (1.0 - part)


@dataclass
class VowpalWabbit(PeerScore):
    """A contextual bandit of Vowpal Wabbit: a regression of costs on features by server class (`--cb_adf`).

    With chance `epsilon` values are random. `options` are further arguments of its command line. With a queue price the
    chance of a decision is not known, so labels say one: a regression of costs on the server class that was chosen.
    """

    package = "vowpalwabbit"

    epsilon: float = 0.05
    options: str = ""

    def begin(self, seed: int) -> None:
        line = f"--cb_adf --cb_type mtr -q JS --quiet --random_seed {seed} {self.options}"
        self._vw = library("vowpalwabbit").Workspace(line.strip())

    def predict(self, job: WaitingJob) -> Values:
        if self.rng.random() < self.epsilon:
            return list(self.rng.random(self.columns).tolist())
        return [1.0 - cost for cost in self._vw.predict(self.lines(job))]

    def update(self, job: WaitingJob, server: int, part: float) -> None:
        self._vw.learn(self.lines(job, server, 1.0 - part))

    def lines(self, job: WaitingJob, server: int = -1, cost: float = 0.0) -> list[str]:
        """Return a job, and what it cost on a server class, in Vowpal Wabbit's text format."""
        shared = " ".join(f"{k}:{x:.9g}" for k, x in enumerate(self.features(job).tolist()) if x)
        actions = [f"0:{cost:.9g}:1 |S s{j}" if j == server else f"|S s{j}" for j in range(self.columns)]
        return [f"shared |J {shared}", *actions]


PEERS: dict[str, type[PeerScore]] = {
    "mabwiser-lin-ts": MabWiserLinTs,
    "mabwiser-lin-ucb": MabWiserLinUcb,
    "mabwiser-k-nearest": MabWiserKNearest,
    "paretobandit": ParetoBandit,
    "litellm": LiteLlmBeta,
    "vowpal-wabbit": VowpalWabbit,
}
"""Scores of other libraries by name, for the command line."""
