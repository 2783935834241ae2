"""Jobs that bring their length along: two policies then meet the same work, and chance favours neither."""

from __future__ import annotations

from dataclasses import dataclass

from bilinq.lab.runs.setting import Setting
from bilinq.problem import Problem
from bilinq.simulation import Arrivals, Sized


@dataclass(frozen=True)
class SizedJobs(Setting):
    """`inner` with lengths drawn on arrival instead of slot by slot: the same law, since both are geometric."""

    inner: Setting

    def problems(self, seed: int, replications: range) -> list[Problem]:
        """Return the problems of `inner`."""
        return self.inner.problems(seed, replications)

    def arrivals(self) -> Arrivals:
        """Return the arrivals of `inner` with lengths."""
        return Sized(self.inner.arrivals())

    @property
    def service(self) -> str:
        """A service takes one unit of a job."""
        return "units"


@dataclass(frozen=True)
class Unstructured(Setting):
    """`inner` without its features: job and server classes are one-hot, so that no pair tells about another."""

    inner: Setting

    def problems(self, seed: int, replications: range) -> list[Problem]:
        """Return the problems of `inner` as plain tables of mean rewards."""
        return [_without_features(problem) for problem in self.inner.problems(seed, replications)]

    def arrivals(self) -> Arrivals:
        """Return the arrivals of `inner`."""
        return self.inner.arrivals()

    @property
    def service(self) -> str:
        """What a service does in `inner`."""
        return self.inner.service


def _without_features(problem: Problem) -> Problem:
    names = ("theta", "mean_reward", "job_features", "server_features")
    kept = {name: value for name, value in problem.arguments().items() if name not in names}
    return Problem(mean_reward=problem.mean_reward, **kept)
