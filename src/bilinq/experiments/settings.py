"""Settings in which a policy is tested: problems, arrivals and the kind of service."""

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from bilinq.arrays import check_known, count, one_of, short
from bilinq.errors import BadInput
from bilinq.problem import Problem
from bilinq.simulation.arrivals import (
    SERVICES,
    AllUp,
    Arrivals,
    Backlog,
    Bernoulli,
    Breakdowns,
    Capacity,
    MarkovModulated,
    Poisson,
    Recorded,
    Sized,
)  # fmt: skip
from bilinq.simulation.rewards import BinaryRewards, NormalRewards, RewardLaw

SEED_STEP = 1_000_003  # distance between the numbers that two seeds use: more than any run has replications

ARRIVALS: dict[str, type[Arrivals]] = {"bernoulli": Bernoulli, "poisson": Poisson, "markov-modulated": MarkovModulated}
"""The arrival laws that need no settings of their own."""

SERVED = ("service", "breakdowns", "recorded")
"""What a file or a command line may say about service, capacity and arrivals; see `make_setting`."""

INSTANCES = ("random", "fixed")
"""Whether every replication draws its own synthetic problem, as in the paper, or all share one."""

DRAWN = (
    "job_classes", "server_classes", "dimension", "servers", "traffic", "service_rate", "noise", "holding_cost", "seed",
)  # fmt: skip
"""The arguments of `Problem.synthetic`."""


class Setting(ABC):
    """A family of problems, one for each replication. Subclasses are frozen dataclasses of plain values."""

    @abstractmethod
    def problems(self, seed: int, replications: range) -> list[Problem]:
        """Return the problems of the given replications; each depends only on the seed of the run and its own number."""

    def arrivals(self) -> Arrivals:
        """Return the arrival law; the default is the paper's."""
        return Bernoulli()

    @property
    def service(self) -> str:
        """What a service does to a job: "geometric" or "units"."""
        return "geometric"

    def capacity(self) -> Capacity:
        """Return the law of how many servers are up; the default is all."""
        return AllUp()

    def reward_law(self) -> RewardLaw:
        """Return how observed rewards vary around their means; the default is normal noise."""
        return NormalRewards()

    @property
    def example(self) -> Problem:
        """One problem of the family, for formulas in which rewards do not appear (V, bounds, traffic)."""
        return self.problems(0, range(1))[0]


@dataclass(frozen=True)
class Synthetic(Setting):
    """Random bilinear problems; the defaults are the paper's synthetic experiment. See `Problem.synthetic`.

    Replication k draws its problem with `seed` + k. If `seed` is None, the seed of the run decides: it is
    1000003 times that seed, plus k.
    """

    job_classes: int = 10
    server_classes: int = 2
    dimension: int | tuple[int, int] = 2
    servers: int | tuple[int, ...] = 4
    traffic: float = 1.0
    service_rate: float | tuple[float, ...] = 1.0
    noise: float | tuple[float, ...] = 0.1
    holding_cost: float | tuple[float, ...] = 1.0
    law: str = "bernoulli"
    seed: int | None = None

    def problems(self, seed: int, replications: range) -> list[Problem]:
        first = seed * SEED_STEP if self.seed is None else self.seed
        drawn = {name: getattr(self, name) for name in DRAWN if name != "seed"}
        return [Problem.synthetic(**drawn, seed=first + k) for k in replications]

    def arrivals(self) -> Arrivals:
        return make_arrivals(self.law)


@dataclass(frozen=True)
class Fixed(Setting):
    """The same problem in every replication; arrivals, rewards and services differ."""

    problem: Problem
    law: str = "poisson"

    def problems(self, seed: int, replications: range) -> list[Problem]:
        return [self.problem] * len(replications)

    def arrivals(self) -> Arrivals:
        return make_arrivals(self.law)


