"""Workloads from a problem, and their files."""

import json
from dataclasses import asdict
from os import PathLike
from typing import Any

import numpy as np

from bilinq.array_files import load_arrays, save_arrays
from bilinq.arrays import IntArray, count, one_of
from bilinq.errors import BadInput
from bilinq.problem import Problem
from bilinq.problem.instances import stack
from bilinq.routing.workload import Workload
from bilinq.routing.workload_rules import Outage
from bilinq.simulation.arrivals import Arrivals, Bernoulli, Poisson

BLOCK = 256  # slots of arrivals drawn at a time
LAWS: dict[str, Arrivals] = {"bernoulli": Bernoulli(), "poisson": Poisson()}
KIND = "workload"
PLAIN = ("servers", "job_classes", "max_attempts", "outages", "reward_range")
"""Fields that are not arrays; a file has them as JSON."""


def from_problem(problem: Problem, jobs: int, seed: int, arrivals: str) -> Workload:
    """Return jobs of the paper's world; `Workload.from_problem` explains."""
    number, mu = count("jobs", jobs), problem.service_rate
    if mu.ndim == 2:
        raise BadInput("service_rate must not depend on the server class, since units are drawn on arrival; got (I, J)")
    if not problem.arrival_rate.any():
        raise BadInput("arrival_rate must be positive for some class; got zeros")
    law = LAWS[one_of("arrivals", arrivals, tuple(LAWS))]
    arrival_rng, unit_rng, noise_rng = (
        np.random.default_rng(child) for child in np.random.SeedSequence((count("seed", seed, least=0), 0)).spawn(3)
    )
    slot, kind = _arrivals(problem, law, number, arrival_rng)
    noise = problem.noise[kind] * noise_rng.standard_normal((number, problem.server_classes))
    reward = problem.mean_reward[kind] + noise
    if problem.eligible is not None:
        reward[~problem.eligible[kind]] = np.nan
    some = problem.servers > 0.0
    servers = zip(problem.server_names, problem.servers.astype(int).tolist(), strict=True)
    return Workload(
        arrival=slot, reward=reward[:, some], duration=1.0, units=unit_rng.geometric(mu[kind]),
        servers={name: n for name, n in servers if n}, features=problem.job_features[kind], job_class=kind,
        job_classes=problem.job_names, server_features=problem.server_features[some],
    )  # fmt: skip


def _arrivals(problem: Problem, law: Arrivals, number: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Return slot and class (number,) of the first jobs."""
    slots, kinds, found = [], [], 0
    for k, block in enumerate(law.blocks(stack([problem]), BLOCK, [rng])):
        came = np.diff(block.start[0])
        slots.append(np.repeat(np.arange(BLOCK) + k * BLOCK + 1, came))
        kinds.append(block.job_class[0, : came.sum()])
        found += int(came.sum())
        if found >= number:
            break
    return np.concatenate(slots)[:number], np.concatenate(kinds)[:number]


def save(workload: Workload, path: str | PathLike[str]) -> None:
    """Write a workload to one `.npz` file."""
    arrays = workload.arguments()
    plain = {name: arrays.pop(name) for name in PLAIN}
    plain |= {"servers": dict(plain["servers"]), "outages": [asdict(one) for one in plain["outages"]]}
    if not any(workload.duration.strides[:1]):  # the same for all jobs
        arrays["duration"] = workload.duration[0]
    save_arrays(path, KIND, arrays | {"plain": np.array(json.dumps(plain))})


def load(path: str | PathLike[str]) -> Workload:
    """Return the workload of a file."""
    arrays: dict[str, Any] = dict(load_arrays(path, KIND))
    try:
        plain = json.loads(str(arrays.pop("plain")))
        plain["outages"] = [Outage(**one) for one in plain["outages"]]
        plain["reward_range"] = tuple(plain["reward_range"])
        return Workload(**arrays, **plain)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: is not a complete workload; {error}") from None
