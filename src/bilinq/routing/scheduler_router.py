"""The scheduler as a router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from bilinq.arrays import Array, positive, scalar
from bilinq.errors import BadInput
from bilinq.routing.router import FleetView, Router, WaitingJob
from bilinq.routing.scores import class_rewards
from bilinq.scheduler import JobClass, Scheduler, ServerClass

KNOWN = 1e6  # observations that a known mean counts for
SLOTS = 10.0  # slots in a mean duration for a policy, if `slot` is not given


@dataclass(init=False)
class SchedulerRouter(Router):
    """Drives `bilinq.Scheduler`: at every event, or slot by slot where a policy of slots is given.

    Jobs have the features of the workload, and server classes theirs. A policy of slots knows classes only: they have the
    mean features of their jobs, or one-hot features where there are none, and jobs of a class must have the same eligible
    servers.

    Parameters
    ----------
    target_wait : float
        How long jobs may wait on average, in the workload's time.
    slot : float, optional
        Time between two decisions; default: decide at every event, or for a policy every tenth of the mean duration.
    known_classes : bool
        Whether it knows the true mean rewards of classes and nothing else: a yardstick that sees all rewards.
    **settings
        Other arguments of `Scheduler`, such as `exploration`.
    """

    number = "target_wait"

    target_wait: float
    slot: float | None
    known_classes: bool
    settings: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        target_wait: float = 5.0,
        slot: float | None = None,
        known_classes: bool = False,
        settings: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.target_wait = scalar("target_wait", target_wait, positive)
        self.slot = None if slot is None else scalar("slot", slot, positive)
        self.known_classes = self.sees_rewards = known_classes
        self.settings = {**(settings or {}), **more} | ({"exploration": "none"} if known_classes else {})
        for name in self.settings.keys() & {"seed", "reward", "job_classes", "server_classes", "target_wait"}:
            raise BadInput(f"settings must not have {name!r}, which the workload or the replay determines")

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self.by_class = "policy" in self.settings
        self.interval = self.slot or (fleet.mean_duration / SLOTS if self.by_class else None)
        self._unit = self.interval or 1.0
        low, high = fleet.reward_range
        settings: dict[str, Any] = {"target_wait": self.target_wait / self._unit} | self.settings
        if {"V", "policy"} & self.settings.keys():
            del settings["target_wait"]
        self.scheduler = Scheduler(
            self._job_classes(fleet), self._server_classes(fleet), seed=int(rng.integers(2**31)),
            reward=(low, high) if low < high else (low - 1.0, high + 1.0), **settings,
        )  # fmt: skip
        if self.known_classes:
            mean = class_rewards(fleet)
            names = [(a, b) for a in fleet.job_classes for b in fleet.server_classes]
            self.scheduler.observe((*pair, value, KNOWN) for pair, value in zip(names, mean.ravel(), strict=True))
        self._column = {name: j for j, name in enumerate(fleet.server_classes)}
        self._out: set[int] = set()
        self._last, self._report = 0.0, dict[str, Any]()

    def _job_classes(self, fleet: FleetView) -> list[JobClass]:
        if not self.by_class:
            return [JobClass(name) for name in fleet.job_classes]
        if fleet.class_eligible is None:
            raise BadInput("jobs of one class must have the same eligible servers for a policy; make them classes")
        rows = zip(fleet.job_classes, _rows(fleet.class_features, fleet.job_classes), fleet.class_eligible, strict=True)
        return [
            JobClass(name, row, servers=None if some.all() else np.array(fleet.server_classes)[some].tolist())
            for name, row, some in rows
        ]

    def _server_classes(self, fleet: FleetView) -> list[ServerClass]:
        if self.by_class:
            rows = _rows(fleet.server_features, fleet.server_classes)
            return [ServerClass(name, row) for name, row in zip(fleet.server_classes, rows, strict=True)]
        features = fleet.server_features
        return [
            ServerClass(name, () if features is None else features[j]) for j, name in enumerate(fleet.server_classes)
        ]

    def arrive(self, job: WaitingJob) -> None:
        names, own = self.fleet.server_classes, {}
        if not self.by_class:
            self._advance(job.arrival)
            some = None if len(job.eligible) == len(names) else [names[j] for j in job.eligible]
            own = {"features": None if self.known_classes else job.features, "servers": some}
        self.scheduler.submit(self.fleet.job_classes[job.job_class], job=job.number, **own)  # type: ignore[arg-type]

    def _advance(self, now: float) -> None:
        if now > self._last:
            self.scheduler.advance((now - self._last) / self._unit)
            self._last = now

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        if not self.by_class:
            self._advance(now)
        tasks = self.scheduler.assign(dict(zip(self._column, idle, strict=True)), 1.0 if self.by_class else 0.0)
        pairs: list[tuple[int, int]] = [(task.job, self._column[task.server_class]) for task in tasks]  # type: ignore[misc]
        self._out.update(job for job, _ in pairs)
        return pairs

    def wake(self, now: float) -> float:
        pauses = [left for left in self.scheduler.paused.values() if left > 0.0]
        return now + min(pauses) * self._unit if pauses else inf

    def finish(self, job: WaitingJob, server: int, duration: float) -> None:
        self._report = {} if self.by_class else {"duration": duration / self._unit}

    def fail(self, job: WaitingJob, server: int) -> None:
        if not self.by_class:
            self._report = {"failed": True}

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        if self.known_classes:
            return
        names = self.fleet.job_classes[job.job_class], self.fleet.server_classes[server]
        self.scheduler.observe([(*names, reward) if self.by_class else (*names, reward, 1.0, job.features)])

    def again(self, job: WaitingJob) -> None:
        self._out.discard(job.number)
        self.scheduler.report(job.number, done=False, **self._report)

    def leave(self, job: WaitingJob) -> None:
        if job.number in self._out:
            self._out.discard(job.number)
            self.scheduler.report(job.number, done=True, **self._report)
        else:
            self.scheduler.cancel(job.number)

    def search_range(self, fleet: FleetView) -> tuple[float, float]:
        return 0.01 * fleet.mean_duration, 20.0 * fleet.mean_duration


def _rows(features: Array | None, names: tuple[str, ...]) -> Array:
    """Return a feature vector for each class; one-hot if there are none, zeros for a class without jobs."""
    return np.eye(len(names)) if features is None else np.nan_to_num(features)
