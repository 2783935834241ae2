"""How `bilinq.Scheduler` decides, as in `docs/contest.md`: `python -m bench.decisions DATA OUT [SECTION ...]`.

DATA has the folders "routing", "llm_speed" and "llm_arrivals". OUT gets finished runs of contests, which are not repeated.
Each section prints a table: squares, waits, growth, change, durations, parts.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np

from bilinq import Contest, Replay, Router, SchedulerRouter, Workload, contest, replay
from bilinq.arrays import Array
from bilinq.learning import pair_model
from bilinq.routing.arena import Arena
from bilinq.routing.router import FleetView
from bilinq.routing.routers import LeastBusy
from bilinq.scheduler.learnt import Learnt, Services
from bilinq.scheduler.look_ahead import LookAhead
from bilinq.traces import RoutingTable, load_azure_llm, load_inference_bench, load_mmlu, load_paretobandit

TABLES = {"ParetoBandit": ("paretobandit", load_paretobandit), "MMLU": ("mmlu", load_mmlu)}
LOADS, TARGETS = (0.5, 0.8, 0.95), (5.0, 10.0, 20.0, 50.0, 100.0)  # targets of 0.5 to 10 mean durations
SEED = 3000  # no other contest uses the seeds after it
POINTS, WORKERS = 100.0, 2

Change = Callable[[LookAhead], None]


CLIMB = pair_model._climb


@dataclass(init=False)
class Altered(SchedulerRouter):
    """The scheduler without one of its parts; `change` is a name of `CHANGES`, or empty."""

    change: str = ""

    def __init__(self, change: str = "", target_wait: float = 5.0, **more: Any) -> None:
        super().__init__(target_wait, **more)
        self.change = change

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        engine = self.scheduler._engine
        assert isinstance(engine, LookAhead)
        pair_model._climb = CLIMB  # another run in this process may have changed it
        if self.change:
            CHANGES[self.change](engine)


def fix_shrinkage(engine: LookAhead) -> None:
    """Keep the usual shrinkage."""
    pair_model._climb = lambda loss, shrinkage, usual, coordinates: shrinkage


def share_nothing(engine: LookAhead) -> None:
    """Let server classes learn alone."""
    model = engine.learnt.value

    def refresh(self: pair_model.PairModel) -> None:
        pair_model.PairModel.refresh(self)
        self.mean, self.shared = np.zeros_like(self.mean), np.zeros_like(self.shared)
        self.mean[:, 0] = self.start
        self._solve(self._equations())

    model.refresh = MethodType(refresh, model)  # type: ignore[method-assign]


def remember(engine: LookAhead) -> None:
    """Forget nothing."""
    engine.learnt.value.forgets = engine.learnt.time.forgets = False


def ignore_durations(engine: LookAhead) -> None:
    """Expect the mean duration everywhere; releases of servers are still counted."""

    def learn(self: Learnt, some: Services) -> None:
        for column, duration in zip(some.column, some.duration, strict=True):
            if duration > 0.0:
                self.timed = min(self.timed + 1.0, 200.0)
                self.mean_time += (duration - self.mean_time) / self.timed
                self.class_time[column] += (duration - self.class_time[column]) / min(self.timed, 50.0)
        self.time.begin(float(np.log(self.mean_time)))

    engine.learnt._learn_durations = MethodType(learn, engine.learnt)  # type: ignore[method-assign]


def price_no_time(engine: LookAhead) -> None:
    """Let server time cost nothing to others."""
    engine._crowding = lambda: np.zeros_like(engine.learnt.crowd)  # type: ignore[method-assign]


def explore(errors: float, engine: LookAhead) -> None:
    """Draw values with so many standard errors in place of a fifth of one."""
    terms = engine._terms
    engine._terms = lambda now, waiting: terms(now, waiting)._replace(scale=errors)  # type: ignore[method-assign]


def leave_squares_out(engine: LookAhead) -> None:
    """Learn from features alone."""
    engine.learnt.value.squares = engine.learnt.time.squares = False


CHANGES: dict[str, Change] = {
    "no squares": leave_squares_out,
    "fixed shrinkage": fix_shrinkage,
    "nothing shared": share_nothing,
    "no forgetting": remember,
    "no durations": ignore_durations,
    "no price of server time": price_no_time,
    **{f"exploration {errors:g} standard errors": partial(explore, errors) for errors in (0.0, 0.1, 0.35, 0.5, 1.0)},
}


@cache
def table(name: str, data: Path) -> RoutingTable:
    """Return a table with features made from the texts."""
    folder, load = TABLES[name]
    return load(data / "routing" / folder).with_features()


def each(function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """Yield the results of a function, computed on two processes."""
    with ProcessPoolExecutor(WORKERS) as workers:
        yield from workers.map(function, *arguments)


# Waits


def second_half(data: Path, case: tuple[str, float, float, int]) -> float:
    """Return the mean wait of the second half of 4,000 jobs, in targets."""
    name, load, target, seed = case
    wait = replay(Arena(table(name, data), load)(seed), SchedulerRouter(target), seed=seed).wait
    return float(wait[len(wait) // 2 :].mean() / target)


def waits(data: Path, out: Path) -> str:
    """Return waits over targets by table and load."""
    seeds = range(SEED, SEED + 4)
    cases = [(n, load, target, seed) for n in TABLES for load in LOADS for target in TARGETS for seed in seeds]
    found = np.reshape(
        list(each(partial(second_half, data), cases)), (len(TABLES), len(LOADS), len(TARGETS), len(seeds))
    )
    lines = ["| table, load | " + " | ".join(f"{target / 10.0:g}" for target in TARGETS) + " |"]
    lines.append("| --- |" + " ---: |" * len(TARGETS))
    for i, name in enumerate(TABLES):
        for k, load in enumerate(LOADS):
            cells = [f"{one.mean():.2f} ({one.min():.2f} to {one.max():.2f})" for one in found[i, k]]
            lines.append(f"| {name}, {load} | {' | '.join(cells)} |")
    return "\n".join(lines)


# Growth of the queue


def late_growth(data: Path, case: tuple[str, str, int]) -> float:
    """Return how fast the queue grows in the second half of 16,000 jobs at load 0.95, jobs per unit of time."""
    name, router, seed = case
    run = replay(Arena(table(name, data), 0.95, 16_000)(seed), ROUTERS[router], seed=seed)
    return slope(run)


def slope(run: Replay) -> float:
    """Return the slope of a line through the queue of the second half."""
    times, queue = run.arrival[len(run.arrival) // 2 :], waiting(run)[len(run.arrival) // 2 :]
    return float(np.polyfit(times, queue, 1)[0])


def waiting(run: Replay) -> Array:
    """Return how many jobs wait just after each arrival (N,)."""
    started = np.searchsorted(np.sort(run.start), run.arrival, side="right")
    return (1 + np.arange(len(run.arrival)) - started).astype(np.float64)


ROUTERS: dict[str, Router] = {"bilinq, wait 20": SchedulerRouter(20.0), "least busy": LeastBusy()}


def growth(data: Path, out: Path) -> str:
    """Return the growth of queues at load 0.95, with half of its 95 % interval."""
    seeds = range(SEED, SEED + 8)
    cases = [(name, router, seed) for name in TABLES for router in ROUTERS for seed in seeds]
    found = np.reshape(list(each(partial(late_growth, data), cases)), (len(TABLES), len(ROUTERS), len(seeds)))
    lines = ["| | " + " | ".join(TABLES) + " |", "| --- |" + " ---: |" * len(TABLES)]
    for k, router in enumerate(ROUTERS):
        cells = [f"{1e3 * one.mean():+.1f} ± {1e3 * half(one):.1f}" for one in found[:, k]]
        lines.append(f"| {router} | {' | '.join(cells)} |")
    return "\n".join(lines)


def half(values: Array) -> float:
    """Return half of the 95 % interval of a mean over eight values."""
    return 2.365 * float(values.std(ddof=1) / np.sqrt(len(values)))


# Change


def rewards_by_block(data: Path, case: tuple[str, str, bool, int]) -> Array:
    """Return mean rewards of the 3,200 jobs before number 12,800, and of blocks of 200 after it (16,)."""
    name, change, swaps, seed = case
    work = Arena(table(name, data), 0.8, 16_000)(seed)
    mean = work.reward.mean(axis=0)
    if swaps:
        work = work.swapped(12_800, int(mean.argmax()), int(mean.argmin()))
    earned = replay(work, Altered(change), seed=seed).earned
    return np.array([earned[9_600:12_800].mean(), *earned[12_800:].reshape(16, 200).mean(axis=1)])


def change(data: Path, out: Path) -> str:
    """Return the reward after a swap of the best and the worst server class, relative to that of the same jobs before."""
    lines = ["| jobs after the swap | 1 to 200 | to 400 | to 600 | to 1,000 | to 3,200 | cost without a swap |"]
    lines.append("| --- |" + " ---: |" * 6)
    for name in TABLES:
        remembers = blocks(data, name, "no forgetting")
        for kind, (swapped, same) in {"": blocks(data, name, ""), ", no forgetting": remembers}.items():
            part = swapped[:, 1:].mean(axis=0) / same[:, 1:].mean()
            cells = [part[0], part[1], part[2], part[3:5].mean(), part[5:].mean()]
            cost = 1.0 - same.mean() / remembers[1].mean()
            shown = " | ".join(f"{POINTS * x:.0f} %" for x in cells)
            lines.append(f"| {name}{kind} | {shown} | {POINTS * cost:.2f} % |")
    return "\n".join(lines)


def blocks(data: Path, name: str, kind: str) -> Array:
    """Return the rewards by block of runs with a swap and of the same without one (2, seeds, 17)."""
    seeds = range(SEED, SEED + 6)
    cases = [(name, kind, swaps, seed) for swaps in (True, False) for seed in seeds]
    return np.reshape(list(each(partial(rewards_by_block, data), cases)), (2, len(seeds), 17))


# Durations

MODELS = {  # accuracy on MMLU as published (reports of Llama 2, Llama 3, Mixtral and Qwen2), and what serves it by vLLM
    "Llama-2-7B": (0.453, "meta-llama/Llama-2-7b-hf", "Nvidia A100 GPU", 1),
    "Llama-3-8B": (0.666, "meta-llama/Meta-Llama-3-8B", "AMD MI250 GPU", 1),
    "Mixtral-8x7B": (0.706, "mistralai/Mixtral-8x7B-v0.1", "Nvidia A100 GPU", 4),
    "Qwen2-72B": (0.842, "Qwen/Qwen2-72B", "AMD MI250 GPU", 4),
}


@dataclass(frozen=True)
class Fleet:
    """Chat and code requests of Azure for four models at their measured speeds; a model is right as often as published."""

    data: Path
    load: float
    jobs: int = 4000

    def __call__(self, seed: int) -> Workload:
        rng = np.random.default_rng(seed)
        kind = rng.integers(2, size=self.jobs)
        prompt, output = (np.empty(self.jobs) for _ in range(2))
        for k, name in enumerate(("conv", "code")):
            requests = load_azure_llm(self.data / "llm_arrivals" / f"azure_2023_{name}.csv")
            drawn = rng.integers(len(requests), size=int((kind == k).sum()))
            prompt[kind == k], output[kind == k] = requests.prompt[drawn], requests.output[drawn]
        speeds = load_inference_bench(self.data / "llm_speed" / "llm_inference_bench.csv")
        duration = [
            speeds.duration(np.maximum(output, 1.0), np.maximum(output, 1.0), model=model, accelerator=on, accelerators=n,
                            framework="vLLM", batch=16, outside="nearest")
            for _, model, on, n in MODELS.values()
        ]  # fmt: skip
        right = rng.random((self.jobs, 1)) < np.array([one[0] for one in MODELS.values()])
        return Workload(
            arrival=np.cumsum(rng.exponential(1.0, self.jobs)), reward=right.astype(float),
            duration=np.maximum(np.stack(duration, axis=1), 1e-3), servers=dict.fromkeys(MODELS, 6), job_class=kind,
            features=np.log(np.stack([prompt + 1.0], axis=1)), reward_range=(0.0, 1.0),
        ).at_load(self.load)  # fmt: skip


def durations(data: Path, out: Path) -> str:
    """Return what durations of pairs are worth at equal mean time from arrival to end."""
    lines = ["| load | time in the system | all | without durations: less | wait |", "| --- |" + " ---: |" * 4]
    for load in LOADS:
        work = Fleet(data, load)
        sojourn = 2.0 * float(work(SEED).duration.mean())
        found = contest(
            work, {"all": Altered(), "without": Altered("no durations")}, sojourn, measure="sojourn", seeds=8,
            tuning_seeds=4, seed=SEED, jobs=WORKERS, out=out / "runs",
        )  # fmt: skip
        print(found, file=sys.stderr)
        lines.append(
            f"| {load} | {found['all'].mean('sojourn').mean:.0f}, {found['without'].mean('sojourn').mean:.0f} | "
            f"{POINTS * found['all'].mean('reward').mean:.1f} | {difference(found, 'without')} | "
            f"{found['all'].mean('wait').mean:.0f}, {found['without'].mean('wait').mean:.0f} |"
        )
    return "\n".join(lines)


def difference(found: Contest, name: str) -> str:
    """Return a difference in reward to the reference in percentage points."""
    gap = found.differences["reward"][name].difference
    return f"{POINTS * gap.mean:+.2f} ± {POINTS * (gap.high - gap.mean):.2f}"


# Parts


def parts(data: Path, out: Path) -> str:
    """Return the reward without each part of the scheduler, less that with all, at load 0.8 and a wait of 5."""
    routers = {"all": Altered(), "no look-ahead": Altered(work_conserving=True)}
    routers |= {name: Altered(name) for name in CHANGES}
    columns = {}
    for name in TABLES:
        settings: dict[str, Any] = {"seeds": 8, "seed": SEED, "jobs": WORKERS, "out": out / "runs"}
        found = contest(Arena(table(name, data), 0.8), routers, 5.0, **settings)
        plain = Arena(replace(table(name, data), vectors=None), 0.8)
        alone = contest(plain, {"classes only, no features": Altered()} | {"least busy": LeastBusy()}, 5.0, **settings)
        gain = alone["classes only, no features"].samples["reward"] - found["all"].samples["reward"]
        columns[name] = {"classes only, no features": f"{POINTS * gain.mean():+.2f} ± {POINTS * half(gain):.2f}"}
        columns[name] |= {key: difference(found, key) for key in routers if key != "all"}
    lines = ["| left out or changed | " + " | ".join(TABLES) + " |", "| --- |" + " ---: |" * len(TABLES)]
    for key in next(iter(columns.values())):
        lines.append(f"| {key} | " + " | ".join(one[key] for one in columns.values()) + " |")
    return "\n".join(lines)


# Squares


@cache
def digits() -> RoutingTable:
    """Return scikit-learn's digits as jobs: five classifiers that see a third of the pixels each, one if they are right."""
    parts = (
        "cluster",
        "datasets",
        "decomposition",
        "linear_model",
        "model_selection",
        "naive_bayes",
        "neighbors",
        "tree",
    )
    cluster, datasets, decomposition, linear_model, model_selection, naive_bayes, neighbors, tree = (
        import_module(f"sklearn.{part}") for part in parts
    )
    pixels, label = datasets.load_digits(return_X_y=True)
    rng, reward = np.random.default_rng(0), []
    for model in (tree.DecisionTreeClassifier(max_depth=4, random_state=0), naive_bayes.GaussianNB(),
                  neighbors.KNeighborsClassifier(5), linear_model.LogisticRegression(max_iter=500),
                  tree.DecisionTreeClassifier(max_depth=8, random_state=1)):  # fmt: skip
        seen = rng.permutation(pixels.shape[1])[: pixels.shape[1] // 3]
        reward.append(model_selection.cross_val_predict(model, pixels[:, seen] / 16.0, label, cv=5) == label)
    vectors = decomposition.PCA(16, random_state=0).fit_transform(pixels)
    group = cluster.KMeans(8, n_init=4, random_state=0).fit_predict(vectors)
    return RoutingTable(
        reward=np.stack(reward, axis=1).astype(float), job_class=np.array([f"group {k}" for k in group]),
        servers=("small tree", "Bayes", "neighbours", "logistic", "tree"), source="scikit-learn, digits",
        licence="CC BY 4.0",
        vectors=vectors,
    )  # fmt: skip


def squares(data: Path, out: Path) -> str:
    """Return what squares of features are worth on digits, at load 0.8 and a wait of 5."""
    routers = {"all": Altered(), "no squares": Altered("no squares"), "least busy": LeastBusy()}
    found = contest(Arena(digits(), 0.8), routers, 5.0, seeds=8, seed=SEED, jobs=WORKERS, out=out / "runs")
    lines = ["| | less all |", "| --- | ---: |"]
    lines += [f"| {name} | {difference(found, name)} |" for name in ("no squares", "least busy")]
    return "\n".join(lines)


SECTIONS = {
    "squares": squares,
    "waits": waits,
    "growth": growth,
    "change": change,
    "durations": durations,
    "parts": parts,
}


def main() -> None:
    """Print the sections that are named, or all."""
    data, out = map(Path, sys.argv[1:3])
    for name in sys.argv[3:] or SECTIONS:
        print(f"### {name}\n\n{SECTIONS[name](data, out)}\n", flush=True)


if __name__ == "__main__":
    main()
