"""A fleet that changes, at real services in virtual rounds: what policies make of the same jobs.

Jobs have features, on which rewards and durations at each server class depend. One server fails every job at once for a
while, a server class is replaced half-way, and rewards come some rounds after a job has ended, or never.

`python tests/live/changing_fleet.py [SEEDS] [ROUNDS]` prints a table.
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import uvloop
from fleet import Interval, run_rounds
from scipy import stats
from virtual import Served, serving, virtual_time

from bilinq.arrays import Array, IntArray
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo

JOBS = {"chat": (0.8, 0.2, 0.0), "code": (-0.6, 0.6, 0.3), "vision": (0.0, -0.8, -0.3)}
"""Mean features of each job class, which are known; those of single jobs are spread around them."""
SPREAD, NOISE = 0.6, 0.1


class Kind(NamedTuple):
    """A server class: its number of servers and mean rounds of a service, and how features change reward and duration."""

    servers: int
    rounds: float
    value: tuple[float, ...]
    slower: tuple[float, ...]


SERVERS = {
    "small": Kind(2, 3.0, (0.35, 0.25, 0.0), (0.0, 0.5, 0.0)),
    "large": Kind(2, 5.0, (-0.1, 0.3, -0.35), (0.0, 0.0, 0.3)),
    "tuned": Kind(2, 4.0, (0.0, -0.45, 0.3), (0.4, 0.0, 0.0)),
}
REPLACED, VALUE_AFTER = "tuned", (0.0, 0.4, -0.4)
"""The class that is replaced, by servers that are bad at what the others were good at."""
BROKEN = "small 0"
"""The server that fails everything in the second quarter."""
LOAD, LATEST, NEVER = 0.65, 20, 0.1
"""Part of the capacity that is used, most rounds until a reward comes, and part of the rewards that never come."""

POLICIES: dict[str, dict[str, Any]] = {
    "first come, first served": {"policy": "first-come"},
    "sabr": {"policy": "sabr", "target_wait": 0.75},
    "look-ahead": {"target_wait": 0.75},
}
BLIND = {"look-ahead, no features of jobs": {"target_wait": 0.75, "blind": True}}


class Jobs(NamedTuple):
    """What comes: round, class and features of each of N jobs; its reward before and after the change (2, N, J), the rounds
    of a service (N, J), and after how many more its reward comes (N,), -1 for never.
    """

    at: IntArray
    job_class: IntArray
    features: Array
    reward: Array
    rounds: IntArray
    late: IntArray


def draw(rounds: int, seed: int) -> Jobs:
    """Return the jobs that come in some rounds."""
    rng, kinds = np.random.default_rng(seed), SERVERS.values()
    at = np.repeat(np.arange(rounds), rng.poisson(LOAD * sum(one.servers / one.rounds for one in kinds), rounds))
    n = at.size
    job_class = rng.integers(0, len(JOBS), n)
    x = np.array([*JOBS.values()])[job_class] + SPREAD * rng.standard_normal((n, 3))
    value = np.stack([x @ np.array([one.value for one in kinds]).T] * 2)
    value[1, :, list(SERVERS).index(REPLACED)] = x @ np.array(VALUE_AFTER)
    reward = np.clip(0.5 + value + NOISE * rng.standard_normal((n, 1)), 0.0, 1.0)
    mean = np.array([one.rounds for one in kinds]) * np.exp(x @ np.array([one.slower for one in kinds]).T)
    took = np.maximum(np.rint(mean * rng.gamma(8.0, 1.0 / 8.0, (n, 1))), 1.0).astype(np.int64)
    late = np.where(rng.random(n) < NEVER, -1, rng.integers(1, LATEST + 1, n))
    return Jobs(at, job_class, x, reward, took, late)


class Result(NamedTuple):
    """Rounds that each job waited for the service that ended it (N,), its reward (N,), and how many jobs are dead."""

    wait: Array
    reward: Array
    dead: int


class Run:
    """A service with its fleet: jobs come, servers ask for work, and rewards arrive, round by round."""

    def __init__(self, served: Served, jobs: Jobs, rounds: int, features: bool) -> None:
        self._served, self._jobs, self._half, self._features = served, jobs, rounds // 2, features
        self._names: dict[str, str] = {}
        self._busy: dict[str, tuple[int, Any]] = {}
        self._late: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
        self._open = jobs.at.size
        self.result = Result(np.full(jobs.at.size, np.nan), np.zeros(jobs.at.size), 0)

    async def register(self) -> None:
        """Register all servers."""
        for name in (f"{kind} {k}" for kind, one in SERVERS.items() for k in range(one.servers)):
            answer = await self._served.ask("POST", "/v1/servers", {"class": name.split()[0], "name": name})
            self._names[answer["id"]] = name

    async def step(self, now: int) -> bool:
        """Run one round; return whether a job is left."""
        came = np.flatnonzero(self._jobs.at == now).tolist()
        calls: list[tuple[str, Any]] = [("/v1/jobs", {"jobs": [self._new(k) for k in came]})] if came else []
        calls += [(f"/v1/jobs/{job}/reward", {"reward": value}) for job, value in self._late.pop(now, ())]
        await asyncio.gather(*(self._served.ask("POST", path, body) for path, body in calls))
        ends = self._ends(now)
        idle = [server for server in self._names if server not in self._busy]
        worked = await self._served.ask("POST", "/v1/work", {"finish": ends, "lease": idle})
        states = [one["state"] for one in worked["finished"]]
        self._open -= states.count("done") + states.count("dead")
        self.result = self.result._replace(dead=self.result.dead + states.count("dead"))
        for lease in worked["leases"]:
            self._begin(now, lease)
        return self._open > 0

    def _new(self, k: int) -> dict[str, Any]:
        own = {"features": self._jobs.features[k].tolist()} if self._features else {}
        return {"class": list(JOBS)[self._jobs.job_class[k]], "payload": k} | own

    def _column(self, server: str) -> int:
        return list(SERVERS).index(self._names[server].split()[0])

    def _begin(self, now: int, lease: Any) -> None:
        k = lease["job"]["payload"]
        self._busy[lease["server"]] = now + int(self._jobs.rounds[k, self._column(lease["server"])]), lease
        self.result.wait[k] = now - self._jobs.at[k]

    def _ends(self, now: int) -> list[dict[str, Any]]:
        """Return the leases that end in this round; rewards come later."""
        found = []
        for server, (end, lease) in list(self._busy.items()):
            broken = self._names[server] == BROKEN and self._half // 2 <= now < self._half
            if broken or end <= now:
                del self._busy[server]
                ended = {"lease": lease["lease"], "fence": lease["fence"]}
                found.append(ended | {"error": "broken"} if broken else ended)
                if not broken:
                    self._earn(now, self._column(server), lease["job"])
        return found

    def _earn(self, now: int, column: int, job: Any) -> None:
        k = job["payload"]
        reward, later = float(self._jobs.reward[int(now >= self._half), k, column]), int(self._jobs.late[k])
        self.result.reward[k] = reward
        if later > 0:
            self._late[now + later].append((job["id"], reward))


def compare(
    policies: Mapping[str, dict[str, Any]], seeds: Sequence[int], rounds: int, folder: Path
) -> list[list[Result]]:
    """Return the results of each policy for each seed; all services run side by side, with the same rounds."""
    return uvloop.run(_compare([*policies.values()], seeds, rounds, folder))


async def _compare(
    policies: Sequence[dict[str, Any]], seeds: Sequence[int], rounds: int, folder: Path
) -> list[list[Result]]:
    drawn, runs = [draw(rounds, seed) for seed in seeds], list[list[Run]]()
    with virtual_time() as clock:
        async with AsyncExitStack() as stack:
            for number, policy in enumerate(policies):
                runs.append([])
                for seed, jobs in zip(seeds, drawn, strict=True):
                    by_features = "policy" not in policy and "blind" not in policy
                    own = settings(policy) | {"database": f"sqlite:///{folder}/{number}-{seed}.db", "seed": seed}
                    runs[-1].append(Run(await stack.enter_async_context(serving(**own)), jobs, rounds, by_features))
            await run_rounds(clock, [run for some in runs for run in some])
    return [[run.result for run in some] for some in runs]


def settings(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a service for a policy; a round is a second. Classes have features if the policy needs them."""
    blank, unit = "policy" not in policy, np.eye(len(SERVERS)).tolist()
    own = {name: value for name, value in policy.items() if name != "blind"}
    return own | {
        "slot": 1.0, "lease": 3600.0, "checkpoint_every": 1e9,
        "job_class": tuple(JobClassInfo(name, [] if blank else [1.0, *mean]) for name, mean in JOBS.items()),
        "server_class": tuple(ServerClassInfo(name, [] if blank else unit[k]) for k, name in enumerate(SERVERS)),
    }  # fmt: skip