@dataclass(frozen=True)
class Changed(Setting):
    """`inner` with something changed; subclasses say what, and all else stays."""

    inner: Setting

    def problems(self, seed: int, replications: range) -> list[Problem]:
        return [self.problem(problem) for problem in self.inner.problems(seed, replications)]

    def problem(self, problem: Problem) -> Problem:
        """Return what replaces a problem of `inner`; the default is the problem itself."""
        return problem

    def arrivals(self) -> Arrivals:
        return self.inner.arrivals()

    @property
    def service(self) -> str:
        return self.inner.service

    def capacity(self) -> Capacity:
        return self.inner.capacity()

    def reward_law(self) -> RewardLaw:
        return self.inner.reward_law()


@dataclass(frozen=True)
class SizedJobs(Changed):
    """`inner` with job lengths drawn on arrival instead of slot by slot, so that two policies meet the same work.

    The law of the lengths stays the same by default, since both are geometric; see `Sized` for other `sizes`.
    """

    sizes: str = "geometric"

    def arrivals(self) -> Arrivals:
        return Sized(self.inner.arrivals(), self.sizes)

    @property
    def service(self) -> str:
        return "units"


@dataclass(frozen=True)
class Backlogged(Changed):
    """`inner` with `jobs` waiting jobs of each class at the start."""

    jobs: int

    def arrivals(self) -> Arrivals:
        return Backlog(self.inner.arrivals(), self.jobs)


@dataclass(frozen=True)
class Described(Changed):
    """`inner` as a file or a command line changes it: recorded arrivals, service in units, breakdowns.

    `recorded` are rows of (slot, job class, units). `fail` and `repair` are those of `Breakdowns`.
    """

    recorded: tuple[tuple[int, ...], ...] | None = None
    units: bool = False
    breakdowns: tuple[float, float] | None = None

    def arrivals(self) -> Arrivals:
        if self.recorded is not None:
            return Recorded(self.recorded)
        return Sized(self.inner.arrivals()) if self.units else self.inner.arrivals()

    @property
    def service(self) -> str:
        return "units" if self.units else self.inner.service

    def capacity(self) -> Capacity:
        return self.inner.capacity() if self.breakdowns is None else Breakdowns(*self.breakdowns)


@dataclass(frozen=True)
class UnequalNoise(Changed):
    """`inner` with a noise scale for each server class."""

    noise: tuple[float, ...]

    def problem(self, problem: Problem) -> Problem:
        return problem.replace(noise=np.tile(self.noise, (problem.job_classes, 1)))


@dataclass(frozen=True)
class Logistic(Changed):
    """`inner` with mean rewards 1 / (1 + exp(-slope (r - centre))) in place of the bilinear r; features stay."""

    slope: float
    centre: float = 0.75

    def problem(self, problem: Problem) -> Problem:
        return problem.replace(mean_reward=expit(self.slope * (problem.mean_reward - self.centre)))


@dataclass(frozen=True)
class LowRank(Changed):
    """`inner` with the parameter of each problem replaced by the nearest one of this rank."""

    rank: int = 1

    def problem(self, problem: Problem) -> Problem:
        left, values, right = np.linalg.svd(np.asarray(problem.theta))
        return problem.replace(theta=(left[:, : self.rank] * values[: self.rank]) @ right[: self.rank])


@dataclass(frozen=True)
class OtherRewards(Changed):
    """`inner` with another law of observed rewards; the noise of rewards that are zero or one is their own."""

    law: RewardLaw

    def problem(self, problem: Problem) -> Problem:
        if not isinstance(self.law, BinaryRewards):
            return problem
        return problem.replace(noise=np.sqrt(problem.mean_reward * (1.0 - problem.mean_reward)))

    def reward_law(self) -> RewardLaw:
        return self.law


@dataclass(frozen=True)
class Unstructured(Changed):
    """`inner` without its features: job and server classes are one-hot, so no pair tells anything about another."""

    def problem(self, problem: Problem) -> Problem:
        names = ("theta", "mean_reward", "job_features", "server_features")
        kept = {name: value for name, value in problem.arguments().items() if name not in names}
        return Problem(mean_reward=problem.mean_reward, **kept)


def make_arrivals(law: str) -> Arrivals:
    """Return the arrival law of that name."""
    return ARRIVALS[one_of("arrivals", law, tuple(ARRIVALS))]()


