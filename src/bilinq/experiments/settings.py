"""Settings in which a policy is tested: problems, arrivals and the kind of service."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bilinq.arrays import check_known, count, one_of, short
from bilinq.errors import BadInput
from bilinq.problem import Problem
from bilinq.simulation.arrivals import Arrivals, Bernoulli, MarkovModulated, Poisson, Sized

SEED_STEP = 1_000_003  # distance between the numbers that two seeds use: more than any run has replications

ARRIVALS: dict[str, type[Arrivals]] = {"bernoulli": Bernoulli, "poisson": Poisson, "markov-modulated": MarkovModulated}
"""The arrival laws that need no settings of their own."""

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
class SizedJobs(Setting):
    """`inner` with job lengths drawn on arrival instead of slot by slot, so that two policies meet the same work.

    The law of the lengths stays the same, since both are geometric.
    """

    inner: Setting

    def problems(self, seed: int, replications: range) -> list[Problem]:
        return self.inner.problems(seed, replications)

    def arrivals(self) -> Arrivals:
        return Sized(self.inner.arrivals())

    @property
    def service(self) -> str:
        return "units"


@dataclass(frozen=True)
class Unstructured(Setting):
    """`inner` without its features: job and server classes are one-hot, so no pair tells anything about another."""

    inner: Setting

    def problems(self, seed: int, replications: range) -> list[Problem]:
        return [_without_features(problem) for problem in self.inner.problems(seed, replications)]

    def arrivals(self) -> Arrivals:
        return self.inner.arrivals()

    @property
    def service(self) -> str:
        return self.inner.service


def _without_features(problem: Problem) -> Problem:
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
        replications get the one drawn with `seed`.
    law : str
        The name of the arrival law.
    """
    make_arrivals(law)
    check_known(problem, ("file", "instances", *DRAWN), "key of the problem")
    given = {key: value for key, value in problem.items() if key in DRAWN}
    instances = one_of("instances", problem.get("instances", "fixed" if "file" in problem else "random"), INSTANCES)
    if "file" in problem:
        return Fixed(_read(problem["file"], instances, given), law)
    seed = count("seed", given.pop("seed", 0), least=0)
    setting = Synthetic(**given, law=law, seed=seed)
    example = setting.example  # raises what is wrong with the arguments
    return Fixed(example, law) if instances == "fixed" else setting


def _read(file: object, instances: str, given: Mapping[str, Any]) -> Problem:
    """Return the problem of a file, unless there are settings that exclude one."""
    if given:
        raise BadInput(f"file and {next(iter(given))} exclude each other: a problem is read or drawn")
    if instances == "random":
        raise BadInput("instances must be 'fixed' where the problem is read from a file; got 'random'")
    if not isinstance(file, str):
        raise BadInput(f"file must be the name of a problem file; got {short(file)}")
    return Problem.load(file)
