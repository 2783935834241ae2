"""The bounds of the appendix, written again from the paper in plain Python, on random problems; no code is shared."""

import math

import numpy as np
import pytest

from bilinq import theory
from bilinq.problem import Problem


def explicit(
    n: int, rho: list[float], mu: float, w: list[float], gamma: float, V: float, T: int, d: int
) -> tuple[float, float, float]:
    """Return the three parts of the bound before it is simplified, from the last display of the proof."""
    delta, c = n - sum(rho), (gamma + 1) / (gamma - 1)
    backlog = (n + sum(rho)) / delta + max((gamma + 1) * V * n / min(w), 2 * c * n**3 / delta * max(w) / min(w)) + 1
    beta = d * math.sqrt(math.log(T * T)) + math.sqrt(n)
    potential = 2 * d**2 * math.log(n + T * n / d**2)  # the lemma on the sum of squared norms
    outside = 2 * n + 2 * n  # slots in which the confidence set fails: G1 and G2
    learning = 2 * beta * math.sqrt(n * T * potential) + outside
    service = n**2 * T / (2 * V) * (1 + c**2 * mu) * max(a / b for a, b in zip(w, rho, strict=True))
    return gamma / mu * backlog, learning, service + (T + 1) / (2 * V) * sum(w)


@pytest.mark.parametrize("seed", range(5))
def test_explicit_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, mu = int(rng.integers(2, 5)), float(rng.uniform(0.3, 1.0))
    problem = Problem.synthetic(job_classes=4, servers=6, dimension=d, traffic=1.0, service_rate=mu, seed=seed)
    gamma, V, T = float(rng.uniform(1.1, 2.0)), float(rng.uniform(1, 100)), int(rng.integers(10, 5000))
    w = rng.uniform(0.2, 3.0, 4).tolist()
    found = theory.explicit_regret_bound(problem, V, T, gamma, w)
    expected = explicit(6, [0.25] * 4, mu, w, gamma, V, T, d)
    assert (found.queue_part, found.learning_part, found.service_part) == pytest.approx(expected, rel=1e-12)
    simple = theory.regret_bound(problem, V, T, gamma, w)
    assert found.learning_part > simple.learning_term and found.total < 20 * simple.total


def test_learning_part_of_the_paper() -> None:
    """At T = 777 with the paper's set-up 7,583 where the simplified form has 446; without the lost factor 3,800."""
    found = theory.explicit_regret_bound(Problem.synthetic(seed=1), 58.0, 777)
    assert found.learning_part == pytest.approx(7583, abs=0.5)
    assert theory.regret_bound(Problem.synthetic(seed=1), 58.0, 777).learning_term == pytest.approx(446, abs=0.5)
