"""The scheduler beside LiteLLM's strategies, in virtual time: `python -m bench.gateway_comparison DATA OUT [PART ...]`.

DATA has the folders "routing", "llm_speed" and "llm_arrivals". Back ends are fake: requests are those of ParetoBandit, with
the judged quality and the price of each model's answer, or those of MMLU; arrivals and lengths are those of Azure, and
speeds are those of LLM-Inference-Bench. A part is a table and a load, such as paretobandit-0.8, mmlu-0.5 or, with four
times as many requests, long-0.95. OUT gets a file for each; `python -m bench.gateway_page OUT` makes tables and figures.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.litellm_strategies import CLASSES, LiteLlmAdaptive, LiteLlmStrategy, kind_of
from bilinq import Replay, Router, SchedulerRouter, Workload, replay, text_features
from bilinq.arrays import Array
from bilinq.gateway.worth import HIGHEST, LOWEST
from bilinq.routing.routers import RandomChoice
from bilinq.traces import (
    RecordedRequests,
    RoutingTable,
    Speeds,
    load_azure_llm,
    load_inference_bench,
    load_mmlu,
    load_paretobandit,
)

LOADS = (0.5, 0.8, 0.95)
JOBS, LONG, PLACES, BATCH = 1500, 6000, 6, 16
TUNING, TEST = range(5301, 5303), range(5501, 5517)  # seeds; no other contest uses them
DEADLINE = 20.0  # seconds for the goodput
WORKERS = 1
SPEEDS = {  # what was measured in place of each model; speeds of hosted models are not published
    "meta-llama/llama-3.1-8b-instruct": ("meta-llama/Meta-Llama-3-8B", "Nvidia A100 GPU", 1),
    "mistralai/mistral-large-2512": ("meta-llama/Meta-Llama-3-70B", "Nvidia H100 GPU", 4),
    "google/gemini-2.5-pro": ("Qwen/Qwen2-72B", "AMD MI250 GPU", 4),
    "google/gemini-2.5-flash": ("mistralai/Mixtral-8x7B-v0.1", "Nvidia A100 GPU", 4),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mistralai/Mixtral-8x7B-v0.1", "Nvidia A100 GPU", 4),
    "gpt-4-1106-preview": ("meta-llama/Meta-Llama-3-70B", "Nvidia H100 GPU", 4),
}
PER_TOKEN = {"mistralai/Mixtral-8x7B-Instruct-v0.1": (0.7e-6, 0.7e-6), "gpt-4-1106-preview": (10e-6, 30e-6)}
"""Dollars for a token of the prompt and of the answer, assumed where the table has no prices: list prices of that time."""


class Point(NamedTuple):
    """Settings of the scheduler: quality that a dollar, a second of service and a second of waiting are worth.

    A `wait` of zero stands for a target of the mean wait, in seconds, in place of a price.
    """

    dollar: float
    second: float
    wait: float
    target: float = 0.0


USUAL = Point(10.0, 0.01, 0.0, 5.0)  # the defaults of the LiteLLM plugin, and a target of about a mean duration
MONEY, WAIT = (0.0, 1.0, 3.0, 10.0), (4.0, 2.0, 1.0, 0.3, 0.01, 1e-4)
"""Settings to choose from, without a unit: see `settings`."""
EQUAL = 0.03  # part by which costs and mean latencies may be above those of a baseline on the tuning seeds
BASELINES = ("random", *CLASSES, "adaptive")
Case = tuple[float, int, str | Point]  # load, seed, and a baseline or settings of the scheduler
LOADERS = {"paretobandit": load_paretobandit, "mmlu": load_mmlu}


@dataclass(frozen=True)
class Measured:
    """What a run gave: means over all requests, dollars for 1,000 of them, seconds from arrival to end of the answer."""

    quality: float
    cost: float
    mean: float
    p50: float
    p99: float
    goodput: float


class World(NamedTuple):
    """Requests at a load: what each back end would answer, as rewards, how fast, and at what price (N, J); and the texts."""

    work: Workload
    price: Array
    text: tuple[str, ...] = ()


@lru_cache(maxsize=2)
def world(data: Path, name: str, load: float, jobs: int, seed: int) -> World:
    """Return the requests of a seed: a window of Azure's trace, with prompts of a table in another order."""
    rng = np.random.default_rng((seed, 7))
    table, trace = prompts(data, name).draw(jobs, rng), recorded(data)
    first = int(rng.integers(len(trace) - jobs))
    output = np.maximum(trace.output[first : first + jobs].astype(np.float64), 1.0)
    work = Workload(
        arrival=trace.arrival[first : first + jobs], reward=table.reward, duration=durations(data, table.servers, output),
        servers=dict.fromkeys(table.servers, PLACES), features=table.vectors, job_class=table.job_class,
        job_classes=sorted(set(prompts(data, name).job_class.tolist())), reward_range=(0.0, 1.0),
    )  # fmt: skip
    price = listed(table, output) if table.price is None else table.price
    return World(work.at_load(load), price, table.text or ())