def make_setting(problem: Mapping[str, Any], law: str = "bernoulli") -> Setting:
    """Return the setting that a file or a command line describes; raise `BadInput` if no problem fits it.

    Parameters
    ----------
    problem : mapping
        Either `file`, a problem file, or the arguments of `Problem.synthetic`; and `instances`. With "random" (the
        default of synthetic problems) replication k gets the problem drawn with `seed` + k, with "fixed" all
        replications get the one drawn with `seed`. Also `service` ("geometric" or "units"), `breakdowns` (the chances
        of failure and repair in a slot), and `recorded` (a CSV file of arrivals: slot, job class, units).
    law : str
        The name of the arrival law.
    """
    make_arrivals(law)
    check_known(problem, ("file", "instances", *DRAWN, *SERVED), "key of the problem")
    given = {key: value for key, value in problem.items() if key in DRAWN}
    instances = one_of("instances", problem.get("instances", "fixed" if "file" in problem else "random"), INSTANCES)
    if "file" in problem:
        return _served(Fixed(_read(problem["file"], instances, given), law), problem)
    seed = count("seed", given.pop("seed", 0), least=0)
    setting = Synthetic(**given, law=law, seed=seed)
    example = setting.example  # raises what is wrong with the arguments
    return _served(Fixed(example, law) if instances == "fixed" else setting, problem)


def _served(setting: Setting, problem: Mapping[str, Any]) -> Setting:
    """Return the setting with the service, breakdowns and recorded arrivals that a file or a command line names."""
    if not any(key in problem for key in SERVED):
        return setting
    rates = problem.get("breakdowns")
    if rates is not None and (not isinstance(rates, list | tuple) or len(rates) != 2):
        raise BadInput(f"breakdowns must be two chances, of failure and of repair in a slot; got {short(rates)}")
    found = Described(
        setting,
        recorded=read_arrivals(problem["recorded"]) if "recorded" in problem else None,
        units=one_of("service", problem.get("service", "geometric"), SERVICES) == "units",
        breakdowns=None if rates is None else (rates[0], rates[1]),
    )
    found.capacity()  # raises what is wrong with the chances
    if found.recorded and (most := max(row[1] for row in found.recorded)) >= setting.example.job_classes:
        raise BadInput(f"recorded: job classes must be below {setting.example.job_classes}; got {most}")
    if found.recorded and not found.units and (largest := max(row[2] for row in found.recorded)) > 1:
        raise BadInput(
            f"recorded: jobs of several units need service 'units'; got 'geometric' and a job of {largest} units"
        )
    return found


def read_arrivals(file: object) -> tuple[tuple[int, ...], ...]:
    """Return the arrivals of a CSV file with the columns slot, job_class and units, each counted from 0."""
    if not isinstance(file, str):
        raise BadInput(f"recorded must be the name of a CSV file; got {short(file)}")
    try:
        with Path(file).open(encoding="utf-8", newline="") as lines:
            rows = list(csv.reader(lines))
        if not rows or [cell.strip() for cell in rows[0]] != ["slot", "job_class", "units"]:
            raise BadInput(f"{file}: the first line must be slot,job_class,units; got {short(rows[:1])}")
        found = tuple(tuple(int(cell) for cell in row) for row in rows[1:] if row)
        Recorded(found)  # raises what is wrong with the numbers
    except BadInput as error:
        raise BadInput(str(error) if str(error).startswith(file) else f"{file}: {error}") from None
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{file}: must contain whole numbers; {error}") from None
    return found


def _read(file: object, instances: str, given: Mapping[str, Any]) -> Problem:
    """Return the problem of a file, unless there are settings that exclude one."""
    if given:
        raise BadInput(f"file and {next(iter(given))} exclude each other: a problem is read or drawn")
    if instances == "random":
        raise BadInput("instances must be 'fixed' where the problem is read from a file; got 'random'")
    if not isinstance(file, str):
        raise BadInput(f"file must be the name of a problem file; got {short(file)}")
    return Problem.load(file)
