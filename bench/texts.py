"""What features of a prompt are worth for the choice of a model: `python -m bench.texts DATA` prints a table.

DATA has the folders "paretobandit" and "mmlu". A ridge regression learns from the answers of all models to some prompts. The
other prompts go to the model with the largest prediction less a price; prices give each model the same share. What is
counted is the reward above that of a choice without features, in percentage points.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bilinq import text_features
from bilinq.arrays import Array
from bilinq.simulation.records import interval
from bilinq.traces import RoutingTable, load_mmlu, load_paretobandit

SPLITS, TESTED, STEPS = 16, 4000, 4000
RIDGES = (1.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)  # the best on a quarter of the prompts that are learnt from
TABLES = {"ParetoBandit": (load_paretobandit, "paretobandit", (400, 1200)), "MMLU": (load_mmlu, "mmlu", (400, 3000))}


def sets(table: RoutingTable) -> dict[str, Array]:
    """Return features of the prompts by name."""
    assert table.text is not None
    seen, words = np.array([text_features(text) for text in table.text]), table.features(16)
    names, number = np.unique(table.job_class, return_inverse=True)
    return {
        "`text_features`": seen, "words and pairs, 16 directions": words, "both": np.hstack([seen, words]),
        "source or subject, which nobody tells": np.eye(names.size)[number],
    }  # fmt: skip


def standardised(features: Array) -> Array:
    """Return columns with mean 0 and variance 1, and a constant before them; a constant column becomes zero."""
    centred = features - features.mean(axis=0)
    spread = centred.std(axis=0)
    return np.hstack([np.ones((len(features), 1)), centred / np.where(spread > 1e-9, spread, np.inf)])


def fitted(X: Array, reward: Array, ridge: float) -> Array:
    """Return the coefficients of a ridge regression with a free constant."""
    penalty = np.full(X.shape[1], ridge)
    penalty[0] = 1e-3
    return np.asarray(np.linalg.solve(X.T @ X + np.diag(penalty), X.T @ reward))


def gain(X: Array, reward: Array, learnt: int, seed: int) -> float:
    """Return the reward of one split into prompts that are learnt from and others, above that without features."""
    order = np.random.default_rng((seed, learnt)).permutation(len(X))
    some, rest = order[:learnt], order[learnt : learnt + TESTED]
    first, last = some[: 3 * learnt // 4], some[3 * learnt // 4 :]
    missed = [((X[last] @ fitted(X[first], reward[first], ridge) - reward[last]) ** 2).mean() for ridge in RIDGES]
    predicted = X[rest] @ fitted(X[some], reward[some], RIDGES[int(np.argmin(missed))])
    price, J = np.zeros(reward.shape[1]), reward.shape[1]
    for k in range(STEPS):
        share = np.bincount((predicted - price).argmax(axis=1), minlength=J) / rest.size
        price += 0.02 * (share - 1.0 / J) / (1.0 + k / 200.0)
    chosen = (predicted - price).argmax(axis=1)
    share = np.bincount(chosen, minlength=J) / rest.size
    return 100.0 * float(reward[rest, chosen].mean() - reward[rest].mean(axis=0) @ share)


def lines(data: Path) -> Iterator[str]:
    """Yield the rows of the table."""
    yield "| table | features | " + " | ".join(f"{kind} prompts" for kind in ("400", "1,200 or 3,000")) + " |"
    yield "| --- | --- |" + " ---: |" * 2
    for name, (load, folder, learnt) in TABLES.items():
        table = load(data / folder)
        for kind, features in sets(table).items():
            X = standardised(features)
            found = [interval(np.array([gain(X, table.reward, n, k) for k in range(SPLITS)])) for n in learnt]
            cells = [f"{one.mean:.2f} ± {one.high - one.mean:.2f}" for one in found]
            yield f"| {name} | {kind} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for line in lines(Path(sys.argv[1])):
        print(line, flush=True)