def listed(table: RoutingTable, output: Array) -> Array:
    """Return prices by the tokens of the answer and those of the prompt, estimated at four letters each (N, J)."""
    assert table.text is not None
    prompt = np.array([len(text) for text in table.text]) / 4.0
    columns = [before * prompt + after * output for before, after in (PER_TOKEN[name] for name in table.servers)]
    return np.stack(columns, axis=1)


@cache
def recorded(data: Path) -> RecordedRequests:
    """Return Azure's chat requests."""
    return load_azure_llm(data / "llm_arrivals" / "azure_2023_conv.csv")


@cache
def speeds(data: Path) -> Speeds:
    """Return the measured speeds."""
    return load_inference_bench(data / "llm_speed" / "llm_inference_bench.csv")


@cache
def prompts(data: Path, name: str) -> RoutingTable:
    """Return a table with the features that the gateway has; the class of a prompt is what LiteLLM's classifier sees."""
    table = LOADERS[name](data / "routing" / name)
    assert table.text is not None
    seen, kinds = map(text_features, table.text), map(kind_of, table.text)
    return replace(table, vectors=np.array(list(seen)), job_class=np.array(list(kinds)))


def durations(data: Path, servers: Iterable[str], output: Array) -> Array:
    """Return the seconds that each back end takes for answers of given lengths (N, J)."""
    of = partial(speeds(data).duration, output, output, framework="vLLM", batch=BATCH, outside="nearest")
    columns = [of(model=model, accelerator=on, accelerators=n) for model, on, n in map(SPEEDS.__getitem__, servers)]
    return np.stack(columns, axis=1)


def settings(found: World, money: Sequence[float] = MONEY, wait: Sequence[float] = WAIT) -> list[Point]:
    """Return settings to choose from, in units of a table: they are the same multiples for all tables.

    The unit of `dollar` makes the most expensive back end as much dearer than the cheapest one as the best is better than
    the worst. That of `wait` makes a mean duration of waiting cost as much as that.
    """
    quality, price = np.ptp(found.work.reward.mean(axis=0)), np.ptp(found.price.mean(axis=0))
    dollar, second = quality / price, quality / found.work.duration.mean()
    return [Point(float(f"{d * dollar:.2g}"), 0.0, float(f"{w * second:.2g}")) for d in money for w in wait]


def baseline(name: str, found: World) -> Router:
    """Return a router by name."""
    mean = tuple(found.price.mean(axis=0).tolist())
    if name == "random":
        return RandomChoice()
    if name == "adaptive":
        return LiteLlmAdaptive(mean, found.work.reward)
    return LiteLlmStrategy(name, mean)


