"""The problem: job and server classes, their features, rates, rewards, capacities and costs."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, BoolArray, count, non_negative, scalar
from bilinq.display import data_frame, heat_map, html_table, short_list
from bilinq.errors import BadInput, UnstableLoad
from bilinq.problem import rules
from bilinq.problem.bottleneck import ROUNDING, Bottleneck, find_bottleneck
from bilinq.problem.pairs import Pairs


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Problem:
    """A system of job classes and server classes whose assignments earn a reward; checked and read-only.

    There are I job classes and J server classes. Give the mean rewards either as `theta`, so that class i earns
    ``job_features[i] @ theta @ server_features[j]`` on class j, or as the table `mean_reward`. An offered load that
    is not below the capacity is accepted with the warning `UnstableLoad`.

    Parameters
    ----------
    arrival_rate : (I,) array
        Jobs per slot, at least zero.
    servers : (J,) array
        Servers in each class: whole numbers, zero allowed, at least one server in total.
    job_features, server_features : (I, d1) and (J, d2) arrays, optional
        Required with `theta`. With a table they default to one-hot vectors, for which any table is bilinear.
    theta : (d1, d2) array
        Reward parameters; every mean reward must then lie in [-1, 1].
    mean_reward : (I, J) array
        The table of mean rewards, in [-1, 1] as policies assume. Divide a table in other units, and `noise`, by its largest
        absolute entry.
    service_rate : float, (I,) or (I, J) array
        Chance that one slot of service completes a job, in (0, 1]: of each job class, or of each pair. A table whose
        rows are constant is kept as (I,).
    eligible : (I, J) bool array, optional
        Which server classes may serve which job classes; every job class needs one that has servers. Default: all, kept
        as None.
    noise : float or (I, J) array
        Standard deviation of an observed reward around its mean.
    holding_cost : float or (I,) array
        Cost of one waiting job for one slot.
    job_names, server_names : sequences of str, optional
        Unique and printable; default: "job 1", "job 2", ... and "server 1", ...
    unbounded : bool
        Accept any table `mean_reward`: for `oracle`, which is right in all units, and to repeat experiments that did not
        scale their rewards. Policies then learn badly, as if no reward were above one.

    Examples
    --------
    >>> problem = Problem(arrival_rate=[0.3, 0.2], servers=[1, 1], mean_reward=[[0.2, 0.9], [0.5, 0.4]])
    >>> problem
    Problem(job_classes=2, server_classes=2, dimension=(2, 2), servers=2, traffic=0.5)
    >>> problem.load_factor
    0.25
    """

    arrival_rate: Array
    servers: Array
    job_features: Array
    server_features: Array
    theta: Array | None
    mean_reward: Array
    service_rate: Array
    eligible: BoolArray | None
    noise: Array
    holding_cost: Array
    job_names: tuple[str, ...]
    server_names: tuple[str, ...]
    unbounded: bool

    def __init__(
        self,
        *,
        arrival_rate: ArrayLike,
        servers: ArrayLike,
        job_features: ArrayLike | None = None,
        server_features: ArrayLike | None = None,
        theta: ArrayLike | None = None,
        mean_reward: ArrayLike | None = None,
        service_rate: ArrayLike = 1.0,
        eligible: ArrayLike | None = None,
        noise: ArrayLike = 0.1,
        holding_cost: ArrayLike = 1.0,
        job_names: Sequence[str] | None = None,
        server_names: Sequence[str] | None = None,
        unbounded: bool = False,
    ) -> None:
        lam, n = rules.vector("arrival_rate", non_negative("arrival_rate", arrival_rate)), rules.capacity(servers)
        mu = rules.service(service_rate, lam.size, n.size)
        if theta is not None and (job_features is None or server_features is None):
            raise BadInput(f"theta needs {'job' if job_features is None else 'server'}_features; got None")
        rules.pairs(lam.size, n.size)
        u = rules.features("job_features", job_features, lam.size, "arrival_rate")
        v = rules.features("server_features", server_features, n.size, "servers")
        weights, rewards = rules.rewards(theta, mean_reward, u, v, unbounded)
        sigma = rules.filled("noise", non_negative("noise", noise), (lam.size, n.size))
        cost = rules.filled("holding_cost", non_negative("holding_cost", holding_cost), (lam.size,))
        job = rules.names("job_names", job_names, "job", lam.size)
        server = rules.names("server_names", server_names, "server", n.size)
        allowed = rules.mask(eligible, n, job)
        mu = rules.apart(mu, allowed)
        arrays = (lam, n, u, v, weights, rewards, mu, allowed, sigma, cost)
        for field, value in zip(fields(self), (*map(_locked, arrays), job, server, unbounded), strict=True):
            object.__setattr__(self, field.name, value)
        rho, capacity = rules.total_traffic(lam, self.pairs.rate), n.sum()
        if not self.pairs.plain and self.load_factor >= 1.0 - ROUNDING:
            where = self.bottleneck.text(job, server)
            text = f"the load {self.load_factor:g} is not below one: queues will grow; {where}"
            warnings.warn(text, UnstableLoad, stacklevel=2)
        elif self.pairs.plain and rho >= capacity:
            text = f"traffic intensity {rho:g} is not below the number of servers {capacity:g}: queues will grow"
            warnings.warn(text, UnstableLoad, stacklevel=2)

    @classmethod
    def synthetic(
        cls, *, job_classes: int = 10, server_classes: int = 2, dimension: int | tuple[int, int] = 2,
        servers: int | Sequence[int] = 4, traffic: float = 1.0, service_rate: ArrayLike = 1.0,
        eligible: ArrayLike | None = None, noise: ArrayLike = 0.1, holding_cost: ArrayLike = 1.0,
        seed: int | np.random.Generator = 0,
    ) -> Self:  # fmt: skip
        """Draw a random bilinear problem; the defaults are the paper's synthetic experiment.

        Entries of features and parameters are uniform on [0, 1]; then every feature vector is scaled to norm one and
        `theta` to Frobenius norm one.

        Parameters
        ----------
        dimension : int or pair of int
            Length of the feature vectors; (d1, d2) if jobs and servers differ.
        servers : int or (J,) sequence
            The total, split equally (so it must be a multiple of `server_classes`), or one count for each class.
        traffic : float
            Total traffic intensity, split equally over the job classes.
        seed : int or numpy.random.Generator
            The source of the draws; the same number gives the same problem.
        """
        n_jobs, n_servers = rules.sizes(job_classes, server_classes)
        d1, d2 = rules.dimensions(dimension)
        rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(count("seed", seed, least=0))
        u, v, theta = rng.random((n_jobs, d1)), rng.random((n_servers, d2)), rng.random((d1, d2))
        share = scalar("traffic", traffic, non_negative) / n_jobs
        mu, n = rules.service(service_rate, n_jobs, n_servers), rules.split(servers, n_servers)
        allowed = rules.mask(eligible, n, rules.names("job_names", None, "job", n_jobs))
        return cls(
            arrival_rate=share * Pairs.of(mu, allowed, mu.ndim == 2).rate, servers=n, eligible=allowed,
            job_features=u / np.linalg.norm(u, axis=1, keepdims=True),
            server_features=v / np.linalg.norm(v, axis=1, keepdims=True),
            theta=theta / np.linalg.norm(theta), service_rate=service_rate, noise=noise, holding_cost=holding_cost,
        )  # fmt: skip

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Problem":
        """Read a problem from a `.json` or `.toml` file whose keys are the constructor's arguments."""
        from bilinq.problem import files

        return files.load(path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the problem to a `.json` or `.toml` file that `load` reads back without loss."""
        from bilinq.problem import files

        files.save(self, path)

    @property
    def job_classes(self) -> int:
        """Number of job classes, I."""
        return self.arrival_rate.size

    @property
    def server_classes(self) -> int:
        """Number of server classes, J."""
        return self.servers.size

    @property
    def traffic(self) -> Array:
        """Traffic intensity of each job class (I,): arrival rate over service rate, its mean over eligible pairs."""
        return self.arrival_rate / self.pairs.rate

    @property
    def pairs(self) -> Pairs:
        """Rates, durations and eligible pairs in the form of Eq. (48)."""
        return Pairs.of(self.service_rate, self.eligible, self.service_rate.ndim == 2)

    @cached_property
    def bottleneck(self) -> Bottleneck:
        """The load by Eq. (50), and the classes that limit it."""
        m, allowed = self.pairs.filled(self.mean_reward.shape)
        return find_bottleneck(self.traffic, self.servers, m, allowed)

    @property
    def load_factor(self) -> float:
        """Total traffic intensity over the number of servers; queues stay short only below one.

        With rates or eligibility by pair it is the load of the servers that are busiest if work is shared best, Eq. (50).
        """
        if not self.pairs.plain:
            return self.bottleneck.load
        return float(self.traffic.sum() / self.servers.sum())

    @property
    def slack(self) -> float:
        """Number of servers minus total traffic intensity; zero or negative if the load is unstable.

        With rates or eligibility by pair it is the number of servers times one minus `load_factor`.
        """
        if not self.pairs.plain:
            return float(self.servers.sum() * (1.0 - self.load_factor))
        return float(self.servers.sum() - self.traffic.sum())

    @property
    def bounded(self) -> bool:
        """Whether every mean reward lies in [-1, 1], as policies and bounds assume; False only if `unbounded`."""
        return bool(rules.in_bounds(self.mean_reward).all())

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments that build an equal problem."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["theta" if self.theta is None else "mean_reward"]
        return values

    def replace(self, **changes: Any) -> "Problem":
        """Return a new, checked problem with some constructor arguments changed.

        A new `theta` replaces a `mean_reward` table and vice versa; features stay as they are.
        """
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise BadInput(f"replace takes only {', '.join(known)}; got {name!r}")
        values = self.arguments()
        if "theta" in changes or "mean_reward" in changes:
            values |= {"theta": None, "mean_reward": None}
        return Problem(**(values | changes))

    def to_pandas(self) -> Any:
        """Return a DataFrame of mean rewards, job classes by server classes; NaN where a pair is not eligible."""
        return data_frame(self._rewards(), index=list(self.job_names), columns=list(self.server_names))

    def plot(self, ax: Any = None) -> Any:
        """Draw the mean rewards as a heat map; return the Matplotlib axes."""
        return heat_map(self._rewards(), self.job_names, self.server_names, "mean reward", ax)

    def _rewards(self) -> Array:
        return self.mean_reward if self.eligible is None else np.where(self.eligible, self.mean_reward, np.nan)

    def _repr_html_(self) -> str:
        known, shown = (
            self._rewards(),
            (f"{n:g} {name}" for n, name in zip(self.servers, self.server_names, strict=True)),
        )
        facts = {
            "job classes": short_list(self.job_names), "servers": short_list(shown), "load": f"{self.load_factor:.3g}",
            "mean rewards": f"{np.nanmin(known):.4g} to {np.nanmax(known):.4g}",
            "features": f"{self.job_features.shape[1]} of jobs, {self.server_features.shape[1]} of servers",
        }  # fmt: skip
        return html_table("Problem", facts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Problem):
            return NotImplemented
        return all(np.array_equal(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))

    def __hash__(self) -> int:
        return hash((self.job_names, self.server_names, tuple(self.arrival_rate.tolist())))

    def __repr__(self) -> str:
        dimension = (self.job_features.shape[1], self.server_features.shape[1])
        return (
            f"Problem(job_classes={self.job_classes}, server_classes={self.server_classes}, dimension={dimension}, "
            f"servers={self.servers.sum():g}, traffic={self.traffic.sum():g})"
        )


def _locked(array: Array | BoolArray | None) -> Array | BoolArray | None:
    """Return a read-only C-ordered copy."""
    if array is None:
        return None
    copy = array.copy(order="C")
    copy.setflags(write=False)
    return copy
