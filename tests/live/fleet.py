"""A fleet of simulated servers at a real service: the same jobs under two policies, and what each of them earns.

Jobs come and servers work in rounds: in each, one call submits what came and one ends leases and asks for others. The
fleet's clock stands still during a call, so that a busy machine makes a run slower but nobody's wait longer.

`python tests/live/fleet.py [paper | gpus] [REPLICATIONS] [ROUNDS]` prints a table.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest
import uvloop
from scipy import stats
from virtual import Clock, Served, serving, virtual_time

from bilinq import Problem
from bilinq.arrays import Array, IntArray
from bilinq.live.settings import RewardBounds
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo
from bilinq.traces import gpu_table

SABR: dict[str, Any] = {"policy": "sabr", "work_conserving": True}
FIRST_COME: dict[str, Any] = {"policy": "first-come"}
MAY_IDLE: dict[str, Any] = {"policy": "sabr", "target_wait": 20.0}
BATCHES = 5
"""Parts of a run that count as independent: queues empty many times in each."""


@dataclass(frozen=True)
class Fleet:
    """A problem, and the range of rewards that is declared."""

    problem: Problem
    low: float
    high: float

    @property
    def settings(self) -> dict[str, Any]:
        """The problem's classes as settings of a service; a slot is a round, which is a second."""
        one = self.problem
        return {
            "slot": 1.0, "lease": 3600.0, "reward": RewardBounds(self.low, self.high),
            "job_class": tuple(map(JobClassInfo, one.job_names, one.job_features.tolist())),
            "server_class": tuple(map(ServerClassInfo, one.server_names, one.server_features.tolist())),
        }  # fmt: skip


def paper() -> Fleet:
    """Return the paper's synthetic instance as in the README, at half load so that some jobs wait for any server."""
    return Fleet(Problem.synthetic(traffic=2.0, service_rate=0.5, seed=7), low=-1.0, high=1.0)


def gpus() -> Fleet:
    """Return twelve GPUs of three kinds that serve 26 kinds of jobs at a load of 0.8."""
    return Fleet(gpu_table(load=0.8, service_rate=0.25), low=0.0, high=1.5)


class Jobs(NamedTuple):
    """What comes, the same under every policy: round and class of each job (N,), and its reward at each server class (N, J).

    `rounds` (N,) belongs to services in the order in which they begin, since their lengths depend on neither job nor server.
    So policies under which no server idles while a job waits have the same queue in every round, and the same mean wait.
    """

    at: IntArray
    job_class: IntArray
    rounds: IntArray
    reward: Array


class Run(NamedTuple):
    """What a service made of it: rounds that each job waited (N,), and what it earned (N,)."""

    wait: Array
    reward: Array