def run(data: Path, name: str, jobs: int, case: Case) -> Measured:
    """Return what a baseline, or the scheduler with some settings, gave at a load and seed."""
    load, seed, who = case
    found = world(data, name, load, jobs, seed)
    if isinstance(who, str):
        return measured(replay(found.work, baseline(who, found), seed=seed), found)
    worth = np.clip(found.work.reward - who.dollar * found.price - who.second * found.work.duration, LOWEST, HIGHEST)
    work = Workload(**(found.work.arguments() | {"reward": worth, "reward_range": (LOWEST, HIGHEST)}))
    setting = {"V": 1.0 / who.wait} if who.wait else {}
    router = SchedulerRouter(who.target or 1.0, exploration="ucb", settings=setting)
    return measured(replay(work, router, seed=seed), found)


def measured(done: Replay, found: World) -> Measured:
    """Return the measures of a run."""
    chosen = np.arange(found.work.N), done.server
    latency = done.end - done.arrival
    return Measured(
        quality=float(found.work.reward[chosen].mean()), cost=1e3 * float(found.price[chosen].mean()),
        mean=float(latency.mean()), p50=float(np.median(latency)), p99=float(np.quantile(latency, 0.99)),
        goodput=float((latency <= DEADLINE).mean()),
    )  # fmt: skip


def matched(points: dict[Point, Measured], to: Measured) -> Point | None:
    """Return the settings with the most quality of those that cost and take about as much as a baseline, or less."""
    most = 1.0 + EQUAL
    within = {one: got for one, got in points.items() if got.cost <= most * to.cost and got.mean <= most * to.mean}
    return max(within, key=lambda one: within[one].quality) if within else None


def mean_of(runs: list[Measured]) -> Measured:
    """Return the means over seeds."""
    return Measured(**{name: float(np.mean([getattr(one, name) for one in runs])) for name in asdict(runs[0])})


def compare(
    data: Path, name: str, load: float, jobs: int = JOBS, money: Sequence[float] = MONEY, wait: Sequence[float] = WAIT,
    baselines: Sequence[str] = BASELINES, tuning: range = TUNING, test: range = TEST, workers: int = WORKERS,
) -> list[dict[str, object]]:  # fmt: skip
    """Return a record for each router: its settings, the baselines that these were matched to, and measures by test seed."""
    grid = settings(world(data, name, load, jobs, tuning[0]), money, wait)
    with ProcessPoolExecutor(workers) as pool:

        def runs(seeds: range, some: list[str | Point]) -> dict[str | Point, list[Measured]]:
            cases: list[Case] = [(load, seed, who) for seed in seeds for who in some]
            found = list(pool.map(partial(run, data, name, jobs), cases, chunksize=max(len(some) // workers, 1)))
            return {who: found[k :: len(some)] for k, who in enumerate(some)}

        tried = {who: mean_of(got) for who, got in runs(tuning, [*baselines, *grid]).items()}
        points = {who: got for who, got in tried.items() if isinstance(who, Point)}
        chosen = {one: matched(points, tried[one]) for one in baselines}
        some: list[str | Point] = [*baselines, USUAL, *(one for one in chosen.values() if one)]
        tested = runs(test, list(dict.fromkeys(some)))
    return [
        {
            "load": load, "who": who if isinstance(who, str) else who._asdict(),
            "matched": [one for one, point in chosen.items() if point == who], "runs": [asdict(one) for one in got],
        }
        for who, got in tested.items()
    ]  # fmt: skip


def part(data: Path, name: str) -> list[dict[str, object]]:
    """Return what `compare` finds for a part, such as mmlu-0.8 or long-0.95."""
    table, _, load = name.partition("-")
    if table == "long":
        return compare(data, "paretobandit", float(load), LONG, MONEY[:1], WAIT[:3], ("least-busy",))
    return compare(data, table, float(load))


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for one in sys.argv[3:] or [f"{table}-{load}" for table in (*LOADERS, "long") for load in LOADS]:
        made = part(Path(sys.argv[1]), one)
        (folder / f"gateway-{one}.json").write_text(json.dumps(made, indent=1), encoding="utf-8")
