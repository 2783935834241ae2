"""Monitoring of the shards by the process that started them: their reports, replaced shards, and shards that are gone."""

import time
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import numpy as np

from bilinq.arrays import Array
from bilinq.distributed.on_ray.shards import JobReport, Report
from bilinq.errors import BilinqError

PERIOD = 0.1  # seconds between two polls of the shards
GATHER_SECONDS = 5.0
"""Seconds that collecting the rates of all job shards may take; otherwise that is tried again later."""
START_SECONDS = 120.0  # seconds that shards may take to start; Ray starts a process for each


class ShardName(NamedTuple):
    """Which shard: of job nodes or of server nodes, counted from zero."""

    nodes: Literal["job", "server"]
    number: int

    def __str__(self) -> str:
        return f"{self.nodes} shard {self.number}"


class Monitor:
    """Asks every shard for a report, again as soon as it has answered, and never waits for a particular one.

    `hosts` are the actors of the shards, `contents` the class and the arguments of each for `Host.begin`; `patience` is
    the number of seconds without an answer after which a shard counts as gone.
    """

    def __init__(
        self, ray: Any, hosts: dict[ShardName, Any], contents: dict[ShardName, tuple[Any, ...]], patience: float
    ) -> None:
        self._ray, self._hosts, self._contents, self._patience = ray, hosts, contents, patience
        self._asked: dict[Any, tuple[ShardName, frozenset[ShardName]]] = {}
        self._empty = set(hosts)
        self._heard = dict.fromkeys(hosts, time.monotonic())
        self._replaced: list[JobReport] = []
        self._current: set[ShardName] = set()
        self.reports: dict[ShardName, Report] = {}
        self.gone: frozenset[ShardName] = frozenset()
        self.restarts: Counter[str] = Counter()

    def start(self) -> None:
        """Wait until all shards have reported once; raise `BilinqError` if one cannot start or runs another bilinq."""
        deadline, limit = time.monotonic() + START_SECONDS, f"{START_SECONDS:g} s"
        while missing := self._hosts.keys() - self.reports.keys():
            if time.monotonic() > deadline:
                raise BilinqError(f"{min(missing)} has not started within {limit}; are there nodes that can run it?")
            self._collect(PERIOD, starting=True)
        for name, report in self.reports.items():
            if report.bilinq != version("bilinq"):
                raise BilinqError(f"{name} runs bilinq {report.bilinq}; install {version('bilinq')} on every node")
        self._heard = dict.fromkeys(self._hosts, time.monotonic())

    def poll(self) -> None:
        """Collect reports for one period, and update which shards are gone."""
        until = time.monotonic() + PERIOD
        self._collect(PERIOD)
        self._drop_silent()
        time.sleep(max(until - time.monotonic(), 0.0))

    def present(self, nodes: Literal["job", "server"]) -> list[ShardName]:
        """Return the shards of one kind that take part, in order."""
        return sorted(name for name in self._hosts.keys() - self.gone if name.nodes == nodes)

    def gap(self) -> float:
        """Return the sum of the job shards' parts in the bound, Eq. (45); infinite until all know which shards are gone."""
        reports = self._job_reports(self.present("job"))
        return sum(report.gap if name in self._current else np.inf for name, report in reports)

    def totals(self) -> tuple[int, int, int]:
        """Return the local iterations, answered messages and bytes of all job shards, replaced ones included."""
        reports = [*self._replaced, *(report for _, report in self._job_reports(self.reports))]
        return sum(r.iterations for r in reports), sum(r.answers for r in reports), sum(r.bytes for r in reports)

    def round_trips(self) -> Array:
        """Return the median round trips in seconds, (job shards, server shards)."""
        return np.array([report.round_trip for _, report in sorted(self._job_reports(self.reports))])

    def rates(self) -> list[Array] | None:
        """Return the rates of the job shards that take part, or None if one does not answer now."""
        calls = [self._hosts[name].ask.remote("rates") for name in self.present("job")]
        try:
            found = list(self._ray.get(calls, timeout=min(self._patience, GATHER_SECONDS)))
            return None if any(rates is None for rates in found) else found
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            return None

    def _job_reports(self, names: Iterable[ShardName]) -> list[tuple[ShardName, JobReport]]:
        return [(name, report) for name in names if isinstance(report := self.reports[name], JobReport)]

    def _collect(self, timeout: float, starting: bool = False) -> None:
        """Ask the shards that have answered again, and store the reports that arrive within `timeout` seconds."""
        waiting = {name for name, _ in self._asked.values()}
        for name in self._hosts.keys() - self.gone - waiting:
            self._asked[self._ask(name)] = name, self.gone
        ready, _ = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=timeout)
        for call in ready:
            name, gone = self._asked.pop(call)
            try:
                self._store(name, self._ray.get(call), gone)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._ray.exceptions.RayActorError as error:  # it may be back soon, with or without its shard
                if starting and isinstance(error, self._ray.exceptions.ActorDiedError):
                    raise BilinqError(f"{name} did not start; is bilinq installed on every node? {error}") from None

    def _ask(self, name: ShardName) -> Any:
        """Ask a shard for a report, and send it which others are gone; if its host is empty, create the shard first."""
        others = [other.number for other in self.gone if other.nodes != name.nodes]
        if name not in self._empty:
            return self._hosts[name].ask.remote("report", others)
        self._empty.remove(name)
        return self._hosts[name].begin.remote(others, *self._contents[name])

    def _store(self, name: ShardName, report: Report | None, gone: frozenset[ShardName]) -> None:
        """Store a report that was asked for when these shards were `gone`."""
        if report is None:
            self._empty.add(name)
            return
        before = self.reports.get(name)
        if before is not None and before.pid != report.pid:
            self.restarts[str(name)] += 1
            if isinstance(before, JobReport):
                self._replaced.append(before)
        self.reports[name], self._heard[name] = report, time.monotonic()
        if gone == self.gone:
            self._current.add(name)

    def _drop_silent(self) -> None:
        """Count as gone what has been silent for too long: to us, or (a server shard) to a job shard that answers us."""
        now = time.monotonic()
        silent = {name for name in self._hosts.keys() - self.gone if now - self._heard[name] > self._patience}
        for _, report in self._job_reports(name for name in self.present("job") if name not in silent):
            silent |= {ShardName("server", k) for k in np.flatnonzero(report.silence > self._patience).tolist()}
        if silent - self.gone:
            self.gone |= silent
            self._current = set()
            self._asked = {call: about for call, about in self._asked.items() if about[0] not in self.gone}
