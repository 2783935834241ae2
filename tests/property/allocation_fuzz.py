"""Random programs over the whole family, each answer checked by NumPy alone; `python tests/property/allocation_fuzz.py`.

The short version runs with the tests; `make fuzz` runs a million programs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from bilinq import allocate
from bilinq.allocation import Allocation

CERTIFIED = 1e-7  # no answer may violate a condition by more, relatively, by the check of this file
TALL, TALLER = 8192, 9200  # rows from which programs are solved block by block
Program = dict[str, Any]


def draw(rng: np.random.Generator) -> Program:
    """Return the arguments of a small random program: sizes, ties, caps, masks, durations, clipped rewards, scales."""
    if rng.random() < 0.02:
        rows, columns = rng.integers(20, 80), rng.integers(10, 40)
    else:
        rows, columns = rng.integers(1, 13, 2)
    shape = (rows, columns)
    reward = rng.choice(
        [
            rng.choice([-1.0, 0.0, 0.5, 1.0], shape),
            np.round(rng.uniform(-1, 1, shape), 1),
            rng.uniform(-1, 1, shape),
            np.clip(rng.normal(0.8, 0.5, shape), -1, 1),
            np.clip(rng.normal(size=(rows, 2)) @ rng.normal(size=(2, columns)), -1, 1),
            np.repeat(rng.uniform(-1, 1, (1, columns)), rows, axis=0),
            np.repeat(rng.uniform(-1, 1, (rows, 1)), columns, axis=1),
        ]
    )
    if rng.random() < 0.3:
        reward = np.clip(reward + rng.normal(size=shape) * 10.0 ** rng.uniform(-16, -6), -1, 1)
    queue = rng.integers(0, 10.0 ** rng.uniform(0.5, 4), rows).astype(float)
    capacity = rng.integers(0 if rng.random() < 0.2 else 1, 30, columns).astype(float)
    if rng.random() < 0.2:
        queue = queue * 10.0 ** rng.uniform(-3, 3, rows)
        capacity = capacity * 10.0 ** rng.uniform(-3, 3, columns)
    program: Program = {
        "queue": queue, "reward": reward, "capacity": capacity,
        "V": 10.0 ** rng.uniform(-2, 4), "gamma": 1.0 + 10.0 ** rng.uniform(-3, 1),
    }  # fmt: skip
    if rng.random() < 0.4:
        program["limit"] = rng.choice([queue, np.ones(rows), np.round(queue * rng.uniform(0, 1, rows))])
    if rng.random() < 0.3:
        program["weight"] = rng.choice([10.0 ** rng.uniform(-2, 2, rows), rng.choice([0.5, 1.0, 2.0], rows)])
    if rng.random() < 0.4:
        program["eligible"] = rng.random(shape) < rng.uniform(0.2, 1.0)
        program["eligible"][rng.integers(rows), rng.integers(columns)] = True
    if rng.random() < 0.4:
        program["duration"] = rng.choice(
            [
                rng.choice([1.0, 2.0, 3.0], shape),
                10.0 ** rng.uniform(-1, 1, shape),
                10.0 ** rng.uniform(-1.5, 1.5, shape),
                np.repeat(rng.uniform(1, 9, (rows, 1)), columns, axis=1),
                rng.uniform(1, 9, (rows, 1)) * rng.uniform(1, 9, (1, columns)),
            ]
        )
    return program


def draw_tall(rng: np.random.Generator) -> Program:
    """Return a program with many rows: jobs of their own with ties, caps, masks; rewards in a table or by features."""
    rows, columns, d = int(rng.integers(TALL, TALLER)), int(rng.integers(2, 13)), int(rng.integers(1, 5))
    capacity = rng.integers(0 if rng.random() < 0.2 else 1, 30, columns).astype(float)
    capacity[rng.integers(columns)] += 1.0
    program: Program = {
        "queue": rng.choice([np.ones(rows), rng.integers(0, 5, rows).astype(float)]), "capacity": capacity,
        "V": rows / (capacity.sum() * 10.0 ** rng.uniform(-1, 1)), "gamma": 1.0 + 10.0 ** rng.uniform(-2, 0),
    }  # fmt: skip
    x, v = rng.normal(size=(rows, d)), rng.normal(size=(columns, d))
    if rng.random() < 0.3:
        x = np.round(x)  # ties
    if rng.random() < 0.5:
        program |= {"reward": None, "job_features": x, "server_features": v, "theta": np.eye(d)}
    else:
        program["reward"] = np.clip(x @ v.T, -1, 1)
    if rng.random() < 0.4:
        program["limit"] = program["queue"]
    if rng.random() < 0.3:
        program["weight"] = rng.choice([0.5, 1.0, 2.0], rows)
    if rng.random() < 0.3:
        program["eligible"] = rng.random((rows, columns)) < 0.7
        program["eligible"][0, 0] = True
    return program


def with_table(program: Program, answer: Allocation) -> tuple[Program, Allocation]:
    """Return a program and its answer with a table of rewards and of services where they had features."""
    if program["reward"] is not None:
        return program, answer
    plain = {name: value for name, value in program.items() if "features" not in name and name != "theta"}
    plain["reward"] = np.clip(program["job_features"] @ program["theta"] @ program["server_features"].T, -1, 1)
    return plain, answer._replace(expected=answer.expected.toarray())


def solved(program: Program, rng: np.random.Generator) -> Iterator[tuple[Program, Allocation]]:
    """Yield a program and its answer; for some also the next slot, from its prices, or the same as part of a batch."""
    answer = allocate(**program, strict=False)
    yield with_table(program, answer)
    how = rng.random()
    if how < 0.1:
        queue = program["queue"] * rng.choice([1.0, 1.0, 1.0, 2.0], len(program["queue"]))
        later = program | {"queue": queue}
        yield with_table(later, allocate(**later, start=answer, strict=False))
    elif how < 0.15 and program["reward"] is not None:
        other = program | {"queue": program["queue"][::-1].copy(), "V": 2.0 * program["V"]}
        both = program | {name: np.stack([program[name], other[name]]) for name in ("queue", "V")}
        found = allocate(**both, strict=False)
        for k, one in enumerate((program, other)):
            yield (
                one,
                Allocation(
                    found.expected[k], found.price[k], float(np.asarray(found.residual)[k]), 0, np.asarray(found.gap)[k]
                ),
            )


def violation(program: Program, answer: Allocation) -> float:
    """Return the largest relative violation of feasibility and of the optimality conditions."""
    y, q = answer.expected, answer.price
    n, rows = np.asarray(program["capacity"]), len(program["queue"])
    m = np.asarray(program.get("duration", np.ones(y.shape)))
    open_ = np.asarray(program.get("eligible", np.ones(y.shape, bool))) & (n > 0)
    u = np.broadcast_to(program.get("limit", np.inf), rows)
    a = program.get("weight", 1.0) * program["queue"] / program["V"]
    if (y[~open_] != 0).any() or (y < 0).any() or not np.isfinite(y).all() or not (q >= 0).all():
        return np.inf
    s, load = y.sum(axis=1), (m * y).sum(axis=0)
    with np.errstate(all="ignore"):
        worst = max(np.nanmax(load / n - 1, initial=0.0), np.nanmax(s / u - 1, initial=0.0))
        price = np.where(open_, program["gamma"] - program["reward"] + m * np.where(n > 0, q, 0.0), np.inf)
        least = price.min(axis=1)
        active = (a > 0) & (u > 0) & np.isfinite(least)
        if (s[~active] != 0).any():
            return np.inf
        worst = max(worst, np.max(np.where(y > 0, price / least[:, None] - 1, 0.0), initial=0.0))
        off = a[active] / s[active] / least[active] - 1
        capped = s[active] >= u[active] * (1 - 1e-9)
        worst = max(worst, np.max(np.where(capped, -off, np.abs(off)), initial=0.0))
        cheapest = np.where(open_ & active[:, None], (program["gamma"] - program["reward"]) / m, np.inf).min(
            axis=0, initial=np.inf
        )
        wasted = (1 - load / n) * q / (q + np.where(np.isfinite(cheapest), cheapest, 0.0))
        return float(max(worst, np.max(np.where((n > 0) & (q > 0), wasted, 0.0), initial=0.0)))


def run(programs: int, seed: int) -> Counter[str]:
    """Solve random programs; return how many were wrong, uncertified, or certified but above 1e-7 by this file's check."""
    rng, found = np.random.default_rng(seed), Counter[str]()
    began = time.monotonic()
    for number in range(programs):
        tall = rng.random() < 5e-4
        for program, answer in solved(draw_tall(rng) if tall else draw(rng), rng):
            worst = violation(program, answer)
            wrong = answer.status == "certified" and not worst <= CERTIFIED
            found["answers"] += 1
            found["wrong"] += wrong
            found["uncertified"] += answer.status != "certified"
            found["uncertified at 1e-7"] += not worst <= CERTIFIED
            if (wrong or answer.status != "certified") and found["shown"] < 10:
                found["shown"] += 1
                print(
                    f"program {number} of seed {seed}: {answer.status}, residual {answer.residual:.1e}, check {worst:.1e}"
                )
        if number and number % 100_000 == 0:
            print(f"{number} programs in {time.monotonic() - began:.0f} s: {dict(found)}", flush=True)
    found["programs"] = programs
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    result = run(chosen.programs, chosen.seed)
    print(dict(result))
    sys.exit(1 if result["wrong"] or result["uncertified at 1e-7"] else 0)
