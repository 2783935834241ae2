"""How much training throughput does a learning scheduler gain over first come, first served, at equal waiting time?

Reads the throughputs that Stanford's FutureData group measured for Gavel (26 kinds of training jobs on three kinds of GPU;
MIT licence), turns them into a table of observations, and simulates a cluster that assigns its GPUs again in every round.
The reward of a round is the speed of the job on its GPU, relative to the job's fastest GPU.

Run it with ``python examples/gpu_throughput.py [FILE]``.
"""

import argparse
import csv
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from bilinq import FirstCome, Greedy, KnownRewards, Policy, Problem, Random, Sabr, simulate
from bilinq.arrays import Array
from bilinq.commands.tables import show
from bilinq.simulation import Interval, Poisson
from bilinq.simulation.records import interval
from bilinq.traces import reward_table

FILE = Path(__file__).resolve().parents[2] / "shared" / "data" / "gavel" / "simulation_throughputs.json"
ABOUT = {
    "source": "Stanford FutureData, Gavel (https://github.com/stanford-futuredata/gavel): simulation_throughputs.json",
    "licence": "MIT",
    "note": "throughput: steps per second of a job alone on one GPU; relative: to the job's fastest GPU; "
    "features: model family, one-hot, and doublings of the batch size from the middle of the family",
}
GPUS = ("k80", "p100", "v100")
GPUS_EACH = 4
ROUNDS = 20.0
"""Mean number of GPU rounds of a job."""
NOISE = 0.1
"""Standard deviation of the observed speed in a round. This is an assumption: the file has one number for each pair."""
LOADS = (0.5, 0.7, 0.9)
NEVER_IDLE = 1.0 / 2.2
"""V = 1 / (gamma + 1), gamma = 1.2: up to this V, SABR with at most one GPU per job leaves no GPU idle while a job waits."""


def digest(file: Path) -> dict[str, Any]:
    """Return the part of Gavel's file that this example uses: family, batch size, features and speeds of single-GPU jobs."""
    if not file.exists():
        sys.exit(f"{file} is missing; download simulation_throughputs.json from Stanford FutureData's repository Gavel")
    speeds = json.loads(file.read_text(encoding="utf-8"))
    kinds = {key: re.fullmatch(r"\('(.+?)(?: \(batch size (\d+)\))?', 1\)", key) for key in speeds[GPUS[0]]}
    found = {key: (kind[1], int(kind[2] or 0)) for key, kind in kinds.items() if kind}
    families = sorted({family for family, _ in found.values()})
    jobs = [
        job(*kind, features(*kind, families, list(found.values())), [speeds[gpu][key]["null"] for gpu in GPUS])
        for key, kind in found.items()
    ]
    return ABOUT | {"gpus": [gpu.upper() for gpu in GPUS], "features": [*families, "log_batch"], "jobs": jobs}


def job(family: str, batch: int, known: list[float], speed: list[float]) -> dict[str, Any]:
    """Return the entry of a kind of job; batch size 0 means none."""
    return {
        "name": f"{family} ({batch})" if batch else family,
        "family": family,
        "batch_size": batch or None,
        "features": known,
        "throughput": [round(steps, 6) for steps in speed],
        "relative": [round(steps / max(speed), 6) for steps in speed],
    }


def features(family: str, batch: int, families: list[str], kinds: list[tuple[str, int]]) -> list[float]:
    """Return the features of a job that are known before it runs: its family, and the doublings of its batch size.

    Doublings count from the middle of the family; jobs without a batch size have none.
    """
    sizes = [math.log2(size) for name, size in kinds if name == family and size]
    doublings = math.log2(batch) - sum(sizes) / len(sizes) if batch else 0.0
    return [*(float(family == name) for name in families), round(doublings, 6)]


def write_digest(data: dict[str, Any], path: Path) -> None:
    """Write the digest, a line for each job: this is the file that ships as `bilinq/traces/data/gavel.json`."""
    head = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items() if key != "jobs")
    jobs = ",\n".join(f"  {json.dumps(job)}" for job in data["jobs"])
    path.write_text(f'{{\n{head},\n "jobs": [\n{jobs}\n ]\n}}\n', encoding="utf-8")


