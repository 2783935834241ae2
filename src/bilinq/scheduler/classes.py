"""Job classes, server classes, rewards and settings of a scheduler."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, BoolArray, finite, one_of, positive, scalar, short
from bilinq.errors import BadInput, NoEligibleServer
from bilinq.problem.instances import Instances

if TYPE_CHECKING:
    from bilinq.policies import Policy


@dataclass(frozen=True)
class JobClass:
    """A kind of job: its name, features (d1,), weight, and the names of the server classes that may serve it.

    The weight is its priority against the other classes. Every server class may serve it if `servers` is None. Names of
    server classes that are not there, or not yet, are allowed; a class with no other waits, with a warning.
    """

    name: str
    features: tuple[float, ...]
    weight: float = 1.0
    servers: tuple[str, ...] | None = None

    def __init__(
        self, name: str, features: ArrayLike = (), weight: float = 1.0, servers: Sequence[str] | None = None
    ) -> None:
        object.__setattr__(self, "name", _name(name))
        object.__setattr__(self, "features", _features(name, features))
        object.__setattr__(self, "weight", scalar(f"weight of {name}", weight, positive))
        if isinstance(servers, str) or (servers is not None and not servers):
            raise BadInput(f"servers of {name} must be a list of names, or None for all; got {short(servers)}")
        object.__setattr__(self, "servers", None if servers is None else tuple(_name(one) for one in servers))


@dataclass(frozen=True)
class ServerClass:
    """A kind of server: its name and features (d2,)."""

    name: str
    features: tuple[float, ...]

    def __init__(self, name: str, features: ArrayLike = ()) -> None:
        object.__setattr__(self, "name", _name(name))
        object.__setattr__(self, "features", _features(name, features))


Class = TypeVar("Class", JobClass, ServerClass)


def check_classes(argument: str, classes: Sequence[JobClass] | Sequence[ServerClass]) -> None:
    """Raise unless there is at least one class, names are unique, and features have one length."""
    names = [one.name for one in classes]
    if not names:
        raise BadInput(f"{argument} must contain at least one class; got none")
    if len(set(names)) < len(names):
        raise BadInput(f"{argument} must have unique names; got {short(names)}")
    lengths = {len(one.features) for one in classes}
    if len(lengths) > 1:
        raise BadInput(f"{argument} must have features of one length; got {short(sorted(lengths))}")


@dataclass(frozen=True)
class RewardRange:
    """The smallest and the largest reward in the user's units, which policies see as -1 and 1."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        low, high = scalar("reward.low", self.low), scalar("reward.high", self.high)
        if not (low < high and np.isfinite(2.0 * (high - low))):
            raise BadInput(f"reward.low must be below reward.high; got {low:g} and {high:g}")

    def scaled(self, reward: float) -> float:
        """Return a reward scaled to [-1, 1], or raise if it is outside the range."""
        value = reward if type(reward) is float and isfinite(reward) else scalar("reward", reward)
        if not self.low <= value <= self.high:
            rule = f"reward must be from {self.low:g} to {self.high:g}, the declared range; got {value:g}"
            raise BadInput(f"{rule}; declare a range that contains every reward, or scale the reward")
        return min(max((value - self.middle) / self.unit, -1.0), 1.0)

    def unscaled(self, value: Array) -> Array:
        """Return means in [-1, 1] in the user's units."""
        return np.asarray(self.middle + self.unit * value)

    @cached_property
    def middle(self) -> float:
        """The reward that policies see as zero."""
        return 0.5 * (self.low + self.high)

    @cached_property
    def unit(self) -> float:
        """The reward, above the middle, that policies see as one."""
        return 0.5 * (self.high - self.low)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise BadInput(f"name of a class must be printable text; got {short(value)}")
    return value


def _features(name: str, value: ArrayLike) -> tuple[float, ...]:
    array = finite(f"features of {name}", value)
    if array.ndim != 1:
        raise BadInput(f"features of {name} must be a list of numbers; got shape {array.shape}")
    return tuple(array.tolist())


def _feature_rows(classes: Sequence[JobClass] | Sequence[ServerClass]) -> Array:
    """Return the features of classes (1, n, d); one-hot for classes without any."""
    rows = np.array([[one.features for one in classes]], dtype=np.float64)
    return rows if rows.size else np.eye(len(classes))[None]


Exploration = Literal["thompson", "ucb", "none"]


@dataclass(frozen=True)
class PolicySettings:
    """Settings of a policy that can change while it runs; `Scheduler` explains them."""

    target_wait: float | None = None
    V: float | None = None
    work_conserving: bool = False
    exploration: Exploration = "thompson"
    gamma: float = 1.2

    def __post_init__(self) -> None:
        if not isinstance(self.work_conserving, bool):
            raise BadInput(f"work_conserving must be true or false; got {self.work_conserving!r}")

    @classmethod
    def of(cls, policy: Policy) -> PolicySettings | None:
        """Return the settings of a policy; None if it has none that can change."""
        return cls(**{name: getattr(policy, name) for name in policy.adjustable}) if policy.adjustable else None


