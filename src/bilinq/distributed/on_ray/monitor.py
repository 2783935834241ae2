"""The one who started the shards watches them: who answers, who was replaced, who stays away, and what they report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import numpy as np

from bilinq.arrays import Array
from bilinq.distributed.on_ray.shards import JobReport, Report
from bilinq.errors import BilinqError

PERIOD = 0.1
"""Seconds between two looks at the shards."""
GATHER = 5.0
"""Seconds that the rates of all job shards may take to come together; else that is tried again later."""
START = 120.0
"""Seconds that shards may take to start; Ray starts a process for each."""


class Name(NamedTuple):
    """Which shard: of job nodes or of server nodes, counted from zero."""

    nodes: Literal["job", "server"]
    number: int

    def __str__(self) -> str:
        return f"{self.nodes} shard {self.number}"


@dataclass(frozen=True)
class Totals:
    """Local iterations, answered messages and their bytes over all job shards, replaced ones included."""

    iterations: int
    answers: int
    bytes: int


class Watch:
    """Asks every shard for a report, again as soon as it has answered, and never waits for one in particular.

    Parameters
    ----------
    ray : module
        Connected.
    hosts : dict of actors
        By the name of the shard that they host.
    contents : dict of tuples
        What each shard is made of: its class and arguments, for `Host.begin`.
    away : float
        Seconds without an answer after which a shard counts as gone.
    """

    def __init__(self, ray: Any, hosts: dict[Name, Any], contents: dict[Name, tuple[Any, ...]], away: float) -> None:
        self._ray, self._hosts, self._contents, self._away = ray, hosts, contents, away
        self._asked: dict[Any, tuple[Name, frozenset[Name]]] = {}
        self._empty = set(hosts)
        self._heard = dict.fromkeys(hosts, time.monotonic())
        self._past: list[JobReport] = []
        self._current: set[Name] = set()
        self.reports: dict[Name, Report] = {}
        self.gone: frozenset[Name] = frozenset()
        self.restarts: Counter[str] = Counter()

    def start(self) -> None:
        """Wait until all shards have reported once.

        Raises
        ------
        BilinqError
            If one cannot start, or runs another version of bilinq.
        """
        deadline = time.monotonic() + START
        while missing := self._hosts.keys() - self.reports.keys():
            if time.monotonic() > deadline:
                raise BilinqError(
                    f"{min(missing)} has not started within {START:g} s; are there nodes that can run it?"
                )
            self._look(PERIOD, starting=True)
        for name, report in self.reports.items():
            if report.bilinq != version("bilinq"):
                raise BilinqError(f"{name} runs bilinq {report.bilinq}; install {version('bilinq')} on every node")
        self._heard = dict.fromkeys(self._hosts, time.monotonic())

    def look(self) -> None:
        """Take in what has been reported within a moment, and see who stays away."""
        until = time.monotonic() + PERIOD
        self._look(PERIOD)
        self._judge()
        time.sleep(max(until - time.monotonic(), 0.0))

    def present(self, nodes: Literal["job", "server"]) -> list[int]:
        """Return the shards of one kind that take part, in order."""
        return sorted(name.number for name in self._hosts.keys() - self.gone if name.nodes == nodes)

    def gap(self) -> float:
        """Return the sum of what the job shards report of the bound, Eq. (45); infinite until all know who is gone."""
        jobs = [Name("job", k) for k in self.present("job")]
        return sum(r.gap if name in self._current else np.inf for name, r in self._jobs(jobs))

    def totals(self) -> Totals:
        """Return what the job shards did."""
        reports = [*self._past, *(report for _, report in self._jobs(self.reports))]
        return Totals(*(sum(getattr(r, field) for r in reports) for field in Totals.__annotations__))

    def round_trips(self) -> Array:
        """Return the median round trips in seconds, (job shards, server shards)."""
        return np.array([report.round_trip for _, report in sorted(self._jobs(self.reports))])

    def rates(self) -> list[Array] | None:
        """Return the rates of the job shards that take part, or nothing if one does not answer now."""
        calls = [self._hosts[Name("job", k)].ask.remote("rates") for k in self.present("job")]
        try:
            found = list(self._ray.get(calls, timeout=min(self._away, GATHER)))
            return None if any(block is None for block in found) else found
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            return None

    def _jobs(self, names: Iterable[Name]) -> list[tuple[Name, JobReport]]:
        return [(name, report) for name in names if isinstance(report := self.reports[name], JobReport)]

    def _look(self, timeout: float, starting: bool = False) -> None:
        """Ask those who have answered, and take in what comes within `timeout` seconds."""
        waiting = {name for name, _ in self._asked.values()}
        for name in self._hosts.keys() - self.gone - waiting:
            self._asked[self._ask(name)] = name, self.gone
        ready, _ = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=timeout)
        for call in ready:
            name, gone = self._asked.pop(call)
            try:
                self._note(name, self._ray.get(call), gone)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._ray.exceptions.RayActorError as error:  # it may be there again soon, with or without its shard
                if starting and isinstance(error, self._ray.exceptions.ActorDiedError):
                    raise BilinqError(f"{name} did not start; is bilinq installed on every node? {error}") from None

    def _ask(self, name: Name) -> Any:
        """Ask a shard for a report and tell it who of the others is gone; if its host is empty, make the shard first."""
        others = [other.number for other in self.gone if other.nodes != name.nodes]
        if name not in self._empty:
            return self._hosts[name].ask.remote("report", others)
        self._empty.remove(name)
        return self._hosts[name].begin.remote(others, *self._contents[name])

    def _note(self, name: Name, report: Report | None, gone: frozenset[Name]) -> None:
        """Keep a report that was asked for when so many were `gone`."""
        if report is None:
            self._empty.add(name)
            return
        before = self.reports.get(name)
        if before is not None and before.pid != report.pid:
            self.restarts[str(name)] += 1
            if isinstance(before, JobReport):
                self._past.append(before)
        self.reports[name], self._heard[name] = report, time.monotonic()
        if gone == self.gone:
            self._current.add(name)

    def _judge(self) -> None:
        """See who has been silent for too long: to us, or (a server shard) to a job shard that answers us."""
        now = time.monotonic()
        silent = {name for name in self._hosts.keys() - self.gone if now - self._heard[name] > self._away}
        jobs = [Name("job", k) for k in self.present("job")]
        for _, report in self._jobs(name for name in jobs if name not in silent):
            silent |= {Name("server", k) for k in np.flatnonzero(report.silence > self._away).tolist()}
        if silent - self.gone:
            self.gone |= silent
            self._current = set()
            self._asked = {call: about for call, about in self._asked.items() if about[0] not in self.gone}
