"""How much the router earns beside the best fixed routing, least-busy and random routing, in a simulation.

`python -m examples.llm_router.compare` prints the table of the README.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import json

from bilinq import Policy, Problem, Random, oracle
from bilinq.arrays import Array, IntArray

from .config import ANYBODY, Config
from .fakes import FAKES, SECONDS, SHARE, FakeBackend, read_score
from .kind import KINDS, LONG, Kind
from .least_busy import LeastBusy
from .router import Router
from .virtual import run
from .worth import Worth

WORTH = Worth(second=0.02, money=15.0)
RATES = (3.0, 5.0, 7.0, 10.0)
"""Requests per second."""
LEARNING = 5.0
"""The rate at which learning is shown."""
STAGES = (0, 50, 100, 200, 400, 800, 1600)
"""Where the stages of learning begin and end, in requests."""
SCALE = 1000
"""Parts of a server, since the oracle counts in whole ones."""


class Earned(NamedTuple):
    """What a run earned: for each request (N,) its kind, the back end, and seconds without a slot."""

    kind: IntArray
    backend: IntArray
    wait: Array


class Sink:
    """Takes an answer, and notes which back end it came from and when that began."""

    begun, backend, began = False, "", 0.0

    async def send(self, data: bytes, backend: str) -> None:
        """Take a whole answer."""
        self.begun, self.backend, self.began = True, backend, json.decode(data)["created"]


def mean_reward() -> Array:
    """Return the true mean reward (I, J) of each kind at each fake."""
    return np.array(
        [[WORTH.reward(one.score(kind), one.seconds(kind), one.price(kind)) for one in FAKES] for kind in KINDS]
    )


@lru_cache
def best_reward(rate: float) -> tuple[float, ...]:
    """Return the reward of a request of each kind (I,) under the best fixed routing that the slots can serve.

    A request holds a slot for its kind's seconds times the slowness of the back end, so a back end has slots over slowness
    servers that serve kind i at the rate of 1 / seconds; and the oracle counts rewards by the second.
    """
    seconds = np.array([SECONDS[kind.long] for kind in KINDS])
    reward = mean_reward()
    problem = Problem(
        arrival_rate=SCALE * rate * np.array([SHARE[kind] for kind in KINDS]),
        servers=np.round([SCALE * one.card.slots / one.slowness for one in FAKES]),
        service_rate=1.0 / seconds,
        mean_reward=reward / seconds[:, None],
        unbounded=True,
    )
    return tuple((oracle(problem).share * reward).sum(axis=1).tolist())


def request(kind: Kind) -> dict[str, Any]:
    """Return a request that is of a kind."""
    text = "Mend this:\n```\nx = = 1\n```\n" if kind.code else "Tell me about the sea. "
    body: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": text + kind.long * LONG * "."}]}
    if kind.tools:
        body["tools"] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    return body


async def simulate(
    rate: float, requests: int, seed: int, policy: Policy | None = None, target_wait: float = 1.0
) -> Earned:
    """Send Poisson traffic through a router whose back ends are fakes; the same traffic for the same seed."""
    cards = tuple(one.card for one in FAKES)
    config = Config(cards, worth=WORTH, target_wait=target_wait, backlog=10**6)
    backends = {one.card.name: FakeBackend(one, seed=seed + 1000 * k) for k, one in enumerate(FAKES)}
    router = Router(config, backends, read_score, policy, seed)
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0 / rate, requests).tolist()
    kinds = rng.choice(len(KINDS), requests, p=list(SHARE.values()))
    names, clock = list(backends), asyncio.get_running_loop().time
    found = Earned(kinds, np.zeros(requests, np.int64), np.zeros(requests))

    async def one(k: int) -> None:
        sink, came = Sink(), clock()
        await router.answer(ANYBODY, request(KINDS[kinds[k]]), sink)
        found.backend[k], found.wait[k] = names.index(sink.backend), sink.began - came

    async with asyncio.TaskGroup() as tasks:
        for k in range(requests):
            await asyncio.sleep(gaps[k])
            tasks.create_task(one(k))
    await router.close()
    return found


class Measured(NamedTuple):
    """Of each seed: what requests earned in parts of the best fixed routing, all and the last half, and their wait."""

    all: Array
    last_half: Array
    wait: Array


def simulate_all(
    rate: float, requests: int, seeds: Iterable[int], policy: Policy | None = None, target_wait: float = 1.0
) -> list[Earned]:
    """Simulate with each seed."""
    return [run(simulate(rate, requests, seed, policy, target_wait)) for seed in seeds]


def measure(runs: Sequence[Earned], rate: float) -> Measured:
    """Return what is told of runs at a rate."""
    half = len(runs[0].kind) // 2
    ratios = [np.array([ratio(one, rate, part) for one in runs]) for part in (slice(None), slice(half, None))]
    return Measured(ratios[0], ratios[1], np.array([one.wait.mean() for one in runs]))


def learning(runs: Sequence[Earned], rate: float) -> dict[str, Array]:
    """Return, for the first requests and later ones, what they earned in parts of the best fixed routing."""
    return {
        f"{begin + 1} to {end}": np.array([ratio(one, rate, slice(begin, end)) for one in runs])
        for begin, end in pairwise(STAGES)
        if end <= len(runs[0].kind)
    }


def ratio(one: Earned, rate: float, part: slice) -> float:
    """Return the mean reward of a part of the requests over that of the same kinds under the best fixed routing.

    Both are true means, so that neither luck with rewards nor with kinds counts.
    """
    kind, backend = one.kind[part], one.backend[part]
    return float(mean_reward()[kind, backend].sum() / np.array(best_reward(rate))[kind].sum())


def rivals() -> dict[str, Policy | None]:
    """Return the policies that are compared, by name."""
    slots = tuple(one.card.slots for one in FAKES)
    return {"router": None, "least busy": LeastBusy(slots), "random": Random()}


def interval(values: Array) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval (Student)."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean()), float(half)


def shown(values: Array, unit: float = 1.0) -> str:
    """Return an interval as text."""
    mean, half = interval(unit * values)
    return f"{mean:.1f} ± {half:.1f}" if unit > 1.0 else f"{mean:.2f} ± {half:.2f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rate", type=float, nargs="*", default=RATES)
    parser.add_argument("--target-wait", type=float, default=1.0)
    options = parser.parse_args()
    print("| requests/s | routing | % of the best fixed | last half | mean wait, s |\n| --- | --- | --- | --- | --- |")
    stages: dict[str, Array] = {}
    for rate in options.rate:
        for name, policy in rivals().items():
            seeds = range(1, options.seeds + 1)
            runs = simulate_all(rate, options.requests, seeds, policy, options.target_wait)
            found = measure(runs, rate)
            earned = f"{shown(found.all, 100.0)} | {shown(found.last_half, 100.0)}"
            print(f"| {rate:g} | {name} | {earned} | {shown(found.wait)} |", flush=True)
            if policy is None and rate == LEARNING:
                stages = learning(runs, rate)
    print(f"\n| requests, at {LEARNING:g}/s | % of the best fixed |\n| --- | --- |")
    for stage, values in stages.items():
        print(f"| {stage} | {shown(values, 100.0)} |")


if __name__ == "__main__":
    main()