def mean(runs: Sequence[Result], what: str) -> float:
    """Return the mean per job, of all seeds alike."""
    return float(np.mean([getattr(run, what).mean() for run in runs]))


def paired(ones: Sequence[Result], others: Sequence[Result], what: str, confidence: float) -> Interval:
    """Return how much more `ones` have per job than `others`, with a two-sided Student interval over seeds."""
    differences = [
        getattr(one, what).mean() - getattr(other, what).mean() for one, other in zip(ones, others, strict=True)
    ]
    half = stats.t.ppf(0.5 + 0.5 * confidence, len(differences) - 1) * stats.sem(differences)
    return Interval(float(np.mean(differences)), float(half))


def main(seeds: str = "10", rounds: str = "600") -> None:
    """Print what each policy earns, and the differences of the last one."""
    policies = BLIND | POLICIES
    with TemporaryDirectory() as folder:
        found = compare(policies, range(int(seeds)), int(rounds), Path(folder))
    print(f"{sum(len(run.wait) for run in found[-1])} jobs under each policy; differences with 90 % intervals")
    for name, runs in zip(policies, found, strict=True):
        more = (
            [paired(found[-1], runs, what, 0.9) for what in ("reward", "wait")] if runs is not found[-1] else ["", ""]
        )
        numbers = f"reward {mean(runs, 'reward'):.4f}, wait {mean(runs, 'wait'):.2f} rounds"
        print(f"{name}: {numbers}, dead {sum(run.dead for run in runs)}; look-ahead: {more[0]} reward, {more[1]} wait")


if __name__ == "__main__":
    main(*sys.argv[1:])