@dataclass(frozen=True)
class LookAheadSettings:
    """Settings of the default scheduler that can change while it runs; `Scheduler` explains them."""

    target_wait: float | None = None
    percentile: float | None = None
    V: float | None = None
    work_conserving: bool = False
    exploration: Exploration = "thompson"

    def __post_init__(self) -> None:
        if self.V is not None and (self.target_wait is not None or self.percentile is not None):
            raise BadInput("V and target_wait exclude each other; give at most one of them")
        for name in ("target_wait", "V"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, scalar(name, getattr(self, name), positive))
        if self.percentile is not None and not 0.0 < scalar("percentile", self.percentile) < 1.0:
            raise BadInput(f"percentile must be between 0 and 1, such as 0.95; got {self.percentile:g}")
        if not isinstance(self.work_conserving, bool):
            raise BadInput(f"work_conserving must be true or false; got {self.work_conserving!r}")
        one_of("exploration", self.exploration, ("thompson", "ucb", "none"))


@dataclass(frozen=True)
class Roster:
    """Classes in the order of rows and columns, with a policy that does not know their weights; None: the default."""

    job_classes: tuple[JobClass, ...]
    server_classes: tuple[ServerClass, ...]
    given: Policy | None = None

    def __post_init__(self) -> None:
        check_classes("job_classes", self.job_classes)
        check_classes("server_classes", self.server_classes)
        if self.given is None:
            return
        assert self.policy is not None  # raises if the weights do not fit the policy
        if self.eligible is not None and self.policy.rows == "job":
            raise BadInput(f"servers of job classes must be None for {self.policy!r}, whose rows are jobs")
        if self.policy.needs_horizon:
            raise BadInput(
                f"horizon must be given for {self.given!r}: its radius is for a known number of slots, not for a fleet"
            )

    def updated(self, **settings: Any) -> Roster:
        """Return the roster with other settings of its policy; None stays, `target_wait` and `V` replace each other."""
        assert self.given is not None
        changes = {name: value for name, value in settings.items() if value is not None}
        for name in changes:
            if name not in self.given.adjustable:
                raise BadInput(f"{name} is not a setting of {self.given!r} that can change while it runs")
        if changes.keys() & {"target_wait", "V"}:
            changes = dict.fromkeys({"target_wait", "V"} & set(self.given.adjustable)) | changes
        roster = replace(self, given=replace(self.given, **changes))  # type: ignore[type-var]
        PolicySettings.of(roster.policy)  # raises if a value has the wrong type
        return roster

    @cached_property
    def jobs(self) -> dict[str, int]:
        """The row of each job class."""
        return {one.name: k for k, one in enumerate(self.job_classes)}

    @cached_property
    def servers(self) -> dict[str, int]:
        """The column of each server class."""
        return {one.name: k for k, one in enumerate(self.server_classes)}

    @cached_property
    def instances(self) -> Instances:
        """The classes as one replication for a policy; rewards and rates, which are unknown, are zero and one."""
        u, v = (_feature_rows(some) for some in (self.job_classes, self.server_classes))
        pairs, rows = np.zeros((1, u.shape[1], v.shape[1])), np.ones((1, u.shape[1]))
        noise = pairs + 0.5
        return Instances(u, v, pairs, 0.0 * rows, rows, np.ones((1, v.shape[1])), noise, rows, eligible=self.eligible)

    @cached_property
    def eligible(self) -> BoolArray | None:
        """Which server class may serve which job class (1, I, J); None if each may serve all."""
        if all(one.servers is None for one in self.job_classes):
            return None
        servers = [tuple(self.servers) if one.servers is None else one.servers for one in self.job_classes]
        return np.array([[[name in some for name in self.servers] for some in servers]])

    def warn_unserved(self) -> None:
        """Warn about job classes whose eligible server classes are not there."""
        if self.eligible is not None and not self.eligible.any(axis=2).all():
            names = [one.name for one, some in zip(self.job_classes, self.eligible[0], strict=True) if not some.any()]
            warnings.warn(
                f"no server class may serve the jobs of {', '.join(names)}, so they wait; add one of their servers",
                NoEligibleServer, stacklevel=3,
            )  # fmt: skip

    @cached_property
    def policy(self) -> Policy:
        """The policy, with the weights of the classes if it takes weights."""
        assert self.given is not None
        weight = [one.weight for one in self.job_classes]
        if self.given.takes_weights:
            return replace(self.given, weight=weight)  # type: ignore[type-var]
        if any(value != 1.0 for value in weight):
            raise BadInput(f"weight must be 1 for a policy without weights; got {short(weight)} for {self.given!r}")
        return self.given

    def row(self, job_class: str) -> int:
        """Return the row of a job class."""
        if job_class not in self.jobs:
            raise BadInput(f"job_class must be one of {short(list(self.jobs))}; got {short(job_class)}")
        return self.jobs[job_class]

    def column(self, server_class: str) -> int:
        """Return the column of a server class."""
        if server_class not in self.servers:
            raise BadInput(f"server_class must be one of {short(list(self.servers))}; got {short(server_class)}")
        return self.servers[server_class]
