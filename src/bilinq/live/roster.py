"""Who takes part: the classes, and the policy that serves them. A roster never changes; a change is another roster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from bilinq.arrays import short
from bilinq.errors import BadInput
from bilinq.instances import Instances
from bilinq.live.classes import JobClass, ServerClass, by_name, instances_of
from bilinq.live.knobs import Knobs
from bilinq.policies import KnownRewards, Policy, Sabr


@dataclass(frozen=True)
class Roster:
    """Classes in the order of rows and columns, with knobs for the default policy or a policy of the caller's own."""

    job_classes: tuple[JobClass, ...]
    server_classes: tuple[ServerClass, ...]
    knobs: Knobs | None
    given: Policy | None = None

    def __post_init__(self) -> None:
        by_name("job_classes", self.job_classes)
        by_name("server_classes", self.server_classes)
        assert self.policy is not None  # refuses weights that do not fit

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
        """The classes as a policy sees them."""
        return instances_of(self.job_classes, self.server_classes)

    @cached_property
    def policy(self) -> Policy:
        """The policy, with the weights of the classes if it knows weights."""
        weight = [one.weight for one in self.job_classes]
        if self.knobs is not None:
            return self.knobs.policy(weight)
        assert self.given is not None
        if isinstance(self.given, Sabr | KnownRewards):
            return replace(self.given, weight=weight)
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