def write_observations(data: dict[str, Any], path: Path) -> None:
    """Write a table with a row for each job and GPU, in the format of a user's own measurements."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["job", "server", "reward", *data["features"]])
        for job in data["jobs"]:
            for gpu, speed in zip(data["gpus"], job["relative"], strict=True):
                rows.writerow([job["name"], gpu, speed, *job["features"]])


def problems(data: dict[str, Any]) -> dict[str, Problem]:
    """Return the problem with the features and with one-hot ones, at full load."""
    full = GPUS_EACH * len(GPUS) / ROUNDS * 0.999
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "observations.csv"
        write_observations(data, path)
        return {
            name: reward_table(path, servers=GPUS_EACH, arrival_rate=full, service_rate=1.0 / ROUNDS, noise=NOISE,
                               job_features=columns).problem
            for name, columns in (("features", data["features"]), ("one-hot", None))
        }  # fmt: skip


def at_load(problem: Problem, load: float) -> Problem:
    """Return the problem with its arrival rates scaled to a traffic of `load` times its servers."""
    return problem.replace(arrival_rate=problem.arrival_rate * (load / problem.load_factor))


@dataclass(frozen=True, eq=False)
class Measured:
    """For each replication, the mean reward of a service and the mean number of slots that a job waits."""

    reward: Array
    wait: Array


Measure = Callable[[Policy], Measured]


def measure(problem: Problem, policy: Policy, *, slots: int, replications: int, seed: int) -> Measured:
    """Simulate `policy`; waits follow from Little's law, so jobs that still wait at the end count.

    A round ends a job with its service rate, so that no policy gives a job more than one GPU.
    """
    runs = simulate(problem, policy, slots=slots, replications=replications, seed=seed, arrivals=Poisson(),
                    record_allocation=True, record_jobs=False)  # fmt: skip
    assert runs.allocation is not None
    served = runs.allocation.sum(axis=(1, 2, 3), dtype=np.float64)
    waiting = (runs.queue.sum(axis=(1, 2)) - served) / slots
    return Measured(runs.reward.sum(axis=1) / served, waiting / problem.arrival_rate.sum())


def largest_within(value: Callable[[float], float], target: float, low: float, high: float, steps: int = 6) -> float:
    """Return the largest V in [low, high] with value(V) at most `target`, by bisection of log V; `low` if none is.

    `value` must grow with V. The result is accurate to the factor (high / low) ** (1 / 2 ** steps).
    """
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if value(middle) <= target else (low, middle)
    return low


def at_equal_wait(run: Measure, kind: Callable[[float], Policy], wait: float) -> tuple[float, Measured]:
    """Return V and the measurement of the policy `kind(V)` whose mean wait is `wait`."""
    V = largest_within(lambda V: float(run(kind(V)).wait.mean()), wait, NEVER_IDLE, 16.0)
    return V, run(kind(V))


def sabr(V: float) -> Sabr:
    """Return SABR that gives a job at most one server."""
    return Sabr(V=V)


def known(V: float) -> KnownRewards:
    """Return the same with known rewards."""
    return KnownRewards(V=V)


def compare(tables: dict[str, Problem], load: float, **settings: int) -> dict[str, dict[str, Interval]]:
    """Return rewards, gains over first come first served in per cent, and waits of all policies at one load.

    Intervals of gains are over replications, which all policies share.
    """

    def runner(name: str) -> Measure:
        problem = at_load(tables[name], load)
        return lambda policy: measure(problem, policy, **settings)

    run = runner("features")
    base = run(FirstCome())
    wait = float(base.wait.mean())
    found = {"first come": base, "first come, newest GPU": run(FirstCome(newest=True)), "random": run(Random())}
    found |= {f"greedy, {name}": runner(name)(Greedy()) for name in tables}
    for name in tables:
        V, measured = at_equal_wait(runner(name), sabr, wait)
        found[f"SABR, {name}, V = {V:.2g}"] = measured
    V, measured = at_equal_wait(run, known, wait)
    found[f"rewards known, V = {V:.2g}"] = measured
    return {name: row(measured, base) for name, measured in found.items()}


def row(measured: Measured, base: Measured) -> dict[str, Interval]:
    """Return the intervals that the table shows for a policy."""
    gain = 100.0 * (measured.reward / base.reward - 1.0)
    return {
        "speed": interval(measured.reward),
        "gain, %": interval(gain),
        "wait, rounds": interval(measured.wait),
        "longer by": interval(measured.wait - base.wait),
    }


def table(title: str, found: dict[str, dict[str, Interval]]) -> Table:
    """Return the table of policies and their measurements."""
    out = Table(title=title, caption="mean ± half the width of its 95 % interval")
    out.add_column("policy")
    for name in next(iter(found.values())):
        out.add_column(name, justify="right")
    for policy, values in found.items():
        out.add_row(policy, *(f"{x.mean:.3f} ± {x.high - x.mean:.3f}" for x in values.values()))
    return out


def main() -> None:
    """Run the comparison with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=FILE, help="simulation_throughputs.json of Gavel")
    parser.add_argument("--replications", type=int, default=10)
    parser.add_argument("--slots", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, nargs="*", default=LOADS)
    parser.add_argument("--digest", type=Path, help="only write the digest of FILE to this path")
    options = parser.parse_args()
    data = digest(options.file)
    if options.digest:
        write_digest(data, options.digest)
        return
    tables = problems(data)
    for load in options.load:
        found = compare(tables, load, slots=options.slots, replications=options.replications, seed=options.seed)
        title = f"load {load:g}: {options.replications} replications of {options.slots} rounds, from an empty system"
        show(table(title, found))


if __name__ == "__main__":
    main()
