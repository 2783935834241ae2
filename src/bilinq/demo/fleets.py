"""The fleets of the demo: their jobs, their servers, and the true reward of each pair."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import structs

from bilinq.arrays import Array, one_of
from bilinq.live.settings import ServiceSettings, load
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo
from bilinq.problem import Problem

TARGET_WAIT = 2.0  # seconds that jobs may wait for a good match: long enough to see it, short enough to watch


@dataclass(frozen=True)
class Fleet:
    """Jobs and servers with their true rewards, which the service does not know.

    The traffic of `problem` is the mean number of busy servers of each job class; its slots have no meaning here. Rewards
    are clipped to `low` and `high`, their range in the settings. The seconds of a service are uniformly distributed between
    `shortest` and `longest`, for all jobs and servers.
    """

    name: str
    about: str
    problem: Problem
    low: float
    high: float
    shortest: float
    longest: float

    @property
    def rate(self) -> Array:
        """Jobs of each class that arrive per second (I,)."""
        return self.problem.traffic / (0.5 * (self.shortest + self.longest))

    @property
    def servers(self) -> dict[str, int]:
        """Number of servers of each class."""
        return {name: int(number) for name, number in zip(self.problem.server_names, self.problem.servers, strict=True)}

    def reward(self, job_class: str, server_class: str, luck: float) -> float:
        """Return the reward of a job: the mean of the pair plus noise, `luck` standard deviations, within the range."""
        pair = self.problem.job_names.index(job_class), self.problem.server_names.index(server_class)
        drawn = self.problem.mean_reward[pair] + self.problem.noise[pair] * luck
        return float(np.clip(drawn, self.low, self.high))

    def settings(self, options: Mapping[str, Any]) -> ServiceSettings:
        """Return the settings of a service with the names and features of the classes, but no rewards, and `options`.

        The environment and files are ignored, so that a demo never touches a production service of the same user.
        """
        one, wait = self.problem, {} if "V" in options else {"target_wait": TARGET_WAIT}
        own = {"lease": 10.0, "retention": 3600.0, "reward_low": self.low, "reward_high": self.high}
        return structs.replace(
            load(options=own | wait | dict(options), environment={}),
            job_class=tuple(map(JobClassInfo, one.job_names, one.job_features.tolist())),
            server_class=tuple(map(ServerClassInfo, one.server_names, one.server_features.tolist())),
        )


def make_fleet(name: str) -> Fleet:
    """Return the fleet of that name.

    Examples
    --------
    >>> make_fleet("gpus").servers
    {'K80': 4, 'P100': 4, 'V100': 4}
    """
    return _MAKERS[one_of("fleet", name, tuple(_MAKERS))]()


def _paper() -> Fleet:
    problem = Problem.synthetic(job_classes=10, server_classes=2, dimension=2, servers=4, traffic=1.0, seed=7)
    return Fleet("paper", "the instance of the paper", problem, low=-1.2, high=1.2, shortest=0.2, longest=0.6)


def _gpus() -> Fleet:
    from bilinq.traces import gpu_table

    about = "training jobs on GPUs with measured speeds"
    return Fleet("gpus", about, _positive(gpu_table(load=0.6)), low=0.0, high=1.5, shortest=0.2, longest=1.0)


def _trace() -> Fleet:
    """Return the classes of the trace on about one in 450 of its machines, at half load."""
    from bilinq.traces import Digest

    whole = Digest.shipped().problem(features="normalised", unseen="predicted")
    servers = np.maximum(np.round(whole.servers * (16.0 / whole.servers.sum())), 1.0)
    load = 0.5 * servers.sum() / whole.traffic.sum()
    problem = _positive(whole.replace(servers=servers, arrival_rate=load * whole.arrival_rate))
    about = "jobs on machines of Google's cluster trace"
    return Fleet("trace", about, problem, low=0.0, high=3.0, shortest=0.4, longest=1.2)


def _positive(problem: Problem) -> Problem:
    """Return a problem with so little noise that few rewards are negative and clipped."""
    return problem.replace(noise=np.minimum(problem.noise, problem.mean_reward / 3.0))


_MAKERS: dict[str, Callable[[], Fleet]] = {"gpus": _gpus, "paper": _paper, "trace": _trace}
