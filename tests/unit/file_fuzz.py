"""Mutated files for the command line: problems, sweeps, requests for an allocation, and settings of the service.

    PYTHONPATH=tests python tests/unit/file_fuzz.py --files 20000 --seed 0

A file is accepted, or refused by a `BilinqError`, within a second of CPU time; there is never another exception.
A problem that is accepted is also simulated for a few slots. A short version runs with the tests.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from bilinq import Sabr, allocate
from bilinq.commands.allocate import _read as read_request
from bilinq.errors import BilinqError
from bilinq.experiments import sweep
from bilinq.live import settings
from bilinq.problem import files
from bilinq.simulation import simulate
from mutations import Literal, encode, mutate_bytes, mutate_value, to_json

MOST_BYTES = 1 << 20  # larger files are left out: Python reads some MB of TOML in a second


def use_problem(path: Path) -> None:
    """Load a problem, and simulate it if it is one."""
    problem = files.load(path)
    simulate(problem, Sabr(horizon=5), slots=5, replications=1, seed=1)


def use_request(path: Path) -> None:
    """Load a request and allocate."""
    allocate(**read_request(str(path)))


class Kind(NamedTuple):
    """A kind of file: a valid value, what reads it, and the suffixes that it may have."""

    value: dict[str, Any]
    use: Callable[[Path], Any]
    suffixes: tuple[str, ...]


KINDS = {
    "problem": Kind(
        {"arrival_rate": [0.3, 0.2], "servers": [1, 2], "mean_reward": [[0.2, 0.9], [0.5, 0.4]], "noise": 0.1,
         "service_rate": [[0.5, 0.9], [0.4, 0.2]], "holding_cost": [1.0, 2.0], "eligible": [[True, True], [True, False]],
         "job_names": ["a", "b"], "server_names": ["c", "d"], "unbounded": False},
        use_problem, (".json", ".toml"),
    ),
    "linear problem": Kind(
        {"arrival_rate": [0.3], "servers": [1, 1], "job_features": [[0.5, 0.5]], "noise": 0.1,
         "server_features": [[0.3, 0.1], [0.2, 0.9]], "theta": [[0.5, 0.1], [0.2, 0.3]], "service_rate": 0.9},
        use_problem, (".json", ".toml"),
    ),
    "sweep": Kind(
        {"name": "s", "slots": 50, "replications": 2, "seed": 1, "arrivals": "poisson",
         "problem": {"job_classes": 3, "server_classes": 2, "seed": 7, "traffic": 0.9, "noise": 0.1, "dimension": [2, 3]},
         "policy": [{"name": "p", "kind": "sabr", "V": 10.0, "gamma": 1.2, "scale": 0.5}, {"kind": "max-weight"}],
         "grid": {"problem.traffic": [0.5, 1.0], "slots": [10, 20], "policy.V": [1.0]}},
        sweep.load, (".toml",),
    ),
    "request": Kind(
        {"queue": [3, 1], "reward": [[0.2, 0.9], [0.5, 0.4]], "capacity": [1, 1], "V": 10.0, "gamma": 1.2,
         "weight": [1.0, 2.0], "limit": [None, 0.1], "eligible": [[True, False], [True, True]],
         "duration": [[0.5, 1.0], [1.0, 2.0]]},
        use_request, (".json",),
    ),
    "settings": Kind(
        {"database": "sqlite:///x.db", "port": 8000, "policy": "sabr", "slot": 0.05, "target_wait": 2.0, "seed": 3,
         "reward": {"low": 0.0, "high": 2.0}, "rate": 10.0, "retention": 60.0, "baseline_url": "http://a:1",
         "job_class": [{"name": "a", "features": [1.0, 0.2], "weight": 2.0, "backlog": 10}],
         "server_class": [{"name": "b", "features": [0.3, 1.0]}], "namespace": [{"name": "team", "rate": 1.0}]},
        lambda path: settings.load(path, environment={}), (".toml",),
    ),
}  # fmt: skip


def to_toml(rng: random.Random, value: Any) -> bytes:
    """Return TOML text; what it cannot express, such as null or a literal, stands there as in JSON."""
    marks: list[str] = []

    def marked(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: marked(each) for key, each in one.items()}
        if isinstance(one, list):
            return [marked(each) for each in one]
        if one is None or isinstance(one, Literal | str) or abs(one) > 2**62:
            marks.append(to_json(rng, one))
            return f"mark {len(marks) - 1} of many"
        return one

    table = marked(value)
    text = tomli_w.dumps(table) if isinstance(table, dict) else to_json(rng, value)
    return encode(re.sub('"mark ([0-9]+) of many"', lambda mark: marks[int(mark[1])], text))


def draw(rng: random.Random) -> tuple[str, str, bytes]:
    """Return the kind of a file, its suffix and its mutated content."""
    name = rng.choice(list(KINDS))
    kind = KINDS[name]
    value, suffix = mutate_value(rng, kind.value), rng.choice(kind.suffixes)
    data = encode(to_json(rng, value)) if suffix == ".json" else to_toml(rng, value)
    return name, suffix, mutate_bytes(rng, data) if rng.random() < 0.3 else data


def outcome(name: str, path: Path, limit: float) -> str:
    """Return how a file was taken: accepted or refused, or, after `wrong`, what must not happen."""
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            KINDS[name].use(path)
        result = "accepted"
    except BilinqError as error:
        named = str(path) in str(error) or name != "sweep"  # others are checked together with more than the file
        result = "refused" if named else f"wrong: no file in {error}"
    except Exception as error:
        result = f"wrong: {type(error).__name__}: {str(error)[:300]}"
    took = time.process_time() - began
    return f"wrong: {result} after {took:.2f} s" if took > limit else result


def run(number: int, seed: int, limit: float = 1.0) -> Counter[str]:
    """Read mutated files; return how many were accepted, refused, left out, or wrong."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in KINDS.items():  # the valid ones; also compiles kernels
            valid = Path(folder) / f"valid{kind.suffixes[0]}"
            valid.write_bytes(json.dumps(kind.value).encode() if ".json" in kind.suffixes else
                              tomli_w.dumps(kind.value).encode())  # fmt: skip
            assert outcome(name, valid, float("inf")) == "accepted", outcome(name, valid, float("inf"))
        for case in range(number):
            name, suffix, data = draw(random.Random(f"{seed} {case}"))
            if len(data) > MOST_BYTES:
                found["left out"] += 1
                continue
            path = Path(folder) / f"file{suffix}"
            path.write_bytes(data)
            result = outcome(name, path, limit)
            found[result.partition(":")[0]] += 1
            if result.startswith("wrong") and found["wrong"] <= 20:
                print(f"file {case} of seed {seed}, {name}{suffix}: {result}\n  {data[:1000]!r}", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    result = run(chosen.files, chosen.seed)
    print(dict(result))
    sys.exit(1 if result["wrong"] else 0)
