"""The scheduler that runs live, as a router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bilinq.arrays import Array, positive, scalar
from bilinq.errors import BadInput
from bilinq.routing.router import FleetView, Router, WaitingJob
from bilinq.scheduler import JobClass, Scheduler, ServerClass

SLOTS = 10.0  # slots in a mean duration, if `slot` is not given


@dataclass(init=False)
class SchedulerRouter(Router):
    """Drives `bilinq.Scheduler` slot by slot.

    Job classes have the mean features of their jobs, or one-hot features where there are none; so do server classes. Jobs of
    a class must have the same eligible servers.

    Parameters
    ----------
    target_wait : float
        How long jobs may wait for a good match at light load, in the workload's time.
    slot : float, optional
        Time between two decisions; default: a tenth of the workload's mean duration.
    **settings
        Other arguments of `Scheduler`, such as `exploration`.
    """

    number = "target_wait"

    target_wait: float
    slot: float | None
    settings: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        target_wait: float = 5.0,
        slot: float | None = None,
        settings: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.target_wait = scalar("target_wait", target_wait, positive)
        self.slot = None if slot is None else scalar("slot", slot, positive)
        self.settings = {**(settings or {}), **more}
        for name in self.settings.keys() & {"seed", "reward", "job_classes", "server_classes", "target_wait"}:
            raise BadInput(f"settings must not have {name!r}, which the workload or the replay determines")

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        if fleet.class_eligible is None:
            raise BadInput(
                "jobs of one class must have the same eligible servers for SchedulerRouter; make them classes"
            )
        self.interval = self.slot or fleet.mean_duration / SLOTS
        low, high = fleet.reward_range
        settings: dict[str, Any] = {"target_wait": self.target_wait / self.interval} | self.settings
        if {"V", "policy"} & self.settings.keys():
            del settings["target_wait"]
        jobs = zip(fleet.job_classes, _rows(fleet.class_features, fleet.job_classes), fleet.class_eligible, strict=True)
        servers = zip(fleet.server_classes, _rows(fleet.server_features, fleet.server_classes), strict=True)
        self.scheduler = Scheduler(
            [
                JobClass(name, row, servers=None if some.all() else np.array(fleet.server_classes)[some].tolist())
                for name, row, some in jobs
            ],
            [ServerClass(name, row) for name, row in servers],
            reward=(low, high) if low < high else (low - 1.0, high + 1.0), seed=int(rng.integers(2**31)), **settings,
        )  # fmt: skip
        self._column = {name: j for j, name in enumerate(fleet.server_classes)}
        self._out: set[int] = set()

    def arrive(self, job: WaitingJob) -> None:
        self.scheduler.submit(self.fleet.job_classes[job.job_class], job=job.number)

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        tasks = self.scheduler.assign(dict(zip(self._column, idle, strict=True)))
        pairs: list[tuple[int, int]] = [(task.job, self._column[task.server_class]) for task in tasks]  # type: ignore[misc]
        self._out.update(job for job, _ in pairs)
        return pairs

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        names = self.fleet.job_classes[job.job_class], self.fleet.server_classes[server]
        self.scheduler.observe([(*names, reward)])

    def again(self, job: WaitingJob) -> None:
        self._out.discard(job.number)
        self.scheduler.report(job.number, done=False)

    def leave(self, job: WaitingJob) -> None:
        if job.number in self._out:
            self._out.discard(job.number)
            self.scheduler.report(job.number, done=True)
        else:
            self.scheduler.cancel(job.number)

    def search_range(self, fleet: FleetView) -> tuple[float, float]:
        return 0.01 * fleet.mean_duration, 20.0 * fleet.mean_duration


def _rows(features: Array | None, names: tuple[str, ...]) -> Array:
    """Return a feature vector for each class; one-hot if there are none, zeros for a class without jobs."""
    return np.eye(len(names)) if features is None else np.nan_to_num(features)