class Interval(NamedTuple):
    """A mean, and how far it may be off."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.half:.4f}"

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half


def draw(fleet: Fleet, rounds: int, seed: int) -> Jobs:
    """Return Poisson arrivals in each round, with geometric service times and noisy rewards within the range."""
    rng, problem = np.random.default_rng(seed), fleet.problem
    came = rng.poisson(problem.arrival_rate, (rounds, len(problem.arrival_rate)))
    at, job_class = (np.repeat(axis, came.ravel()) for axis in np.indices(came.shape).reshape(2, -1))
    n = len(at)
    noise = problem.noise[job_class] * rng.standard_normal((n, 1))
    reward = np.clip(problem.mean_reward[job_class] + noise, fleet.low, fleet.high)
    return Jobs(at, job_class, rng.geometric(problem.service_rate[job_class]), reward)


class Servers:
    """The servers of a fleet, and what each of them does; time is counted in rounds."""

    def __init__(self, jobs: Jobs, column: dict[str, int]) -> None:
        self._jobs, self._column = jobs, column
        self._busy: dict[str, tuple[int, Any]] = {}
        self._begun = 0
        self.run = Run(np.full(len(jobs.at), np.nan), np.full(len(jobs.at), np.nan))

    def idle(self) -> list[str]:
        """Return the servers that have no job."""
        return [name for name in self._column if name not in self._busy]

    def ended(self, now: int) -> list[dict[str, Any]]:
        """Return the leases that end in this round, with what they earn."""
        ends = [(server, lease) for server, (end, lease) in self._busy.items() if end <= now]
        for server, _ in ends:
            del self._busy[server]
        return [
            {"lease": one["lease"], "fence": one["fence"], "reward": self._reward(server, one["job"]["payload"])}
            for server, one in ends
        ]

    def begin(self, now: int, leases: Sequence[Any]) -> None:
        """Let servers begin with the jobs that they got."""
        for lease in leases:
            k = lease["job"]["payload"]
            self._busy[lease["server"]] = now + int(self._jobs.rounds[self._begun]), lease
            self._begun += 1
            assert np.isnan(self.run.wait[k]), "no job is served twice"
            self.run.wait[k] = now - self._jobs.at[k]

    def _reward(self, server: str, k: int) -> float:
        self.run.reward[k] = self._jobs.reward[k, self._column[server]]
        return float(self.run.reward[k])


class Session:
    """A service at work: in each round jobs come to it and servers ask it for work."""

    def __init__(self, fleet: Fleet, jobs: Jobs, served: Served) -> None:
        self._problem, self._jobs, self._served = fleet.problem, jobs, served
        self._done = 0

    async def register(self) -> None:
        """Register all servers."""
        problem, columns = self._problem, dict[str, int]()
        for column in (column for column, number in enumerate(problem.servers) for _ in range(int(number))):
            answer = await self._served.ask("POST", "/v1/servers", {"class": problem.server_names[column]})
            columns[answer["id"]] = column
        self._servers = Servers(self._jobs, columns)

    async def step(self, now: int) -> bool:
        """Run one round; return whether a job is left."""
        names, came = self._problem.job_names, np.flatnonzero(self._jobs.at == now).tolist()
        if came:
            new = [{"class": names[self._jobs.job_class[k]], "payload": k} for k in came]
            await self._served.ask("POST", "/v1/jobs", {"jobs": new})
        body = {"finish": self._servers.ended(now), "lease": self._servers.idle()}
        worked = await self._served.ask("POST", "/v1/work", body)
        assert all(one["state"] == "done" for one in worked["finished"])
        self._servers.begin(now, worked["leases"])
        self._done += len(worked["finished"])
        return self._done < len(self._jobs.at)

    async def end(self) -> Run:
        """Return what came of it."""
        state = await self._served.ask("GET", "/v1/state")
        assert state["reward_total"] == pytest.approx(self._servers.run.reward.sum()), (
            "the service has counted the same"
        )
        return self._servers.run


async def run_rounds(clock: Clock, sessions: Sequence[Any]) -> None:
    """Let sessions register their servers and then run, side by side and round by round, until no job is left."""
    await asyncio.gather(*(one.register() for one in sessions))
    left, now = list(sessions), 0
    while left:
        clock.seconds = float(now)
        goes_on = await asyncio.gather(*(one.step(now) for one in left))
        left, now = [one for one, more in zip(left, goes_on, strict=True) if more], now + 1


def compare(
    fleet: Fleet, folder: Path, policies: Sequence[Mapping[str, Any]], *, replications: int, rounds: int, seed: int = 1
) -> list[list[Run]]:
    """Return the runs of each policy, on the same jobs; each run has a service and a database of its own."""
    drawn = [draw(fleet, rounds, seed + k) for k in range(replications)]

    async def work() -> list[Run]:
        async with AsyncExitStack() as stack:
            sessions = []
            for number, policy in enumerate(policies):
                for k, jobs in enumerate(drawn):
                    own = {"database": f"sqlite:///{folder}/{number}-{k}.db", "seed": 100 * number + k}
                    served = await stack.enter_async_context(serving(**fleet.settings, **policy, **own))
                    sessions.append(Session(fleet, jobs, served))
            await run_rounds(clock, sessions)
            return [await one.end() for one in sessions]

    with virtual_time() as clock:
        found = uvloop.run(work())
    return [found[number * replications :][:replications] for number in range(len(policies))]


def difference(ones: Sequence[Run], others: Sequence[Run], what: str, confidence: float) -> Interval:
    """Return how much more `ones` have of `what` per job than `others`, with a two-sided Student interval over batches."""
    parts: list[float] = []
    for one, other in zip(ones, others, strict=True):
        paired = np.asarray(getattr(one, what) - getattr(other, what))
        parts += [float(part.mean()) for part in np.array_split(paired, BATCHES)]
    half = stats.t.ppf(0.5 + 0.5 * confidence, len(parts) - 1) * np.std(parts, ddof=1) / np.sqrt(len(parts))
    return Interval(float(np.mean(parts)), float(half))


def mean(runs: Sequence[Run], what: str) -> float:
    """Return the mean per job."""
    return float(np.concatenate([getattr(run, what) for run in runs]).mean())


def main(name: str = "paper", replications: str = "3", rounds: str = "300") -> None:
    """Compare SABR with first come, first served, and print what came of it."""
    fleets: dict[str, Any] = {"paper": paper, "gpus": gpus}
    with TemporaryDirectory() as folder:
        runs = compare(
            fleets[name](), Path(folder), [SABR, FIRST_COME], replications=int(replications), rounds=int(rounds)
        )
    print(f"{sum(len(run.wait) for run in runs[0])} jobs under each policy; intervals of 90 %")
    for what in ("reward", "wait"):
        told = difference(runs[0], runs[1], what, 0.9)
        print(f"{what}: SABR {mean(runs[0], what):.4f}, first come {mean(runs[1], what):.4f}, difference {told}")


if __name__ == "__main__":
    main(*sys.argv[1:])
