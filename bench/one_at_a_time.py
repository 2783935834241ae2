"""Requests that come one at a time to idle models: what learning costs where no load forces a choice.

`python -m bench.one_at_a_time` prints, for the requests of the gateway's demo, how many percentage points the chosen model
is below the best one, by how many standard errors values are drawn at least.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from bilinq import JobClass, Scheduler, ServerClass
from bilinq.gateway.demo import SHARE, request
from bilinq.gateway.fakes import FLEET, FakeModel
from bilinq.gateway.features import KINDS, form, kind_of
from bilinq.gateway.request import parse
from bilinq.scheduler import look_ahead
from bilinq.simulation.records import interval

REQUESTS, FIRST, SEEDS, SEED = 400, 200, 20, 100
SCALES = (look_ahead.SCALE, 0.5, 1.0)
NOISE = {"small": 0.1, "large": 0.5}  # how far the judge's score is from the quality at most
FLEETS = {2: (FLEET[:2], 100.0), 3: (FLEET[:3], 200.0)}  # models, and what an answer that costs one is worth less


def lost(models: tuple[FakeModel, ...], money: float, noise: float, seed: int) -> tuple[float, float]:
    """Return the mean loss of the first requests and of the later ones, in percentage points."""
    rng, names = np.random.default_rng(seed), [model.name for model in models]
    scheduler = Scheduler(
        [JobClass(kind) for kind in KINDS], [ServerClass(name) for name in names], target_wait=1.0, seed=seed, keep=0
    )
    below = np.empty(REQUESTS)
    for k in range(REQUESTS):
        body = request(KINDS[int(rng.choice(len(SHARE), p=SHARE))], rng)
        one = parse("chat", "default", msgspec.json.encode(body), {})
        kind = kind_of(one)
        tokens = [model.price_in * one.prompt_tokens + model.price_out * model.tokens for model in models]
        worth = [model.mean_quality(kind) - 1e-6 * money * t for model, t in zip(models, tokens, strict=True)]
        job = scheduler.submit(kind, features=form(one))
        [task] = scheduler.assign({model.name: model.concurrency for model in models}, 1.0)
        mine = worth[names.index(task.server_class)]
        scheduler.report(job, float(np.clip(mine + noise * rng.uniform(-1.0, 1.0), -1.0, 1.0)), duration=0.02)
        below[k] = max(worth) - mine
    return 100.0 * float(below[:FIRST].mean()), 100.0 * float(below[FIRST:].mean())


def lines(seeds: int = SEEDS) -> Iterator[str]:
    """Yield the rows of the table: of the first requests / of the later ones, and the worst of the latter."""
    yield "| models, noise of the judge | " + " | ".join(f"{scale:g} or more" for scale in SCALES) + " |"
    yield "| --- |" + " ---: |" * len(SCALES)
    usual = look_ahead.SCALE
    for number, (models, money) in FLEETS.items():
        for name, noise in NOISE.items():
            cells = []
            for look_ahead.SCALE in SCALES:
                found = np.array([lost(models, money, noise, SEED + k) for k in range(seeds)])
                first, later = found[:, 0].mean(), interval(found[:, 1])
                cells.append(f"{first:.1f} / {later.mean:.1f} ± {later.high - later.mean:.1f}, {found[:, 1].max():.0f}")
            yield f"| {number}, {name} | {' | '.join(cells)} |"
    look_ahead.SCALE = usual


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
